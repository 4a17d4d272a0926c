from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo, available_timezones

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sla.states import LeapRule
from sla.years import anniversary, day_begins, ordinal_at, year_span


@pytest.mark.parametrize(
    ("day", "zone", "begins"),
    [
        (date(2026, 1, 1), "UTC", datetime(2026, 1, 1, tzinfo=UTC)),
        (date(2026, 7, 1), "Europe/Berlin", datetime(2026, 6, 30, 22, tzinfo=UTC)),
        # Midnight does not exist: clocks went from 00:00 to 01:00.
        (date(2018, 11, 4), "America/Sao_Paulo", datetime(2018, 11, 4, 3, tzinfo=UTC)),
        # Midnight exists twice: clocks went from 01:00 back to 00:00.
        (date(2018, 10, 28), "Atlantic/Azores", datetime(2018, 10, 28, 0, tzinfo=UTC)),
        # The whole day does not exist: the date line moved.
        (date(2011, 12, 30), "Pacific/Apia", datetime(2011, 12, 30, 10, tzinfo=UTC)),
    ],
)
def test_a_day_begins_at_its_first_instant(day: date, zone: str, begins: datetime) -> None:
    assert day_begins(day, ZoneInfo(zone)) == begins


@pytest.mark.parametrize(
    ("rule", "days"),
    [
        (
            LeapRule.FEB_28,
            [(2024, 2, 29), (2025, 2, 28), (2026, 2, 28), (2027, 2, 28), (2028, 2, 29)],
        ),
        (LeapRule.MAR_1, [(2024, 2, 29), (2025, 3, 1), (2026, 3, 1), (2027, 3, 1), (2028, 2, 29)]),
    ],
)
def test_a_leap_day_anchors_to_the_original_date(
    rule: LeapRule, days: list[tuple[int, int, int]]
) -> None:
    first = date(2024, 2, 29)
    assert [anniversary(first, n, rule) for n in range(1, 6)] == [date(*d) for d in days]


@given(
    st.dates(date(1990, 1, 1), date(2060, 1, 1)),
    st.sampled_from(sorted(available_timezones())),
    st.integers(1, 30),
    st.sampled_from(list(LeapRule)),
)
def test_years_follow_each_other_without_gap_or_overlap(
    first: date, zone: str, ordinal: int, rule: LeapRule
) -> None:
    here, following = (year_span(first, ZoneInfo(zone), n, rule) for n in (ordinal, ordinal + 1))
    assert here.start < here.end == following.start
    last = here.end - timedelta(microseconds=1)
    assert ordinal_at(first, ZoneInfo(zone), rule, here.start) == ordinal
    assert ordinal_at(first, ZoneInfo(zone), rule, last) == ordinal


def test_before_the_first_date_there_is_no_year() -> None:
    zone = ZoneInfo("Europe/Berlin")
    before = datetime(2025, 12, 31, 22, 59, tzinfo=UTC)
    assert ordinal_at(date(2026, 1, 1), zone, LeapRule.FEB_28, before) is None
    after = before + timedelta(minutes=1)
    assert ordinal_at(date(2026, 1, 1), zone, LeapRule.FEB_28, after) == 1
