"""Findings of the rule *slow rank*. It only observes: nothing is moved for it."""

from __future__ import annotations

from collections.abc import Iterable

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
    for node_id, pace in paces:
        key = f"{RULE}:{job_id}:{node_id}:{pace.rank}"
        known = open_now.pop(key, None)
        if pace.is_ == "slow":
            _opened(job_id, node_id, key, pace, rule) if known is None else _grown(
                known, pace, rule
            )
        elif pace.is_ == "well" and known is not None:
            _cleared(known, f"score {pace.score:.2f}: as quick as its peers again")
    for finding in open_now.values():
        _cleared(finding, "not compared any more: its job goes on in another membership")


@transaction.atomic(savepoint=False)
def paces_forgotten(*, job_id: int, words: str) -> None:
    """The job has ended, or nobody looks any more: none of its ranks is slow."""
    for finding in _open(job_id):
        _cleared(finding, words)


def _open(job_id: int) -> Iterable[Finding]:
    return Finding.objects.select_related("node").filter(
        check_name=RULE, dedupe_key__startswith=f"{RULE}:{job_id}:", cleared_at__isnull=True
    )


def _opened(job_id: int, node_id: int, key: str, pace: Pace, rule: PaceRule) -> None:
    node, now = Node.objects.get(pk=node_id), clock.now()
    finding = Finding.objects.create(
        node=node,
        boot_id=node.boot_id,
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
    tell_finding(node, "finding_opened", finding)


def _grown(finding: Finding, pace: Pace, rule: PaceRule) -> None:
    finding.count += 1
    finding.last_seen_at = clock.now()
    finding.evidence = [finding.evidence[0], pace_words(pace, rule)]
    finding.save(update_fields=["count", "last_seen_at", "evidence"])


def _cleared(finding: Finding, words: str) -> None:
    finding.cleared_at = clock.now()
    finding.evidence = [*finding.evidence, words]
    finding.save(update_fields=["cleared_at", "evidence"])
    tell_finding(finding.node, "finding_cleared", finding)
