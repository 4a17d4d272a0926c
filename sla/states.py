"""The words of the guarantee, and nothing else."""

from __future__ import annotations

from enum import StrEnum

from django.db.models import TextChoices


class Verdict(TextChoices):
    """The verdict on one failure under its contract."""

    COVERED = "covered"
    MISSED = "missed"
    AVERTED = "averted"
    EXCLUDED = "excluded"
    UNSUPPORTED = "unsupported"
    MERGED = "merged"
    AWAITING = "awaiting"


QUALIFYING = frozenset({Verdict.COVERED, Verdict.MISSED})


class EntryKind(TextChoices):
    FAILURE = "failure"


class CreditBase(TextChoices):
    FEES_OF_FAILED_YEAR = "fees_of_failed_year"
    NEXT_RENEWAL = "next_renewal"
    FIRST_OF_RENEWAL_OR_EXPANSION = "first_of_renewal_or_expansion"


class Rounding(TextChoices):
    HALF_UP = "half_up"
    UP = "up"


class LeapRule(TextChoices):
    FEB_28 = "feb_28"
    MAR_1 = "mar_1"


class Mechanism(TextChoices):
    LIVE_MIGRATION = "live_migration"
    OUTCOME_ONLY = "outcome_only"


class Standing(StrEnum):
    """How a year stands: the first four while it runs, the others once it is over."""

    ON_TARGET = "on_target"
    AT_RISK = "at_risk"
    BELOW_TARGET = "below_target"
    NO_EVENTS = "no_events"
    OPEN = "open"
    BLOCKED = "blocked"
    SHORT = "short"
    INSUFFICIENT_DATA = "insufficient_data"
    MET_NO_EVENTS = "met_no_events"
    MET = "met"
