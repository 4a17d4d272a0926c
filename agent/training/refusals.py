"""The errors the state side of the engine raises. Each has a code for machines and words for people."""

from __future__ import annotations


class Unprotectable(Exception):
    """Something handed to ``protect()`` cannot be carried over a failure.

    Raised before training starts, never at a failure. ``code`` is stable; the message names the thing.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class RestoreFailed(Exception):
    """A blob or an arena does not fit this process. Nothing may run on what was restored."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class DecodeFailed(Exception):
    """Bytes that are not one whole value of the tagged encoding."""
