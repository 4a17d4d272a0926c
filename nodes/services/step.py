"""The one function that moves a node from state to state."""

from __future__ import annotations

from django.db import transaction

from yoco_platform.core import clock
from yoco_platform.core.realtime import publish_on_commit

from ..errors import StepRefused
from ..models import Node, NodeTransition
from ..signals import node_stepped
from ..states import STEPS, NodeState


@transaction.atomic
def node_step(
    *,
    node: Node,
    to: NodeState,
    reason: str,
    actor: str,
    rule: str = "",
    held: NodeState | None = None,
    released: bool = False,
) -> NodeTransition:
    """Take ``node`` from the state the caller believes it is in to ``to``; brings ``node`` up to date.

    ``rule`` names what made it suspect. ``held`` is where a person wants it kept; ``released`` lets go
    of that. Raises StepRefused when the state does not lead there or somebody else was quicker.
    """
    believed = NodeState(node.state)
    if to not in STEPS[believed]:
        raise StepRefused(
            f"{node.name} is {believed}, and that does not lead to {to}", node=node.name
        )
    now = clock.now()
    # A node keeps the rule that took it until it is ready again: breakers count it until then.
    suspect_rule = {NodeState.SUSPECT: rule, NodeState.READY: ""}.get(to, node.suspect_rule)
    held_state = "" if released else (node.held_state if held is None else held)
    moved = Node.objects.filter(pk=node.pk, state=believed).update(
        state=to, state_since=now, suspect_rule=suspect_rule, held_state=held_state
    )
    if not moved:
        raise StepRefused(
            f"{node.name} is no longer {believed}: somebody else moved it first", node=node.name
        )
    node.state, node.state_since = to, now
    node.suspect_rule, node.held_state = suspect_rule, held_state
    row = NodeTransition.objects.create(
        node_id=node.pk, from_state=believed, to_state=to, reason=reason, actor=actor, at=now
    )
    _tell(node, believed, to, reason)
    return row


def _tell(node: Node, before: NodeState, to: NodeState, reason: str) -> None:
    news: dict[str, object] = {
        "node_id": node.pk,
        "node": node.name,
        "from_state": str(before),
        "to_state": str(to),
        "reason": reason,
    }
    publish_on_commit("fleet", "node_step", news)
    publish_on_commit(f"node:{node.pk}", "node_step", news)
    node_id, to_state = node.pk, str(to)

    def send() -> None:
        node_stepped.send_robust(sender=Node, node_id=node_id, to_state=to_state)

    transaction.on_commit(send, robust=True)
