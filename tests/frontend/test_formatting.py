"""Numbers read the same everywhere, and no per cent is ever rounded up."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frontend import formatting


def plain(words: str) -> str:
    return words.replace("\u00a0", " ")


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "–"), (0.0, "0 ms"), (0.0123, "12 ms"), (0.0994, "99 ms"), (0.0996, "0.10 s"),
        (0.48, "0.48 s"), (9.994, "9.99 s"), (9.996, "10.0 s"), (47.2, "47.2 s"),
        (99.96, "1 min 40 s"), (581, "9 min 41 s"), (7500, "2 h 05 min"),
    ],
)  # fmt: skip
def test_a_span_is_shown_in_its_unit(value: float | None, words: str) -> None:
    assert plain(formatting.seconds(value)) == words


@pytest.mark.parametrize(
    ("value", "words"),
    [(-3, "0 s"), (20, "20 s"), (41 * 60, "41 min"), (9660, "2 h 41"), (30 * 3600, "1 d 6 h")],
)
def test_an_age_is_shown_in_one_or_two_units(value: float, words: str) -> None:
    assert plain(formatting.age(value)) == words


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "–"),
        (812, "812 B"),
        (4_100_000, "4.10 MB"),
        (37_812_224, "37.8 MB"),
        (14.05e9, "14.1 GB"),
    ],
)
def test_bytes_are_shown_in_decimal_units(value: float | None, words: str) -> None:
    assert plain(formatting.size(value)) == words


@given(st.integers(0, 10**9), st.integers(1, 10**9))
def test_a_per_cent_is_cut_off_never_rounded_up(part: int, whole: int) -> None:
    part = min(part, whole)
    shown = formatting.percent(part, whole)
    hundredths = int(shown.replace(".", ""))
    assert hundredths * whole <= part * 10_000 < (hundredths + 1) * whole


def test_nothing_of_nothing_is_no_per_cent() -> None:
    assert formatting.percent(0, 0) == "–"


@given(st.lists(st.integers(0, 500), min_size=1))
def test_ranges_say_exactly_the_numbers(numbers: list[int]) -> None:
    named: set[int] = set()
    for run in formatting.ranges(numbers).split(", "):
        first, _, last = run.partition("–")
        named |= set(range(int(first), int(last or first) + 1))
    assert named == set(numbers)


def test_digests_keep_their_ends() -> None:
    assert formatting.digest("a" * 4 + "0" * 56 + "b" * 4) == "aaaa…bbbb"
    assert formatting.digest("short") == "short"
    assert formatting.digest("") == "–"
