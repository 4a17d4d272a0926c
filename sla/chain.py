"""Canonical bytes, and the chain of hashes over them. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import rfc8785

SCHEMA = 1
"""Version of the body of an entry."""


@dataclass(frozen=True)
class Link:
    """What the chain needs of a stored entry. ``columns`` repeats what its body must say."""

    sequence: int
    previous_hash: str
    hash: str
    body: bytes
    proof: bytes
    columns: dict[str, Any]  # Any: JSON
    unreadable: str = ""
    """Why the row cannot be read at all; nothing else of it counts then."""


@dataclass(frozen=True)
class Verification:
    """``problem`` is empty when every entry holds; else it says in words what fails first."""

    checked: int
    head: str
    problem: str = ""

    @property
    def holds(self) -> bool:
        return not self.problem


def canonical(data: Any) -> bytes:  # Any: JSON
    """RFC 8785 bytes. Raises ValueError for what has none (nan, integers beyond 2**53)."""
    try:
        return rfc8785.dumps(data)
    except rfc8785.CanonicalizationError as error:
        raise ValueError(str(error)) from error


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def instant(at: datetime) -> str:
    """An aware time as UTC text with microseconds, always of the same length."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def verified(links: Iterable[Link], genesis: str, length: int, head: str) -> Verification:
    """Walk a whole ledger in order and compare it with its head."""
    previous, checked = genesis, 0
    for link in links:
        problem = _broken(link, checked + 1, previous)
        if problem:
            return Verification(checked, previous, f"entry {checked + 1}: {problem}")
        previous, checked = link.hash, checked + 1
    if checked != length:
        return Verification(checked, previous, f"{length} entries were written, {checked} are here")
    if previous != head:
        return Verification(checked, previous, "the last entry is not the one written last")
    return Verification(checked, previous)


def _broken(link: Link, sequence: int, previous: str) -> str:
    if link.unreadable:
        return f"it cannot be read: {link.unreadable}"
    if link.sequence != sequence:
        return f"its number is {link.sequence}"
    if sha256(link.body) != link.hash:
        return "its bytes do not have the hash that was stored"
    try:
        said = json.loads(link.body)
    except (ValueError, RecursionError):
        said = None
    if not isinstance(said, dict):
        return "its bytes are no JSON object"
    absent = ({"previous_hash", "sequence", "proof_sha256"} | link.columns.keys()) - said.keys()
    if absent:
        return f"its bytes do not say {', '.join(sorted(absent))}"
    return _contradicted(link, said, sequence, previous)


def _contradicted(link: Link, said: dict[str, Any], sequence: int, previous: str) -> str:
    if link.previous_hash != previous or said["previous_hash"] != previous:
        return "it does not follow the entry before"
    if said["sequence"] != sequence:
        return f"its bytes say number {said['sequence']}"
    if sha256(link.proof) != said["proof_sha256"]:
        return "its evidence does not have the hash that was stored"
    for name, value in link.columns.items():
        if said[name] != value:
            return f"its column {name} says {value}, its bytes say {said[name]}"
    return ""
