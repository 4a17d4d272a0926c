"""An incident that was open when its run ended: the page and the ledger say one word."""

from __future__ import annotations

import pytest

from sla import services
from sla.models import Entry

from .books import make_contract, make_incident, make_job, make_terms

pytestmark = pytest.mark.django_db


def booked(job_ended: str, outcome: str, categories: list[str]) -> tuple[Entry, str]:
    contract = make_contract(terms=make_terms(exclusion_categories=categories))
    incident = make_incident(
        make_job(contract.customer),
        state="failed",
        verdict=outcome,
        lost_steps=None,
        evidence={
            "outcome": outcome,
            "job_ended": job_ended,
            "cause": {"row": "silent_node"},
        },
    )
    entry = services.entry_add_for_incident(incident_id=incident.pk)
    assert entry is not None
    incident.refresh_from_db()
    return entry, incident.verdict


@pytest.mark.parametrize(
    ("job_ended", "category"),
    [("finished", "run_finished"), ("cancelled_by_customer", "customer_cause")],
)
def test_excluded_on_the_page_is_excluded_in_the_books(job_ended: str, category: str) -> None:
    entry, word = booked(job_ended, "excluded", ["customer_cause"])
    assert (entry.verdict, entry.category, word) == ("excluded", category, "excluded")
    assert "job_ended" not in entry.record["failure"]


def test_terms_that_exclude_no_customer_cause_leave_it_open() -> None:
    entry, word = booked("cancelled_by_customer", "excluded", ["planned_maintenance"])
    assert (entry.verdict, word) == ("awaiting", "awaiting")
    assert entry.why.endswith("the terms exclude no customer cause")


def test_what_we_cancelled_awaits_a_decision() -> None:
    entry, word = booked("cancelled_by_platform", "awaiting", ["customer_cause"])
    assert (entry.verdict, entry.rule, word) == ("awaiting", "cancelled", "awaiting")
