"""What is rarely there is said where it is: costs, marks, redone work, a ledger that somebody changed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.utils import timezone

from frontend.templatetags.yoco import moment
from yoco_platform.core import clock

from .rare import INVENTORY, REDONE, add_rare, break_ledger
from .scene import Scene
from .test_views import signed_in, text, words

pytestmark = pytest.mark.django_db


@pytest.fixture
def rare(scene: Scene) -> Scene:
    add_rare(scene)
    return scene


def test_a_job_says_what_is_protected_how_and_at_what_cost(rare: Scene) -> None:
    page = words(text(signed_in("viewer"), f"/jobs/{rare.jobs['gpt-small'].pk}"))
    assert INVENTORY["accumulation"] in page
    assert all(doubt in page for doubt in INVENTORY["not_recognised"])
    assert "Buddy, on another node 43.4 GB copied in 88.0 ms beside the step" in page
    assert "Costs of rank 0, measured at step 594." in page


@pytest.mark.parametrize(
    ("name", "said"),
    [("waits", "Rank 0 has not joined yet."), ("never-joined", "nothing of it is protected")],
)
def test_a_job_without_an_inventory_says_why(rare: Scene, name: str, said: str) -> None:
    page = text(signed_in("viewer"), f"/jobs/{rare.jobs[name].pk}")
    assert said in page
    assert "Costs of rank 0" not in page


def test_an_incident_says_what_was_redone_and_at_which_step_its_trail_was_compared(
    rare: Scene,
) -> None:
    page = words(text(signed_in("viewer"), f"/incidents/INC-{rare.incidents['gpt-small-1'].pk}"))
    assert REDONE in page
    table = page.partition("First commit of every rank")[2].partition("Events automatic")[0]
    assert [table.count(said) for said in ("not compared", "step 196", "step 200")] == [1, 1, 1]


def test_an_incident_on_simulated_devices_is_marked(rare: Scene) -> None:
    client, incident = signed_in("viewer"), rare.incidents["gpt-small-1"]
    assert "simulated GPUs" in text(client, f"/incidents/INC-{incident.pk}")
    for node in rare.nodes.values():
        node.gpus.update(simulated=False)
    assert "simulated GPUs" not in text(client, f"/incidents/INC-{incident.pk}")


def test_what_was_searched_is_marked_too(rare: Scene) -> None:
    found = words(text(signed_in("viewer"), "/search?q=a"))
    assert "Node simulated a1" in found
    assert "Job vit-large" in found


def test_events_of_a_demonstration_are_marked(scene: Scene) -> None:
    overview = words(text(signed_in("viewer"), "/"))
    events = overview.partition("Events newest first")[2]
    assert "gpt-small demo running" in events
    assert "vit-large running" in events


def test_a_broken_ledger_is_no_missing_contract(rare: Scene) -> None:
    assert rare.contract is not None
    client = signed_in("finance")
    assert "Ledger broken" not in text(client, "/")
    break_ledger()
    for path in ("/", "/guarantee"):
        answer = client.get(path, SERVER_NAME="127.0.0.1", follow=True)
        page = answer.content.decode()
        assert "Ledger broken" in page or "The ledger does not hold" in page
        assert "nothing is promised" not in page
    answer = client.get(f"/guarantee/{rare.contract.pk}", SERVER_NAME="127.0.0.1")
    assert answer.status_code == 409
    assert "<h1>The ledger does not hold</h1>" in answer.content.decode()


def test_a_time_of_another_year_says_which_and_one_of_another_day_says_so() -> None:
    now = clock.now()
    old = datetime(2000, 3, 7, 2, 50, 56, tzinfo=UTC)
    with timezone.override(UTC):
        assert ">7 Mar 2000 02:50:56<" in moment(old, "short")
        assert f">{now:%-d %b %H:%M}<" in moment(now, "minute")
        assert f">{now:%H:%M:%S}<" in moment(now, "lately")
        yesterday = now - timedelta(days=1)
        assert f"{yesterday:%-d %b}" in moment(yesterday, "lately").partition(">")[2]
