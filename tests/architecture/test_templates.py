"""Under the content security policy nothing inline works, so nothing inline may be written."""

from __future__ import annotations

import re

import pytest

from .sources import templates, where

INLINE = {
    "a style attribute": re.compile(r"<[^>]*\sstyle\s*=", re.IGNORECASE),
    "an event attribute": re.compile(r"<[^>]*\son[a-z]+\s*=", re.IGNORECASE),
    "an inline script": re.compile(r"<script(?![^>]*\bsrc=)[^>]*>", re.IGNORECASE),
    "an inline style sheet": re.compile(r"<style\b", re.IGNORECASE),
    "a javascript: address": re.compile(r"javascript:", re.IGNORECASE),
    "a foreign origin": re.compile(r"(?:src|href|action)=[\"'](?:https?:)?//", re.IGNORECASE),
    "unescaped output": re.compile(r"\|\s*safe\b|\bautoescape off\b"),
}


@pytest.mark.parametrize("what", INLINE)
def test_no_template_has_it(what: str) -> None:
    found = [
        f"{where(path, text[: match.start()].count(chr(10)) + 1)} {match[0][:60]}"
        for path in templates()
        for text in [path.read_text(encoding="utf-8")]
        for match in INLINE[what].finditer(text)
    ]
    assert found == []


@pytest.mark.parametrize(
    ("what", "text"),
    [
        ("a style attribute", '<p style="width:1px">'),
        ("an event attribute", "<b\n onclick=x>"),
        ("an inline script", "<script>1</script>"),
        ("a foreign origin", '<img src="//elsewhere/x.png">'),
        ("unescaped output", "{{ name|safe }}"),
    ],
)
def test_the_lint_sees_what_it_looks_for(what: str, text: str) -> None:
    assert INLINE[what].search(text)


def test_there_are_templates_to_look_at() -> None:
    assert len(templates()) > 5
