"""The job's charts: from points and pauses to drawings. Pure but for the reader's time zone."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from django.utils import timezone
from django.utils.safestring import SafeString

from . import svg
from .formatting import NBSP, seconds
from .queries.job import Pause

if TYPE_CHECKING:
    from jobs.models import Point

LENSES_MAX = 2


@dataclass(frozen=True)
class Measure:
    """One row of charts: what of a point it shows."""

    name: str
    unit: str
    value: Callable[[Point], float | None]
    label: Callable[[float], str]
    from_zero: bool = False


MEASURES = (
    Measure("Loss", "of the lowest reporting rank", lambda point: point.loss, lambda v: f"{v:.3f}"),
    Measure(
        "Step time", "ms", lambda point: point.step_ms, lambda v: f"{v:.0f}{NBSP}ms", from_zero=True
    ),
)


@dataclass(frozen=True)
class Drawn:
    """A chart twice: for wide and for narrow screens, as text never shrinks."""

    wide: SafeString
    narrow: SafeString


@dataclass(frozen=True)
class Lens:
    pause: Pause
    charts: list[Drawn]


@dataclass(frozen=True)
class Charts:
    measures: Sequence[Measure]
    whole: list[Drawn]
    lenses: list[Lens]


def draw(points: Sequence[Point], pauses: Sequence[Pause]) -> Charts | None:
    """The whole run, and one lens to scale on each of the last pauses. None without points."""
    if not points:
        return None
    shown = list(pauses[-LENSES_MAX:])
    whole = [_drawn(_whole(measure, points, pauses), 640) for measure in MEASURES]
    lenses = [
        Lens(pause, [_drawn(_lens(m, points, pause), 276, 8) for m in MEASURES]) for pause in shown
    ]
    return Charts(MEASURES, whole, lenses)


def _drawn(chart: svg.Chart, width: int, right: int = 64) -> Drawn:
    height = 150
    few = chart.x_ticks[::2] if len(chart.x_ticks) > 3 else chart.x_ticks
    narrow = dataclasses.replace(chart, x_ticks=few)
    return Drawn(
        svg.line_chart(chart, width=width, height=height, css="only-wide", right=right),
        svg.line_chart(narrow, width=320, height=height, css="only-narrow", right=right),
    )


def _runs(points: Sequence[Point], value: Callable[[Point], float | None]) -> list[list[svg.Point]]:
    """Points by generation: no line crosses the pause between two."""
    runs: list[list[svg.Point]] = []
    generation: int | None = None
    for point in points:
        y = value(point)
        if y is None:
            continue
        if point.generation != generation:
            runs.append([])
            generation = point.generation
        runs[-1].append((point.at.timestamp(), y))
    return runs


def _y_axis(runs: Sequence[Sequence[svg.Point]], measure: Measure) -> list[float]:
    values = [y for run in runs for _, y in run] or [0.0]
    # One slow step must not flatten all others: the axis ends at four times the median.
    high = max(values)
    if measure.from_zero:
        high = min(high, 4 * sorted(values)[len(values) // 2]) or 1.0
    low = 0.0 if measure.from_zero else min(values)
    if high <= low:
        low, high = low - 0.5, low + 0.5
    return svg.nice_ticks(low, high, 3)


def _whole(measure: Measure, points: Sequence[Point], pauses: Sequence[Pause]) -> svg.Chart:
    runs = _clipped(_runs(points, measure.value), measure)
    ticks = _y_axis(runs, measure)
    x0, x1 = points[0].at.timestamp(), max(points[-1].at.timestamp(), points[0].at.timestamp() + 1)
    last = next((v for point in reversed(points) if (v := measure.value(point)) is not None), None)
    flags = [
        svg.Tick(pause.began_at.timestamp(), f"{_name(pause)} · {seconds(pause.seconds)}")
        for pause in pauses
    ]
    return svg.Chart(
        title=f"{measure.name}, whole run",
        description=f"{len(points)} points over {seconds(x1 - x0)}, {len(pauses)} failovers",
        x=(x0, x1),
        y=(ticks[0], ticks[-1]),
        lines=[svg.Line(runs, label="" if last is None else measure.label(last))],
        x_ticks=_time_ticks(x0, x1),
        y_ticks=[svg.Tick(value, _short(value)) for value in ticks],
        flags=flags[-6:],
    )


def _lens(measure: Measure, points: Sequence[Point], pause: Pause) -> svg.Chart:
    length = (pause.ended_at - pause.began_at).total_seconds()
    half = max(3.0, 4 * length)
    zero = pause.began_at.timestamp()
    near = [p for p in points if -half <= p.at.timestamp() - zero <= length + half]
    runs = _clipped(
        [[(x - zero, y) for x, y in run] for run in _runs(near, measure.value)], measure
    )
    ticks = _y_axis(runs, measure)
    words = seconds(pause.seconds)
    return svg.Chart(
        title=f"{measure.name} around {_name(pause)}",
        description=f"step {pause.last_step} before, step {pause.next_step} after, paused {words}",
        x=(-half, length + half),
        y=(ticks[0], ticks[-1]),
        lines=[svg.Line(runs)],
        x_ticks=[
            svg.Tick(-half, f"\u2212{half:.0f}{NBSP}s"),
            svg.Tick(0, "0"),
            svg.Tick(length + half * 0.9, f"+{half:.0f}{NBSP}s"),
        ],
        y_ticks=[svg.Tick(value, _short(value)) for value in ticks],
        bands=[
            svg.Band(
                0, length, f"paused {words}", f"{pause.last_step:,} \u2192 {pause.next_step:,}"
            )
        ],
    )


def _clipped(runs: list[list[svg.Point]], measure: Measure) -> list[list[svg.Point]]:
    """Values beyond the axis end at its edge, so that nothing is drawn outside the plot."""
    if not measure.from_zero:
        return runs
    high = _y_axis(runs, measure)[-1]
    return [[(x, min(y, high)) for x, y in run] for run in runs]


def _name(pause: Pause) -> str:
    return pause.incident.number if pause.incident else f"generation {pause.generation}"


def _short(value: float) -> str:
    return f"{value:g}" if abs(value) < 1000 else f"{value:,.0f}"


def _time_ticks(x0: float, x1: float) -> list[svg.Tick]:
    form = "%H:%M:%S" if x1 - x0 < 1800 else "%H:%M" if x1 - x0 < 2 * 86_400 else "%-d %b"
    ticks: list[svg.Tick] = []
    for index in range(5):
        at = x0 + (x1 - x0) * index / 4
        local = timezone.localtime(datetime.fromtimestamp(at, UTC))
        ticks.append(svg.Tick(at, local.strftime(form)))
    return ticks
