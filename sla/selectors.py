"""Reads of the guarantee. What crosses a trust line takes the viewer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

from django.db import DatabaseError
from django.db.models import F, Q, QuerySet

from jobs import selectors as job_reads
from yoco_platform.core import clock
from yoco_platform.core.auth import SYSTEM, Permission, Viewer, may, require
from yoco_platform.core.models import Customer

from .chain import Link, Verification, instant, verified
from .errors import ContractUnknown, CustomerUnknown, LedgerBroken, YearUnknown
from .evaluation import Evaluation, Line, Moment, Target, evaluated
from .models import GENESIS, Chain, Contract, ContractYear, Entry, Terms
from .states import EntryKind, Verdict
from .terms import TermsFields, terms_empty
from .years import day_begins

if TYPE_CHECKING:
    from jobs.models import Incident

ENDED = ("resolved", "failed")
"""States in which the jobs app changes an incident's verdict and evidence no more."""

LINKS_AT_ONCE = 1000
UNREADABLE = (ValueError, TypeError, AttributeError, OverflowError, DatabaseError)
"""What reading a row raises that was changed to something no code of ours ever wrote."""


@dataclass(frozen=True)
class YearSummary:
    """One contract year as it stands at ``as_of``. ``to_book``: its failures that are in no ledger yet."""

    contract: Contract
    year: ContractYear
    terms: Terms | None
    as_of: datetime
    evaluation: Evaluation
    to_book: list[Incident]
    grace_over: bool


@dataclass(frozen=True)
class Unbooked:
    """An ended incident that is in no ledger, and why."""

    incident: Incident
    why: str


def contracts_list(viewer: Viewer) -> QuerySet[Contract]:
    """The contracts this viewer may see, by number. Raises Forbidden."""
    require(viewer, Permission.COVERAGE_READ)
    contracts = Contract.objects.select_related("customer").order_by("number")
    if viewer.customer_id is not None:
        contracts = contracts.filter(customer_id=viewer.customer_id)
    return contracts


def contract_get(viewer: Viewer, contract_id: int) -> Contract:
    """One contract, or ContractUnknown: not found and not yours are the same answer."""
    contract = contracts_list(viewer).filter(pk=contract_id).first()
    if contract is None:
        raise ContractUnknown(f"there is no contract {contract_id}")
    return contract


def terms_of(viewer: Viewer, contract: Contract) -> list[Terms]:
    """Every version of the terms, newest first; nothing for those who may not read contracts."""
    if not may(viewer, Permission.CONTRACT_READ):
        return []
    return list(contract_get(viewer, contract.pk).terms.order_by("-version"))


def years_of(viewer: Viewer, contract: Contract) -> list[ContractYear]:
    """The years that have begun, newest first."""
    return list(contract_get(viewer, contract.pk).years.order_by("-ordinal"))


def year_summary(viewer: Viewer, contract: Contract, ordinal: int | None = None) -> YearSummary:
    """How a year stands now: the running one, or the one named. Raises YearUnknown."""
    years = contract_get(viewer, contract.pk).years
    year = (
        years.order_by("-ordinal").first()
        if ordinal is None
        else years.filter(ordinal=ordinal).first()
    )
    if year is None:
        raise YearUnknown(f"contract {contract.number} has no year {ordinal}")
    as_of, terms = clock.now(), terms_governing(year)
    to_book = incidents_to_book(year)
    rows = Entry.objects.filter(year=year, kind=EntryKind.FAILURE)
    with ledger_told(contract):
        lines = [
            Line(Verdict(verdict), category)
            for verdict, category in rows.values_list("verdict", "category")
        ]
    # What has failed is in the figures from its onset on, however long it takes until it is booked.
    lines += [Line(Verdict.AWAITING) for _ in to_book]
    moment = _moment(year, terms, as_of)
    evaluation = evaluated(lines, _target(terms), moment)
    return YearSummary(contract, year, terms, as_of, evaluation, to_book, moment.grace_over)


def entries(
    viewer: Viewer,
    contract: Contract,
    *,
    year: int | None = None,
    verdict: str = "",
    before: int | None = None,
    limit: int = 100,
) -> list[Entry]:
    """One page of a ledger, newest first; ``before`` is the sequence where the last page ended."""
    rows = Entry.objects.filter(contract=contract_get(viewer, contract.pk))
    if year is not None:
        rows = rows.filter(year__ordinal=year)
    if verdict:
        rows = rows.filter(verdict=verdict)
    if before is not None:
        rows = rows.filter(sequence__lt=before)
    rows = rows.select_related("contract", "year", "terms", "incident__job")
    with ledger_told(contract):
        return list(rows.order_by("-sequence")[:limit])


