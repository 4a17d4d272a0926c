"""Findings of the rule *sustained heat*, and what they do to a node: observe, act, or be held back."""

from __future__ import annotations

from django.db import transaction
from django.db.models import Q

from yoco_platform.core import clock
from yoco_platform.core.audit import audit
from yoco_platform.core.auth import Permission, Viewer, require
from yoco_platform.core.realtime import publish_on_commit

from .. import health, selectors
from ..breakers import Refusal, taking_refused
from ..errors import BreakerUnknown
from ..models import BreakerTrip, Finding, Node
from ..policies import HeatRule, Policy
from ..states import NodeState
from .step import node_step

ACTED_ON = frozenset({NodeState.READY, NodeState.PROBATION})
ACTOR = f"rule {health.RULE}"


@transaction.atomic
def findings_evaluate(*, node: Node) -> list[Finding]:
    """Open, update and clear the heat findings of ``node`` from its stored streaks, then act on them.

    Returns the findings that are open afterwards. Correct whenever it is called: the pass calls it
    for every node that has a streak or an open finding.
    """
    version, policy = selectors.policy_current()
    row = Node.objects.select_for_update().select_related("cluster").get(pk=node.pk)
    _open_or_update(row, policy.heat)
    _clear(row, policy.heat)
    found = list(row.findings.filter(check_name=health.RULE, cleared_at__isnull=True))
    to_act = [finding for finding in found if not finding.overruled_by]
    if to_act and row.state in ACTED_ON:
        _act(row, to_act, policy, version)
    node.state, node.state_since = row.state, row.state_since
    node.suspect_rule, node.held_state = row.suspect_rule, row.held_state
    return found


@transaction.atomic
def breaker_reset(*, viewer: Viewer, trip_id: int, reason: str) -> BreakerTrip:
    """Let the rule act again in that pool or rack. Raises Forbidden, BreakerUnknown."""
    require(viewer, Permission.NODE_OPERATE)
    trip = {trip.pk: trip for trip in selectors.breakers_open(viewer)}.get(trip_id)
    if trip is None:
        raise BreakerUnknown(f"no breaker {trip_id} is tripped")
    trip.reset_at, trip.reset_by = clock.now(), viewer.name
    trip.save(update_fields=["reset_at", "reset_by"])
    audit(viewer, "breaker_reset", f"breaker:{trip.pk}", {"reason": reason})
    publish_on_commit("fleet", "breaker_reset", {"breaker_id": trip.pk})
    return trip


def _open_or_update(node: Node, rule: HeatRule) -> None:
    for entity, streak in health.watch_read(node.watch).items():
        if rule.mode == "off" or not health.fired(streak, rule):
            continue
        finding, created = Finding.objects.get_or_create(
            node=node,
            dedupe_key=f"{health.RULE}:{entity}",
            cleared_at=None,
            defaults={
                "boot_id": node.boot_id,
                "component": "gpu",
                "entity": entity,
                "check_name": health.RULE,
                "severity": Finding.Severity.CRITICAL,
                "evidence": [health.heat_words(entity, streak, rule)],
                "action": Finding.Action.MIGRATE,
                "simulated": streak.simulated,
                "first_seen_at": clock.from_epoch(streak.since),
                "last_seen_at": clock.from_epoch(streak.last),
                "count": streak.over,
            },
        )
        if created:
            tell_finding(node, "finding_opened", finding)
        elif finding.count != streak.over:
            finding.count = streak.over
            finding.last_seen_at = max(finding.last_seen_at, clock.from_epoch(streak.last))
            finding.evidence = [finding.evidence[0], health.heat_words(entity, streak, rule)]
            finding.save(update_fields=["count", "last_seen_at", "evidence"])


def _clear(node: Node, rule: HeatRule) -> None:
    watch = health.watch_read(node.watch)
    cool = {
        r["entity"]: r["value"]
        for r in node.readings
        if r["check"] == rule.check and r["outcome"] == "ok" and r.get("value") is not None
    }
    for finding in node.findings.filter(check_name=health.RULE, cleared_at__isnull=True):
        if finding.entity in watch:
            continue
        at = cool.get(finding.entity)
        figure = "" if at is None else f", now at {at:g} °C"
        finding.cleared_at = clock.now()
        finding.evidence = [
            *finding.evidence,
            f"below {rule.clear_below:g} °C in {rule.clear_heartbeats} readings in a row{figure}",
        ]
        finding.save(update_fields=["cleared_at", "evidence"])
        tell_finding(node, "finding_cleared", finding)


def _act(node: Node, findings: list[Finding], policy: Policy, version: int) -> None:
    if policy.heat.mode != "act":
        _hold(findings, f"the rule only observes under policy version {version}")
        return
    tripped = BreakerTrip.objects.filter(
        cluster=node.cluster, rule=health.RULE, reset_at__isnull=True
    ).filter(_scope_of(node))
    standing = tripped.first()
    if standing is not None:
        _hold(
            findings,
            f"breaker {standing.scope} {standing.scope_name} is tripped: {standing.reason}",
        )
        return
    fleet = selectors.fleet_taken(node.cluster_id)
    refusal = taking_refused(node.pk, health.RULE, fleet, policy.breakers)
    if refusal is not None:
        _hold(findings, refusal.reason)
        if refusal.trips:
            _trip(node, refusal, version)
        return
    node_step(
        node=node,
        to=NodeState.SUSPECT,
        reason="; ".join(finding.evidence[-1] for finding in findings),
        actor=ACTOR,
        rule=health.RULE,
    )
    _hold(findings, "")


def _scope_of(node: Node) -> Q:
    return Q(scope="pool", scope_name=node.pool) | Q(scope="rack", scope_name=node.rack)


def _hold(findings: list[Finding], reason: str) -> None:
    for finding in findings:
        if finding.held_reason != reason:
            finding.held_reason = reason
            finding.save(update_fields=["held_reason"])


def _trip(node: Node, refusal: Refusal, version: int) -> None:
    trip = BreakerTrip.objects.create(
        cluster=node.cluster,
        rule=health.RULE,
        scope=refusal.scope,
        scope_name=refusal.name,
        node=node,
        reason=refusal.reason,
        policy_version=version,
        tripped_at=clock.now(),
    )
    publish_on_commit("fleet", "breaker_tripped", {"breaker_id": trip.pk, "reason": trip.reason})


def tell_finding(node: Node, kind: str, finding: Finding) -> None:
    """Publish news of a finding where it is shown."""
    news: dict[str, object] = {
        "node_id": node.pk,
        "node": node.name,
        "finding_id": finding.pk,
        "check": finding.check_name,
        "entity": finding.entity,
        "evidence": finding.evidence[-1],
        "simulated": finding.simulated,
    }
    publish_on_commit("fleet", kind, news)
    publish_on_commit(f"node:{node.pk}", kind, news)
