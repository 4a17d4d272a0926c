"""Failures that no ledger holds are named on the guarantee page, to those who may see them."""

from __future__ import annotations

import pytest

from jobs.models import Incident
from sla import selectors
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
