"""Contracts, versions of their terms, and the years they run through."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime
from zoneinfo import ZoneInfo, available_timezones

import msgspec
from django.db import IntegrityError, transaction

from yoco_platform.core import clock
from yoco_platform.core.audit import audit
from yoco_platform.core.auth import Permission, Viewer, require
from yoco_platform.core.models import Cluster, Customer
from yoco_platform.core.realtime import publish_on_commit

from ..currencies import DECIMALS
from ..errors import ContractRefused, NumberTaken, ScopeTaken, TermsRefused
from ..models import Chain, Contract, ContractYear, Terms
from ..states import LeapRule
from ..terms import TermsFields, terms_problems
from ..years import day_begins, ordinal_at, year_span


@transaction.atomic
def contract_create(
    *,
    viewer: Viewer,
    customer: Customer,
    number: str,
    first_date: date,
    zone: str,
    currency: str,
    terms: TermsFields,
    scope: Sequence[str] = (),
    is_demo: bool = False,
) -> Contract:
    """A contract with the first version of its terms and its first year.

    ``scope`` names clusters by slug; empty covers all. Raises Forbidden, ContractRefused, NumberTaken,
    ScopeTaken, TermsRefused.
    """
    require(viewer, Permission.CONTRACT_WRITE)
    _fits(number, zone, currency, scope)
    if terms.effective_from > first_date:
        raise TermsRefused("the first terms must be in force on the first date")
    # The customer's row keeps two contracts from being made over the same jobs at once.
    Customer.objects.select_for_update().get(pk=customer.pk)
    _scope_free(customer, scope)
    try:
        with transaction.atomic():
            contract = Contract.objects.create(
                customer=customer,
                number=number,
                first_date=first_date,
                zone=zone,
                currency=currency,
                scope=sorted(scope),
                is_demo=is_demo,
                created_by=viewer.name,
            )
    except IntegrityError as error:
        raise NumberTaken(f"there is a contract {number} already") from error
    Chain.objects.create(contract=contract)
    _terms_insert(contract, terms, viewer)
    year_ensure(contract, 1)
    audit(viewer, "contract_create", f"contract:{contract.pk}", {"number": number})
    publish_on_commit(f"guarantee:{customer.pk}", "contract", {"contract_id": contract.pk})
    return contract


@transaction.atomic
def terms_add(*, viewer: Viewer, contract: Contract, terms: TermsFields) -> Terms:
    """The next version. It governs from the first year that begins on or after ``effective_from``;
    a year that has begun keeps its terms. Raises Forbidden, TermsRefused."""
    require(viewer, Permission.CONTRACT_WRITE)
    locked = Contract.objects.select_for_update().get(pk=contract.pk)
    last = locked.terms.order_by("-version").first()
    if last is not None and terms.effective_from <= last.effective_from:
        raise TermsRefused(f"version {last.version} is effective from {last.effective_from}")
    if day_begins(terms.effective_from, ZoneInfo(locked.zone)) <= clock.now():
        raise TermsRefused("new terms take effect in the future, never on a year that has begun")
    row = _terms_insert(locked, terms, viewer)
    audit(viewer, "terms_add", f"contract:{contract.pk}", {"version": row.version})
    publish_on_commit(f"guarantee:{locked.customer_id}", "terms", {"contract_id": contract.pk})
    return row


def years_open() -> int:
    """Store every contract year that has begun. Returns how many were missing."""
    now, made = clock.now(), 0
    for contract in Contract.objects.filter(terminated_at__isnull=True):
        ordinal = ordinal_now(contract, now)
        if ordinal is None:
            continue
        known = set(contract.years.values_list("ordinal", flat=True))
        for missing in sorted(set(range(1, ordinal + 1)) - known):
            year_ensure(contract, missing)
            made += 1
    return made


def year_ensure(contract: Contract, ordinal: int) -> ContractYear:
    """The stored year, computed the first time it is asked for."""
    known = ContractYear.objects.filter(contract=contract, ordinal=ordinal).first()
    if known is not None:
        return known
    span = year_span(contract.first_date, ZoneInfo(contract.zone), ordinal, leap_rule(contract))
    year, _ = ContractYear.objects.get_or_create(
        contract=contract,
        ordinal=ordinal,
        defaults={"starts_at": span.start, "ends_at": span.end},
    )
    return year


def ordinal_now(contract: Contract, at: datetime) -> int | None:
    """The year of a contract an instant belongs to; None before the first."""
    return ordinal_at(contract.first_date, ZoneInfo(contract.zone), leap_rule(contract), at)


def leap_rule(contract: Contract) -> LeapRule:
    """That of the first version; only a contract that began on 29 February ever asks."""
    first = contract.terms.order_by("version").values_list("leap_rule", flat=True).first()
    return LeapRule(first) if first else LeapRule.FEB_28


def _fits(number: str, zone: str, currency: str, scope: Sequence[str]) -> None:
    if not 1 <= len(number.strip()) <= 60:
        raise ContractRefused("a contract's number has 1 to 60 characters", field="number")
    if zone not in available_timezones():
        raise ContractRefused(f"{zone} is no IANA time zone", field="zone")
    if currency not in DECIMALS:
        raise ContractRefused(f"{currency} is no currency of ISO 4217", field="currency")
    known = set(Cluster.objects.filter(slug__in=scope).values_list("slug", flat=True))
    unknown = sorted(set(scope) - known)
    if unknown:
        raise ContractRefused(f"there is no cluster {', '.join(unknown)}", field="scope")


def _scope_free(customer: Customer, scope: Sequence[str]) -> None:
    for other in Contract.objects.filter(customer=customer, terminated_at__isnull=True):
        if not scope or not other.scope or set(scope) & set(other.scope):
            raise ScopeTaken(f"contract {other.number} covers some of these jobs already")


def _terms_insert(contract: Contract, terms: TermsFields, viewer: Viewer) -> Terms:
    problems = terms_problems(terms)
    if problems:
        raise TermsRefused("; ".join(problems))
    values: dict[str, object] = {name: getattr(terms, name) for name in terms.__struct_fields__}
    cap, expiry = terms.credit_cap_minor, terms.credit_expiry_days
    values |= {
        "credit_cap_minor": None if cap == "none" else cap,
        "credit_uncapped": cap == "none",
        "credit_expiry_days": None if expiry == "none" else expiry,
        "credit_never_expires": expiry == "none",
        "exclusion_categories": msgspec.to_builtins(terms.exclusion_categories),
    }
    last = contract.terms.order_by("-version").values_list("version", flat=True).first()
    return Terms.objects.create(
        contract=contract, version=(last or 0) + 1, created_by=viewer.name, **values
    )
