"""A parked job says so on its page and in the list; for whom is told to staff alone."""

from __future__ import annotations

from datetime import timedelta

import pytest

from jobs.models import Job, Parking
from jobs.states import JobState, ParkingState

from .scene import Scene
from .test_views import signed_in, text, words

pytestmark = pytest.mark.django_db
WAITS = "parked at step 186, waiting for 1 node: 2 of 3 places are free"
REASON = "gpt-small: priority 1, may be parked, frees 3 places"


@pytest.fixture
def parked(scene: Scene) -> Job:
    job, taker = scene.jobs["gpt-small"], scene.jobs["vit-large"]
    Job.objects.filter(pk=job.pk).update(state=JobState.PARKED, waiting_for=WAITS)
    for hours, state in ((40, ParkingState.RESUMED), (1, ParkingState.PARKED)):
        at = scene.now - timedelta(hours=hours)
        Parking.objects.create(
            job=job, for_job=taker, num_slots=1, attempt=1, generation=1, state=state,
            state_since=at, reasons=[REASON], words=WAITS, step=186, wanted_at=at, parked_at=at,
            ranks={"0": {"folder": "/var/parked/1"}},
        )  # fmt: skip
    return job


@pytest.mark.parametrize("role", ["operator", "customer_viewer"])
def test_page_and_list_say_where_it_stands_what_it_waits_for_and_how_often(
    parked: Job, role: str
) -> None:
    client = signed_in(role)
    page = words(text(client, f"/jobs/{parked.pk}"))

    assert WAITS in page
    assert "2 times, 1 within 24 hours" in page
    assert WAITS in words(text(client, "/jobs"))


def test_why_this_job_is_told_to_staff_and_not_to_its_customer(parked: Job) -> None:
    assert REASON in text(signed_in("operator"), f"/jobs/{parked.pk}")
    assert REASON not in text(signed_in("customer_viewer"), f"/jobs/{parked.pk}")


def test_rest_says_the_same_and_no_more(parked: Job) -> None:
    staff, owner = (
        signed_in(role).get(f"/api/v1/jobs/{parked.pk}").json()
        for role in ("operator", "customer_viewer")
    )

    assert staff["waiting_for"] == owner["waiting_for"] == WAITS
    assert [row["state"] for row in owner["parkings"]] == ["parked", "resumed"]
    assert staff["parkings"][0]["reasons"] == [REASON]
    hidden = ("for_job_id", "reasons", "ranks")
    assert [owner["parkings"][0][name] for name in hidden] == [None, [], {}]
