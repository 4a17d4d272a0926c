"""Numbers and words that readers write into addresses and boxes."""

from __future__ import annotations

DIGITS_MAX = 17
"""As many always fit the keys of both databases."""


def number_of(text: str) -> int | None:
    """A whole number in ASCII digits; None for anything else, superscripts and other scripts' included."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= DIGITS_MAX else None


def text_of(text: str) -> str:
    """Words without what PostgreSQL cannot take: NUL."""
    return text.replace("\0", "").strip()
