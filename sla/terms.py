"""A version of the terms as values: read from outside, checked, and asked what is left empty. Pure."""

from __future__ import annotations

from datetime import date
from typing import Literal

import msgspec


class TermsFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Every rule of a contract. A field left out is empty: the year cannot be closed before it is
    agreed. Field names are those of the guarantee's file format, the target apart."""

    effective_from: date
    target_numerator: int | None = None
    target_denominator: int | None = None
    operator: Literal[">=", ""] = ">="
    credit_rate_bp: int | None = None
    credit_base: Literal[
        "fees_of_failed_year", "next_renewal", "first_of_renewal_or_expansion", ""
    ] = ""
    credit_cap_minor: int | Literal["none"] | None = None
    credit_expiry_days: int | Literal["none"] | None = None
    order_of_use: str = ""
    rounding: Literal["half_up", "up", ""] = ""
    leap_rule: Literal["feb_28", "mar_1", ""] = ""
    mechanism: Literal["live_migration", "outcome_only", ""] = ""
    predicted_failures_count: bool | None = None
    grouping_window_minutes: int | None = None
    evidence_cutoff_days: int | None = None
    grace_days: int | None = None
    minimum_measured_bp: int | None = None
    contest_window_days: int | None = None
    exclusion_categories: list[str] | None = None
    support_matrix_version: str = ""
    minimum_spares: int | None = None


_LARGEST = {
    "target_numerator": 1_000_000,
    "target_denominator": 1_000_000,
    "credit_rate_bp": 10_000,
    "credit_cap_minor": 2**53 - 1,
    "minimum_measured_bp": 10_000,
    "minimum_spares": 1_000_000,
}
_DAYS_MAX = 100_000


def terms_read(data: object) -> TermsFields:
    """Decode terms. Raises ValueError in words."""
    try:
        fields = msgspec.convert(data, TermsFields)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from error
    problems = terms_problems(fields)
    if problems:
        raise ValueError("; ".join(problems))
    return fields


def terms_problems(fields: TermsFields) -> list[str]:
    """What contradicts itself. An empty field is none of it."""
    problems: list[str] = []
    for name in fields.__struct_fields__:
        value = getattr(fields, name)
        if type(value) is int and not 0 <= value <= _LARGEST.get(name, _DAYS_MAX):
            problems.append(f"{name} must be from 0 to {_LARGEST.get(name, _DAYS_MAX)}")
        if type(value) is str and len(value) > 40:
            problems.append(f"{name} has at most 40 characters")
    numerator, denominator = fields.target_numerator, fields.target_denominator
    if (numerator is None) != (denominator is None):
        problems.append("target needs both a numerator and a denominator")
    elif numerator is not None and denominator is not None and not 1 <= numerator <= denominator:
        problems.append("target must be above 0 and at most 1")
    return problems


def terms_empty(values: dict[str, object]) -> list[str]:
    """Names of the fields that are left empty: missing, null or "". 0 and false are values."""
    return [
        name
        for name in TermsFields.__struct_fields__
        if values.get(name) is None or values.get(name) == ""
    ]
