"""Which bucket a failure falls into, by the first rule that fits. Pure: values in, a verdict out.

Field names are those of the guarantee's file format, so that a file and the database are judged alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from .states import Mechanism, Verdict

USER_CODE = "user_code"
DRILL = "drill"
CUSTOMER_CAUSE = "customer_cause"
RUN_FINISHED = "run_finished"
LIVE_MIGRATION = "live_migration"

JobEnd = Literal["", "finished", "cancelled_by_customer", "cancelled_by_platform"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Resumed:
    """How the run went on. ``digests_equal``: every level of evidence that ``covered`` needs holds."""

    last_committed_step: int
    next_committed_step: int
    recomputed_committed_steps: int
    checkpoint_read: bool
    source: str
    mechanism: str
    digests_equal: bool
    recorded: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """One recorded failure. ``ended``: nothing more will be reported about how the run went on.
    ``job_ended``: what ended the whole run before the failure was settled; "" when nothing did."""

    id: str
    job: str
    root_cause: str
    cause_class: str | None
    occurred: datetime
    observed: datetime
    recorded: datetime
    clock_uncertainty_ms: int
    protected: bool
    predicted: bool
    drill: bool
    resumed: Resumed | None
    steady_at: datetime | None
    ended: bool
    job_ended: JobEnd = ""


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What of a contract's terms decides a classification."""

    mechanism: str
    predicted_failures_count: bool
    exclusion_categories: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True, slots=True)
class Classified:
    """``rule`` names the rule that fired; ``category`` is set for excluded ones."""

    verdict: Verdict
    rule: str
    why: str
    category: str = ""

    @property
    def groups(self) -> bool:
        """Whether it opens or joins a group: what stands apart hides nothing and is hidden by nothing."""
        return self.verdict in (Verdict.COVERED, Verdict.MISSED, Verdict.AWAITING)


def classified(failure: Failure, rules: Rules, excluded: Classified | None = None) -> Classified:
    """The verdict, by the first rule that fits: drill, user code, unsupported, run over, ``excluded`` by
    a valid decision, averted, awaiting, missed, covered."""

    def decided(failure: Failure, rules: Rules) -> Classified | None:
        return excluded

    for rule in (_set_apart, _run_over, decided, _averted, _awaiting):
        found = rule(failure, rules)
        if found is not None:
            return found
    losses = progress_lost(failure.resumed, rules)
    if losses:
        return Classified(verdict=Verdict.MISSED, rule="progress_lost", why="; ".join(losses))
    assert failure.resumed is not None
    last, following = failure.resumed.last_committed_step, failure.resumed.next_committed_step
    why = f"step {following} followed step {last}, nothing was computed again, the evidence agrees"
    rule_name = "predicted_counts" if failure.predicted else "nothing_lost"
    return Classified(verdict=Verdict.COVERED, rule=rule_name, why=why)


def progress_lost(resumed: Resumed | None, rules: Rules) -> list[str]:
    """Everything that keeps a failure from being covered, in words; empty when nothing does."""
    if resumed is None:
        return ["the run did not go on"]
    checks = [
        (
            resumed.next_committed_step == resumed.last_committed_step + 1,
            f"step {resumed.next_committed_step} followed step {resumed.last_committed_step}",
        ),
        (
            resumed.recomputed_committed_steps == 0,
            f"{resumed.recomputed_committed_steps} committed steps were computed again",
        ),
        (not resumed.checkpoint_read, "a checkpoint was read"),
        (resumed.digests_equal, "the evidence does not show that nothing was lost"),
        (
            rules.mechanism != Mechanism.LIVE_MIGRATION or resumed.mechanism == LIVE_MIGRATION,
            f"resolved by {resumed.mechanism}, and the terms ask for live migration",
        ),
    ]
    return [words for holds, words in checks if not holds]


def _set_apart(failure: Failure, rules: Rules) -> Classified | None:
    if failure.drill:
        why = "a drill, not a failure"
        return Classified(verdict=Verdict.EXCLUDED, rule=DRILL, why=why, category=DRILL)
    if failure.cause_class == USER_CODE:
        why = f"the program's own doing: {failure.root_cause}"
        return Classified(verdict=Verdict.EXCLUDED, rule=USER_CODE, why=why, category=USER_CODE)
    if not failure.protected:
        why = "the run was not protected when it happened"
        return Classified(verdict=Verdict.UNSUPPORTED, rule="not_protected", why=why)
    return None


def _run_over(failure: Failure, rules: Rules) -> Classified | None:
    """The run ended with the failure still open, so no next step can show what was lost.

    Only what the customer did itself is excluded by rule, and only where the terms name it: what we
    cancelled stays open for two persons to decide, and is missed after the grace.
    """
    if failure.job_ended == "finished":
        why = "the run had computed its last step: nothing was left to lose"
        return Classified(
            verdict=Verdict.EXCLUDED, rule=RUN_FINISHED, why=why, category=RUN_FINISHED
        )
    if failure.job_ended == "cancelled_by_customer":
        why = "the customer cancelled the run before it went on"
        if CUSTOMER_CAUSE in rules.exclusion_categories:
            return Classified(
                verdict=Verdict.EXCLUDED, rule="cancelled", why=why, category=CUSTOMER_CAUSE
            )
        why += "; the terms exclude no customer cause"
        return Classified(verdict=Verdict.AWAITING, rule="cancelled", why=why)
    if failure.job_ended == "cancelled_by_platform":
        why = "the run was cancelled before it went on, and not by the customer"
        return Classified(verdict=Verdict.AWAITING, rule="cancelled", why=why)
    return None


def _averted(failure: Failure, rules: Rules) -> Classified | None:
    if not failure.predicted or rules.predicted_failures_count:
        return None
    if progress_lost(failure.resumed, rules):
        return None
    why = "moved away before it failed, nothing lost; the terms do not count predicted failures"
    return Classified(verdict=Verdict.AVERTED, rule="predicted", why=why)


def _awaiting(failure: Failure, rules: Rules) -> Classified | None:
    if failure.cause_class is None:
        why = "what broke is not known yet"
        return Classified(verdict=Verdict.AWAITING, rule="cause_unknown", why=why)
    if failure.resumed is None and not failure.ended:
        why = "the run has not gone on yet"
        return Classified(verdict=Verdict.AWAITING, rule="outcome_unknown", why=why)
    return None
