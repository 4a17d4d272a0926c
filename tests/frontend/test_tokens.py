"""Contrast of the design tokens, computed from the style sheet that is shipped."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

STYLES = Path(__file__).resolve().parents[2] / "frontend" / "styles"
STATES = ("ok", "spare", "migrating", "warn", "fail", "drain", "unknown")
SURFACES = ("bg", "raised", "sunken")


def tokens(theme: str) -> dict[str, str]:
    sheet = (STYLES / "tokens.css").read_text()
    block = re.search(rf'\[data-theme="{theme}"\] {{(.*?)}}', sheet, re.S)
    assert block is not None
    return dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", block[1]))


def luminance(colour: str) -> float:
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    bright, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("state", STATES)
def test_state_words_can_be_read_on_every_surface_and_on_their_tint(theme: str, state: str) -> None:
    found = tokens(theme)
    grounds = [*SURFACES, f"{state}-tint"]
    assert min(contrast(found[f"{state}-text"], found[ground]) for ground in grounds) >= 4.5


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("ink", ["ink", "muted", "link"])
def test_text_can_be_read_on_every_surface(theme: str, ink: str) -> None:
    found = tokens(theme)
    assert min(contrast(found[ink], found[ground]) for ground in SURFACES) >= 4.5


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("ink", ["series-1", "series-2", "series-3", "series-4"])
def test_labels_of_chart_lines_can_be_read_on_the_page(theme: str, ink: str) -> None:
    found = tokens(theme)
    assert contrast(found[ink], found["bg"]) >= 4.5


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_borders_of_controls_can_be_seen(theme: str) -> None:
    found = tokens(theme)
    assert min(contrast(found["control"], found[ground]) for ground in SURFACES) >= 3


def test_the_system_theme_is_the_dark_one_where_the_system_is_dark() -> None:
    sheet = (STYLES / "tokens.css").read_text()
    block = re.search(r'\[data-theme="system"\] {(.*?)}', sheet, re.S)
    assert block is not None
    assert dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", block[1])) == tokens("dark")
