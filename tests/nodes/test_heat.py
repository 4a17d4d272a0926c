"""The rule sustained heat, pure. Every case has a twin that must not fire."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodes.health import Watch, fired, heat_weighed, heat_words, watch_data, watch_read
from nodes.policies import HeatRule

from .machines import heat

RULE = HeatRule(at_least=90, clear_below=80, heartbeats=3, seconds=4, clear_heartbeats=2)


def weighed(*temperatures: float | None, every_s: float = 2.0, watch: Watch | None = None) -> Watch:
    streaks = dict(watch or {})
    for n, value in enumerate(temperatures):
        outcome = "ok" if value is not None else "transient"
        streaks = heat_weighed(streaks, [heat(value, outcome=outcome)], RULE, 1000 + n * every_s)
    return streaks


def hot(watch: Watch) -> list[str]:
    return [entity for entity, streak in watch.items() if fired(streak, RULE)]


def test_three_hot_heartbeats_over_four_seconds_fire() -> None:
    assert hot(weighed(90, 90, 90)) == ["gpu-0"]


@pytest.mark.parametrize(
    "temperatures", [(89.9, 89.9, 89.9, 89.9), (95, 95), (95, 95, 70, 95, 95), (95, 95, 85, 95)]
)
def test_less_than_that_does_not_fire(temperatures: tuple[float, ...]) -> None:
    assert hot(weighed(*temperatures)) == []


def test_three_hot_heartbeats_in_a_burst_do_not_fire() -> None:
    assert hot(weighed(95, 95, 95, every_s=0.1)) == []


def test_a_cool_device_leaves_no_trace() -> None:
    assert weighed(50, 60, 70) == {}


def test_a_reading_that_failed_neither_extends_nor_ends_a_streak() -> None:
    assert hot(weighed(95, None, 95)) == []
    assert hot(weighed(95, None, 95, None, 95)) == ["gpu-0"]
    assert hot(weighed(95, 95, 95, None, None, None)) == ["gpu-0"]


def test_between_the_limits_a_fired_streak_stays() -> None:
    assert hot(weighed(95, 95, 95, 85, 85, 85, 85)) == ["gpu-0"]


def test_it_clears_after_enough_cool_readings_in_a_row() -> None:
    assert hot(weighed(95, 95, 95, 79)) == ["gpu-0"]
    assert weighed(95, 95, 95, 79, 79) == {}


def test_one_warmer_reading_begins_the_cooling_anew() -> None:
    assert hot(weighed(95, 95, 95, 79, 81, 79)) == ["gpu-0"]


def test_each_device_has_its_own_streak() -> None:
    watch: Watch = {}
    for n, (first, second) in enumerate([(95, 40), (96, 95), (97, 95)]):
        readings = [heat(first, "gpu-0"), heat(second, "gpu-1")]
        watch = heat_weighed(watch, readings, RULE, 2.0 * n)
    assert hot(watch) == ["gpu-0"]
    assert (watch["gpu-0"].over, watch["gpu-0"].peak, watch["gpu-1"].over) == (3, 97, 2)


def test_other_checks_are_not_temperatures() -> None:
    reading = heat(99).__class__(check="power", entity="gpu-0", outcome="ok", value=400.0)
    assert heat_weighed({}, [reading], RULE, 0) == {}


def test_the_words_carry_the_figures_and_the_mark() -> None:
    streak = weighed(91, 95, 93)["gpu-0"]
    assert heat_words("gpu-0", streak, RULE) == (
        "gpu-0 at 93 °C (simulated): at or above 90 °C in 3 readings over 4.0 s, highest 95 °C"
    )


def test_streaks_survive_their_stay_in_the_database() -> None:
    watch = weighed(91, 95, 93, 70)
    assert watch_read(watch_data(watch)) == watch


@given(st.lists(st.floats(min_value=0, max_value=120), max_size=30))
def test_it_fires_only_if_three_readings_in_a_row_were_hot(values: list[float]) -> None:
    ran = [all(v >= 90 for v in values[n : n + 3]) for n in range(len(values) - 2)]
    if hot(weighed(*values)):
        assert any(ran)
    if ran and ran[-1]:
        assert hot(weighed(*values)) == ["gpu-0"]
