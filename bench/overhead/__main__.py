"""What protection costs a step: protected, unprotected and torchft jobs, block by block in turn.

    python -m bench.overhead [--quick] [--step-ms 20 50 200] [--blocks 15] [--parallelism ddp fsdp2]

All teams of a case live at once; one of them runs at a time, the others stand still. Each pair is a block of
the unprotected job and the block of the other one next to it, in alternating order; the figure is the median
of the paired differences, with the interval that holds the median with 95 % confidence. Prints a table and
writes var/bench/overhead.json. It never fails on a figure; a row that cannot run says why.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import statistics
import typing
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from agent.link import WorkerStart
from bench.machine import end_in_order, machine
from tests.engine.harness import Hatchery

from .teams import Bare, Block, Lighthouse, Ours, Team

OUTPUT = Path("var/bench/overhead.json")
FOLDER = Path("var/bench/overhead")
RANKS = 3
TORCHFT = "torchft"
ONE_GROUP = (
    "NotMeasured: torchft protects groups of ranks; with one rank a group, fully_shard has nothing to "
    "shard and what is left is its ddp row"
)


@dataclass(frozen=True)
class Row:
    """``step_ms`` is what was aimed at, ``measured_step_ms`` the unprotected job's own median."""

    parallelism: str
    redundancy: str
    step_ms: int
    measured_step_ms: float | None
    overhead_percent: float | None
    vote_percent: float | None
    prepare_percent: float | None
    interval: tuple[float, float] | None
    error: str = ""


def settings() -> list[str]:
    """Every redundancy setting there is, from the order that carries it; and torchft beside them."""
    known = typing.get_args(typing.get_type_hints(WorkerStart)["redundancy"])
    return [*(name for name in known if name != "auto"), TORCHFT]


def median_interval(values: list[float]) -> tuple[float, float]:
    """Order statistics that hold the median with at least 95 %, as far as there are enough values."""
    ordered, n = sorted(values), len(values)
    low = 0
    while low < (n - 1) // 2 and _binomial_below(n, low + 1) <= 0.025:
        low += 1
    return round(ordered[low], 2), round(ordered[n - 1 - low], 2)


def _binomial_below(n: int, k: int) -> float:
    return sum(math.comb(n, i) for i in range(k)) / 2**n


def figures(
    parallelism: str, redundancy: str, step_ms: int, pairs: list[tuple[Block, Block]]
) -> Row:
    base = statistics.median(plain.step_s for plain, _ in pairs)
    shares = [(other.step_s - plain.step_s) / base * 100 for plain, other in pairs]

    def share(name: str) -> float | None:
        if redundancy == TORCHFT:
            return None
        return round(statistics.median(getattr(o, name) for _, o in pairs) / base * 100, 2)

    return Row(
        parallelism, redundancy, step_ms, round(base * 1000, 2),
        round(statistics.median(shares), 2), share("vote_s"), share("prepare_s"),
        median_interval(shares),
    )  # fmt: skip


