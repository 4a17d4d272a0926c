"""From the bytes of a file to a Book; what does not fit is refused with a code and its place. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import cache
from typing import Any
from zoneinfo import ZoneInfo, available_timezones

import msgspec

from ..chain import canonical, sha256
from ..classification import Failure, Resumed
from ..credit import OrderKind, SalesOrder
from ..currencies import DECIMALS
from ..decisions import Decision
from ..terms import TermsFields
from ..years import Span
from . import file
from .book import Book, FileRefused, Report, Version

DIGITS_MAX = 1000
"""Of one integer. Its products can still be written out."""

_PLACE = re.compile(r"^(.*) - at `(.*)`$", re.DOTALL)
_HALF_CHARACTER = re.compile(r"\\u[dD][89a-fA-F]")


@dataclass(frozen=True)
class _Flaw:
    """Stands in the tree where the text cannot be taken at its word."""

    code: str
    message: str


def file_read(data: bytes) -> Book:
    """The book a file describes. Raises FileRefused."""
    try:
        tree = _tree(data)
        parsed = msgspec.convert(tree, file.File)
    except msgspec.ValidationError as error:
        raise _misfit(str(error)) from error
    except RecursionError as error:
        raise FileRefused("malformed", "$", "it is nested too deep") from error
    return _book(parsed, tree)


def _tree(data: bytes) -> Any:  # Any: JSON
    flaws: list[_Flaw] = []

    def flawed(code: str, message: str) -> _Flaw:
        flaws.append(_Flaw(code, message))
        return flaws[-1]

    def integer(text: str) -> int | _Flaw:
        if len(text) > DIGITS_MAX:
            return flawed("invalid_field", f"an integer has at most {DIGITS_MAX} digits")
        return int(text)

    def keyed(pairs: list[tuple[str, Any]]) -> Any:  # Any: JSON
        found = dict(pairs)
        if len(found) == len(pairs):
            return found
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        return flawed("duplicate_key", f"the key {shown(twice)} is there twice")

    try:
        text = data.decode("utf-8-sig")
        tree = json.loads(text, parse_int=integer, object_pairs_hook=keyed)
    except ValueError as error:
        raise FileRefused("malformed", "$", f"it is no JSON in UTF-8: {error}") from error
    if _HALF_CHARACTER.search(text):
        tree = _without_half_characters(tree, flawed)
    if flaws:
        path, flaw = next(_flaws(tree, "$"))
        raise FileRefused(flaw.code, path, flaw.message)
    return tree


def _without_half_characters(tree: Any, flawed: Callable[[str, str], _Flaw]) -> Any:  # Any: JSON
    """Half of a surrogate pair is no character: nothing could write it out or hash it."""
    if isinstance(tree, dict):
        if any(shown(name) != name and not _whole(name) for name in tree):
            return flawed("malformed", "a key holds half of a surrogate pair")
        return {name: _without_half_characters(value, flawed) for name, value in tree.items()}
    if isinstance(tree, list):
        return [_without_half_characters(value, flawed) for value in tree]
    if isinstance(tree, str) and not _whole(tree):
        return flawed("malformed", "it holds half of a surrogate pair")
    return tree


def _whole(text: str) -> bool:
    return not any(0xD800 <= ord(character) <= 0xDFFF for character in text)


def _flaws(tree: Any, path: str) -> Iterator[tuple[str, _Flaw]]:  # Any: JSON
    if isinstance(tree, _Flaw):
        yield path, tree
    elif isinstance(tree, dict):
        for name, value in tree.items():
            yield from _flaws(value, f"{path}.{shown(name)}")
    elif isinstance(tree, list):
        for index, value in enumerate(tree):
            yield from _flaws(value, f"{path}[{index}]")


def shown(text: str) -> str:
    """Text from a file as a terminal may see it: what does not print is written as its escape."""
    return "".join(
        one if one.isprintable() else one.encode("unicode_escape").decode() for one in text
    )


def _misfit(message: str) -> FileRefused:
    found = _PLACE.match(message)
    words, path = (found[1], found[2]) if found else (message, "$")
    codes = {"Object contains unknown field": "unknown_field", "Object missing": "missing_field"}
    code = next((code for start, code in codes.items() if words.startswith(start)), "invalid_field")
    return FileRefused(code, shown(path), shown(words))


def _book(parsed: file.File, tree: Any) -> Book:  # Any: JSON
    asked = {decision.failure for decision in parsed.decisions}
    terms = parsed.terms if isinstance(parsed.terms, list) else [parsed.terms]
    at = "$.terms[{}]" if isinstance(parsed.terms, list) else "$.terms"
    contract = parsed.contract
    return Book(
        start=_day(contract.start, "$.contract.start"),
        zone=_zone(contract.zone),
        currency=_currency(contract.currency, "$.contract.currency"),
        terminated=_maybe(contract.terminated, "$.contract.terminated"),
        versions=[_version(one, at.format(n)) for n, one in enumerate(terms)],
        year=parsed.year,
        as_of=_instant(parsed.as_of, "$.as_of"),
        measured=[
            Span(
                _instant(one.start, f"$.measured_spans[{n}].start"),
                _instant(one.end, f"$.measured_spans[{n}].end"),
            )
            for n, one in enumerate(parsed.measured_spans)
        ],
        reports=[
            Report(
                source=one.source or "",
                failure=_failure(one, f"$.failures[{n}]"),
                sha256=_hash(tree["failures"][n]) if one.id in asked else "",
            )
            for n, one in enumerate(parsed.failures)
        ],
        decisions=[_decision(one, f"$.decisions[{n}]") for n, one in enumerate(parsed.decisions)],
        orders=[_order(one, f"$.orders[{n}]") for n, one in enumerate(parsed.orders)],
    )


def _day(text: str, path: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError as error:
        raise FileRefused("impossible_date", path, f"{shown(text)}: {error}") from error


def _instant(text: str, path: str) -> datetime:
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise FileRefused("impossible_date", path, f"{shown(text)}: {error}") from error


def _maybe(text: str | None, path: str) -> datetime | None:
    return None if text is None else _instant(text, path)


@cache
def _zones() -> frozenset[str]:
    # It walks all files of the zones, which takes longer than the evaluation of most years.
    return frozenset(available_timezones())


def _zone(name: str) -> ZoneInfo:
    if name not in _zones():
        raise FileRefused(
            "unknown_zone", "$.contract.zone", f"{shown(name)} is no IANA time zone here"
        )
    return ZoneInfo(name)


def _currency(code: str, path: str) -> str:
    if code not in DECIMALS:
        raise FileRefused("unknown_currency", path, f"{shown(code)} is no currency of ISO 4217")
    return code


def _version(terms: file.Terms, path: str) -> Version:
    values: dict[str, Any] = msgspec.structs.asdict(terms)  # Any: JSON
    empty = [name for name, value in values.items() if value is None or value == ""]
    name, effective_from = values.pop("version"), values.pop("effective_from")
    target = values.pop("target") or file.Target()
    parts = msgspec.structs.asdict(target)
    if "target" not in empty:
        empty += [f"target.{part}" for part, value in parts.items() if value in (None, "")]
    day = _day(effective_from, f"{path}.effective_from") if effective_from else None
    fields = None
    if day is not None:
        known = {name: value for name, value in values.items() if value not in (None, "")}
        known |= {f"target_{part}": value for part, value in parts.items() if value}
        fields = TermsFields(effective_from=day, **{"operator": "", **known})
    return Version(
        name="" if name is None else str(name),
        effective_from=day,
        fields=fields,
        empty=tuple(empty),
    )


def _failure(failure: file.Failure, path: str) -> Failure:
    values: dict[str, Any] = {  # Any: JSON
        name: getattr(failure, name) for name in failure.__struct_fields__ if name != "source"
    }
    for name in ("occurred", "observed", "recorded"):
        values[name] = _instant(values[name], f"{path}.{name}")
    values["steady_at"] = _maybe(failure.steady_at, f"{path}.steady_at")
    if failure.resumed is not None:
        how = msgspec.structs.asdict(failure.resumed)
        how["recorded"] = _instant(how["recorded"], f"{path}.resumed.recorded")
        values["resumed"] = Resumed(**how)
    return Failure(ended=False, **values)


def _hash(failure: Any) -> str:  # Any: JSON
    """Over the canonical bytes as it stands in the file; "" where it has none (integers beyond 2**53)."""
    try:
        return sha256(canonical(failure))
    except ValueError:
        return ""


def _decision(decision: file.Decision, path: str) -> Decision:
    return Decision(
        id=decision.id,
        failure=decision.failure,
        kind=decision.kind,
        category=decision.category,
        maker=decision.maker or "",
        checker=decision.checker or "",
        decided=_instant(decision.decided, f"{path}.decided"),
        reason=decision.reason,
        evidence=tuple(decision.evidence or ()),
        subject_sha256=decision.subject_sha256 or "",
    )


_KINDS: dict[type, OrderKind] = {
    file.Subscription: "subscription",
    file.Renewal: "renewal",
    file.Expansion: "expansion",
}


def _order(order: file.Subscription | file.Renewal | file.Expansion, path: str) -> SalesOrder:
    return SalesOrder(
        id=order.id,
        kind=_KINDS[type(order)],
        signed=_instant(order.signed, f"{path}.signed"),
        amount_minor=order.amount_minor,
        currency=_currency(order.currency, f"{path}.currency"),
        year=order.year,
    )
