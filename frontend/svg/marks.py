"""Bars, cells, lanes and the ribbon: shapes to scale, without words in them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from django.utils.safestring import SafeString, mark_safe


@dataclass(frozen=True)
class Part:
    """One stretch of a bar: ``start`` and ``length`` in the bar's own scale, ``css`` a fill class."""

    start: float
    length: float
    css: str


def num(value: float) -> str:
    """A coordinate with at most two decimals and no trailing zeros."""
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text in ("-0", "") else text


def safe(text: str) -> SafeString:
    # Every caller escapes words with html.escape; the rest are numbers and our own class names.
    return mark_safe(text)  # noqa: S308


def rect(x: float, y: float, width: float, height: float, css: str) -> str:
    return f'<rect class="{css}" x="{num(x)}" y="{num(y)}" width="{num(width)}" height="{num(height)}"/>'


def _stretched(width: float, height: float, body: Iterable[str]) -> SafeString:
    return safe(
        f'<svg class="bar" viewBox="0 0 {num(width)} {num(height)}" height="{num(height)}" '
        f'preserveAspectRatio="none" aria-hidden="true">{"".join(body)}</svg>'
    )


def bar(parts: Sequence[Part], *, total: float, height: float = 6) -> SafeString:
    """A stacked bar. Parts are scaled so that ``total`` fills it; a bar of nothing is only ground."""
    body = [rect(0, 0, 100, height, "fill-sunken")]
    if total > 0:
        for part in parts:
            body.append(
                rect(100 * part.start / total, 0, 100 * part.length / total, height, part.css)
            )
    return _stretched(100, height, body)


def stacked(counts: Sequence[tuple[str, float]], *, height: float = 10) -> SafeString:
    """A bar of (fill class, count) in order, with a hair of ground between neighbours."""
    total = sum(count for _, count in counts)
    parts: list[Part] = []
    start = 0.0
    for css, count in counts:
        gap = min(0.004 * total, count / 2) if start else 0.0
        if count > 0:
            parts.append(Part(start + gap, count - gap, css))
        start += count
    return bar(parts, total=total, height=height)


def stage_steps(done: int, running: float | None, *, num_stages: int = 6) -> SafeString:
    """Equal blocks for the stages of a migration: ``done`` full, one filled by ``running`` 0..1."""
    width = 100 / num_stages
    body: list[str] = []
    for index in range(num_stages):
        x, block = index * width, width - 1
        if index < done:
            body.append(rect(x, 0, block, 6, "fill-migrating"))
        elif index == done and running is not None:
            body.append(rect(x, 0, block, 6, "fill-migrating-tint"))
            body.append(rect(x, 0, block * min(max(running, 0.0), 1.0), 6, "fill-migrating"))
        else:
            body.append(rect(x, 0, block, 6, "fill-sunken"))
    return _stretched(100, 6, body)


def stage_row(
    *,
    span_s: float,
    began_s: float | None,
    ended_s: float | None,
    now_s: float | None = None,
    tick_s: float = 0.0,
    thin: bool = False,
) -> SafeString:
    """One row of the stage table to scale: 600 units are ``span_s`` seconds.

    A running stage (``ended_s`` None) is drawn up to ``now_s``; ``now_s`` is also a line through the
    row. ``tick_s`` > 0 draws the grid. A finished stage is never narrower than 2 units.
    """
    height = 15.0 if thin else 40.0
    thickness = 5.0 if thin else 12.0
    scale = 600 / span_s if span_s > 0 else 0.0
    body: list[str] = []
    if tick_s > 0:
        at = 0.0
        while at <= span_s * 1.0001:
            body.append(rect(min(at * scale, 599), 0, 1, height, "fill-line"))
            at += tick_s
    if began_s is not None:
        end = ended_s if ended_s is not None else (now_s if now_s is not None else began_s)
        width = max((end - began_s) * scale, 2.0)
        x = min(max(began_s * scale, 0.0), 598)
        body.append(
            rect(x, (height - thickness) / 2, min(width, 600 - x), thickness, "fill-migrating")
        )
    if now_s is not None:
        body.append(rect(min(now_s * scale, 599), 0, 1, height, "fill-ink"))
    return _stretched(600, height, body)


def lane(spans: Sequence[tuple[float, float, str]], *, height: float = 16) -> SafeString:
    """One condition over time: (from, to, fill class) as fractions 0..1 of the window."""
    body = [
        rect(600 * start, 3, max(600 * (end - start), 1.0), height - 6, css)
        for start, end, css in spans
    ]
    for index in range(7):
        body.append(rect(min(100.0 * index, 599), 0, 1, height, "fill-line"))
    return _stretched(600, height, body)


