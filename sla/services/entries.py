"""The ledger's only writer: one entry for each failure, under the locked head of its contract."""

from __future__ import annotations

import structlog
from django.db import transaction

from jobs import selectors as job_reads
from jobs.services.verdicts import incident_verdict_set
from yoco_platform.core import clock
from yoco_platform.core.auth import SYSTEM
from yoco_platform.core.locks import advisory_lock
from yoco_platform.core.realtime import publish_on_commit

from .. import chain, selectors
from ..classification import Classified, Failure, Rules, classified
from ..failures import failure_data, failure_of
from ..models import Chain, Contract, ContractYear, Entry, Terms
from ..states import EntryKind, Mechanism
from .contracts import ordinal_now, year_ensure, years_open

log = structlog.get_logger(__name__)

ENTRIES_PER_PASS = 500


def entries_catch_up() -> int:
    """Write the entries of every ended incident that has none. Returns how many it wrote.

    An incident that cannot be written is reported and does not keep the others waiting.
    """
    with advisory_lock("sla.entries") as mine:
        if not mine:
            return 0
        years_open()
        written = 0
        for incident_id in selectors.incidents_without_entry(ENTRIES_PER_PASS):
            try:
                written += entry_add_for_incident(incident_id=incident_id) is not None
            except Exception:
                log.exception("ledger_entry_failed", incident_id=incident_id)
        return written


@transaction.atomic
def entry_add_for_incident(*, incident_id: int) -> Entry | None:
    """The entry of an ended incident, written once; None where no contract covers it, or while it is
    still open. Raises jobs.errors.IncidentUnknown."""
    known = Entry.objects.filter(incident_id=incident_id, kind=EntryKind.FAILURE).first()
    if known is not None:
        return known
    incident = job_reads.incident_get(SYSTEM, incident_id)
    if not selectors.incident_ended(incident):
        return None
    contract = selectors.contract_for(incident)
    ordinal = None if contract is None else ordinal_now(contract, incident.occurred_at)
    if contract is None or ordinal is None:
        return None
    head = Chain.objects.select_for_update().get(contract=contract)
    known = Entry.objects.filter(incident_id=incident_id, kind=EntryKind.FAILURE).first()
    if known is not None:
        return known
    year = year_ensure(contract, ordinal)
    terms = selectors.terms_governing(year)
    if terms is None:
        log.error("no_terms_in_force", contract=contract.number, year=ordinal)
        return None
    failure = failure_of(incident, job_reads.migrations_of(SYSTEM, incident_id=incident_id))
    verdict = classified(failure, _rules(terms))
    entry = _appended(head, contract, year, terms, failure, verdict, incident_id, incident.evidence)
    incident_verdict_set(incident_id=incident_id, verdict=str(verdict.verdict), reason=verdict.why)
    _tell(entry, contract)
    return entry


def _rules(terms: Terms) -> Rules:
    return Rules(
        mechanism=terms.mechanism or Mechanism.LIVE_MIGRATION,
        predicted_failures_count=bool(terms.predicted_failures_count),
        exclusion_categories=frozenset(terms.exclusion_categories or ()),
    )


def _appended(
    head: Chain,
    contract: Contract,
    year: ContractYear,
    terms: Terms,
    failure: Failure,
    verdict: Classified,
    incident_id: int,
    evidence: object,
) -> Entry:
    proof = chain.canonical(evidence)
    recorded_at = clock.now()
    sequence = head.length + 1
    body = chain.canonical(
        {
            "schema": chain.SCHEMA,
            "kind": str(EntryKind.FAILURE),
            "contract": contract.number,
            "sequence": sequence,
            "previous_hash": head.head,
            "year": year.ordinal,
            "terms_version": terms.version,
            "incident": incident_id,
            "verdict": str(verdict.verdict),
            "category": verdict.category,
            "rule": verdict.rule,
            "why": verdict.why,
            "cause_class": failure.cause_class,
            "onset": chain.instant(failure.occurred),
            "recorded_at": chain.instant(recorded_at),
            "failure": failure_data(failure),
            "proof_sha256": chain.sha256(proof),
        }
    )
    entry = Entry(
        contract=contract,
        sequence=sequence,
        year=year,
        terms=terms,
        incident_id=incident_id,
        verdict=verdict.verdict,
        category=verdict.category,
        rule=verdict.rule,
        why=verdict.why,
        cause_class=failure.cause_class,
        onset=failure.occurred,
        recorded_at=recorded_at,
        previous_hash=head.head,
        hash=chain.sha256(body),
        body=body,
        proof=proof,
    )
    entry.save(force_insert=True)
    head.length, head.head = sequence, entry.hash
    head.save(update_fields=["length", "head"])
    return entry


def _tell(entry: Entry, contract: Contract) -> None:
    publish_on_commit(
        f"guarantee:{contract.customer_id}",
        "entry",
        {
            "contract_id": contract.pk,
            "entry_id": entry.pk,
            "sequence": entry.sequence,
            "incident_id": entry.incident_id,
            "verdict": entry.verdict,
        },
    )
