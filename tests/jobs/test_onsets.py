"""When a failure happened: by its agent's clock, as long as that can be true."""

from __future__ import annotations

import time
from datetime import datetime, timedelta

import msgspec
import pytest

from jobs.models import Generation, Incident
from yoco_platform.core import clock

from .situations import at
from .world import World, exited

pytestmark = pytest.mark.django_db

SECOND = timedelta(seconds=1)


def killed_at(world: World, occurred_at: float) -> Incident:
    """Rank 2 of a job that has trained for an hour is killed; its agent's clock says when."""
    job = world.trained()
    Generation.objects.update(began_at=clock.now() - timedelta(hours=1))
    worker = world.rank(job, 2)
    agent = world.agent_of(worker)
    batch = agent.events(exited(worker, at(184)))
    events = [msgspec.structs.replace(batch.events[0], occurred_at=occurred_at)]
    agent.send(msgspec.structs.replace(batch, events=events))
    return Incident.objects.get()


def test_a_report_that_was_kept_while_the_platform_was_away_keeps_its_time(world: World) -> None:
    said = time.time() - 1800
    incident = killed_at(world, said)
    assert abs(incident.occurred_at - clock.from_epoch(said)) < SECOND
    assert "clock" not in incident.evidence


TWO_HOURS_AGO = time.time() - 7200


@pytest.mark.parametrize(
    "seconds",
    [
        pytest.param(0.0, id="1970"),
        pytest.param(-(10.0**9), id="before 1970"),
        pytest.param(TWO_HOURS_AGO, id="two hours ago"),
    ],
)
def test_a_clock_that_says_before_the_run_began_is_not_believed(
    world: World, seconds: float
) -> None:
    incident = killed_at(world, seconds)
    assert abs(incident.occurred_at - incident.observed_at) < SECOND
    note = incident.evidence["clock"]
    assert datetime.fromisoformat(note["reported"]) == clock.from_epoch(seconds)
    began_at = Generation.objects.get().began_at
    assert datetime.fromisoformat(note["not_before"]) == began_at


def test_a_clock_that_is_a_little_ahead_says_now(world: World) -> None:
    incident = killed_at(world, time.time() + 45)
    assert incident.occurred_at == incident.observed_at
    assert "clock" not in incident.evidence


def test_a_clock_that_is_far_ahead_says_now_and_is_written_down(world: World) -> None:
    said = time.time() + 86400
    incident = killed_at(world, said)
    assert incident.occurred_at == incident.observed_at
    assert datetime.fromisoformat(incident.evidence["clock"]["reported"]) == clock.from_epoch(said)