def entry_of_incident(viewer: Viewer, incident_id: int) -> Entry | None:
    """The ledger entry of an incident, if it has one and the viewer may see it."""
    if not may(viewer, Permission.COVERAGE_READ):
        return None
    rows = Entry.objects.filter(
        incident_id=incident_id, kind=EntryKind.FAILURE, contract__in=contracts_list(viewer)
    )
    return rows.select_related("contract", "year", "terms").first()


def verify_chain(viewer: Viewer, contract: Contract) -> Verification:
    """Walk the whole ledger: every byte against its hash, every link, the head, the columns."""
    require(viewer, Permission.LEDGER_EXPORT)
    return _walked(contract_get(viewer, contract.pk))


@contextmanager
def ledger_told(contract: Contract) -> Iterator[None]:
    """Reads of a ledger. What fails on an entry that somebody changed raises LedgerBroken, which names it."""
    try:
        yield
    except UNREADABLE as error:
        problem = _walked(contract).problem
        if not problem:
            raise
        raise LedgerBroken(f"the ledger of {contract.number} does not hold: {problem}") from error


def contract_for(incident: Incident) -> Contract | None:
    """The contract whose ledger an incident belongs to: of its customer, in force at its onset, with
    the job's cluster in its scope."""
    onset = incident.occurred_at
    contracts = Contract.objects.filter(customer_id=incident.customer_id).filter(
        Q(terminated_at__isnull=True) | Q(terminated_at__gt=onset)
    )
    for contract in contracts.order_by("pk"):
        covers = not contract.scope or incident.cluster.slug in contract.scope
        if covers and onset >= day_begins(contract.first_date, ZoneInfo(contract.zone)):
            return contract
    return None


def incident_ended(incident: Incident) -> bool:
    """Whether the jobs app has said its last word on it."""
    return incident.state in ENDED


def incidents_without_entry(limit: int) -> list[int]:
    """Ended incidents, oldest first, that some contract of their customer may cover and no ledger
    has. Those before a contract's first date are left out, so that they do not fill the pass."""
    begun = Contract.objects.filter(years__ordinal=1).values_list(
        "customer_id", "years__starts_at", "scope", "terminated_at"
    )
    wanted = Q(pk__in=[])
    for customer_id, starts_at, scope, terminated_at in begun:
        wanted |= _covered_from(customer_id, starts_at, scope, terminated_at)
    rows = job_reads.incidents_visible(SYSTEM).filter(wanted, state__in=ENDED)
    rows = rows.exclude(ledger_entries__kind=EntryKind.FAILURE)
    return list(rows.order_by("occurred_at", "pk").values_list("pk", flat=True)[:limit])


def incidents_to_book(year: ContractYear) -> list[Incident]:
    """The incidents that belong to a year and are in no ledger yet: still open, or just ended."""
    contract = year.contract
    covered = _covered_from(
        contract.customer_id, year.starts_at, contract.scope, contract.terminated_at
    )
    rows = job_reads.incidents_visible(SYSTEM).filter(covered, occurred_at__lt=year.ends_at)
    rows = rows.exclude(ledger_entries__kind=EntryKind.FAILURE)
    return list(rows.order_by("occurred_at", "pk"))


def _covered_from(
    customer_id: int, starts_at: datetime, scope: list[str], terminated_at: datetime | None
) -> Q:
    """Incidents that a contract covers, with onset at ``starts_at`` or later."""
    covered = Q(customer_id=customer_id, occurred_at__gte=starts_at)
    if scope:
        covered &= Q(cluster__slug__in=scope)
    if terminated_at is not None:
        covered &= Q(occurred_at__lt=terminated_at)
    return covered


def incidents_unbooked(
    viewer: Viewer, *, before: int | None = None, limit: int = 100
) -> list[Unbooked]:
    """One page of the ended incidents of customers with a contract that are in no ledger, newest first:
    nothing that failed may be missing from the books without somebody being able to see it."""
    by_customer: dict[int, list[Contract]] = {}
    for contract in contracts_list(viewer):
        by_customer.setdefault(contract.customer_id, []).append(contract)
    rows = _unbooked(viewer).filter(customer_id__in=by_customer)
    if before is not None:
        rows = rows.filter(pk__lt=before)
    return [
        Unbooked(incident, _why_unbooked(incident, by_customer[incident.customer_id]))
        for incident in rows.order_by("-pk")[:limit]
    ]


def unbooked_of(viewer: Viewer, contract: Contract, limit: int) -> tuple[list[Incident], int]:
    """The newest ended incidents of the contract's customer that are in no ledger, and how many there are."""
    customer_id = contract_get(viewer, contract.pk).customer_id
    rows = _unbooked(viewer).filter(customer_id=customer_id)
    return list(rows.order_by("-pk")[:limit]), rows.count()


