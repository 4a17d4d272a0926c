"""Facts about the machine that a figure was measured on."""

from __future__ import annotations

import math
import os
import platform
import signal
import sys
from importlib.metadata import version
from pathlib import Path


def machine() -> dict[str, str | int | float]:
    """What a reader needs in order to compare: cores, memory, processor, versions, load at the start."""
    model = "unknown"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    pages, page = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return {
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(pages * page / 2**30, 1),
        "processor": model,
        "kernel": platform.release(),
        "python": platform.python_version(),
        "torch": version("torch"),
        "load_1m_at_start": round(os.getloadavg()[0], 2),
    }


def percentiles(values: list[float]) -> dict[str, float]:
    """p50, p90 and max by the nearest-rank rule, so each is a value that was measured."""
    ordered = sorted(values)

    def at(share: float) -> float:
        return round(ordered[math.ceil(share * len(ordered)) - 1], 1)

    return {"p50": at(0.5), "p90": at(0.9), "max": at(1.0)}


def end_in_order() -> None:
    """A polite end takes down what was started, as an interrupt from the keyboard does."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
