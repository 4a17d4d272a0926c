"""Graphics drawn on the server: pure functions from numbers to SVG text.

Attributes and classes only: the content security policy ignores ``style=``. Colours come from the
classes of styles/graphics.css, so both themes and print are served by one drawing. Coordinates are
user units of the view box; a stretched bar uses ``preserveAspectRatio="none"`` and holds no text.
"""

from __future__ import annotations

from .marks import (
    CELL_CLASS,
    Part,
    bar,
    cells,
    lane,
    ribbon,
    sign_in_picture,
    sparkline,
    stacked,
    stage_row,
    stage_steps,
)
from .plot import Band, Chart, Line, Point, Tick, line_chart, nice_ticks, step_path

__all__ = [
    "CELL_CLASS",
    "Band",
    "Chart",
    "Line",
    "Part",
    "Point",
    "Tick",
    "bar",
    "cells",
    "lane",
    "line_chart",
    "nice_ticks",
    "ribbon",
    "sign_in_picture",
    "sparkline",
    "stacked",
    "stage_row",
    "stage_steps",
    "step_path",
]
