"""What a contract year is evaluated from. Pure values, whoever read them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime
from zoneinfo import ZoneInfo

from ..classification import Failure
from ..credit import SalesOrder
from ..decisions import Decision
from ..terms import TermsFields
from ..years import Span


@dataclass(frozen=True, kw_only=True)
class Version:
    """A version of the terms. ``effective_from`` and ``fields`` are None where the day is left empty: nobody
    can tell which year it governs. ``empty`` names the empty fields."""

    name: str
    effective_from: date | None
    fields: TermsFields | None
    empty: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """A failure as somebody reported it. ``sha256``: over its canonical bytes, "" where no decision asks
    for it or it has none."""

    source: str
    failure: Failure
    sha256: str = ""


@dataclass(frozen=True, kw_only=True)
class Book:
    """One contract, its year ``year`` (from 1), and everything recorded; what is later than ``as_of`` is
    left out by the evaluation."""

    start: date
    zone: ZoneInfo
    currency: str
    terminated: datetime | None
    versions: Sequence[Version]
    year: int
    as_of: datetime
    measured: Sequence[Span]
    reports: Sequence[Report]
    decisions: Sequence[Decision]
    orders: Sequence[SalesOrder]


class FileRefused(ValueError):
    """Nothing was evaluated. ``code`` is for machines; ``path`` says where in the file ($ is all of it)."""

    def __init__(self, code: str, path: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.path = path
