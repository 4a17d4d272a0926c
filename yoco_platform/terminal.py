"""How ``yoco`` speaks on a terminal, and how it refuses."""

from __future__ import annotations

from rich.console import Console

console = Console(highlight=False, soft_wrap=True)
errors = Console(stderr=True, highlight=False, soft_wrap=True)


class Refused(Exception):
    """Not done; ``code`` is for machines, the message for people."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
