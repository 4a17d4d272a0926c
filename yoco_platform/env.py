"""Loud readers of the process environment; each variable is named once and remembered.

``NAME_FILE`` may hold the path of a file with the value, for secrets. ``READ`` is what
``.env.example`` is compared with.
"""

from __future__ import annotations

import os
from pathlib import Path

READ: dict[str, str] = {}
"""Name of every variable asked for -> its default as text ("" for none)."""


class BadVariable(Exception):
    """A variable holds something that cannot be what it should be."""


def _raw(name: str, default: str) -> str:
    READ[name] = default
    if name in os.environ:
        return os.environ[name].strip()
    path = os.environ.get(f"{name}_FILE", "")
    if not path:
        return default
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError as error:
        raise BadVariable(f"{name}_FILE names {path}, which cannot be read: {error}") from error


def text(name: str, default: str = "") -> str:
    return _raw(name, default)


def flag(name: str, default: bool = False) -> bool:
    value = _raw(name, "1" if default else "0").lower()
    if value in {"1", "true", "yes", "on"}:
        return True
    if value in {"0", "false", "no", "off", ""}:
        return False
    raise BadVariable(f"{name}={value}: write 1 or 0")


def integer(name: str, default: int, *, least: int = 0) -> int:
    value = _raw(name, str(default))
    try:
        number = int(value)
    except ValueError as error:
        raise BadVariable(f"{name}={value}: write a whole number") from error
    if number < least:
        raise BadVariable(f"{name}={value}: at least {least}")
    return number


def seconds(name: str, default: float, *, least: float = 0.0) -> float:
    value = _raw(name, f"{default:g}")
    try:
        number = float(value)
    except ValueError as error:
        raise BadVariable(f"{name}={value}: write a number of seconds") from error
    if not least <= number < 1e9:
        raise BadVariable(f"{name}={value}: at least {least:g} seconds")
    return number


def words(name: str, default: str = "") -> list[str]:
    return [word.strip() for word in _raw(name, default).split(",") if word.strip()]
