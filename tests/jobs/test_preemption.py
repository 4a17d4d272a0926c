"""Who gives way to a recovery that finds no place: a pure choice, with its reasons."""

from __future__ import annotations

from typing import Any

import pytest

from jobs.placement import Slot
from jobs.preemption import Candidate, Need, places_for

CPU = frozenset({"CPU"})


def slots(*nodes: int, model: str = "CPU") -> tuple[Slot, ...]:
    return tuple(Slot(n, 0, f"node-{n}", f"power-{n}", model) for n in nodes)


def need(**changed: Any) -> Need:
    return Need(**{"name": "high", "priority": 5, "num_slots": 1, "models": CPU, **changed})


def other(job_id: int, **changed: Any) -> Candidate:
    fields = {
        "job_id": job_id,
        "name": f"job-{job_id}",
        "priority": 1,
        "preemptible": True,
        "rank_slots": slots(10 * job_id, 10 * job_id + 1),
    }
    return Candidate(**{**fields, **changed})


def test_a_standby_of_its_own_that_is_on_its_way_comes_before_everything() -> None:
    choice = places_for(need(warming=1), slots(1), [other(1)], parked_max=3)

    assert (choice.kind, choice.job_ids) == ("standby", ())


def test_the_node_of_a_lower_jobs_standby_is_taken_before_an_idle_one_and_before_any_rank() -> None:
    spare = other(2, standby_slots=slots(7))

    choice = places_for(need(), slots(1), [other(1), spare], parked_max=3)

    assert (choice.kind, choice.job_ids) == ("spare", (2,))


def test_an_idle_node_is_enough() -> None:
    choice = places_for(need(), slots(1), [other(1)], parked_max=3)

    assert (choice.kind, choice.job_ids) == ("idle", ())


def test_the_lowest_job_that_may_be_parked_gives_way_and_of_equals_the_youngest() -> None:
    jobs = [other(1, priority=2), other(2), other(3), other(4, priority=4)]

    choice = places_for(need(), (), jobs, parked_max=3)

    assert (choice.kind, choice.job_ids) == ("park", (3,))
    assert choice.reasons[-1] == "job-3: priority 1, may be parked, frees 2 places"


def test_as_many_jobs_as_are_needed_and_no_more_give_way() -> None:
    choice = places_for(need(num_slots=3), (), [other(1), other(2), other(3)], parked_max=3)

    assert choice.job_ids == (3, 2)


def test_an_idle_node_saves_a_job_from_being_parked_with_another() -> None:
    choice = places_for(need(num_slots=3), slots(1), [other(1), other(2)], parked_max=3)

    assert (choice.kind, choice.job_ids) == ("park", (2,))


REFUSED = [
    ({"priority": 5}, "job-1: its priority 5 is not below 5"),
    ({"priority": 9}, "job-1: its priority 9 is not below 5"),
    ({"preemptible": False}, "job-1: it is not preemptible"),
    ({"busy": "it recovers from a failure itself"}, "job-1: it recovers from a failure itself"),
    ({"parked_today": 3}, "job-1: it was parked 3 times within a day, 3 are allowed"),
    ({"rank_slots": slots(1, model="H200")}, "job-1: none of its nodes fits"),
    ({"rank_slots": ()}, "job-1: none of its nodes fits"),
]


@pytest.mark.parametrize(("changed", "words"), REFUSED)
def test_nobody_is_parked_against_the_rules_and_the_words_say_which(
    changed: dict[str, Any], words: str
) -> None:
    choice = places_for(need(), (), [other(1, **changed)], parked_max=3)

    assert (choice.kind, choice.job_ids) == ("none", ())
    assert words in choice.reasons
    assert choice.reasons[-1] == "no job can be parked for it"


def test_nobody_is_parked_in_vain() -> None:
    choice = places_for(need(num_slots=3), (), [other(1)], parked_max=3)

    assert choice.kind == "none"
    assert "parking every job that may be parked would give only 2" in choice.reasons


def test_a_higher_jobs_standby_stays() -> None:
    above = other(1, priority=9, standby_slots=slots(7))

    assert places_for(need(), (), [above], parked_max=3).kind == "none"
