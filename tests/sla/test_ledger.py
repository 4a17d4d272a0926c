"""The ledger on a real database: one entry a failure, one chain, and nobody edits it."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
import rfc8785

from jobs.models import Incident
from jobs.services import incident_end
from jobs.states import IncidentState
from jobs.states import Verdict as JobsVerdict
from sla import selectors, services
from sla.chain import sha256
from sla.models import GENESIS, Chain, Contract, Entry, Terms
from tests.nodes.racing import race
from yoco_platform.core import clock
from yoco_platform.core.models import OutboxNotice

from .books import (
    AUDITOR,
    make_contract,
    make_customer,
    make_incident,
    make_job,
    make_terms,
    missed,
)


@pytest.fixture
def contract(db: None) -> Contract:
    return make_contract()


def add(incident: Incident) -> Entry | None:
    return services.entry_add_for_incident(incident_id=incident.pk)


def added(incident: Incident) -> Entry:
    entry = add(incident)
    assert entry is not None
    return entry


def test_a_covered_incident_becomes_an_entry_with_its_evidence(contract: Contract) -> None:
    incident = make_incident(make_job(contract.customer))
    entry = added(incident)
    assert (entry.sequence, entry.previous_hash, entry.verdict) == (1, GENESIS, "covered")
    assert (entry.rule, entry.cause_class) == ("nothing_lost", "operating_system")
    assert (entry.year.ordinal, entry.terms.version, entry.onset) == (1, 1, incident.occurred_at)
    assert entry.evidence == incident.evidence
    record = entry.record
    assert record["failure"]["id"] == incident.number
    assert record["failure"]["resumed"] == {
        "last_committed_step": 10,
        "next_committed_step": 11,
        "recomputed_committed_steps": 0,
        "checkpoint_read": False,
        "source": "none",
        "mechanism": "path_failover",
        "digests_equal": True,
        "recorded": record["failure"]["resumed"]["recorded"],
    }
    assert record["failure"]["clock_uncertainty_ms"] == 20


def test_the_stored_bytes_are_canonical_and_have_the_stored_hash(contract: Contract) -> None:
    added(make_incident(make_job(contract.customer)))
    entry = Entry.objects.get()
    assert bytes(entry.body) == rfc8785.dumps(json.loads(bytes(entry.body)))
    assert entry.hash == sha256(bytes(entry.body))
    assert entry.record["proof_sha256"] == sha256(bytes(entry.proof))
    assert entry.record["previous_hash"] == GENESIS


def test_entries_follow_each_other(contract: Contract) -> None:
    job = make_job(contract.customer)
    first, second = added(make_incident(job)), added(missed(job))
    assert (second.sequence, second.previous_hash) == (2, first.hash)
    head = Chain.objects.get(contract=contract)
    assert (head.length, head.head) == (2, second.hash)
    verification = selectors.verify_chain(AUDITOR, contract)
    assert (verification.holds, verification.checked) == (True, 2)


def test_an_incident_is_booked_once(contract: Contract) -> None:
    incident = make_incident(make_job(contract.customer))
    assert added(incident).pk == added(incident).pk
    assert Entry.objects.count() == 1


def test_an_open_incident_is_not_booked(contract: Contract) -> None:
    assert add(make_incident(make_job(contract.customer), state="verifying")) is None
    assert not Entry.objects.exists()


def test_a_restart_from_a_checkpoint_is_missed_and_says_how_much_was_lost(
    contract: Contract,
) -> None:
    entry = added(missed(make_job(contract.customer)))
    assert entry.verdict == "missed"
    assert entry.why == (
        "step 8 followed step 10; 3 committed steps were computed again; a checkpoint was read; "
        "the evidence does not show that nothing was lost"
    )
    assert entry.record["failure"]["steady_at"] is None


@pytest.mark.parametrize("level", ["transfer_verified", "continuity_verified", "replicas_agree"])
def test_each_level_of_evidence_that_fails_makes_it_missed(contract: Contract, level: str) -> None:
    incident = make_incident(make_job(contract.customer))
    incident.evidence = {**incident.evidence, level: {"holds": False, "words": "differs"}}
    incident.save(update_fields=["evidence"])
    assert added(incident).verdict == "missed"


def test_a_trail_that_nobody_could_compare_is_no_miss_but_a_transfer_is(contract: Contract) -> None:
    unknown = {"holds": None, "words": "rank 2's trail was not compared"}
    verdicts = {}
    for level in ("continuity_verified", "transfer_verified"):
        incident = make_incident(make_job(contract.customer))
        incident.evidence = {**incident.evidence, level: unknown}
        incident.save(update_fields=["evidence"])
        verdicts[level] = added(incident).verdict
    assert verdicts == {"continuity_verified": "covered", "transfer_verified": "missed"}


@pytest.mark.parametrize("level", ["transfer_verified", "continuity_verified"])
def test_a_level_that_was_never_reported_does_not_hold(contract: Contract, level: str) -> None:
    incident = make_incident(make_job(contract.customer))
    del incident.evidence[level]
    incident.save(update_fields=["evidence"])
    assert added(incident).verdict == "missed"


def test_without_a_cause_it_awaits(contract: Contract) -> None:
    incident = make_incident(make_job(contract.customer), cause_class=None, verdict="awaiting")
    assert added(incident).verdict == "awaiting"


def test_user_code_is_recorded_and_excluded(contract: Contract) -> None:
    entry = added(make_incident(make_job(contract.customer), cause_class="user_code"))
    assert (entry.verdict, entry.category) == ("excluded", "user_code")


@pytest.mark.parametrize(
    ("job", "evidence"),
    [({"wants_protection": False}, {}), ({}, {"outcome": "unsupported", "commits": []})],
)
def test_an_unprotected_run_is_unsupported(
    contract: Contract, job: dict[str, Any], evidence: dict[str, Any]
) -> None:
    incident = make_incident(make_job(contract.customer, **job))
    incident.evidence = {**incident.evidence, **evidence}
    incident.save(update_fields=["evidence"])
    assert added(incident).verdict == "unsupported"


@pytest.mark.parametrize(("count", "verdict"), [(False, "averted"), (True, "covered")])
def test_the_terms_say_whether_predicted_failures_count(
    db: None, count: bool, verdict: str
) -> None:
    contract = make_contract(terms=make_terms(predicted_failures_count=count))
    incident = make_incident(make_job(contract.customer), predicted=True, cause_class="device")
    assert added(incident).verdict == verdict
    incident.refresh_from_db()
    assert incident.verdict == verdict, "the incident's page says the ledger's word"


def test_the_terms_may_ask_for_live_migration(db: None) -> None:
    contract = make_contract(terms=make_terms(mechanism="live_migration"))
    entry = added(make_incident(make_job(contract.customer)))
    assert (entry.verdict, entry.why) == (
        "missed",
        "resolved by path_failover, and the terms ask for live migration",
    )


def test_no_contract_no_entry(contract: Contract) -> None:
    assert add(make_incident(make_job(make_customer()))) is None
    before = datetime(2025, 12, 31, 23, 59, tzinfo=UTC)
    assert add(make_incident(make_job(contract.customer), occurred=before)) is None
    Contract.objects.filter(pk=contract.pk).update(terminated_at=clock.now() - timedelta(days=1))
    assert add(make_incident(make_job(contract.customer))) is None


def test_a_contract_covers_the_clusters_in_its_scope(db: None) -> None:
    customer = make_customer()
    inside, outside = make_job(customer), make_job(customer)
    make_contract(customer, scope=[inside.cluster.slug])
    assert add(make_incident(outside)) is None
    assert added(make_incident(inside)).verdict == "covered"


def test_a_failure_belongs_to_the_year_of_its_onset(db: None) -> None:
    contract = make_contract(
        first_date=date(2024, 7, 1),
        zone="Europe/Berlin",
        terms=make_terms(effective_from=date(2024, 7, 1)),
    )
    job = make_job(contract.customer)
    last = datetime(2025, 6, 30, 21, 59, 59, 999999, tzinfo=UTC)
    entries = [added(make_incident(job, occurred=last + timedelta(microseconds=n))) for n in (0, 1)]
    assert [entry.year.ordinal for entry in entries] == [1, 2]


def test_the_terms_at_the_beginning_of_a_year_govern_all_of_it(db: None) -> None:
    contract = make_contract(
        first_date=date(2024, 7, 1),
        terms=make_terms(effective_from=date(2024, 7, 1), predicted_failures_count=False),
    )
    values = {**selectors.terms_values(contract.terms.get()), "predicted_failures_count": True}
    values.pop("credit_cap_minor"), values.pop("credit_expiry_days")
    values["effective_from"] = date(2025, 3, 1)
    Terms.objects.create(contract=contract, version=2, created_by="test", **values)
    job = make_job(contract.customer)
    days = [datetime(2025, 6, 30, tzinfo=UTC), datetime(2025, 7, 1, tzinfo=UTC)]
    entries = [added(make_incident(job, occurred=day, predicted=True)) for day in days]
    assert [entry.verdict for entry in entries] == ["averted", "covered"]
    assert [entry.terms.version for entry in entries] == [1, 2]


def test_the_pass_books_what_no_event_announced(contract: Contract) -> None:
    job = make_job(contract.customer)
    incidents = [make_incident(job) for _ in range(3)]
    make_incident(make_job(make_customer()))
    assert services.entries_catch_up() == 3
    assert services.entries_catch_up() == 0
    assert [e.incident_id for e in Entry.objects.order_by("sequence")] == [i.pk for i in incidents]


def test_an_incident_that_cannot_be_booked_does_not_keep_the_others_waiting(
    contract: Contract,
) -> None:
    job = make_job(contract.customer)
    broken = make_incident(job)
    broken.evidence = {**broken.evidence, "too_large": 2**60}
    broken.save(update_fields=["evidence"])
    sound = make_incident(job)
    assert services.entries_catch_up() == 1
    assert Entry.objects.get().incident_id == sound.pk


def test_readers_of_the_guarantee_are_told(contract: Contract) -> None:
    entry = added(make_incident(make_job(contract.customer)))
    notice = OutboxNotice.objects.get(topic=f"guarantee:{contract.customer_id}", kind="entry")
    assert notice.data["entry_id"] == entry.pk


@pytest.mark.django_db(transaction=True)
def test_the_end_of_an_incident_rings_the_ledgers_bell(monkeypatch: pytest.MonkeyPatch) -> None:
    rung: list[str] = []
    monkeypatch.setattr("yoco_platform.core.bells.ring", rung.append)
    incident = make_incident(make_job(make_contract().customer), state="verifying")
    rung.clear()
    incident_end(
        incident=incident,
        to=IncidentState.RESOLVED,
        verdict=JobsVerdict.COVERED,
        reason="step 11 followed step 10",
        lost_steps=0,
    )
    assert "sla.entries" in rung
    assert services.entries_catch_up() == 1


# --- Two writers at once ----------------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
def test_writers_at_once_keep_one_chain() -> None:
    contract = make_contract()
    job = make_job(contract.customer)
    incidents = [make_incident(job) for _ in range(8)]
    results = race(*(lambda i=i: added(i) for i in incidents))  # type: ignore[misc]
    assert [type(result).__name__ for result in results] == ["Entry"] * 8
    assert sorted(entry.sequence for entry in results) == list(range(1, 9))
    verification = selectors.verify_chain(AUDITOR, contract)
    assert (verification.holds, verification.checked) == (True, 8)


@pytest.mark.django_db(transaction=True)
def test_two_writers_of_one_incident_make_one_entry() -> None:
    incident = make_incident(make_job(make_contract().customer))
    first, second = race(lambda: added(incident), lambda: added(incident))
    assert first.pk == second.pk
    assert Entry.objects.count() == 1
