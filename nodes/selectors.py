"""Reads of the machines. What crosses a trust line takes the viewer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

import msgspec
from django.conf import settings
from django.db.models import Prefetch, QuerySet

from agent.protocol import Endpoint
from yoco_platform.core.auth import Permission, Viewer, hash_token, require
from yoco_platform.core.models import Cluster

from . import policies
from .breakers import Taken
from .errors import ClusterUnknown, NodeUnknown, TokenRefused
from .liveness import Listening
from .models import (
    BreakerTrip,
    EnrollmentToken,
    Finding,
    Gpu,
    HealthPolicy,
    ListeningSpan,
    Node,
    NodeTransition,
)
from .policies import Policy
from .recall import Recall
from .states import MAY_TAKE_WORK, SILENCE, STEPS, NodeState

TOKEN_MEMORY_S = 5.0
"""A token revoked by another process opens reads of this process for at most this long; a heartbeat
proves its token in its own statement."""

_tokens: Recall[str, Node] = Recall(entries=20_000, seconds=TOKEN_MEMORY_S)
_policies: Recall[str, tuple[int, Policy]] = Recall(entries=1, seconds=5.0)
_cadences: Recall[str, float] = Recall(entries=1, seconds=30.0)


@dataclass(frozen=True)
class GpuView:
    index: int
    uuid: str
    model: str
    memory_bytes: int
    simulated: bool


@dataclass(frozen=True)
class NodeView:
    """A node as the placement and the planner see it.

    ``suspect``: a finding says that it may fail, so ranks should leave it. ``silent``: it has missed
    heartbeats, which moves nothing by itself. ``takes_work``: a rank or standby may be put on it.
    """

    id: int
    name: str
    hostname: str
    pool: str
    rack: str
    failure_domain: str
    state: str
    gpus: tuple[GpuView, ...]
    endpoint: Endpoint
    boot_id: str
    is_spare: bool
    suspect: bool
    silent: bool
    lost: bool
    takes_work: bool
    last_heard_at: datetime | None


def forget_remembered() -> None:
    """Drop every answer remembered in this process: a token or the policy has changed."""
    for recall in (_tokens, _policies, _cadences):
        recall.forget()


def node_by_token(token: str) -> Node:
    """The node a token belongs to, remembered for ``TOKEN_MEMORY_S``. Treat it as read-only.

    Raises TokenRefused.
    """
    hashed = hash_token(token)

    def load() -> Node:
        node = (
            Node.objects.select_related("cluster")
            .filter(token_hash=hashed)
            .exclude(state=NodeState.RETIRED)
            .first()
        )
        if node is None:
            raise TokenRefused("this token belongs to no node; enrol the agent again")
        return node

    return _tokens.get(hashed, load)


def policy_current() -> tuple[int, Policy]:
    """Version and policy in force; version 0 is the one built in."""

    def load() -> tuple[int, Policy]:
        row = HealthPolicy.objects.order_by("-version").first()
        return (
            (0, policies.BUILT_IN) if row is None else (row.version, policies.policy_read(row.data))
        )

    return _policies.get("current", load)


def heartbeat_s() -> float:
    """How often agents should speak now, in seconds: slower in large fleets."""

    def load() -> float:
        num_nodes = Node.objects.exclude(state=NodeState.RETIRED).count()
        return policies.heartbeat_s(policy_current()[1], num_nodes, settings.HEARTBEAT_S)

    return _cadences.get("fleet", load)


def listening() -> Listening | None:
    """Since when the platform has been listening; None before its first pass."""
    row = ListeningSpan.objects.first()
    return None if row is None else Listening(began_at=row.began_at, last_at=row.last_at)


def _visible(viewer: Viewer) -> QuerySet[Node]:
    require(viewer, Permission.FLEET_READ)
    nodes = Node.objects.select_related("cluster")
    return nodes if viewer.cluster_id is None else nodes.filter(cluster_id=viewer.cluster_id)


def nodes_list(
    viewer: Viewer,
    *,
    cluster_id: int | None = None,
    pool: str = "",
    state: str = "",
    with_retired: bool = False,
) -> QuerySet[Node]:
    """Nodes the viewer may see, with their GPUs and open findings, by name."""
    nodes = _visible(viewer)
    if cluster_id is not None:
        nodes = nodes.filter(cluster_id=cluster_id)
    if pool:
        nodes = nodes.filter(pool=pool)
    if state:
        nodes = nodes.filter(state=state)
    elif not with_retired:
        nodes = nodes.exclude(state=NodeState.RETIRED)
    open_now = Prefetch(
        "findings", Finding.objects.filter(cleared_at__isnull=True), to_attr="findings_open"
    )
    return nodes.prefetch_related("gpus", open_now).order_by("cluster_id", "name")


def node_get(viewer: Viewer, node_id: int) -> Node:
    """One node, or NodeUnknown: not found and not yours are the same answer."""
    node = nodes_list(viewer, with_retired=True).filter(pk=node_id).first()
    if node is None:
        raise NodeUnknown(f"there is no node {node_id}")
    return node


def node_retirable(node: Node) -> bool:
    """Whether the state of a node lets it go for good: out of service, and cordoned only by its drain."""
    if NodeState.RETIRED not in STEPS[NodeState(node.state)]:
        return False
    if node.state != NodeState.CORDONED:
        return True
    last = node.transitions.order_by("-at", "-id").first()
    return last is not None and last.from_state == NodeState.DRAINING


def transitions(viewer: Viewer, node_id: int, limit: int = 100) -> list[NodeTransition]:
    """The last steps of a node, newest first."""
    node = node_get(viewer, node_id)
    return list(node.transitions.order_by("-at", "-id")[:limit])


def open_findings(viewer: Viewer, *, node_id: int | None = None) -> list[Finding]:
    """Findings whose cause is still there, newest first."""
    findings = Finding.objects.filter(cleared_at__isnull=True, node__in=_visible(viewer))
    if node_id is not None:
        findings = findings.filter(node_id=node_id)
    return list(findings.select_related("node"))


def findings_acting(node_ids: Iterable[int]) -> list[Finding]:
    """Findings that act on these nodes, newest first: open, not overruled by a person, and of a rule that
    does more than observe or tell."""
    return list(
        Finding.objects.filter(
            node__in=list(node_ids), cleared_at__isnull=True, overruled_by=""
        ).exclude(action__in=[Finding.Action.OBSERVE, Finding.Action.TELL_USER])
    )


def findings_of(viewer: Viewer, node_id: int, limit: int = 100) -> list[Finding]:
    """Open and cleared findings of one node, newest first."""
    return list(node_get(viewer, node_id).findings.all()[:limit])


def enrollment_tokens(viewer: Viewer) -> list[EnrollmentToken]:
    """Enrollment tokens, newest first. Their plain text exists nowhere."""
    require(viewer, Permission.NODE_ENROLL)
    tokens = EnrollmentToken.objects.select_related("cluster", "used_by").order_by("-id")
    if viewer.cluster_id is not None:
        tokens = tokens.filter(cluster_id=viewer.cluster_id)
    return list(tokens[:500])


def cluster_for_enrollment(viewer: Viewer, slug: str) -> Cluster:
    """The cluster a token is wanted for. Raises ClusterUnknown: not there, or not yours."""
    require(viewer, Permission.NODE_ENROLL)
    cluster = Cluster.objects.filter(slug=slug).first()
    if cluster is None or viewer.cluster_id not in (None, cluster.pk):
        raise ClusterUnknown(f"there is no cluster {slug}")
    return cluster


def breakers_open(viewer: Viewer) -> list[BreakerTrip]:
    """Breakers that are tripped now."""
    require(viewer, Permission.FLEET_READ)
    trips = BreakerTrip.objects.filter(reset_at__isnull=True).select_related("cluster", "node")
    if viewer.cluster_id is not None:
        trips = trips.filter(cluster_id=viewer.cluster_id)
    return list(trips)


def nodes_for_work(cluster_id: int, pool: str = "") -> list[NodeView]:
    """Every node of a cluster that is not retired, by name; of one pool when given."""
    nodes = Node.objects.filter(cluster_id=cluster_id).exclude(state=NodeState.RETIRED)
    if pool:
        nodes = nodes.filter(pool=pool)
    return [node_view(node) for node in nodes.prefetch_related("gpus").order_by("name")]


def nodes_by_id(node_ids: Iterable[int]) -> dict[int, NodeView]:
    """Nodes by id, retired ones included."""
    nodes = Node.objects.filter(pk__in=list(node_ids)).prefetch_related("gpus")
    return {node.pk: node_view(node) for node in nodes}


def node_view(node: Node) -> NodeView:
    """The frozen view of one row."""
    silent = node.state == NodeState.SUSPECT and node.suspect_rule == SILENCE
    return NodeView(
        id=node.pk,
        name=node.name,
        hostname=node.hostname,
        pool=node.pool,
        rack=node.rack,
        failure_domain=node.failure_domain,
        state=node.state,
        gpus=tuple(gpu_view(gpu) for gpu in node.gpus.all()),
        endpoint=msgspec.convert(node.endpoint, Endpoint),
        boot_id=node.boot_id,
        is_spare=node.is_spare,
        suspect=node.state == NodeState.SUSPECT and not silent,
        silent=silent or node.state == NodeState.LOST,
        lost=node.state == NodeState.LOST,
        takes_work=node.state in MAY_TAKE_WORK,
        last_heard_at=node.last_heard_at,
    )


def gpu_view(gpu: Gpu) -> GpuView:
    return GpuView(
        index=gpu.index,
        uuid=gpu.uuid,
        model=gpu.model,
        memory_bytes=gpu.memory_bytes,
        simulated=gpu.simulated,
    )


def fleet_taken(cluster_id: int) -> list[Taken]:
    """The nodes of a cluster as a breaker sees them. A rule holds what it has taken and not let go."""
    open_rules = set(
        Finding.objects.filter(node__cluster_id=cluster_id, cleared_at__isnull=True).values_list(
            "node_id", "check_name"
        )
    )
    nodes = Node.objects.filter(cluster_id=cluster_id).values_list(
        "pk", "pool", "rack", "state", "suspect_rule"
    )
    return [
        Taken(
            node_id=pk,
            pool=pool,
            rack=rack,
            state=state,
            by_rule=rule if state == NodeState.SUSPECT or (pk, rule) in open_rules else "",
        )
        for pk, pool, rack, state, rule in nodes
    ]