class Bench:
    def __init__(self, hatchery: Hatchery, blocks: int, block_ms: int) -> None:
        self._hatchery, self._blocks, self._block_ms = hatchery, blocks, block_ms
        self._number = 0

    def team(self, system: str, parallelism: str, batch: int, steps: int, stack: ExitStack) -> Team:
        """``system``: plain, torchft or a redundancy setting of ours."""
        self._number += 1
        folder = (FOLDER / f"{self._number}-{system}").resolve()
        environment = {
            "OVERHEAD_SYSTEM": system if system in ("plain", TORCHFT) else "yoco",
            "OVERHEAD_PARALLELISM": parallelism,
            "OVERHEAD_BATCH": str(batch),
            "OVERHEAD_BLOCK_STEPS": str(steps),
        }
        made: Team
        if system == TORCHFT:
            lighthouse = Lighthouse(FOLDER, RANKS)
            stack.callback(lighthouse.close)
            environment["TORCHFT_LIGHTHOUSE"] = lighthouse.address
        if system in ("plain", TORCHFT):
            made = Bare(self._hatchery, folder, RANKS, environment)
        else:
            made = Ours(self._hatchery, folder, RANKS, environment, system)
        stack.callback(made.close)
        made.block()  # lazily made state, buckets, caches
        return made

    def batch_for(self, step_ms: int, parallelism: str) -> int:
        """The batch whose unprotected step takes about so long here and now."""
        points = []
        for batch in (2, 12):
            with ExitStack() as stack:
                team = self.team("plain", parallelism, batch, 8, stack)
                points.append((batch, min(team.block().step_s for _ in range(3)) * 1000))
        (few, low), (many, high) = points
        slope = max((high - low) / (many - few), 0.01)
        return max(1, round(few + (step_ms - low) / slope))

    def case(self, parallelism: str, step_ms: int, names: list[str]) -> list[Row]:
        batch = self.batch_for(step_ms, parallelism)
        steps = max(3, self._block_ms // step_ms)
        return [self._row(parallelism, step_ms, name, batch, steps) for name in names]

    def _row(self, parallelism: str, step_ms: int, name: str, batch: int, steps: int) -> Row:
        nothing = Row(parallelism, name, step_ms, None, None, None, None, None)
        if (parallelism, name) == ("fsdp2", TORCHFT):
            return Row(**{**asdict(nothing), "error": ONE_GROUP})
        pairs = []
        try:
            with ExitStack() as stack:
                plain = self.team("plain", parallelism, batch, steps, stack)
                other = self.team(name, parallelism, batch, steps, stack)
                for turn in range(self._blocks):
                    if turn % 2:
                        after = other.block()
                        pairs.append((plain.block(), after))
                    else:
                        pairs.append((plain.block(), other.block()))
        except Exception as error:  # noqa: BLE001  the exact error is the row's figure
            return Row(**{**asdict(nothing), "error": f"{type(error).__name__}: {error}"[:600]})
        return figures(parallelism, name, step_ms, pairs)


def print_row(row: Row) -> None:
    line = f"{row.parallelism:6} {row.redundancy:8} {row.step_ms:>5} ms "
    if row.error:
        print(line + row.error, flush=True)
        return
    vote = "-" if row.vote_percent is None else f"{row.vote_percent:.2f} %"
    prepare = "-" if row.prepare_percent is None else f"{row.prepare_percent:.2f} %"
    assert row.interval is not None
    low, high = row.interval
    print(
        f"{line}{row.measured_step_ms:>8.1f} ms {row.overhead_percent:>8.2f} % "
        f"[{low:.2f}, {high:.2f}] {vote:>9} {prepare:>9}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="What protection costs a step.")
    parser.add_argument("--step-ms", type=int, nargs="+", default=[20, 50, 200])
    parser.add_argument("--parallelism", nargs="+", default=["ddp", "fsdp2"])
    parser.add_argument("--redundancy", nargs="+", default=settings())
    parser.add_argument("--blocks", type=int, default=15)
    parser.add_argument("--block-ms", type=int, default=1000, help="about the length of a block")
    parser.add_argument("--quick", action="store_true", help="one small case: to see that it runs")
    given = parser.parse_args()
    if given.quick:
        given.step_ms, given.blocks, given.block_ms = [20], 2, 100
    end_in_order()
    facts: dict[str, Any] = machine()
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    print("job    against   aimed    unprotected   overhead [95 % interval]   vote   prepare")
    rows: list[Row] = []
    hatchery = Hatchery()
    try:
        bench = Bench(hatchery, given.blocks, given.block_ms)
        for parallelism in given.parallelism:
            for step_ms in given.step_ms:
                for row in bench.case(parallelism, step_ms, given.redundancy):
                    print_row(row)
                    rows.append(row)
    finally:
        hatchery.close()
    said = [{k: v for k, v in asdict(row).items() if k != "error" or v} for row in rows]
    OUTPUT.write_text(json.dumps({"machine": facts, "rows": said}, indent=2) + "\n")
    print(f"written to {OUTPUT}")


if __name__ == "__main__":
    main()
