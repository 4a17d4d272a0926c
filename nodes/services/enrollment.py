"""How a machine joins: a one-time token is spent for a token bound to the node."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

from django.db import IntegrityError, transaction

from agent.protocol import EnrollReply, EnrollRequest
from yoco_platform.core import clock
from yoco_platform.core.audit import audit
from yoco_platform.core.auth import Permission, Viewer, hash_token, new_token, require
from yoco_platform.core.errors import Forbidden
from yoco_platform.core.models import Cluster

from .. import selectors
from ..errors import (
    InventoryRefused,
    LifetimeRefused,
    NodeHeard,
    NodeRetired,
    TokenExpired,
    TokenRefused,
    TokenUsed,
)
from ..liveness import Silence, listening_at, silence_judged, silence_of, suspect_after
from ..models import EnrollmentToken, Node
from ..states import NodeState
from .inventory import inventory_checked, inventory_columns, inventory_write
from .step import node_step

NODE_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,118}[A-Za-z0-9])?")
LIFETIME = timedelta(hours=1)
LIFETIME_MAX = timedelta(days=30)


@transaction.atomic
def enrollment_token_create(
    *, viewer: Viewer, cluster: Cluster, lifetime: timedelta = LIFETIME
) -> tuple[EnrollmentToken, str]:
    """A row and the plain token, which is shown this once. Raises Forbidden, LifetimeRefused."""
    require(viewer, Permission.NODE_ENROLL)
    if viewer.cluster_id not in (None, cluster.pk):
        raise Forbidden("This is not your cluster.")
    if not timedelta(seconds=1) <= lifetime <= LIFETIME_MAX:
        raise LifetimeRefused("a token lives from one second to thirty days")
    plain = new_token("enroll")
    row = EnrollmentToken.objects.create(
        cluster=cluster,
        token_hash=hash_token(plain),
        created_by=viewer.name,
        expires_at=clock.now() + lifetime,
    )
    audit(viewer, "enrollment_token_create", f"cluster:{cluster.slug}", {"token_id": row.pk})
    return row, plain


@transaction.atomic
def node_enroll(*, token: str, request: EnrollRequest) -> EnrollReply:
    """Spend ``token`` and bind a new one to the node; a known name keeps its row and loses its old token.

    Raises TokenRefused, TokenExpired, TokenUsed, InventoryRefused, NodeRetired, NodeHeard. Nothing is
    half done: a refused inventory or name leaves the token unspent.
    """
    if not NODE_NAME.fullmatch(request.node):
        raise InventoryRefused(
            "a node's name is 1 to 120 letters, digits, dots, dashes", field="node"
        )
    if not 1 <= len(request.boot_id) <= 64:
        raise InventoryRefused("boot_id has 1 to 64 characters", field="boot_id")
    inventory_checked(request.inventory)
    spent = _token_spent(token)
    plain = new_token("node")
    node = _node_bound(spent, request, plain)
    inventory_write(node, request.inventory)
    EnrollmentToken.objects.filter(pk=spent.pk).update(used_by=node)
    transaction.on_commit(selectors.forget_remembered, robust=True)
    return EnrollReply(
        node_id=str(node.pk),
        cluster=spent.cluster.slug,
        token=plain,
        heartbeat_s=selectors.heartbeat_s(),
    )


def node_for_token(token: str) -> Node:
    """The node a token belongs to (remembered; read-only). Raises TokenRefused."""
    return selectors.node_by_token(token)


def _token_spent(token: str) -> EnrollmentToken:
    """Mark the token used, once. The conditional update decides between two agents that race."""
    hashed, now = hash_token(token), clock.now()
    spent = EnrollmentToken.objects.filter(
        token_hash=hashed, used_at__isnull=True, expires_at__gt=now
    ).update(used_at=now)
    row = EnrollmentToken.objects.select_related("cluster").filter(token_hash=hashed).first()
    if row is None:
        raise TokenRefused("this enrollment token is not known; create one and try again")
    if spent:
        return row
    if row.used_at is not None:
        raise TokenUsed("this enrollment token was used already; create a new one")
    raise TokenExpired("this enrollment token has expired; create a new one")


def _node_bound(spent: EnrollmentToken, request: EnrollRequest, plain: str) -> Node:
    now = clock.now()
    fields: dict[str, object] = {
        **inventory_columns(request.inventory),
        "inventory_hash": "",
        "token_hash": hash_token(plain),
        "last_heard_at": now,
        "heartbeat_s": selectors.heartbeat_s(),
    }
    node = _node_locked(spent, request.node)
    if node is None:
        try:
            with transaction.atomic():
                return Node.objects.create(
                    cluster=spent.cluster,
                    name=request.node,
                    state_since=now,
                    boot_id=request.boot_id,
                    heartbeat_sequence=-1,
                    **fields,
                )
        except IntegrityError:
            # Another token enrolled the same name between our look and our insert.
            node = _node_locked(spent, request.node)
            if node is None:
                raise
    if node.state == NodeState.RETIRED:
        raise NodeRetired(f"{node.name} was retired; enrol the machine under another name")
    _silent_checked(node, now)
    if node.boot_id != request.boot_id:
        fields |= {
            "boot_id": request.boot_id,
            "previous_boot_id": node.boot_id,
            "heartbeat_sequence": -1,
            "event_sequence": 0,
        }
    Node.objects.filter(pk=node.pk).update(**fields)
    node.refresh_from_db()
    again = {NodeState.LOST: NodeState.JOINING, NodeState.READY: NodeState.TESTING}
    to = again.get(NodeState(node.state))
    if to is not None:
        node_step(node=node, to=to, reason="the agent enrolled again", actor="enrollment")
    return node


def _silent_checked(node: Node, now: datetime) -> None:
    """Raises NodeHeard: a token opens the door of a cluster, and must not take over a node that lives."""
    if node.state == NodeState.LOST:
        return
    listening = listening_at(selectors.listening(), now)
    silence = silence_of(node.last_heard_at, listening, now)
    if silence_judged(silence, node.heartbeat_s) is Silence.HEARD:
        after = suspect_after(node.heartbeat_s).total_seconds()
        raise NodeHeard(
            f"{node.name} is enrolled and its agent was heard {silence.total_seconds():.0f} s ago; stop "
            f"that agent and try again after {after:g} s of silence, or enrol under another name",
            node=node.name,
            silent_after_s=after,
        )


def _node_locked(spent: EnrollmentToken, name: str) -> Node | None:
    return Node.objects.select_for_update().filter(cluster=spent.cluster, name=name).first()
