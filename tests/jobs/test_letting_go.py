"""What agents keep of an ended job goes when it is let go: of every attempt, in memory and on disk."""

from __future__ import annotations

import pytest
from django.db import transaction

from agent import protocol
from jobs import services
from jobs.models import Job, Parking, Worker
from jobs.reconcile import reconcile_all
from jobs.states import JobState, ParkingState

from .test_parking import crowd, parked
from .world import OPERATOR, World

pytestmark = pytest.mark.django_db
__all__ = ["crowd"]


def ended_in_its_second_attempt(world: World, state: JobState) -> Job:
    """It was parked in its first attempt, began anew from a checkpoint, and has ended since."""
    _high, low = parked(world)
    Parking.objects.filter(job=low).update(state=ParkingState.WITHDRAWN)
    Job.objects.filter(pk=low.pk).update(attempt=2, generation=1, state=state, end_reason="over")
    low.refresh_from_db()
    for agent in world.agents:
        agent.take(protocol.StopOrder)
    return low


def stops(world: World) -> dict[int, list[protocol.StopOrder]]:
    """The stop orders by node, of those that have any."""
    taken = {agent.node.pk: agent.take(protocol.StopOrder) for agent in world.agents}
    return {node: bodies for node, bodies in taken.items() if bodies}


def seats(job: Job) -> set[int]:
    return set(Worker.objects.filter(job=job).values_list("node_id", flat=True))


def released(job: Job) -> list[int]:
    return services.job_state_release(viewer=OPERATOR, job_id=job.pk, reason="looked at it")


def test_a_release_reaches_what_is_parked_and_what_an_earlier_attempt_left(crowd: World) -> None:
    low = ended_in_its_second_attempt(crowd, JobState.FAILED)
    assert Worker.objects.filter(job=low, attempt=1, holds_state=True).count() == 3

    assert released(low) == [0, 1, 2]
    told = stops(crowd)
    assert set(told) == seats(low)
    for bodies in told.values():
        # No names: all that is there of that attempt and those before it, and its folder of parked ranks.
        assert [(b.worker_ids, b.attempt, b.keep_state) for b in bodies] == [([], 2, False)]
    assert not Worker.objects.filter(job=low, holds_state=True).exists()
    assert {note["folder"] for note in Parking.objects.get().ranks.values()} == {""}
    assert released(low) == []


def test_what_was_written_for_a_parking_that_was_called_off_is_released_too(crowd: World) -> None:
    low = ended_in_its_second_attempt(crowd, JobState.FAILED)
    Worker.objects.filter(job=low).update(holds_state=False)
    assert released(low) == [0, 1, 2]
    assert set(stops(crowd)) == seats(low)


def test_no_order_leaves_when_the_release_is_taken_back(crowd: World) -> None:
    low = ended_in_its_second_attempt(crowd, JobState.FAILED)
    with pytest.raises(RuntimeError, match="no"), transaction.atomic():
        released(low)
        raise RuntimeError("no")
    assert stops(crowd) == {}
    assert Worker.objects.filter(job=low, holds_state=True).count() == 3


@pytest.mark.parametrize("state", [JobState.FINISHED, JobState.CANCELLED, JobState.FAILED])
def test_a_job_that_did_not_fail_lets_go_by_itself(crowd: World, state: JobState) -> None:
    low = ended_in_its_second_attempt(crowd, state)
    # A pass looks at an ended job once more when something of it is still open.
    Worker.objects.filter(job=low, rank=0).update(attempt=2, state="running")
    reconcile_all()
    kept = Worker.objects.filter(job=low, attempt=1, holds_state=True).exists()
    assert kept == (state == JobState.FAILED)
    named = [body.worker_ids for bodies in stops(crowd).values() for body in bodies]
    assert ([] in named) == (state != JobState.FAILED)
