from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest

from jobs.models import Incident
from sla import selectors, services
from sla.errors import ContractRefused, ContractUnknown, NumberTaken, ScopeTaken, TermsRefused
from sla.models import Contract, ContractYear, Terms
from sla.states import Standing
from sla.terms import terms_empty, terms_read
from tests.nodes.racing import race
from yoco_platform.core import clock
from yoco_platform.core.auth import Role, Viewer
from yoco_platform.core.errors import Forbidden
from yoco_platform.core.models import AuditEntry

from .books import (
    AUDITOR,
    FINANCE,
    OPERATOR,
    make_contract,
    make_customer,
    make_incident,
    make_job,
    make_terms,
    missed,
)


def test_a_contract_begins_with_terms_and_its_first_year(db: None) -> None:
    contract = make_contract(zone="Europe/Berlin")
    year = contract.years.get()
    assert (year.ordinal, year.starts_at) == (1, datetime(2025, 12, 31, 23, tzinfo=UTC))
    assert year.ends_at == datetime(2026, 12, 31, 23, tzinfo=UTC)
    assert contract.terms.get().credit_uncapped is True
    assert AuditEntry.objects.filter(action="contract_create").count() == 1


@pytest.mark.parametrize(
    "fields",
    [
        {"zone": "Europe/Atlantis"},
        {"currency": "euro"},
        {"currency": "EUX"},
        {"number": " "},
        {"scope": ["no-such-cluster"]},
    ],
)
def test_a_contract_that_does_not_fit_is_refused(db: None, fields: dict[str, Any]) -> None:
    with pytest.raises(ContractRefused):
        make_contract(**fields)
    assert not Contract.objects.exists()


def test_terms_that_begin_too_late_are_refused(db: None) -> None:
    with pytest.raises(TermsRefused):
        make_contract(terms=make_terms(effective_from=date(2026, 1, 2)))


def test_a_number_is_given_once(db: None) -> None:
    make_contract(number="C-A")
    with pytest.raises(NumberTaken):
        make_contract(number="C-A")


def test_two_contracts_do_not_cover_the_same_jobs(db: None) -> None:
    customer = make_customer()
    one, other = make_job(customer).cluster, make_job(customer).cluster
    make_contract(customer, scope=[one.slug])
    make_contract(customer, scope=[other.slug])
    for scope in ([], [one.slug, other.slug]):
        with pytest.raises(ScopeTaken):
            make_contract(customer, scope=scope)


@pytest.mark.parametrize("viewer", [OPERATOR, AUDITOR])
def test_only_finance_writes_contracts(db: None, viewer: Viewer) -> None:
    with pytest.raises(Forbidden):
        services.contract_create(
            viewer=viewer,
            customer=make_customer(),
            number="C",
            first_date=date(2026, 1, 1),
            zone="UTC",
            currency="EUR",
            terms=make_terms(),
        )


