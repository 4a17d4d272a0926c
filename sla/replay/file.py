"""The file format of the guarantee. Its JSON Schema (docs/schemas) is made from these classes alone.

What a schema cannot say (a day that no calendar has, an unknown zone) is in ``reading``.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from ..currencies import DECIMALS

SCHEMA_ID = "urn:yoco:guarantee-replay"

_TIME = "([01][0-9]|2[0-3]):[0-5][0-9]"
_OFFSET = "(Z|[+-]([01][0-9]|2[0-3])(:?[0-5][0-9])?)"

Count = Annotated[int, Meta(ge=0)]
FromOne = Annotated[int, Meta(ge=1)]
Text = Annotated[str, Meta(min_length=1)]
Day = Annotated[
    str,
    Meta(pattern="^[0-9]{4}-[0-9]{2}-[0-9]{2}$", extra_json_schema={"format": "date"}),
]
Instant = Annotated[
    str,
    Meta(
        pattern=rf"^[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}T{_TIME}(:[0-5][0-9](\.[0-9]{{1,6}})?)?{_OFFSET}$",
        description="ISO 8601 with Z or an offset, at most to the microsecond",
    ),
]
EmptyDay = Annotated[str, Meta(pattern="^([0-9]{4}-[0-9]{2}-[0-9]{2})?$")]
Currency = Annotated[
    str, Meta(description="ISO 4217", extra_json_schema={"enum": sorted(DECIMALS)})
]
Empty = Literal[""] | None
"""A field of the terms that is not agreed yet; a missing one is the same."""


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Every key is known, and there unless it has a default."""


class Contract(_Part, frozen=True, kw_only=True):
    start: Day
    zone: Annotated[str, Meta(description="IANA name")]
    currency: Currency
    terminated: Instant | None = None


class Target(_Part, frozen=True, kw_only=True):
    numerator: FromOne | Empty = None
    denominator: FromOne | Empty = None


class Terms(_Part, frozen=True, kw_only=True):
    """One version. An empty field does not make the file a bad one: it blocks the year."""

    version: int | str | None = None
    effective_from: EmptyDay | None = None
    target: Target | Empty = None
    operator: Literal[">=", ""] | None = None
    credit_rate_bp: Count | Empty = None
    credit_base: (
        Literal["fees_of_failed_year", "next_renewal", "first_of_renewal_or_expansion", ""] | None
    ) = None
    credit_cap_minor: Count | Literal["none", ""] | None = None
    credit_expiry_days: Count | Literal["none", ""] | None = None
    order_of_use: str | None = None
    rounding: Literal["half_up", "up", ""] | None = None
    leap_rule: Literal["feb_28", "mar_1", ""] | None = None
    mechanism: Literal["live_migration", "outcome_only", ""] | None = None
    predicted_failures_count: bool | Empty = None
    grouping_window_minutes: Count | Empty = None
    evidence_cutoff_days: Count | Empty = None
    grace_days: Count | Empty = None
    minimum_measured_bp: Count | Empty = None
    contest_window_days: Count | Empty = None
    exclusion_categories: list[str] | Empty = None
    support_matrix_version: int | str | None = None
    minimum_spares: Count | Empty = None


class MeasuredSpan(_Part, frozen=True, kw_only=True, gc=False):
    start: Instant
    end: Instant


class Resumed(_Part, frozen=True, kw_only=True, gc=False):
    last_committed_step: int
    next_committed_step: int
    recomputed_committed_steps: Count
    checkpoint_read: bool
    source: str
    mechanism: Literal["live_migration", "restart_in_place", "path_failover", "checkpoint_restart"]
    digests_equal: bool
    recorded: Instant


class Failure(_Part, frozen=True, kw_only=True, gc=False):
    id: Text
    source: str | None = None
    job: str
    root_cause: str
    cause_class: (
        Literal["device", "node", "fabric", "driver", "operating_system", "user_code"] | None
    )
    occurred: Instant
    observed: Instant
    recorded: Instant
    clock_uncertainty_ms: Count
    protected: bool
    predicted: bool
    drill: bool
    resumed: Resumed | None
    steady_at: Instant | None


class Decision(_Part, frozen=True, kw_only=True):
    """A bad one does not make the file a bad one: it is listed as invalid and changes nothing."""

    id: Text
    failure: Text
    kind: Literal["exclude", "boundary"]
    category: str
    maker: str | None = None
    checker: str | None = None
    decided: Instant
    reason: str
    evidence: list[str] | None = None
    subject_sha256: str | None = None


class _Order(_Part, frozen=True, kw_only=True, tag_field="kind"):
    id: Text
    signed: Instant
    amount_minor: Count
    currency: Currency


class Subscription(_Order, frozen=True, kw_only=True, tag="subscription"):
    """The fees of one contract year."""

    year: FromOne


class Renewal(_Order, frozen=True, kw_only=True, tag="renewal"):
    year: FromOne | None


class Expansion(_Order, frozen=True, kw_only=True, tag="expansion"):
    year: FromOne | None


class File(_Part, frozen=True, kw_only=True):
    """One contract year, and all that is needed to evaluate it."""

    contract: Contract
    terms: Terms | list[Terms]
    year: FromOne
    as_of: Instant
    measured_spans: list[MeasuredSpan]
    failures: list[Failure]
    decisions: list[Decision]
    orders: list[Subscription | Renewal | Expansion]


def schema() -> dict[str, Any]:  # Any: JSON
    """The published JSON Schema."""
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": SCHEMA_ID}
    return head | msgspec.json.schema(File)
