"""Failures that no ledger holds are named on the guarantee page, to those who may see them."""

from __future__ import annotations

from datetime import timedelta

import pytest

from frontend.queries.guarantee import guarantee_page
from jobs.models import Incident
from sla import selectors
from yoco_platform.core import clock
from yoco_platform.core.auth import SYSTEM

from .scene import Scene
from .test_views import CUSTOMERS, STAFF, signed_in, text, words


def set_aside(scene: Scene, number: int) -> list[Incident]:
    """Move the onset of a customer's ended incidents out of every contract year; newest first."""
    assert scene.contract is not None
    rows = Incident.objects.filter(customer=scene.contract.customer, state="resolved")
    for row in rows.order_by("-pk")[:number]:
        row.pk, row._state.adding = None, True
        row.occurred_at = row.occurred_at.replace(year=2000)
        row.save()
    assert selectors.unbooked_of(SYSTEM, scene.contract, 9)[1] == number
    return selectors.unbooked_of(SYSTEM, scene.contract, 9)[0]


@pytest.mark.parametrize("role", [*STAFF, *CUSTOMERS])
def test_failures_in_no_ledger_are_named_with_links(scene: Scene, role: str) -> None:
    assert scene.contract is not None
    newest, older = set_aside(scene, 2)
    page = text(signed_in(role), f"/guarantee/{scene.contract.pk}")
    assert f"2 failures are in no ledger: {newest.number} , {older.number} ." in words(page)
    assert f'href="/incidents/{older.number}"' in page


def test_nothing_is_said_when_every_failure_is_booked(scene: Scene) -> None:
    assert scene.contract is not None
    page = text(signed_in("operator"), f"/guarantee/{scene.contract.pk}")
    assert "in no ledger" not in page


@pytest.mark.parametrize("late", [False, True])
def test_an_open_failure_is_in_every_figure_of_the_year(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    assert scene.contract is not None
    contract = scene.contract
    opened = Incident.objects.filter(customer=contract.customer, state="resolved")[0]
    opened.pk, opened._state.adding = None, True
    opened.state = "recovering"
    opened.save()
    if late:
        year = contract.years.get()
        after = year.ends_at + timedelta(days=400)
        monkeypatch.setattr(clock, "now", lambda: after)
    page = guarantee_page(SYSTEM, contract.pk, 1)
    counts = page.evaluation.counts

    assert counts.adds_up
    assert (counts.recorded, counts.awaiting, counts.missed) == (3, int(not late), int(late))
    numbers = {bucket.verdict: bucket.number for bucket in page.buckets}
    assert (numbers["awaiting"], numbers["missed"]) == (int(not late), int(late))
    for rows in (page.months, page.causes):
        assert sum(row.missed for row in rows) == counts.missed
        assert sum(row.qualifying for row in rows) == counts.qualifying
    monkeypatch.undo()
    shown = words(text(signed_in("viewer"), f"/guarantee/{contract.pk}"))
    assert (
        f"1 failure is still open or not booked yet, and counted as awaiting: {opened.number}"
        in shown
    )
