"""The drawings: to scale, escaped, without anything that the content security policy refuses."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frontend import svg

SPANS = st.floats(min_value=0.001, max_value=1e6, allow_nan=False)


def parsed(text: str) -> ElementTree.Element:
    return ElementTree.fromstring(text)


def rects(text: str, css: str) -> list[dict[str, str]]:
    return [rect.attrib for rect in parsed(text).iter("rect") if rect.attrib["class"] == css]


def test_a_finished_stage_is_drawn_to_scale() -> None:
    (bar,) = rects(svg.stage_row(span_s=60, began_s=6, ended_s=36), "fill-migrating")
    assert (float(bar["x"]), float(bar["width"])) == (60, 300)


def test_a_running_stage_ends_at_now_and_now_is_a_line() -> None:
    drawing = svg.stage_row(span_s=60, began_s=6, ended_s=None, now_s=30)
    (bar,) = rects(drawing, "fill-migrating")
    (now,) = rects(drawing, "fill-ink")
    assert float(bar["x"]) + float(bar["width"]) == float(now["x"]) == 300


def test_a_stage_that_has_not_begun_has_no_bar() -> None:
    assert rects(svg.stage_row(span_s=60, began_s=None, ended_s=None), "fill-migrating") == []


@given(span=SPANS, began=SPANS, took=SPANS)
def test_no_stage_leaves_its_row(span: float, began: float, took: float) -> None:
    drawing = svg.stage_row(span_s=span, began_s=began, ended_s=began + took, tick_s=span / 4)
    for rect in parsed(drawing).iter("rect"):
        assert float(rect.attrib["x"]) >= 0
        assert float(rect.attrib["x"]) + float(rect.attrib["width"]) <= 600.01


@given(st.lists(st.integers(0, 10_000), min_size=1, max_size=7))
def test_the_parts_of_a_stacked_bar_fill_it_or_it_is_only_ground(counts: list[int]) -> None:
    drawing = svg.stacked([(f"fill-{index}", count) for index, count in enumerate(counts)])
    parts = [rect.attrib for rect in parsed(drawing).iter("rect")][1:]
    end = max((float(part["x"]) + float(part["width"]) for part in parts), default=0.0)
    assert end == pytest.approx(100 if sum(counts) else 0, abs=0.05)


def test_no_line_crosses_a_pause() -> None:
    chart = svg.Chart(
        "Loss", "two runs", (0, 10), (0, 1), [svg.Line([[(0, 1), (3, 0.5)], [(6, 0.5), (10, 0.2)]])],
        bands=[svg.Band(3, 6, "paused 3 s", "7 → 8")],
    )  # fmt: skip
    drawing = parsed(svg.line_chart(chart, width=640, height=150))
    lines = [
        path.attrib["d"] for path in drawing.iter("path") if path.attrib["class"] == "series-1"
    ]
    ends = [[float(x) for x in re.findall(r"[ML]([\d.]+) ", line)] for line in lines]
    (band,) = [rect.attrib for rect in drawing.iter("rect") if rect.attrib["class"] == "band"]
    assert len(lines) == 2
    assert max(ends[0]) == pytest.approx(float(band["x"]), abs=0.02)
    assert min(ends[1]) == pytest.approx(float(band["x"]) + float(band["width"]), abs=0.02)


def test_words_are_escaped_everywhere() -> None:
    evil = '<script>"&'
    chart = svg.Chart(
        evil, evil, (0, 1), (0, 1), [svg.Line([[(0, 0), (1, 1)]], label=evil)],
        x_ticks=[svg.Tick(0, evil)], y_ticks=[svg.Tick(0, evil)],
        bands=[svg.Band(0, 1, evil, evil)], flags=[svg.Tick(0.5, evil)],
    )  # fmt: skip
    drawing = svg.line_chart(chart, width=300, height=100)
    assert "<script" not in drawing
    assert evil in [text.text for text in parsed(drawing).iter("text")]


@given(st.lists(st.sampled_from(sorted(svg.CELL_CLASS)), max_size=40))
def test_every_gpu_is_one_cell(states: list[str]) -> None:
    drawing = svg.cells(states)
    shown = (
        []
        if not states
        else [r for r in parsed(drawing).iter("rect") if r.attrib["class"].startswith("fill-")]
    )
    assert len(shown) == len(states)


def test_a_spare_has_an_outline_and_no_data_a_diagonal() -> None:
    assert rects(svg.cells(["spare"]), "outline-spare")
    assert [p.attrib["class"] for p in parsed(svg.cells(["unknown"])).iter("path")] == [
        "outline-unknown"
    ]


def test_the_ribbon_runs_to_the_last_step_with_a_joint_where_generations_meet() -> None:
    drawing = svg.ribbon([(0, 200), (200, 600)], [200])
    segments = rects(drawing, "fill-ok")
    assert [(float(s["x"]), float(s["width"])) for s in segments] == [(0, 333.33), (333.33, 666.67)]
    assert len(rects(drawing, "flag")) == 1


@given(st.floats(-1e6, 1e6, allow_nan=False), st.floats(0.001, 1e6, allow_nan=False))
def test_ticks_span_the_values_and_are_few(low: float, rise: float) -> None:
    ticks = svg.nice_ticks(low, low + rise)
    assert ticks[0] <= low + 1e-9 * rise
    assert ticks[-1] >= low + rise * (1 - 1e-6)
    assert len(ticks) <= 7


def test_a_count_that_jumps_holds_until_the_next() -> None:
    assert svg.step_path([(0, 0), (2, 1), (5, 2)]) == [(0, 0), (2, 0), (2, 1), (5, 1), (5, 2)]


def test_nothing_in_a_drawing_needs_an_inline_style() -> None:
    drawings = [
        svg.stage_steps(3, 0.5), svg.sparkline([1, 2, 3]), svg.lane([(0, 1, "fill-ok")]),
        svg.sign_in_picture(), svg.cells(["ok"] * 8), svg.ribbon([(0, 5)], []),
    ]  # fmt: skip
    assert not [drawing for drawing in drawings if "style=" in drawing or " on" in drawing]