def _unbooked(viewer: Viewer) -> QuerySet[Incident]:
    require(viewer, Permission.COVERAGE_READ)
    rows = job_reads.incidents_visible(viewer).filter(state__in=ENDED)
    return rows.exclude(ledger_entries__kind=EntryKind.FAILURE)


def _why_unbooked(incident: Incident, contracts: list[Contract]) -> str:
    found = contract_for(incident)
    if found is not None:
        return f"{found.number} covers it, and its entry is not written yet"
    return "; ".join(_why_not_covered(incident, contract) for contract in contracts)


def _why_not_covered(incident: Incident, contract: Contract) -> str:
    onset = instant(incident.occurred_at)
    if contract.scope and incident.cluster.slug not in contract.scope:
        return f"{contract.number} does not cover the cluster {incident.cluster.slug}"
    if contract.terminated_at is not None and incident.occurred_at >= contract.terminated_at:
        return f"{contract.number} had ended when it happened ({onset})"
    return f"{contract.number} begins after it happened ({onset})"


def terms_governing(year: ContractYear) -> Terms | None:
    """The version in force at the first instant of a year governs the whole of it."""
    zone = ZoneInfo(year.contract.zone)
    for terms in year.contract.terms.order_by("-version"):
        if day_begins(terms.effective_from, zone) <= year.starts_at:
            return terms
    return None


def terms_values(terms: Terms) -> dict[str, object]:
    """A version in the words of sla.terms.TermsFields."""
    values: dict[str, object] = {
        name: getattr(terms, name) for name in TermsFields.__struct_fields__
    }
    if terms.credit_uncapped:
        values["credit_cap_minor"] = "none"
    if terms.credit_never_expires:
        values["credit_expiry_days"] = "none"
    return values


def customer_by_slug(slug: str) -> Customer:
    """Raises CustomerUnknown."""
    customer = Customer.objects.filter(slug=slug).first()
    if customer is None:
        raise CustomerUnknown(f"there is no customer {slug}")
    return customer


def _target(terms: Terms | None) -> Target | None:
    if terms is None or not terms.target_numerator or not terms.target_denominator:
        return None
    return Target(terms.target_numerator, terms.target_denominator)


def _moment(year: ContractYear, terms: Terms | None, as_of: datetime) -> Moment:
    blocked_by = (
        ["terms: none in force at the beginning of the year"]
        if terms is None
        else [f"terms: {name} is empty" for name in terms_empty(terms_values(terms))]
    )
    grace = timedelta(days=(terms.grace_days if terms is not None else None) or 0)
    ends_at = year.ends_at
    if year.contract.terminated_at is not None:
        ends_at = min(ends_at, year.contract.terminated_at)
    return Moment(
        over=as_of >= ends_at,
        grace_over=as_of >= ends_at + grace,
        measured_bp=None,
        minimum_measured_bp=None if terms is None else terms.minimum_measured_bp,
        blocked_by=blocked_by,
    )


def _walked(contract: Contract) -> Verification:
    head = Chain.objects.get(contract=contract)
    return verified(_links(contract), GENESIS, head.length, head.head)


def _links(contract: Contract) -> Iterator[Link]:
    rows = Entry.objects.filter(contract=contract).order_by("sequence")
    ids = list(rows.values_list("pk", flat=True))
    rows = rows.annotate(ordinal=F("year__ordinal"), terms_version=F("terms__version"))
    for start in range(0, len(ids), LINKS_AT_ONCE):
        some = ids[start : start + LINKS_AT_ONCE]
        try:
            links = [_link(contract, row) for row in rows.filter(pk__in=some)]
        except UNREADABLE:
            # One of them cannot be read; one at a time tells which.
            links = [link for pk in some for link in _link_alone(contract, rows.filter(pk=pk))]
        yield from links


def _link_alone(contract: Contract, rows: QuerySet[Entry]) -> list[Link]:
    try:
        return [_link(contract, row) for row in rows]
    except UNREADABLE as error:
        return [Link(0, "", "", b"", b"", {}, unreadable=str(error))]


def _link(contract: Contract, row: Any) -> Link:  # Any: an Entry with its annotations
    for name in ("onset", "recorded_at"):
        # SQLite reads a time that is none as nothing at all.
        if getattr(row, name) is None:
            raise ValueError(f"its {name} is no time")
    return Link(
        sequence=row.sequence,
        previous_hash=row.previous_hash,
        hash=row.hash,
        body=bytes(row.body),
        proof=bytes(row.proof),
        columns={
            "kind": row.kind,
            "year": row.ordinal,
            "terms_version": row.terms_version,
            "incident": row.incident_id,
            "verdict": row.verdict,
            "category": row.category,
            "rule": row.rule,
            "why": row.why,
            "cause_class": row.cause_class,
            "onset": instant(row.onset),
            "recorded_at": instant(row.recorded_at),
            "contract": contract.number,
        },
    )
