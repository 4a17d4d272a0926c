"""The same job under the same seeded faults: how long until it is done, and what was computed twice.

    python -m bench.completion [--quick] [--steps 600] [--faults 4] [--seed 7] [--every 50]

unbroken (no faults), yoco (the engine with one standby, no platform in the path), a torchrun restart with a
checkpoint every ``--every`` steps, torchft. Wall time runs from the first committed step to the last one, so
that starting Python is nobody's merit. Prints a table and writes var/bench/completion.json. It never fails on
a figure; a row that cannot run says why.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.jobs.runs import (
    Run,
    RunFailed,
    TorchftRun,
    TorchrunRun,
    YocoRun,
    error_words,
    recomputed,
)
from bench.machine import end_in_order, machine

OUTPUT = Path("var/bench/completion.json")
FOLDER = Path("var/bench/completion")
RANKS = 3


@dataclass(frozen=True)
class Fault:
    """Rank ``rank`` is killed once every rank has committed ``step``."""

    step: int
    rank: int


@dataclass(frozen=True)
class Row:
    """``wasted_rank_s``: time of all ranks beyond what the unbroken job took; ``standby_rank_s``: of one
    that only waits. ``identical``: parameters and optimizer state of every rank == the unbroken job's.
    """

    system: str
    faults: int
    wall_s: float | None = None
    ratio_to_unbroken: float | None = None
    recomputed_steps: int | None = None
    identical: bool | None = None
    wasted_rank_s: float | None = None
    standby_rank_s: float = 0.0
    error: str = ""


def fault_schedule(steps: int, faults: int, seed: int) -> list[Fault]:
    """One fault in each of ``faults`` equal stretches, somewhere in its middle half."""
    choose = random.Random(seed)
    stretch = steps // (faults + 1)
    return [
        Fault(
            turn * stretch + choose.randrange(stretch // 4, 3 * stretch // 4 + 1),
            choose.randrange(RANKS),
        )
        for turn in range(1, faults + 1)
    ]


def carry_out(run: Run, faults: list[Fault], limit_s: float) -> float:
    """Wall seconds from the first commit of all ranks to the last. Raises RunFailed."""
    if isinstance(run, YocoRun):
        # The first standby warms before the first fault, as spare capacity of a running job has.
        run.until(lambda: run.step() > 0, limit_s)
    for fault in faults:
        run.until(lambda at=fault.step: run.step() >= at, limit_s)
        killed = run.step()
        run.kill(fault.rank)
        run.until(lambda at=killed: run.step() > at, limit_s)
    run.until(run.done, limit_s)
    logs = [run.commits(rank) for rank in range(RANKS)]
    if any(log[-1].step < run.steps for log in logs):
        raise RunFailed(f"ended at steps {[log[-1].step for log in logs]} of {run.steps}")
    return max(log[-1].at for log in logs) - min(log[0].at for log in logs)


def measure(
    kind: type[Run],
    given: argparse.Namespace,
    faults: list[Fault],
    base: Row | None,
    finals: list[str],
) -> Row:
    every = given.every if kind is TorchrunRun else 0
    run: Run | None = None
    try:
        run = kind(
            FOLDER / kind.system, ranks=RANKS, steps=given.steps, every=every,
            step_ms_min=given.step_ms_min,
        )  # fmt: skip
        wall = carry_out(run, faults, given.limit_s)
        again = max(recomputed(run.commits(rank)) for rank in range(RANKS))
        ended = run.finals()
    except Exception as error:  # noqa: BLE001  the exact error is the row's figure
        return Row(kind.system, len(faults), error=error_words(error))
    finally:
        if run is not None:
            run.close()
    if base is None:
        finals[:] = ended
    unbroken = wall if base is None else base.wall_s
    return Row(
        kind.system, len(faults), round(wall, 2),
        round(wall / unbroken, 3) if unbroken else None, again,
        ended == finals if finals else None,
        round((wall - unbroken) * RANKS, 1) if unbroken else None,
        round(wall, 1) if kind is YocoRun else 0.0,
    )  # fmt: skip


def print_table(rows: list[Row]) -> None:
    heads = f"{'system':18}{'faults':>7}{'wall s':>9}{'ratio':>8}{'again':>7}  {'identical':11}"
    print(f"{heads}{'wasted':>9}{'standby':>9}")
    for row in rows:
        line = f"{row.system:18}{row.faults:>7}"
        if row.error:
            print(f"{line}  {row.error}")
            continue
        same = {True: "yes", False: "no", None: "not compared"}[row.identical]
        print(
            f"{line}{row.wall_s:>9.1f}{row.ratio_to_unbroken or 0:>8.2f}{row.recomputed_steps:>7}  {same:11}"
            f"{row.wasted_rank_s or 0:>7.0f} s{row.standby_rank_s:>7.0f} s"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description="The same job under the same faults.")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--faults", type=int, default=4)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--every", type=int, default=50, help="checkpoint interval under torchrun")
    parser.add_argument("--step-ms-min", type=float, default=100.0)
    parser.add_argument(
        "--limit-s", type=float, default=600.0, help="longest wait for any progress"
    )
    parser.add_argument("--quick", action="store_true", help="60 steps, one fault")
    given = parser.parse_args()
    if given.quick:
        given.steps, given.faults, given.every = 60, 1, 10
    end_in_order()
    facts: dict[str, Any] = machine()
    shutil.rmtree(FOLDER, ignore_errors=True)
    faults = fault_schedule(given.steps, given.faults, given.seed)
    print("kills: " + ", ".join(f"rank {fault.rank} at step {fault.step}" for fault in faults))
    finals: list[str] = []
    rows = [measure(Run, given, [], None, finals)]
    for kind in (YocoRun, TorchrunRun, TorchftRun):
        rows.append(measure(kind, given, faults, rows[0], finals))
        print(f"  {rows[-1].system} done", flush=True)
    print_table(rows)
    said = [{k: v for k, v in asdict(row).items() if k != "error" or v} for row in rows]
    document = {"machine": facts, "schedule": [asdict(fault) for fault in faults], "rows": said}
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    OUTPUT.write_text(json.dumps(document, indent=2) + "\n")
    print(f"written to {OUTPUT}")


if __name__ == "__main__":
    main()
