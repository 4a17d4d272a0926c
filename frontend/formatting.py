"""The only formatters of numbers, spans and digests. Units stand behind a no-break space."""

from __future__ import annotations

NBSP = "\u00a0"
DASH = "\u2013"


def count(value: int | None) -> str:
    """A whole number with thousands separated, a dash for None."""
    return DASH if value is None else f"{value:,}"


def seconds(value: float | None) -> str:
    """A measured span: 12 ms, 0.48 s, 47.2 s, 9 min 41 s, 2 h 05 min."""
    if value is None:
        return DASH
    if value < 0.0995:
        return f"{round(value * 1000)}{NBSP}ms"
    if value < 9.995:
        return f"{value:.2f}{NBSP}s"
    if value < 99.95:
        return f"{value:.1f}{NBSP}s"
    whole = round(value)
    if whole < 3600:
        return f"{whole // 60}{NBSP}min {whole % 60:02d}{NBSP}s"
    return f"{whole // 3600}{NBSP}h {whole % 3600 // 60:02d}{NBSP}min"


def age(value: float) -> str:
    """How long something has lasted, in one or two units: 20 s, 41 min, 2 h 41, 1 d 6 h."""
    whole = max(int(value), 0)
    if whole < 60:
        return f"{whole}{NBSP}s"
    if whole < 3600:
        return f"{whole // 60}{NBSP}min"
    if whole < 86_400:
        return f"{whole // 3600}{NBSP}h{NBSP}{whole % 3600 // 60:02d}"
    return f"{whole // 86_400}{NBSP}d{NBSP}{whole % 86_400 // 3600}{NBSP}h"


def size(num_bytes: float | None) -> str:
    """Bytes in decimal units: 812 B, 4.1 MB, 14.05 GB."""
    if num_bytes is None:
        return DASH
    value, unit = float(num_bytes), "B"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if value < 999.5 or unit == "TB":
            break
        value /= 1000
    digits = 0 if unit == "B" else 2 if value < 10 else 1
    return f"{value:.{digits}f}{NBSP}{unit}"


def rate(num_bytes: float, span_s: float) -> str:
    """Bytes a second; a dash when nothing took measurable time."""
    return f"{size(num_bytes / span_s)}/s" if span_s > 0 and num_bytes > 0 else DASH


def digest(value: str) -> str:
    """The ends of a digest; whole when short, a dash when empty."""
    if not value:
        return DASH
    return value if len(value) <= 12 else f"{value[:4]}\u2026{value[-4:]}"


def percent(part: int, whole: int) -> str:
    """Two decimals, cut off and never rounded up; integers only, so 89.996 % never reads 90.00."""
    if whole <= 0:
        return DASH
    hundredths = part * 10_000 // whole
    return f"{hundredths // 100}.{hundredths % 100:02d}"


def ranges(numbers: list[int]) -> str:
    """Ranks as people write them: 0–3, 7."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}{DASH}{b}" for a, b in runs) or DASH


def plural(number: int, one: str, many: str = "") -> str:
    """1 node, 2 nodes, with the number separated by thousands."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def spelled(number: int) -> str:
    """A small number as a word at the start of a sentence."""
    words = ("No", "One", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight", "Nine", "Ten")
    return words[number] if 0 <= number < len(words) else f"{number:,}"
