from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from nodes.liveness import Listening, Silence, listening_at, silence_judged, silence_of

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def seconds(value: float) -> timedelta:
    return timedelta(seconds=value)


@pytest.mark.parametrize(
    ("silent_s", "heartbeat_s", "judged"),
    [
        (5.9, 2.0, Silence.HEARD),
        (6.0, 2.0, Silence.SUSPECT),
        (29.9, 2.0, Silence.SUSPECT),
        (30.0, 2.0, Silence.LOST),
        (29.9, 10.0, Silence.HEARD),
        (30.0, 10.0, Silence.SUSPECT),
        (49.9, 10.0, Silence.SUSPECT),
        (50.0, 10.0, Silence.LOST),
    ],
)
def test_silence_is_judged_by_the_later_of_both_limits(
    silent_s: float, heartbeat_s: float, judged: Silence
) -> None:
    assert silence_judged(seconds(silent_s), heartbeat_s) is judged


def test_silence_counts_from_the_last_request() -> None:
    listening = Listening(began_at=NOON - seconds(600), last_at=NOON)
    assert silence_of(NOON - seconds(7), listening, NOON) == seconds(7)


def test_silence_before_the_platform_listened_does_not_count() -> None:
    listening = Listening(began_at=NOON - seconds(4), last_at=NOON)
    assert silence_of(NOON - seconds(600), listening, NOON) == seconds(4)
    assert silence_of(None, listening, NOON) == seconds(4)


def test_a_clock_set_back_makes_no_negative_silence() -> None:
    listening = Listening(began_at=NOON, last_at=NOON)
    assert silence_of(NOON + seconds(5), listening, NOON) == seconds(0)


def test_a_pause_of_the_platform_begins_a_new_span() -> None:
    first = listening_at(None, NOON)
    assert first == Listening(began_at=NOON, last_at=NOON)
    second = listening_at(first, NOON + seconds(10))
    assert second == Listening(began_at=NOON, last_at=NOON + seconds(10))
    third = listening_at(second, NOON + seconds(20.5))
    assert third == Listening(began_at=NOON + seconds(20.5), last_at=NOON + seconds(20.5))
