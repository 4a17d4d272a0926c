"""REST of the machines: doors only."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import ClassVar, Protocol

from drf_spectacular.utils import OpenApiParameter, extend_schema, extend_schema_view
from rest_framework import serializers, status
from rest_framework.request import Request
from rest_framework.response import Response

from yoco_platform.core.api import ApiView, StrictSerializer, TransitionOutput, idempotent
from yoco_platform.core.auth import Permission, Viewer

from . import policies, selectors, services
from .models import Node
from .outputs import (
    BreakerOutput,
    EnrollmentTokenOutput,
    FindingOutput,
    NodeOutput,
    PolicyOutput,
)


class NodeListApi(ApiView):
    """Nodes of the fleet with their devices and open findings."""

    permission = Permission.FLEET_READ

    class Input(StrictSerializer):
        pool = serializers.CharField(required=False, default="")
        state = serializers.CharField(required=False, default="")

    @extend_schema(
        operation_id="node_list",
        parameters=[OpenApiParameter("pool", str), OpenApiParameter("state", str)],
        responses=NodeOutput(many=True),
    )
    def get(self, request: Request) -> Response:
        asked = self.Input(data=request.query_params.dict()).values
        nodes = selectors.nodes_list(self.viewer, **asked)
        return Response(NodeOutput(nodes, many=True).data)


class NodeDetailApi(ApiView):
    """One node."""

    permission = Permission.FLEET_READ

    @extend_schema(operation_id="node_get", responses=NodeOutput)
    def get(self, request: Request, node_id: int) -> Response:
        return Response(NodeOutput(selectors.node_get(self.viewer, node_id)).data)


class NodeTransitionsApi(ApiView):
    """The last hundred steps of a node, newest first."""

    permission = Permission.FLEET_READ

    @extend_schema(operation_id="node_transitions", responses=TransitionOutput(many=True))
    def get(self, request: Request, node_id: int) -> Response:
        rows = selectors.transitions(self.viewer, node_id)
        return Response(TransitionOutput(rows, many=True).data)


class NodeFindingsApi(ApiView):
    """The last hundred findings of a node, open and cleared, newest first."""

    permission = Permission.FLEET_READ

    @extend_schema(operation_id="node_findings", responses=FindingOutput(many=True))
    def get(self, request: Request, node_id: int) -> Response:
        rows = selectors.findings_of(self.viewer, node_id)
        return Response(FindingOutput(rows, many=True).data)


class NodeAction(Protocol):
    def __call__(self, *, viewer: Viewer, node: Node, reason: str) -> Node: ...


class ReasonInput(StrictSerializer):
    reason = serializers.CharField(max_length=500)


class NodeActionApi(ApiView):
    """Base of what a person or a scheduler does to a node; a reason in words is asked for."""

    permission = Permission.NODE_OPERATE
    service: ClassVar[Callable[[], NodeAction]]

    @idempotent
    def post(self, request: Request, node_id: int) -> Response:
        asked = ReasonInput(data=request.data).values
        node = selectors.node_get(self.viewer, node_id)
        act = type(self).service()
        act(viewer=self.viewer, node=node, reason=asked["reason"])
        return Response(NodeOutput(selectors.node_get(self.viewer, node_id)).data)


@extend_schema_view(
    post=extend_schema(operation_id="node_drain", request=ReasonInput, responses=NodeOutput)
)
class NodeDrainApi(NodeActionApi):
    """Take no more work and move away what runs there."""

    service = staticmethod(lambda: services.node_drain)


@extend_schema_view(
    post=extend_schema(operation_id="node_cordon", request=ReasonInput, responses=NodeOutput)
)
class NodeCordonApi(NodeActionApi):
    """Take no more work, leave what runs."""

    service = staticmethod(lambda: services.node_cordon)


@extend_schema_view(
    post=extend_schema(operation_id="node_quarantine", request=ReasonInput, responses=NodeOutput)
)
class NodeQuarantineApi(NodeActionApi):
    """Not to be trusted until repaired."""

    service = staticmethod(lambda: services.node_quarantine)


@extend_schema_view(
    post=extend_schema(operation_id="node_release", request=ReasonInput, responses=NodeOutput)
)
class NodeReleaseApi(NodeActionApi):
    """Back to work at once, whatever the rules say."""

    service = staticmethod(lambda: services.node_release)


class EnrollmentTokensApi(ApiView):
    """One-time tokens that let an agent enrol. The plain token is answered once."""

    permission = Permission.NODE_ENROLL

    class Input(StrictSerializer):
        cluster = serializers.SlugField(max_length=60)
        lifetime_s = serializers.IntegerField(min_value=1, max_value=30 * 86_400, default=3600)

    @extend_schema(operation_id="enrollment_token_list", responses=EnrollmentTokenOutput(many=True))
    def get(self, request: Request) -> Response:
        rows = selectors.enrollment_tokens(self.viewer)
        return Response(EnrollmentTokenOutput(rows, many=True).data)

    @extend_schema(
        operation_id="enrollment_token_create",
        request=Input,
        responses={201: EnrollmentTokenOutput},
    )
    def post(self, request: Request) -> Response:
        asked = self.Input(data=request.data).values
        row, plain = services.enrollment_token_create(
            viewer=self.viewer,
            cluster=selectors.cluster_for_enrollment(self.viewer, asked["cluster"]),
            lifetime=timedelta(seconds=asked["lifetime_s"]),
        )
        return Response(
            {**EnrollmentTokenOutput(row).data, "token": plain}, status=status.HTTP_201_CREATED
        )


class HealthPolicyApi(ApiView):
    """The health policy in force; a POST makes the next version."""

    permissions = {"GET": Permission.FLEET_READ, "POST": Permission.HEALTH_POLICY_WRITE}

    class Input(StrictSerializer):
        policy = serializers.DictField()
        note = serializers.CharField(max_length=500)

    @extend_schema(operation_id="health_policy_get", responses=PolicyOutput)
    def get(self, request: Request) -> Response:
        version, policy = selectors.policy_current()
        return Response({"version": version, "policy": policies.policy_data(policy)})

    @extend_schema(
        operation_id="health_policy_create", request=Input, responses={201: PolicyOutput}
    )
    @idempotent
    def post(self, request: Request) -> Response:
        asked = self.Input(data=request.data).values
        row = services.policy_create(
            viewer=self.viewer,
            data=asked["policy"],
            note=asked["note"],
        )
        return Response(
            {"version": row.version, "policy": row.data}, status=status.HTTP_201_CREATED
        )


class BreakerListApi(ApiView):
    """Breakers that are tripped now."""

    permission = Permission.FLEET_READ

    @extend_schema(operation_id="breaker_list", responses=BreakerOutput(many=True))
    def get(self, request: Request) -> Response:
        return Response(BreakerOutput(selectors.breakers_open(self.viewer), many=True).data)


class BreakerResetApi(ApiView):
    """Let a rule act again in a pool or rack."""

    permission = Permission.NODE_OPERATE

    @extend_schema(operation_id="breaker_reset", request=ReasonInput, responses=BreakerOutput)
    @idempotent
    def post(self, request: Request, breaker_id: int) -> Response:
        asked = ReasonInput(data=request.data).values
        trip = services.breaker_reset(
            viewer=self.viewer, trip_id=breaker_id, reason=asked["reason"]
        )
        return Response(BreakerOutput(trip).data)
