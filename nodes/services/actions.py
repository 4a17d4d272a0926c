"""What people and schedulers do to nodes. A person's release always wins."""

from __future__ import annotations

from django.db import transaction

from yoco_platform.core.audit import audit
from yoco_platform.core.auth import Permission, Viewer, hash_token, new_token, require

from .. import selectors
from ..errors import ReasonMissing, StepRefused
from ..models import Finding, Node
from ..states import RELEASABLE, NodeState
from .step import node_step


def node_drain(*, viewer: Viewer, node: Node, reason: str) -> Node:
    """Take no more work and move away what runs there. Raises Forbidden, ReasonMissing, StepRefused."""
    return _taken_out(viewer, node, NodeState.DRAINING, reason)


def node_cordon(*, viewer: Viewer, node: Node, reason: str) -> Node:
    """Take no more work, leave what runs. Raises Forbidden, ReasonMissing, StepRefused."""
    return _taken_out(viewer, node, NodeState.CORDONED, reason)


def node_quarantine(*, viewer: Viewer, node: Node, reason: str) -> Node:
    """Not to be trusted until repaired. Raises Forbidden, ReasonMissing, StepRefused."""
    return _taken_out(viewer, node, NodeState.QUARANTINED, reason)


@transaction.atomic
def node_release(*, viewer: Viewer, node: Node, reason: str) -> Node:
    """Back to work at once, whatever the rules say: open findings no longer act on it.

    Raises Forbidden, ReasonMissing, StepRefused.
    """
    row = _own(viewer, node, reason)
    if row.state not in RELEASABLE:
        raise StepRefused(f"{row.name} is {row.state}: there is nothing to release it from")
    before = row.state
    node_step(node=row, to=NodeState.READY, reason=reason, actor=viewer.name, released=True)
    Finding.objects.filter(node=row, cleared_at__isnull=True, overruled_by="").update(
        overruled_by=viewer.name
    )
    audit(viewer, "node_release", f"node:{row.pk}", {"reason": reason, "from_state": before})
    return row


@transaction.atomic
def node_emptied(*, node_id: int) -> bool:
    """Nothing runs on a draining node any more: it is cordoned. False when it was not draining."""
    node = Node.objects.get(pk=node_id)
    if node.state != NodeState.DRAINING:
        return False
    node_step(
        node=node,
        to=NodeState.CORDONED,
        reason="drained: nothing of any job is left on it",
        actor="drain",
        held=NodeState.CORDONED,
    )
    return True


@transaction.atomic
def node_retire(*, viewer: Viewer, node: Node, reason: str) -> Node:
    """Out of the inventory for good: its token opens nothing, its name stays taken, its history stays.

    Only the jobs app knows what runs on a node: call its ``node_retire``, which asks that first. Raises
    Forbidden, ReasonMissing, StepRefused (a node that takes work must be drained before).
    """
    row = _own(viewer, node, reason)
    before = row.state
    if not selectors.node_retirable(row):
        raise StepRefused(f"{row.name} is {row.state}: drain it first", node=row.name)
    node_step(node=row, to=NodeState.RETIRED, reason=reason, actor=viewer.name, released=True)
    row.token_hash = hash_token(new_token("nobody"))
    row.save(update_fields=["token_hash"])
    transaction.on_commit(selectors.forget_remembered, robust=True)
    audit(viewer, "node_retire", f"node:{row.pk}", {"reason": reason, "from_state": before})
    return row


@transaction.atomic
def _taken_out(viewer: Viewer, node: Node, to: NodeState, reason: str) -> Node:
    row = _own(viewer, node, reason)
    before = row.state
    node_step(node=row, to=to, reason=reason, actor=viewer.name, held=to)
    audit(viewer, f"node_{to}", f"node:{row.pk}", {"reason": reason, "from_state": before})
    return row


def _own(viewer: Viewer, node: Node, reason: str) -> Node:
    require(viewer, Permission.NODE_OPERATE)
    if not reason.strip():
        raise ReasonMissing("say why, in a few words", field="reason")
    return selectors.node_get(viewer, node.pk)
