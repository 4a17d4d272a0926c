"""The first to bring news waits for the rest, but not for ever, and nobody's news is lost."""

from __future__ import annotations

import threading
import time

import pytest

from jobs.gathering import Gathering
from jobs.selectors import ranks_all_stopped

from .situations import at
from .world import World


def test_whoever_is_first_goes_when_all_are_there() -> None:
    gathering, there = Gathering(wait_s=30.0), {1}
    answers: list[tuple[int, bool]] = []

    def bring(rank: int) -> None:
        there.add(rank)
        answers.append((rank, gathering.first(7, lambda _: there == {1, 2, 3})))

    first = threading.Thread(target=bring, args=(1,))
    first.start()
    while not gathering._waiting:
        time.sleep(0.001)
    bring(2)
    assert (answers, first.is_alive()) == ([(2, False)], True)
    bring(3)
    first.join(10)
    assert answers == [(2, False), (3, False), (1, True)]


def test_it_does_not_wait_for_one_that_says_nothing() -> None:
    assert Gathering(wait_s=0.02).first(7, lambda _: False) is True


def test_other_jobs_do_not_wait_for_this_one() -> None:
    gathering = Gathering(wait_s=30.0)
    all_there = threading.Event()
    waits = threading.Thread(target=gathering.first, args=(7, lambda _: all_there.is_set()))
    waits.start()
    while not gathering._waiting:
        time.sleep(0.001)
    assert gathering.first(8, lambda _: True) is True
    all_there.set()
    assert gathering.first(7, lambda _: True) is False
    waits.join(10)
    assert gathering.first(7, lambda _: True) is True


@pytest.mark.django_db
def test_ranks_are_all_stopped_when_none_trains_on(world: World) -> None:
    job = world.trained()
    assert not ranks_all_stopped(job.pk)
    world.kill(job, 2, at(184))
    world.block(job, 0, at(184))
    assert not ranks_all_stopped(job.pk)
    world.block(job, 1, at(184))
    assert ranks_all_stopped(job.pk)
