"""What others do when a rank is killed: the same job, the same kills, a row for each system by name."""

from __future__ import annotations

import itertools
import random
import time
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from .runs import Run, TorchftRun, TorchrunRun, error_words, pause_after

EVERY = 50
"""steps between two checkpoints of a torchrun job"""
ENDLESS = 1_000_000
NOT_DRIVEN = "NotMeasured: {} is not driven by this command yet ({})"


@dataclass(frozen=True)
class PeerCase:
    """``pauses_ms`` is empty where there is an ``error``."""

    system: str
    pauses_ms: list[float]
    lost_steps: int | None
    error: str = ""


def killed(run: Run, rank: int) -> float:
    """Kill one rank; milliseconds until the slowest survivor commits again. Raises RunFailed."""
    at = time.monotonic()
    run.kill(rank)
    survivors = [other for other in range(run.ranks) if other != rank]

    def gone_on() -> bool:
        return all(pause_after(run.commits(other), at) is not None for other in survivors)

    run.until(gone_on)
    pauses = [pause_after(run.commits(other), at) or 0.0 for other in survivors]
    return max(pauses) * 1000


def measure(ranks: int, repeats: int, folder: Path) -> list[PeerCase]:
    return [
        *(_driven(kind, ranks, repeats, folder) for kind in (TorchrunRun, TorchftRun)),
        PeerCase("nvidia-resiliency", [], None, _not_driven("nvidia-resiliency-ext")),
        PeerCase("lm-resiliency", [], None, _not_driven("lm-resiliency")),
    ]


def _not_driven(package: str) -> str:
    try:
        return NOT_DRIVEN.format(package, f"version {version(package)} is installed")
    except PackageNotFoundError as error:
        return f"PackageNotFoundError: {error}"


def _driven(kind: type[Run], ranks: int, repeats: int, folder: Path) -> PeerCase:
    choose = random.Random(7)
    run = None
    pauses: list[float] = []
    lost = 0
    try:
        run = kind(folder / kind.system, ranks=ranks, steps=ENDLESS, every=EVERY)
        for _ in range(repeats):
            reached = run.step()
            strike_at = reached + EVERY + choose.randrange(5, EVERY)
            run.until(lambda run=run, at=strike_at: run.step() >= at)
            before = run.commits(0)[-1].step
            pauses.append(killed(run, 1 % ranks))
            lost = max(lost, _lost(run, before))
            # The next kill meets a whole job again.
            run.until(lambda run=run, before=before: run.step() > before + 1)
    except Exception as error:  # noqa: BLE001  the exact error is the row's figure
        return PeerCase(kind.system, [], None, error_words(error))
    finally:
        if run is not None:
            run.close()
    return PeerCase(kind.system, pauses, lost)


def _lost(run: Run, before: int) -> int:
    """Committed steps that rank 0 commits once more from here on."""
    rows = run.commits(0)
    for last, after in itertools.pairwise(rows):
        if last.step >= before and after.step <= last.step:
            return last.step - after.step + 1
    return 0
