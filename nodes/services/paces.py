"""Findings of the rule *slow rank*. It only observes: nothing is moved for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from django.db import transaction

from yoco_platform.core import clock

from ..models import Finding, Node
from ..paces import RULE, Pace, pace_words
from ..policies import PaceRule
from .findings import tell_finding


@transaction.atomic(savepoint=False)
def paces_found(*, job_id: int, paces: Iterable[tuple[int, Pace]], rule: PaceRule) -> None:
    """``paces``: (node, pace) of each rank of the job that could be judged. What is open of ranks that are
    well again, sit elsewhere or were not judged any more is cleared."""
    open_now = {f.dedupe_key: f for f in _open(job_id)}
    opening: dict[str, tuple[int, Pace]] = {}
    growing: list[Finding] = []
    clearing: list[Finding] = []
    for node_id, pace in paces:
        key = f"{RULE}:{job_id}:{node_id}:{pace.rank}"
        known = open_now.pop(key, None)
        if pace.is_ == "slow" and known is None:
            opening[key] = (node_id, pace)
        elif pace.is_ == "slow" and known is not None:
            growing.append(_grown(known, pace, rule))
        elif pace.is_ == "well" and known is not None:
            clearing.append(_ended(known, f"score {pace.score:.2f}: as quick as its peers again"))
    words = "not compared any more: its job goes on in another membership"
    clearing += [_ended(finding, words) for finding in open_now.values()]
    _opened(job_id, opening, rule)
    Finding.objects.bulk_update(growing, ["count", "last_seen_at", "evidence"])
    _cleared(clearing)


@transaction.atomic(savepoint=False)
def paces_forgotten(*, job_id: int, words: str) -> None:
    """The job has ended, or nobody looks any more: none of its ranks is slow."""
    _cleared([_ended(finding, words) for finding in _open(job_id)])


def _open(job_id: int) -> Iterable[Finding]:
    return Finding.objects.select_related("node").filter(
        check_name=RULE, dedupe_key__startswith=f"{RULE}:{job_id}:", cleared_at__isnull=True
    )


def _opened(job_id: int, found: Mapping[str, tuple[int, Pace]], rule: PaceRule) -> None:
    """``found``: key -> (node, pace) of a rank that was not slow before."""
    if not found:
        return
    nodes, now = Node.objects.in_bulk({node_id for node_id, _ in found.values()}), clock.now()
    findings = [
        Finding(
            node=nodes[node_id],
            boot_id=nodes[node_id].boot_id,
            component="rank",
            entity=f"job {job_id}, rank {pace.rank}",
            check_name=RULE,
            severity=Finding.Severity.WARNING,
            evidence=[pace_words(pace, rule)],
            action=Finding.Action.OBSERVE,
            dedupe_key=key,
            first_seen_at=now,
            last_seen_at=now,
            held_reason="the rule only observes",
        )
        for key, (node_id, pace) in found.items()
    ]
    for finding in Finding.objects.bulk_create(findings):
        tell_finding(finding.node, "finding_opened", finding)


def _grown(finding: Finding, pace: Pace, rule: PaceRule) -> Finding:
    finding.count += 1
    finding.last_seen_at = clock.now()
    finding.evidence = [finding.evidence[0], pace_words(pace, rule)]
    return finding


def _ended(finding: Finding, words: str) -> Finding:
    finding.cleared_at = clock.now()
    finding.evidence = [*finding.evidence, words]
    return finding


def _cleared(findings: list[Finding]) -> None:
    Finding.objects.bulk_update(findings, ["cleared_at", "evidence"])
    for finding in findings:
        tell_finding(finding.node, "finding_cleared", finding)
