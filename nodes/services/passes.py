"""The passes: correct by the clock, woken early by bells. One at a time, bounded."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

import msgspec
import structlog
from django.db.models import Exists, F, Min, OuterRef, Q

from agent.protocol import Reading
from yoco_platform.core import clock
from yoco_platform.core.locks import advisory_lock

from .. import health, selectors
from ..errors import StepRefused
from ..liveness import (
    MISSED_UNTIL_SUSPECT,
    Listening,
    Silence,
    listening_at,
    silence_judged,
    silence_of,
    suspect_after,
)
from ..models import Finding, ListeningSpan, Node
from ..policies import Policy
from ..states import HEARD, SILENCE, STEPS, NodeState
from .findings import findings_evaluate
from .step import node_step

log = structlog.get_logger(__name__)

NODES_PER_PASS = 2_000
ACTOR_LIVENESS = "liveness"
ACTOR_BRINGUP = "bring-up"


@dataclass(frozen=True)
class _World:
    """What every node of one pass is judged by."""

    now: datetime
    listening: Listening
    policy: Policy

    def silence(self, node: Node) -> Silence:
        return silence_judged(self.silent_for(node), node.heartbeat_s)

    def silent_for(self, node: Node) -> timedelta:
        return silence_of(node.last_heard_at, self.listening, self.now)


def find_lost() -> int:
    """Mark nodes that keep silent: suspect, then lost. Returns how many it moved.

    Silence counts only while the platform itself was listening, so nobody is lost by our restart.
    """
    with advisory_lock("nodes.find_lost") as mine:
        if not mine:
            return 0
        now = clock.now()
        world = _World(now=now, listening=_listened(now), policy=selectors.policy_current()[1])
        shortest = Node.objects.filter(state__in=HEARD).aggregate(s=Min("heartbeat_s"))["s"]
        if shortest is None:
            return 0
        quiet = Node.objects.filter(state__in=HEARD).filter(
            Q(last_heard_at__lte=now - suspect_after(shortest)) | Q(last_heard_at__isnull=True)
        )
        oldest_first = quiet.order_by(F("last_heard_at").asc(nulls_first=True), "pk")
        return _each(oldest_first[:NODES_PER_PASS], lambda node: _silence_marked(node, world))


def nodes_advance() -> int:
    """Weigh the findings, then lead nodes along: joining, testing, probation, ready. Returns moves."""
    with advisory_lock("nodes.advance") as mine:
        if not mine:
            return 0
        open_now = Finding.objects.filter(node=OuterRef("pk"), cleared_at__isnull=True)
        watched = Node.objects.filter(~Q(watch={}) | Exists(open_now))
        watched = watched.exclude(state=NodeState.RETIRED).order_by("state_since", "pk")
        moved = _each(watched[:NODES_PER_PASS], _evaluated)
        now = clock.now()
        world = _World(
            now=now,
            listening=selectors.listening() or Listening(began_at=now, last_at=now),
            policy=selectors.policy_current()[1],
        )
        on_the_way = Node.objects.filter(state__in=_LEADS).order_by("state_since", "pk")
        return moved + _each(on_the_way[:NODES_PER_PASS], lambda node: _led(node, world))


def _listened(now: datetime) -> Listening:
    after = listening_at(selectors.listening(), now)
    ListeningSpan.objects.update_or_create(
        pk=1, defaults={"began_at": after.began_at, "last_at": after.last_at}
    )
    return after


def _each(nodes: Iterable[Node], handle: Callable[[Node], bool]) -> int:
    """Handle every node; one that raises is reported and does not keep the others waiting."""
    moved = 0
    for node in nodes:
        try:
            moved += handle(node)
        except StepRefused:
            log.info("node_moved_meanwhile", node=node.name)
        except Exception:
            log.exception("node_pass_failed", node=node.name)
    return moved


def _silence_marked(node: Node, world: _World) -> bool:
    judged = world.silence(node)
    seconds = world.silent_for(node).total_seconds()
    state = NodeState(node.state)
    if judged is Silence.LOST:
        reason = f"silent for {seconds:.1f} s, heartbeats are due every {node.heartbeat_s:g} s"
        node_step(node=node, to=NodeState.LOST, reason=reason, actor=ACTOR_LIVENESS)
        return True
    can_be_suspect = state != NodeState.SUSPECT and NodeState.SUSPECT in STEPS[state]
    if judged is Silence.SUSPECT and can_be_suspect:
        reason = (
            f"silent for {seconds:.1f} s: {MISSED_UNTIL_SUSPECT} heartbeats of "
            f"{node.heartbeat_s:g} s missed; nothing is moved for that alone"
        )
        node_step(
            node=node, to=NodeState.SUSPECT, reason=reason, actor=ACTOR_LIVENESS, rule=SILENCE
        )
        return True
    return False


def _evaluated(node: Node) -> bool:
    before = node.state
    findings_evaluate(node=node)
    return node.state != before


def _led(node: Node, world: _World) -> bool:
    if world.silence(node) is not Silence.HEARD:
        return False
    led = _LEADS[NodeState(node.state)](node, world)
    if led is None:
        return False
    to, reason = led
    node_step(node=node, to=to, reason=reason, actor=ACTOR_BRINGUP)
    return True


def _open_checks(node: Node) -> set[str]:
    return {finding.check_name for finding in selectors.findings_acting([node.pk])}


Led = tuple[NodeState, str] | None


def _joining(node: Node, world: _World) -> Led:
    num_gpus = node.gpus.count()
    if not num_gpus or not node.inventory_hash or node.heartbeat_sequence < 0:
        return None
    return NodeState.TESTING, f"inventory complete: {num_gpus} GPUs, heartbeats heard"


def _testing(node: Node, world: _World) -> Led:
    heard_since = node.last_heard_at is not None and node.last_heard_at > node.state_since
    if not heard_since or not node.gpus.exists() or _open_checks(node):
        return None
    if health.fatal_readings(msgspec.convert(node.readings, list[Reading])):
        return None
    if node.held_state:
        return NodeState(node.held_state), "tests passed; a person keeps it out of work"
    if node.suspect_rule not in ("", SILENCE):
        return NodeState.PROBATION, (
            f"tests passed; {node.suspect_rule} had taken it, so it is watched for "
            f"{world.policy.probation_s:g} s"
        )
    return NodeState.READY, "tests passed"


def _suspect(node: Node, world: _World) -> Led:
    if node.suspect_rule == SILENCE:
        last = node.transitions.filter(to_state=NodeState.SUSPECT).last()
        if last is not None and last.from_state == NodeState.PROBATION:
            return NodeState.PROBATION, "heard again; probation begins anew"
        return NodeState.READY, "heard again"
    if not node.suspect_rule or node.suspect_rule in _open_checks(node):
        return None
    return NodeState.TESTING, f"{node.suspect_rule} has cleared"


def _probation(node: Node, world: _World) -> Led:
    if _open_checks(node):
        return None
    if world.now - node.state_since < timedelta(seconds=world.policy.probation_s):
        return None
    return NodeState.READY, f"nothing found in {world.policy.probation_s:g} s of probation"


def _lost(node: Node, world: _World) -> Led:
    return NodeState.TESTING, "heard again"


_LEADS: dict[NodeState, Callable[[Node, _World], Led]] = {
    NodeState.JOINING: _joining,
    NodeState.TESTING: _testing,
    NodeState.SUSPECT: _suspect,
    NodeState.PROBATION: _probation,
    NodeState.LOST: _lost,
}
