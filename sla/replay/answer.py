"""How the evaluation of a file is told: as JSON, and in words that show the arithmetic. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from datetime import datetime
from typing import Any

from ..currencies import money
from ..states import Verdict
from .evaluation import Counted, YearResult
from .reading import shown

_COUNTS = (
    "qualifying",
    "covered",
    "missed",
    "averted",
    "excluded",
    "unsupported",
    "merged",
    "awaiting",
)
_FIGURES = ("misses_left", "short_by", "coverage_truncated")


def answer_data(result: YearResult) -> dict[str, Any]:  # Any: JSON
    """The answer of the file format. Without terms in force everything that they decide is null."""
    data: dict[str, Any] = {
        "year": {"start_utc": _utc(result.span.start), "end_utc": _utc(result.span.end)},
        "recorded": result.recorded,
        **dict.fromkeys(_COUNTS),
        "outcome": str(result.outcome),
        "blocked_by": list(result.blocked_by),
        "invalid_decisions": None,
        **dict.fromkeys(_FIGURES),
        "measured_bp": None,
        "credit": None,
        "lines": None,
    }
    found = result.counted
    if found is not None:
        data |= {name: getattr(found.evaluation.counts, name) for name in _COUNTS}
        data |= {name: getattr(found.evaluation, name) for name in _FIGURES}
        data["measured_bp"] = found.measured_bp
        data["credit"] = None if found.credit is None else asdict(found.credit)
        data["invalid_decisions"] = [
            {"id": name, "why": why} for name, why in found.invalid_decisions
        ]
        data["lines"] = [
            {
                "failure": line.failure,
                "verdict": str(line.verdict),
                "rule": line.rule,
                "why": line.why,
            }
            for line in found.lines
        ]
    return data


def answer_text(result: YearResult) -> str:
    """The answer for people: each figure with how it was computed."""
    book = result.book
    words = str(result.outcome).replace("_", " ")
    lines = [
        f"Contract year {book.year}, {_utc(result.span.start)} up to {_utc(result.span.end)} (not included), "
        f"as known at {_utc(book.as_of)}",
        f"Outcome: {words}",
        *(f"  blocked by {problem}" for problem in result.blocked_by),
    ]
    if result.counted is None:
        lines.append(f"Recorded: {result.recorded}. Nothing else can be counted without terms.")
    else:
        lines += _counted(result, result.counted)
    return "\n".join(shown(line) for line in lines) + "\n"


def _counted(result: YearResult, found: Counted) -> Iterator[str]:
    counts = found.evaluation.counts
    yield f"Terms: version {found.version.name or '?'}, in force at the first instant of the year"
    yield (
        f"Recorded: {counts.recorded} = {counts.qualifying} qualifying + {sum(counts.excluded.values())} "
        f"excluded + {counts.unsupported} unsupported + {counts.averted} averted + {counts.merged} merged "
        f"+ {counts.awaiting} awaiting"
    )
    for category, number in counts.excluded.items():
        yield f"  excluded as {category}: {number}"
    yield f"Qualifying: {counts.qualifying} = {counts.covered} covered + {counts.missed} missed"
    yield from _test(found)
    yield _measured(found)
    yield from _credit(result, found)
    for name, why in found.invalid_decisions:
        yield f"Decision {name} changes nothing: {why}"
    for line in found.lines:
        if line.verdict in (Verdict.MISSED, Verdict.AWAITING):
            yield f"{line.verdict.capitalize()}: {line.failure} ({line.rule}): {line.why}"
    yield "Every failure with its verdict and its rule: --json, under lines."


def _test(found: Counted) -> Iterator[str]:
    evaluation, counts, fields = found.evaluation, found.evaluation.counts, found.version.fields
    numerator = fields.target_numerator if fields else None
    denominator = fields.target_denominator if fields else None
    if not numerator or not denominator:
        yield "Test: none, the terms have no target"
        return
    left, right = counts.covered * denominator, numerator * counts.qualifying
    yield (
        f"Test: covered × {denominator} ≥ {numerator} × qualifying, "
        f"{left} ≥ {right}, {'holds' if left >= right else 'does not hold'}"
    )
    coverage = evaluation.coverage_truncated
    yield f"Coverage: {'n/a (0 of 0)' if coverage is None else f'{coverage} %, cut off'}"
    if evaluation.short_by:
        yield f"Short by {evaluation.short_by}: so many of the missed would have had to be covered"
    else:
        yield f"Misses left: {evaluation.misses_left}"


def _measured(found: Counted) -> str:
    asked = found.minimum_measured_bp
    least = "no minimum is agreed" if asked is None else f"the terms ask for {_percent(asked)}"
    if found.measured_bp is None:
        return "Measured time: the year has not begun"
    return f"Measured time: {_percent(found.measured_bp)} of the year so far, cut off; {least}"


def _credit(result: YearResult, found: Counted) -> Iterator[str]:
    credit, fields = found.credit, found.version.fields
    if credit is None or fields is None:
        return
    rate, base = _percent(credit.basis_points), fields.credit_base.replace("_", " ")
    if credit.base_minor is None or credit.amount_minor is None:
        yield f"Credit: {rate} of the {base}, unpriced: no such order is signed yet"
        return
    cap = fields.credit_cap_minor
    limit = f", capped at {money(cap, credit.currency)}" if isinstance(cap, int) else ""
    yield (
        f"Credit: {money(credit.amount_minor, credit.currency)} = {rate} of {base}, "
        f"{money(credit.base_minor, credit.currency)}, rounded once ({fields.rounding}){limit}"
    )


def _percent(basis_points: int) -> str:
    return f"{basis_points // 100}.{basis_points % 100:02d} %"


def _utc(instant: datetime) -> str:
    return instant.isoformat().replace("+00:00", "Z")
