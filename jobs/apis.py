"""REST of the training runs: doors only."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers, status
from rest_framework.request import Request
from rest_framework.response import Response

from nodes import selectors as node_reads
from nodes.outputs import NodeOutput
from yoco_platform.core.api import ApiView, TransitionOutput, idempotent
from yoco_platform.core.auth import Permission

from . import selectors, services
from .inputs import (
    DigestsInput,
    IncidentListInput,
    JobCreateInput,
    JobListInput,
    MigrationListInput,
    PointsInput,
    ReasonInput,
)
from .outputs import (
    IncidentDetailOutput,
    IncidentOutput,
    IncidentPageOutput,
    JobDetailOutput,
    JobOutput,
    JobPageOutput,
    MigrationOutput,
    ParkingOutput,
    PointOutput,
    StateDigestOutput,
    StateReleasedOutput,
    WorkerOutput,
)

_PAGE = [OpenApiParameter("before", int), OpenApiParameter("limit", int)]
IDEMPOTENCY = OpenApiParameter(
    "Idempotency-Key", str, OpenApiParameter.HEADER, description="the same key is done once"
)


def _page(rows: list[Any], limit: int, output: type[serializers.Serializer[Any]]) -> Response:
    """One page; ``next`` continues after its last row."""
    more = rows[limit - 1].pk if len(rows) == limit else None
    return Response({"results": output(rows, many=True).data, "next": more})


class JobListApi(ApiView):
    """Jobs, newest first; a POST submits one."""

    permissions = {"GET": Permission.JOB_READ, "POST": Permission.JOB_SUBMIT}

    @extend_schema(
        operation_id="job_list",
        parameters=[OpenApiParameter("state", str), *_PAGE],
        responses=JobPageOutput,
    )
    def get(self, request: Request) -> Response:
        asked = JobListInput(data=request.query_params.dict()).values
        return _page(selectors.jobs_list(self.viewer, **asked), asked["limit"], JobOutput)

    @extend_schema(
        operation_id="job_submit",
        parameters=[IDEMPOTENCY],
        request=JobCreateInput,
        responses={201: JobOutput},
    )
    @idempotent
    def post(self, request: Request) -> Response:
        asked = JobCreateInput(data=request.data).values
        customer, cluster = selectors.submission_scope(
            self.viewer, asked.pop("customer"), asked.pop("cluster")
        )
        job = services.job_submit(viewer=self.viewer, customer=customer, cluster=cluster, **asked)
        return Response(JobOutput(job).data, status=status.HTTP_201_CREATED)


class JobDetailApi(ApiView):
    """One job with its workers."""

    permission = Permission.JOB_READ

    @extend_schema(operation_id="job_get", responses=JobDetailOutput)
    def get(self, request: Request, job_id: int) -> Response:
        job = selectors.job_get(self.viewer, job_id)
        workers = WorkerOutput(selectors.workers_of(self.viewer, job_id), many=True).data
        parkings = ParkingOutput(selectors.parkings_of(self.viewer, job_id), many=True).data
        return Response({**JobOutput(job).data, "workers": workers, "parkings": parkings})


class JobCancelApi(ApiView):
    """End a job."""

    permission = Permission.JOB_OPERATE

    @extend_schema(
        operation_id="job_cancel",
        parameters=[IDEMPOTENCY],
        request=ReasonInput,
        responses=JobOutput,
    )
    @idempotent
    def post(self, request: Request, job_id: int) -> Response:
        asked = ReasonInput(data=request.data).values
        job = services.job_cancel(viewer=self.viewer, job_id=job_id, reason=asked["reason"])
        return Response(JobOutput(job).data)


class JobStateReleaseApi(ApiView):
    """Let go of the state that agents keep of a failed job. Only a person may."""

    permission = Permission.JOB_OPERATE
    needs_person = True

    @extend_schema(
        operation_id="job_state_release",
        parameters=[IDEMPOTENCY],
        request=ReasonInput,
        responses=StateReleasedOutput,
    )
    @idempotent
    def post(self, request: Request, job_id: int) -> Response:
        asked = ReasonInput(data=request.data).values
        ranks = services.job_state_release(
            viewer=self.viewer, job_id=job_id, reason=asked["reason"]
        )
        return Response(StateReleasedOutput({"ranks": ranks}).data)


class NodeRetireApi(ApiView):
    """Take a node out of the inventory for good: after its drain, when no job has anything on it. Only a
    person may."""

    permission = Permission.NODE_OPERATE
    needs_person = True

    @extend_schema(
        operation_id="node_retire",
        parameters=[IDEMPOTENCY],
        request=ReasonInput,
        responses=NodeOutput,
    )
    @idempotent
    def post(self, request: Request, node_id: int) -> Response:
        asked = ReasonInput(data=request.data).values
        node = node_reads.node_get(self.viewer, node_id)
        services.node_retire(viewer=self.viewer, node=node, reason=asked["reason"])
        return Response(NodeOutput(node_reads.node_get(self.viewer, node_id)).data)


class JobTransitionsApi(ApiView):
    """Every step of a job, oldest first."""

    permission = Permission.JOB_READ

    @extend_schema(operation_id="job_transitions", responses=TransitionOutput(many=True))
    def get(self, request: Request, job_id: int) -> Response:
        rows = selectors.job_transitions(self.viewer, job_id)
        return Response(TransitionOutput(rows, many=True).data)


class JobPointsApi(ApiView):
    """Loss and step time, in step order."""

    permission = Permission.JOB_READ

    @extend_schema(
        operation_id="job_points",
        parameters=[OpenApiParameter("after_step", int)],
        responses=PointOutput(many=True),
    )
    def get(self, request: Request, job_id: int) -> Response:
        asked = PointsInput(data=request.query_params.dict()).values
        rows = selectors.points_of(self.viewer, job_id, after_step=asked["after_step"])
        return Response(PointOutput(rows, many=True).data)


class JobDigestsApi(ApiView):
    """Digests of whole ranks at fences, for comparison with a twin."""

    permission = Permission.JOB_READ

    @extend_schema(
        operation_id="job_digests",
        parameters=[OpenApiParameter("step", int)],
        responses=StateDigestOutput(many=True),
    )
    def get(self, request: Request, job_id: int) -> Response:
        asked = DigestsInput(data=request.query_params.dict()).values
        rows = selectors.state_digests_of(self.viewer, job_id, step=asked.get("step"))
        return Response(StateDigestOutput(rows, many=True).data)


class IncidentListApi(ApiView):
    """Incidents, newest first."""

    permission = Permission.INCIDENT_READ

    @extend_schema(
        operation_id="incident_list",
        parameters=[OpenApiParameter("job_id", int), OpenApiParameter("state", str), *_PAGE],
        responses=IncidentPageOutput,
    )
    def get(self, request: Request) -> Response:
        asked = IncidentListInput(data=request.query_params.dict()).values
        rows = selectors.incidents_list(self.viewer, **asked)
        return _page(rows, asked["limit"], IncidentOutput)


class IncidentDetailApi(ApiView):
    """One incident with its history, its migrations by stage, and what proves its verdict."""

    permission = Permission.INCIDENT_READ

    @extend_schema(operation_id="incident_get", responses=IncidentDetailOutput)
    def get(self, request: Request, incident_id: int) -> Response:
        incident = selectors.incident_get(self.viewer, incident_id)
        transitions = selectors.incident_transitions(self.viewer, incident_id)
        migrations = selectors.migrations_of(self.viewer, incident_id=incident_id)
        return Response(
            {
                **IncidentOutput(incident).data,
                "evidence": incident.evidence,
                "transitions": TransitionOutput(transitions, many=True).data,
                "migrations": MigrationOutput(migrations, many=True).data,
            }
        )


class MigrationListApi(ApiView):
    """Migrations, newest first, of one job or one incident when named."""

    permission = Permission.JOB_READ

    @extend_schema(
        operation_id="migration_list",
        parameters=[
            OpenApiParameter("job_id", int),
            OpenApiParameter("incident_id", int),
            OpenApiParameter("limit", int),
        ],
        responses=MigrationOutput(many=True),
    )
    def get(self, request: Request) -> Response:
        asked = MigrationListInput(data=request.query_params.dict()).values
        rows = selectors.migrations_of(self.viewer, **asked)
        return Response(MigrationOutput(rows, many=True).data)


class MigrationDetailApi(ApiView):
    """One migration with its stages and moves."""

    permission = Permission.JOB_READ

    @extend_schema(operation_id="migration_get", responses=MigrationOutput)
    def get(self, request: Request, migration_id: int) -> Response:
        return Response(MigrationOutput(selectors.migration_get(self.viewer, migration_id)).data)