@pytest.mark.parametrize(
    "data",
    [
        {"effective_from": "2026-13-01"},
        {"effective_from": "2026-01-01", "target_numerator": 0, "target_denominator": 100},
        {"effective_from": "2026-01-01", "target_numerator": 101, "target_denominator": 100},
        {"effective_from": "2026-01-01", "target_numerator": 90},
        {"effective_from": "2026-01-01", "credit_rate_bp": 10001},
        {"effective_from": "2026-01-01", "credit_rate_bp": 25.5},
        {"effective_from": "2026-01-01", "credit_cap_minor": "much"},
        {"effective_from": "2026-01-01", "credit_cap_minor": 2**53},
        {"effective_from": "2026-01-01", "grace_days": -1},
        {"effective_from": "2026-01-01", "operator": ">"},
        {"effective_from": "2026-01-01", "bonus": 1},
        {},
    ],
)
def test_terms_that_contradict_themselves_are_refused(data: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        terms_read(data)


def test_what_is_left_empty_is_named_and_zero_and_false_are_values(db: None) -> None:
    terms = make_terms(
        rounding="", minimum_spares=0, predicted_failures_count=False, credit_cap_minor=None
    )
    contract = make_contract(terms=terms)
    empty = terms_empty(selectors.terms_values(contract.terms.get()))
    assert empty == ["credit_cap_minor", "rounding"]


def test_new_terms_take_effect_in_the_future(db: None) -> None:
    contract = make_contract()
    tomorrow = clock.now().date() + timedelta(days=2)
    row = services.terms_add(
        viewer=FINANCE, contract=contract, terms=make_terms(effective_from=tomorrow)
    )
    assert row.version == 2
    assert selectors.terms_governing(contract.years.get()) == contract.terms.get(version=1)
    for day in (tomorrow, date(2026, 6, 1)):
        with pytest.raises(TermsRefused):
            services.terms_add(
                viewer=FINANCE, contract=contract, terms=make_terms(effective_from=day)
            )
    assert Terms.objects.count() == 2


def test_every_year_that_has_begun_is_stored_once(db: None) -> None:
    contract = make_contract(
        first_date=date(2023, 5, 1), terms=make_terms(effective_from=date(2023, 5, 1))
    )
    assert services.years_open() == contract.years.count() - 1
    assert services.years_open() == 0
    spans = list(contract.years.order_by("ordinal").values_list("starts_at", "ends_at"))
    assert [end for _, end in spans[:-1]] == [start for start, _ in spans[1:]]
    assert spans[-1][0] <= clock.now() < spans[-1][1]


@pytest.mark.django_db(transaction=True)
def test_two_contracts_that_race_for_the_same_jobs_make_one() -> None:
    customer = make_customer()
    results = race(
        lambda: make_contract(customer, number="C-1"), lambda: make_contract(customer, number="C-2")
    )
    assert sorted(type(result).__name__ for result in results) == ["Contract", "ScopeTaken"]
    assert ContractYear.objects.count() == 1


def test_the_running_year_foots_and_says_how_it_stands(db: None) -> None:
    contract = make_contract()
    job = make_job(contract.customer)
    for _ in range(9):
        make_incident(job)
    missed(job)
    make_incident(job, predicted=True)
    make_incident(job, cause_class="user_code")
    make_incident(job, cause_class=None)
    services.entries_catch_up()
    summary = selectors.year_summary(AUDITOR, contract)
    counts = summary.evaluation.counts
    assert counts.adds_up
    assert (counts.recorded, counts.qualifying, counts.covered, counts.missed) == (13, 10, 9, 1)
    assert (counts.averted, counts.excluded, counts.awaiting) == (1, {"user_code": 1}, 1)
    assert summary.evaluation.standing == Standing.AT_RISK
    assert summary.evaluation.coverage_truncated == "90.00"


def finished_contract(**terms: Any) -> Contract:
    return make_contract(
        first_date=date(2024, 1, 1),
        terms=make_terms(effective_from=date(2024, 1, 1), **terms),
    )


def test_a_short_year_that_is_over_makes_the_credit_due(db: None) -> None:
    contract = finished_contract()
    job = make_job(contract.customer)
    missed(job, occurred=datetime(2024, 6, 1, tzinfo=UTC))
    services.entries_catch_up()
    year = selectors.year_summary(AUDITOR, contract, 1).evaluation
    assert (year.standing, year.credit_eligible) == (Standing.SHORT, True)
    assert year.credit_reason == "short by 1: 0 of 1 qualifying failures covered"


def test_an_empty_field_blocks_a_year_that_is_over_and_is_named(db: None) -> None:
    contract = finished_contract(rounding="")
    missed(make_job(contract.customer), occurred=datetime(2024, 6, 1, tzinfo=UTC))
    services.entries_catch_up()
    year = selectors.year_summary(AUDITOR, contract, 1).evaluation
    assert (year.standing, year.blocked_by) == (Standing.BLOCKED, ("terms: rounding is empty",))


def test_what_still_awaits_after_the_grace_was_missed(db: None) -> None:
    contract = finished_contract()
    job = make_job(contract.customer)
    make_incident(job, occurred=datetime(2024, 6, 1, tzinfo=UTC), cause_class=None)
    services.entries_catch_up()
    counts = selectors.year_summary(AUDITOR, contract, 1).evaluation.counts
    assert (counts.awaiting, counts.missed) == (0, 1)


@pytest.mark.parametrize("state", ["open", "recovering", "verifying", "resolved", "failed"])
def test_what_is_in_no_ledger_yet_awaits_from_its_onset_on(db: None, state: str) -> None:
    contract = make_contract()
    incident = make_incident(make_job(contract.customer), state=state, verdict="awaiting")
    before = selectors.year_summary(AUDITOR, contract)
    counts = before.evaluation.counts
    assert (counts.recorded, counts.awaiting, counts.adds_up) == (1, 1, True)
    assert before.to_book == [incident]
    assert before.evaluation.standing == Standing.AT_RISK

    Incident.objects.filter(pk=incident.pk).update(state="failed")
    assert services.entries_catch_up() == 1
    after = selectors.year_summary(AUDITOR, contract)
    assert (after.evaluation.counts.recorded, after.evaluation.counts.covered) == (1, 1)
    assert after.to_book == []


def test_what_is_still_open_after_the_grace_was_missed(db: None) -> None:
    contract = finished_contract()
    occurred = datetime(2024, 6, 1, tzinfo=UTC)
    make_incident(make_job(contract.customer), occurred, state="recovering", verdict="awaiting")
    year = selectors.year_summary(AUDITOR, contract, 1).evaluation
    assert (year.counts.awaiting, year.counts.missed) == (0, 1)
    assert (year.standing, year.credit_eligible) == (Standing.SHORT, True)


def test_what_is_open_outside_a_contract_is_not_in_its_year(db: None) -> None:
    customer = make_customer()
    inside, outside = make_job(customer), make_job(customer)
    contract = make_contract(
        customer,
        first_date=date(2024, 1, 1),
        terms=make_terms(effective_from=date(2024, 1, 1)),
        scope=[inside.cluster.slug],
    )
    Contract.objects.filter(pk=contract.pk).update(terminated_at=datetime(2024, 7, 1, tzinfo=UTC))
    days = {
        "before": datetime(2023, 12, 31, 23, 59, tzinfo=UTC),
        "first": datetime(2024, 1, 1, tzinfo=UTC),
        "terminated": datetime(2024, 7, 1, tzinfo=UTC),
        "next year": datetime(2025, 1, 1, tzinfo=UTC),
    }
    opened = {
        name: make_incident(inside, day, state="recovering", verdict="awaiting")
        for name, day in days.items()
    }
    make_incident(outside, days["first"], state="recovering", verdict="awaiting")
    make_incident(make_job(make_customer(), inside.cluster), days["first"], state="recovering")
    contract.refresh_from_db()
    assert selectors.year_summary(AUDITOR, contract, 1).to_book == [opened["first"]]


def test_a_customer_sees_its_own_contracts_only(db: None) -> None:
    mine, theirs = make_contract(), make_contract()
    me = Viewer(name="carla", role=Role.CUSTOMER_VIEWER, customer_id=mine.customer_id)
    entry_of = {}
    for contract in (mine, theirs):
        incident = make_incident(make_job(contract.customer))
        services.entries_catch_up()
        entry_of[contract.pk] = incident.pk
    assert list(selectors.contracts_list(me)) == [mine]
    assert selectors.entry_of_incident(me, entry_of[theirs.pk]) is None
    found = selectors.entry_of_incident(me, entry_of[mine.pk])
    assert found is not None
    assert selectors.verify_chain(me, mine).holds
    for read in (
        lambda: selectors.year_summary(me, theirs),
        lambda: selectors.entries(me, theirs),
        lambda: selectors.verify_chain(me, theirs),
        lambda: selectors.terms_of(me, theirs),
        lambda: selectors.years_of(me, theirs),
    ):
        with pytest.raises(ContractUnknown):
            read()


def test_an_operator_sees_coverage_but_neither_terms_nor_the_export(db: None) -> None:
    contract = make_contract()
    assert selectors.year_summary(OPERATOR, contract).evaluation.standing == Standing.NO_EVENTS
    assert selectors.terms_of(OPERATOR, contract) == []
    with pytest.raises(Forbidden):
        selectors.verify_chain(OPERATOR, contract)


def test_a_page_of_the_ledger_is_filtered_and_goes_on_where_it_ended(db: None) -> None:
    contract = make_contract()
    job = make_job(contract.customer)
    for n in range(5):
        missed(job) if n == 2 else make_incident(job)
    services.entries_catch_up()
    first = selectors.entries(AUDITOR, contract, limit=2)
    assert [entry.sequence for entry in first] == [5, 4]
    assert [e.sequence for e in selectors.entries(AUDITOR, contract, before=4)] == [3, 2, 1]
    assert [e.sequence for e in selectors.entries(AUDITOR, contract, verdict="missed")] == [3]
    assert selectors.entries(AUDITOR, contract, year=2) == []
