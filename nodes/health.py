"""The rule *sustained heat*, pure: readings in, streaks and verdicts out.

A streak is what one device's readings have in common since they began to matter. It lives in
``Node.watch`` between heartbeats. A reading that could not be taken says nothing: it neither extends a
streak nor ends one. Absent is never cool.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

import msgspec

from .policies import HeatRule

RULE = "sustained_heat"


class ReadingLike(Protocol):
    """What the rule needs of ``agent.protocol.Reading``."""

    @property
    def check(self) -> str: ...
    @property
    def entity(self) -> str: ...
    @property
    def outcome(self) -> str: ...
    @property
    def value(self) -> float | None: ...
    @property
    def simulated(self) -> bool: ...


class Streak(msgspec.Struct, frozen=True, kw_only=True):
    """Readings of one device. Temperatures in Celsius, times in seconds of the platform's clock.

    ``over`` counts readings at or above the limit since ``since``; ``under`` counts the readings in a
    row below the lower limit after the rule had fired.
    """

    over: int
    under: int
    since: float
    last: float
    value: float
    peak: float
    simulated: bool


Watch = dict[str, Streak]


def watch_read(data: object) -> Watch:
    """Streaks as stored in ``Node.watch``."""
    return msgspec.convert(data, Watch)


def watch_data(watch: Watch) -> dict[str, object]:
    """Streaks as plain JSON data."""
    data: dict[str, object] = msgspec.to_builtins(watch)
    return data


def fired(streak: Streak, rule: HeatRule) -> bool:
    """Whether the streak is long enough, in readings and in seconds, to mean something."""
    return streak.over >= rule.heartbeats and streak.last - streak.since >= rule.seconds


def heat_weighed(
    watch: Mapping[str, Streak], readings: Iterable[ReadingLike], rule: HeatRule, at: float
) -> Watch:
    """The streaks after one heartbeat heard at ``at``. Without heat before or now: an empty dict."""
    after = dict(watch)
    for reading in readings:
        value = _degrees(reading, rule)
        if value is None:
            continue
        streak = _advanced(after.get(reading.entity), value, reading.simulated, rule, at)
        if streak is None:
            after.pop(reading.entity, None)
        else:
            after[reading.entity] = streak
    return after


def _degrees(reading: ReadingLike, rule: HeatRule) -> float | None:
    if reading.check != rule.check or reading.outcome != "ok":
        return None
    return reading.value


def _advanced(
    streak: Streak | None, value: float, simulated: bool, rule: HeatRule, at: float
) -> Streak | None:
    if value >= rule.at_least:
        if streak is None:
            return Streak(
                over=1, under=0, since=at, last=at, value=value, peak=value, simulated=simulated
            )
        return Streak(
            over=streak.over + 1,
            under=0,
            since=streak.since,
            last=at,
            value=value,
            peak=max(streak.peak, value),
            simulated=streak.simulated or simulated,
        )
    if streak is None or not fired(streak, rule):
        return None
    under = streak.under + 1 if value < rule.clear_below else 0
    if under >= rule.clear_heartbeats:
        return None
    return msgspec.structs.replace(streak, under=under, value=value)


def heat_words(entity: str, streak: Streak, rule: HeatRule) -> str:
    """What the streak says, as a sentence with its figures."""
    marked = " (simulated)" if streak.simulated else ""
    return (
        f"{entity} at {streak.value:g} °C{marked}: at or above {rule.at_least:g} °C in "
        f"{streak.over} readings over {streak.last - streak.since:.1f} s, "
        f"highest {streak.peak:g} °C"
    )


def fatal_readings(readings: Iterable[ReadingLike]) -> list[str]:
    """Readings whose probe says that the device itself is gone, in words."""
    return [f"{r.check} of {r.entity}" for r in readings if r.outcome == "fatal"]
