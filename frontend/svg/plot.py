"""Line charts with their words in the drawing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import floor, log10

from django.utils.safestring import SafeString

from .marks import num, rect, safe

Point = tuple[float, float]
"""x and y in the units of the data."""


@dataclass(frozen=True)
class Band:
    """A stretch of x in which nothing was measured, because training was paused."""

    start: float
    end: float
    label: str = ""
    sub: str = ""


@dataclass(frozen=True)
class Line:
    """Points of one series in runs: nothing is drawn between two runs (a pause is a gap)."""

    runs: Sequence[Sequence[Point]]
    css: str = "series-1"
    label: str = ""


@dataclass(frozen=True)
class Tick:
    at: float
    label: str


@dataclass(frozen=True)
class Chart:
    """What a line chart shows. ``x`` and ``y`` are the (low, high) of both axes."""

    title: str
    description: str
    x: tuple[float, float]
    y: tuple[float, float]
    lines: Sequence[Line]
    x_ticks: Sequence[Tick] = ()
    y_ticks: Sequence[Tick] = ()
    bands: Sequence[Band] = ()
    flags: Sequence[Tick] = ()
    """Pauses too short for the axis: a mark with its label, not to scale."""
    now: float | None = None


def nice_ticks(low: float, high: float, count: int = 4) -> list[float]:
    """At most ``count`` + 1 round numbers that span low..high, for an axis."""
    if high <= low:
        return [low]
    raw = (high - low) / count
    power = 10.0 ** floor(log10(raw))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw * 0.999)
    first = floor(low / step) * step
    ticks = [first]
    while ticks[-1] < high - step * 1e-9:
        ticks.append(ticks[-1] + step)
    return ticks


def line_chart(
    chart: Chart, *, width: int, height: int, css: str = "", left: int = 44, right: int = 64
) -> SafeString:
    """A line chart with words in the drawing. ``right`` leaves room for the label at the line's end."""
    top, bottom = (34 if chart.bands or chart.flags else 12), 24
    plot_w, plot_h = width - left - right, height - top - bottom
    (x0, x1), (y0, y1) = chart.x, chart.y
    span_x, span_y = (x1 - x0) or 1.0, (y1 - y0) or 1.0

    def at(point: Point) -> Point:
        x = left + plot_w * (point[0] - x0) / span_x
        y = top + plot_h * (1 - (point[1] - y0) / span_y)
        return x, y

    body: list[str] = []
    for band in chart.bands:
        body += _band(at((band.start, y0))[0], at((band.end, y0))[0], top, plot_h, band)
    for tick in chart.y_ticks:
        y = at((x0, tick.at))[1]
        line = "axis-base" if tick.at == y0 else "axis"
        body.append(f'<path class="{line}" d="M{left} {num(y)}H{num(left + plot_w)}"/>')
        body.append(
            f'<text x="{left - 6}" y="{num(y + 4)}" text-anchor="end">{escape(tick.label)}</text>'
        )
    for tick in chart.x_ticks:
        body.append(
            f'<text x="{num(at((tick.at, y0))[0])}" y="{height - 6}" text-anchor="middle">'
            f"{escape(tick.label)}</text>"
        )
    body += _flags([(at((flag.at, y0))[0], flag.label) for flag in chart.flags], top, plot_h, width)
    if chart.now is not None:
        x = at((chart.now, y0))[0]
        body.append(f'<path class="now-line" d="M{num(x)} {top}V{num(top + plot_h)}"/>')
    labels: list[tuple[Point, Line]] = []
    for line_of in chart.lines:
        runs = [[at(point) for point in run] for run in line_of.runs if run]
        body += [_path(run, line_of.css) for run in runs]
        if line_of.label and runs:
            labels.append((runs[-1][-1], line_of))
    body += _end_labels(labels)
    return safe(
        f'<svg class="chart {css}" viewBox="0 0 {width} {height}" role="img">'
        f"<title>{escape(chart.title)}</title><desc>{escape(chart.description)}</desc>"
        f"{''.join(body)}</svg>"
    )


def _end_labels(labels: Sequence[tuple[Point, Line]]) -> list[str]:
    """Names of the lines at their ends instead of a legend, at least a line of text apart."""
    body: list[str] = []
    above = float("inf")
    for (x, y), line_of in sorted(labels, key=lambda label: -label[0][1]):
        above = min(y, above - 15)
        series = line_of.css.split()[0]
        body.append(
            f'<text class="{series}-label bold-text" x="{num(x + 6)}" y="{num(above + 4)}">'
            f"{escape(line_of.label)}</text>"
        )
    return body


def _path(points: Sequence[Point], css: str) -> str:
    if len(points) == 1:
        x, y = points[0]
        return f'<circle class="dot-1" cx="{num(x)}" cy="{num(y)}" r="2"/>'
    if not points:
        return ""
    d = "L".join(f"{num(x)} {num(y)}" for x, y in points)
    return f'<path class="{css}" d="M{d}"/>'


def _band(x0: float, x1: float, top: float, plot_h: float, band: Band) -> list[str]:
    width = max(x1 - x0, 2.0)
    middle = x0 + width / 2
    body = [rect(x0, top, width, plot_h, "band")]
    for x in (x0, x0 + width):
        body.append(f'<path class="band-edge" d="M{num(x)} {num(top)}V{num(top + plot_h)}"/>')
    for index, (words, css) in enumerate(((band.sub, ""), (band.label, "bold-text"))):
        if words:
            body.append(
                f'<text class="migrating-label {css}" x="{num(middle)}" y="{10 + 15 * index}" '
                f'text-anchor="middle">{escape(words)}</text>'
            )
    return body


def _flags(flags: Sequence[tuple[float, str]], top: float, plot_h: float, width: int) -> list[str]:
    """Marks at pauses, with labels that keep clear of one another by taking two rows in turn."""
    body: list[str] = []
    for index, (x, label) in enumerate(flags):
        body.append(rect(x - 1, top, 2, plot_h, "flag"))
        anchor = "end" if x > width * 0.25 else "start"
        body.append(
            f'<text class="migrating-label bold-text" x="{num(x)}" y="{10 + 15 * (index % 2)}" '
            f'text-anchor="{anchor}">{escape(label)}</text>'
        )
    return body


def step_path(points: Sequence[Point]) -> list[Point]:
    """The points of a count that jumps: each value holds until the next one."""
    steps: list[Point] = []
    for x, y in points:
        if steps:
            steps.append((x, steps[-1][1]))
        steps.append((x, y))
    return steps