def sparkline(values: Sequence[float | None]) -> SafeString:
    """A small line without axes, 72 by 18; empty text for fewer than two values."""
    known = [value for value in values if value is not None]
    if len(known) < 2:
        return safe("")
    low, high = min(known), max(known)
    rise = (high - low) or 1.0
    step = 70 / (len(known) - 1)
    path = "L".join(
        f"{num(1 + index * step)} {num(16 - 14 * (value - low) / rise)}"
        for index, value in enumerate(known)
    )
    return safe(
        f'<svg class="spark" viewBox="0 0 72 18" aria-hidden="true">'
        f'<path class="series-1" d="M{path}"/></svg>'
    )


CELL_CLASS = {
    "ok": "fill-ok",
    "spare": "fill-spare",
    "migrating": "fill-migrating",
    "warn": "fill-warn",
    "fail": "fill-fail",
    "drain": "fill-drain",
    "unknown": "fill-unknown",
}


def cells(states: Sequence[str], *, pitch: float = 10, per_row: int = 8) -> SafeString:
    """GPUs of one node as squares. ``states`` are keys of CELL_CLASS; a spare has an outline."""
    if not states:
        return safe("")
    columns = min(per_row, len(states))
    rows = -(-len(states) // per_row)
    size = pitch - 2
    body: list[str] = []
    for index, state in enumerate(states):
        x, y = (index % per_row) * pitch + 1, (index // per_row) * pitch + 1
        body.append(rect(x, y, size, size, CELL_CLASS[state]))
        if state == "spare":
            body.append(rect(x, y, size, size, "outline-spare"))
        if state == "unknown":
            body.append(
                f'<path class="outline-unknown" d="M{num(x)} {num(y + size)}L{num(x + size)} {num(y)}"/>'
            )
    width, height = columns * pitch, rows * pitch
    return safe(
        f'<svg class="cells" viewBox="0 0 {num(width)} {num(height)}" width="{num(width)}" '
        f'height="{num(height)}" aria-hidden="true">{"".join(body)}</svg>'
    )


def ribbon(
    segments: Sequence[tuple[float, float]],
    joints: Sequence[float],
    *,
    lost: Sequence[tuple[float, float]] = (),
) -> SafeString:
    """Progress of a run by generation: (first, last) step of each, joints where it changed.

    ``lost`` are stretches computed again, hatched. The scale runs from step 0 to the last step.
    """
    total = max((end for _, end in segments), default=0.0) or 1.0
    body = [rect(0, 4, 1000, 12, "fill-sunken")]
    for start, end in segments:
        body.append(
            rect(1000 * start / total, 4, max(1000 * (end - start) / total, 1.0), 12, "fill-ok")
        )
    for start, end in lost:
        x, x1 = 1000 * start / total, 1000 * end / total
        while x < x1:
            body.append(f'<path class="hatch-bad" d="M{num(x)} 16L{num(x + 6)} 4"/>')
            x += 6
    for at in joints:
        x = min(max(1000 * at / total - 2, 0.0), 996)
        body.append(rect(x - 2, 0, 8, 20, "fill-ground"))
        body.append(rect(x, 0, 4, 20, "flag"))
    return _stretched(1000, 20, body)


def sign_in_picture() -> SafeString:
    """A fleet in which one failed cell's state moves to a healthy one."""
    failed, target, columns, rows, pitch = (3, 3), (9, 7), 14, 11, 24
    body: list[str] = []
    for row in range(rows):
        for column in range(columns):
            css = "fill-ok-tint"
            if (column, row) == failed:
                css = "fill-fail"
            elif (column, row) == target:
                css = "fill-migrating"
            body.append(rect(column * pitch, row * pitch, 18, 18, css))
    x, y = failed[0] * pitch, failed[1] * pitch
    end_x, end_y = target[0] * pitch + 9, target[1] * pitch - 8
    body.append(f'<path class="cut" d="M{x + 5} {y + 5}l8 8m0-8l-8 8"/>')
    body.append(
        f'<path class="move-arrow" d="M{x + 24} {y + 9}H{end_x - 30}Q{end_x} {y + 9} {end_x} {y + 39}'
        f'V{end_y}m-6-7 6 7 6-7"/>'
    )
    return safe(f'<svg viewBox="0 0 {columns * pitch} {rows * pitch}">{"".join(body)}</svg>')
