"""What the engine says on the script's standard error, one line each."""

from __future__ import annotations

import sys


def say(text: str) -> None:
    sys.stderr.write(f"yoco: {text}\n")
    sys.stderr.flush()
