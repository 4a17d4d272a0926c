"""Decisions by two persons: which of them count, and what they decide. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

BOUNDARY_SIDES = ("before", "after")


@dataclass(frozen=True, kw_only=True)
class Decision:
    """One dated row. ``failure``: the id it is about; ``subject_sha256``: over that failure's canonical
    bytes. ``category``: of an exclusion; of a boundary decision, the side of the boundary."""

    id: str
    failure: str
    kind: Literal["exclude", "boundary"]
    category: str
    maker: str
    checker: str
    decided: datetime
    reason: str
    evidence: tuple[str, ...]
    subject_sha256: str


def decision_problems(
    decision: Decision, hashes: Collection[str] | None, categories: Collection[str]
) -> list[str]:
    """Why a decision changes nothing, in words; empty when it holds. Upper and lower case do not make
    two persons of one.

    ``hashes``: of every report of its failure, None when there is none; ``categories``: those of the
    terms that govern the failure's year.
    """
    maker, checker = decision.maker.strip(), decision.checker.strip()
    allowed = categories if decision.kind == "exclude" else BOUNDARY_SIDES
    whose = "the terms do not have" if decision.kind == "exclude" else "no boundary has"
    checks = [
        (maker != "", "it has no maker"),
        (checker != "", "it has no checker"),
        (not maker or maker.casefold() != checker.casefold(), f"{maker} made and checked it"),
        (any(one.strip() for one in decision.evidence), "it has no evidence"),
        (hashes is not None, f"no failure {decision.failure} is known"),
        (
            hashes is None or decision.subject_sha256 in hashes,
            "its hash is not that of the failure as it stands",
        ),
        (
            hashes is None or decision.category in allowed,
            f"it names {decision.category!r}, which {whose}",
        ),
    ]
    return [words for holds, words in checks if not holds]
