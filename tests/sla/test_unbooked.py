"""What failed and is in no ledger can be seen, and the reason with it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from sla import selectors, services
from yoco_platform.core import clock
from yoco_platform.core.auth import Role, Viewer
from yoco_platform.core.errors import Forbidden

from .books import AUDITOR, make_contract, make_customer, make_incident, make_job, make_terms
from .test_apis import as_role

pytestmark = pytest.mark.django_db


def whys(viewer: Viewer = AUDITOR) -> list[str]:
    return [found.why for found in selectors.incidents_unbooked(viewer)]


def test_before_the_first_date_and_after_the_end() -> None:
    early = make_contract()
    occurred = datetime(2025, 12, 31, 12, tzinfo=UTC)
    make_incident(make_job(early.customer), occurred=occurred)
    ended = make_contract()
    ended.terminated_at = clock.now() - timedelta(days=1)
    ended.save(update_fields=["terminated_at"])
    late = make_incident(make_job(ended.customer))
    assert services.entries_catch_up() == 0
    said = f"{late.occurred_at:%Y-%m-%dT%H:%M}"
    newest, oldest = whys()
    assert newest.startswith(f"{ended.number} had ended when it happened ({said}")
    assert oldest.startswith(f"{early.number} begins after it happened (2025-12-31T12:00")


def test_outside_the_scope() -> None:
    customer = make_customer()
    inside, outside = make_job(customer), make_job(customer)
    contract = make_contract(customer, scope=[inside.cluster.slug])
    make_incident(inside), make_incident(outside)
    services.entries_catch_up()
    assert whys() == [f"{contract.number} does not cover the cluster {outside.cluster.slug}"]


def test_one_that_cannot_be_written() -> None:
    contract = make_contract()
    broken = make_incident(make_job(contract.customer))
    broken.evidence = {**broken.evidence, "too_large": 2**60}
    broken.save(update_fields=["evidence"])
    services.entries_catch_up()
    assert whys() == [f"{contract.number} covers it, and its entry is not written yet"]


def test_not_what_is_booked_or_open_or_of_nobody_with_a_contract() -> None:
    contract = make_contract(terms=make_terms())
    make_incident(make_job(contract.customer))
    services.entries_catch_up()
    make_incident(make_job(contract.customer), state="verifying")
    make_incident(make_job(make_customer()))
    assert whys() == []


def test_a_customer_sees_its_own_only_and_operators_of_nodes_nothing() -> None:
    before = datetime(2025, 12, 31, tzinfo=UTC)
    mine, other = make_contract(), make_contract()
    incidents = [make_incident(make_job(c.customer), occurred=before) for c in (mine, other)]
    bob = as_role(Role.CUSTOMER_VIEWER, mine.customer)
    page = bob.get("/api/v1/incidents-unbooked").json()
    assert [row["incident_id"] for row in page["results"]] == [incidents[0].pk]
    assert page["next"] is None
    with pytest.raises(Forbidden):
        selectors.incidents_unbooked(Viewer(name="agent", role=Role.AGENT))


def test_pages() -> None:
    contract = make_contract()
    job, before = make_job(contract.customer), datetime(2025, 12, 31, tzinfo=UTC)
    first, second = make_incident(job, occurred=before), make_incident(job, occurred=before)
    finance = as_role(Role.FINANCE)
    page = finance.get("/api/v1/incidents-unbooked?limit=1").json()
    assert ([row["number"] for row in page["results"]], page["next"]) == (
        [second.number],
        second.pk,
    )
    rest = finance.get(f"/api/v1/incidents-unbooked?before={page['next']}").json()
    assert [row["number"] for row in rest["results"]] == [first.number]


def test_a_clock_that_was_not_believed_leaves_the_onset_uncertain() -> None:
    contract = make_contract()
    incident = make_incident(make_job(contract.customer))
    began_at = incident.observed_at - timedelta(hours=1)
    doubt = {"reported": "1970-01-01T00:00:00+00:00", "not_before": began_at.isoformat()}
    incident.evidence = {**incident.evidence, "clock": doubt}
    incident.save(update_fields=["evidence"])
    entry = services.entry_add_for_incident(incident_id=incident.pk)
    assert entry is not None
    assert entry.record["failure"]["clock_uncertainty_ms"] == 3_600_000
