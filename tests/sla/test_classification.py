from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from sla.classification import Failure, Resumed, Rules, classified

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
RULES = Rules(mechanism="live_migration", predicted_failures_count=False)
COUNTING = Rules(mechanism="live_migration", predicted_failures_count=True)
OUTCOME_ONLY = Rules(mechanism="outcome_only", predicted_failures_count=False)


def resumed(**fields: Any) -> Resumed:
    values: dict[str, Any] = {
        "last_committed_step": 10,
        "next_committed_step": 11,
        "recomputed_committed_steps": 0,
        "checkpoint_read": False,
        "source": "custody",
        "mechanism": "live_migration",
        "digests_equal": True,
        "recorded": NOON,
        **fields,
    }
    return Resumed(**values)


def failure(**fields: Any) -> Failure:
    values: dict[str, Any] = {
        "id": "INC-1",
        "job": "1:llm",
        "root_cause": "signal_from_outside: node-b",
        "cause_class": "device",
        "occurred": NOON,
        "observed": NOON,
        "recorded": NOON,
        "clock_uncertainty_ms": 0,
        "protected": True,
        "predicted": False,
        "drill": False,
        "resumed": resumed(),
        "steady_at": NOON,
        "ended": False,
        **fields,
    }
    return Failure(**values)


def test_a_failure_that_lost_nothing_is_covered() -> None:
    verdict = classified(failure(), RULES)
    assert (verdict.verdict, verdict.rule) == ("covered", "nothing_lost")
    assert (
        verdict.why == "step 11 followed step 10, nothing was computed again, the evidence agrees"
    )


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"next_committed_step": 12}, "step 12 followed step 10"),
        ({"next_committed_step": 10}, "step 10 followed step 10"),
        ({"recomputed_committed_steps": 1}, "1 committed steps were computed again"),
        ({"checkpoint_read": True}, "a checkpoint was read"),
        ({"digests_equal": False}, "the evidence does not show that nothing was lost"),
        (
            {"mechanism": "path_failover"},
            "resolved by path_failover, and the terms ask for live migration",
        ),
    ],
)
def test_each_loss_alone_makes_it_missed(fields: dict[str, Any], why: str) -> None:
    verdict = classified(failure(resumed=resumed(**fields)), RULES)
    assert (verdict.verdict, verdict.rule, verdict.why) == ("missed", "progress_lost", why)


def test_where_the_outcome_alone_counts_any_mechanism_does() -> None:
    again = failure(resumed=resumed(mechanism="restart_in_place"))
    assert classified(again, OUTCOME_ONLY).verdict == "covered"


def test_a_run_that_did_not_go_on_awaits_its_outcome_and_is_missed_once_ended() -> None:
    assert classified(failure(resumed=None), RULES).verdict == "awaiting"
    ended = classified(failure(resumed=None, ended=True), RULES)
    assert (ended.verdict, ended.why) == ("missed", "the run did not go on")


def test_an_unknown_cause_awaits_a_decision() -> None:
    verdict = classified(failure(cause_class=None), RULES)
    assert (verdict.verdict, verdict.rule) == ("awaiting", "cause_unknown")


def test_user_code_is_excluded_whatever_became_of_it() -> None:
    verdict = classified(failure(cause_class="user_code", resumed=None, ended=True), RULES)
    assert (verdict.verdict, verdict.category) == ("excluded", "user_code")


def test_an_unprotected_run_is_unsupported() -> None:
    assert classified(failure(protected=False), RULES).verdict == "unsupported"


def test_a_drill_is_excluded_first_of_all() -> None:
    verdict = classified(failure(drill=True, cause_class="user_code", protected=False), RULES)
    assert (verdict.verdict, verdict.category) == ("excluded", "drill")


def test_user_code_is_named_before_missing_protection() -> None:
    assert (
        classified(failure(cause_class="user_code", protected=False), RULES).verdict == "excluded"
    )


def test_a_predicted_failure_is_averted_or_counted_as_the_terms_say() -> None:
    predicted = failure(predicted=True)
    assert classified(predicted, RULES).verdict == "averted"
    counted = classified(predicted, COUNTING)
    assert (counted.verdict, counted.rule) == ("covered", "predicted_counts")


def test_a_predicted_failure_that_lost_progress_is_an_ordinary_one() -> None:
    lost = failure(predicted=True, resumed=resumed(recomputed_committed_steps=2))
    assert classified(lost, RULES).verdict == "missed"
    unknown = failure(predicted=True, resumed=None)
    assert classified(unknown, RULES).verdict == "awaiting"


# --- The run ended first ------------------------------------------------------------------------------

NAMING = Rules(
    mechanism="live_migration",
    predicted_failures_count=False,
    exclusion_categories=frozenset({"customer_cause"}),
)


def test_a_run_that_had_computed_its_last_step_lost_nothing() -> None:
    verdict = classified(failure(resumed=None, job_ended="finished"), RULES)
    assert (verdict.verdict, verdict.category) == ("excluded", "run_finished")
    assert (
        classified(failure(cause_class=None, resumed=None, job_ended="finished"), RULES) == verdict
    )


def test_a_run_that_the_customer_cancelled_is_excluded_where_the_terms_say_so() -> None:
    open_when_cancelled = failure(resumed=None, job_ended="cancelled_by_customer")
    verdict = classified(open_when_cancelled, NAMING)
    assert (verdict.verdict, verdict.category) == ("excluded", "customer_cause")
    silent = classified(open_when_cancelled, RULES)
    assert (silent.verdict, silent.rule) == ("awaiting", "cancelled")


def test_a_run_that_we_cancelled_is_never_excluded_by_rule() -> None:
    verdict = classified(failure(resumed=None, job_ended="cancelled_by_platform"), NAMING)
    assert (verdict.verdict, verdict.category) == ("awaiting", "")


def test_what_is_set_apart_before_stays_so_when_the_run_is_cancelled() -> None:
    cancelled = {"resumed": None, "job_ended": "cancelled_by_customer"}
    assert classified(failure(protected=False, **cancelled), NAMING).verdict == "unsupported"
    assert classified(failure(cause_class="user_code", **cancelled), NAMING).category == "user_code"
