"""``make bench-failover``: the pause of each kind of failure, engine alone and whole platform, beside others.

Prints a table and writes var/bench/failover.json. It never fails on time; a row that could not be measured,
or that was not covered, says so with the exact error.

    python -m bench.failover [--quick] [--repeats 20] [--peer-repeats 5] [--parallelism ddp] [--ranks 3]
                             [--only engine-kill kill planned-move node-loss node-silent peers]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.jobs import peers
from bench.jobs.runs import Run, YocoRun, recomputed
from bench.machine import end_in_order, machine, percentiles
from demo.report import Case
from demo.story import Chapter, Story
from demo.watch import Row
from demo.world import ROOT, World

console = Console(soft_wrap=True)
OUT = ROOT / "var" / "bench" / "failover.json"
STEP_MS_MIN = 100
PLATFORM_CASES = ("kill", "planned-move", "node-loss", "node-silent")
EVERYTHING = ("engine-kill", *PLATFORM_CASES, "peers")


class Unmeasured(RuntimeError):
    """A repeat that is no measurement of a failover."""


@dataclass(frozen=True)
class BenchCase:
    """One row. ``lost_steps`` is that of the worst repeat; ``identical`` None: not compared."""

    name: str
    system: str
    parallelism: str
    ranks: int
    repeats: int
    pause_ms: dict[str, float] | None
    lost_steps: int | None
    identical: bool | None
    stages_ms: dict[str, float]
    error: str = ""


def engine(parallelism: str, ranks: int, repeats: int, folder: Path) -> BenchCase:
    """Kills without a platform: the engine and a coordinator that decides at once."""
    if parallelism != "ddp":
        raise Unmeasured("NotMeasured: the job of bench/jobs is a ddp one")
    run, unbroken = None, None
    steps = (repeats + 2) * 25
    try:
        unbroken = Run(folder / "unbroken", ranks=ranks, steps=steps)
        unbroken.until(unbroken.done)
        run = YocoRun(folder / "engine", ranks=ranks, steps=steps, step_ms_min=STEP_MS_MIN)
        pauses = []
        for turn in range(repeats):
            at = run.step()
            run.until(lambda at=at, run=run: run.warm() and run.step() > at + 3)
            pauses.append(peers.killed(run, turn % ranks))
            console.print(f"  engine-kill {turn + 1} of {repeats}: {pauses[-1]:.0f} ms")
        run.until(run.done)
        logs = [run.commits(rank) for rank in range(ranks)]
        same = run.finals() == unbroken.finals()
    finally:
        for each in (run, unbroken):
            if each is not None:
                each.close()
    lost = max(recomputed(log) for log in logs)
    return BenchCase(
        "engine-kill", "yoco", parallelism, ranks, repeats, percentiles(pauses), lost, same, {}
    )


def ours(
    parallelism: str, ranks: int, repeats: int, folder: Path, names: list[str]
) -> list[BenchCase]:
    """``repeats`` failures of each kind in one job, each waiting until the job is protected again."""
    with World(folder, port=8151, node_names=tuple("abcdefgh"[: ranks + 1])) as world:
        story = Story(world, lambda words: None, world_size=ranks, step_ms_min=STEP_MS_MIN)
        story.watch.nodes_ready([node.name for node in world.nodes.values()])
        chapter = story.begin(parallelism)
        for name in names:
            for turn in range(repeats):
                _strike(story, chapter, name, turn % ranks)
                pause = chapter.happened[-1][1]["pause_ms"]
                words = "no pause" if pause is None else f"{pause:.0f} ms"
                console.print(f"  {name} {turn + 1} of {repeats}: {words}")
        cases = story.compare(chapter)
    return [_case(name, parallelism, ranks, chapter, cases) for name in names]


def _case(
    name: str, parallelism: str, ranks: int, chapter: Chapter, cases: list[Case]
) -> BenchCase:
    mine = [case for case in cases if case.name == name]
    try:
        pauses, lost_steps = _measured(mine)
        stages = _stages([incident for its, incident, _ in chapter.happened if its == name])
    except Unmeasured as error:
        return failed(name, "yoco", parallelism, ranks, error)
    return BenchCase(
        name=name,
        system="yoco",
        parallelism=parallelism,
        ranks=ranks,
        repeats=len(pauses),
        pause_ms=percentiles(pauses),
        lost_steps=lost_steps,
        identical=all(case.identical for case in mine),
        stages_ms=stages,
    )


def failed(
    name: str, system: str, parallelism: str, ranks: int, error: Exception | str
) -> BenchCase:
    """A row without a figure: what went wrong, in its own words."""
    words = error if isinstance(error, str) else f"{type(error).__name__}: {error}"[:600]
    return BenchCase(name, system, parallelism, ranks, 0, None, None, None, {}, words)


def _measured(cases: list[Case]) -> tuple[list[float], int]:
    """Every pause, and the most steps that any kill lost. Raises Unmeasured."""
    pauses, lost = [], []
    for case in cases:
        if case.verdict != "covered":
            raise Unmeasured(f"incident {case.incident_id} is {case.verdict}, not covered")
        if case.pause_ms is None:
            raise Unmeasured(f"incident {case.incident_id} has no pause")
        if case.lost_steps is None:
            raise Unmeasured(f"incident {case.incident_id} does not say what was lost")
        pauses.append(case.pause_ms)
        lost.append(case.lost_steps)
    return pauses, max(lost)


def _strike(story: Story, chapter: Chapter, name: str, rank: int) -> None:
    job = story.watch.protected(chapter.job_id)
    if name == "planned-move":
        story.overheat(chapter)
        return
    if name == "node-silent":
        if story.world.network is None:
            raise Unmeasured("NotMeasured: no network namespaces here, so no node can fall silent")
        story.lose_node(chapter)
        return
    worker = next(w for w in job["workers"] if w["rank"] == rank and w["state"] == "running")
    if name == "kill":
        pid = story.world.worker_pid(worker["id"])
        story.case(chapter, name, lambda: os.kill(pid, signal.SIGKILL))
        return
    key = next(k for k, node in story.world.nodes.items() if node.name == worker["node"])
    story.case(chapter, name, lambda: _kill_node(story.world, key), protect=False)
    story.world.start_agent(key)
    story.watch.protected(chapter.job_id)


def _kill_node(world: World, key: str) -> None:
    """Agent and workers at once; the network stays, so that sockets are reset."""
    node = world.nodes[key]
    assert node.process is not None
    node.process.kill()
    world.kill_workers(node)
    node.process.wait()


def _stages(incidents: list[Row]) -> dict[str, float]:
    """Median length of each stage, from the rows that the incident page shows. Raises Unmeasured."""
    lengths: dict[str, list[float]] = {}
    for incident in incidents:
        done = [m for m in incident["migrations"] if m["state"] == "done"]
        if not done:
            raise Unmeasured(f"incident {incident['id']} has no migration that is done")
        for stage in done[0]["stages"]:
            if stage["ended_at"]:
                took = _seconds(stage["ended_at"]) - _seconds(stage["began_at"])
                lengths.setdefault(stage["name"], []).append(took * 1000)
    return {name: round(median(values), 1) for name, values in lengths.items()}


def _seconds(stamp: str) -> float:
    from datetime import datetime

    return datetime.fromisoformat(stamp).timestamp()


def show(cases: list[BenchCase]) -> None:
    # Narrow enough for 80 columns: a figure that is cut off is none.
    table = Table(
        title="Pause: last commit before to first commit after, slowest survivor",
        box=None,
        padding=(0, 1, 0, 0),
    )
    heads = ("case", "system", "job", "n", "p50 ms", "p90 ms", "max ms", "lost", "identical")
    for head in heads:
        left = head in ("case", "system", "job", "identical")
        table.add_column(head, justify="left" if left else "right", no_wrap=True)
    for case in cases:
        if case.pause_ms is None:
            continue
        same = {True: "yes", False: "NO", None: "not compared"}[case.identical]
        pauses = [f"{case.pause_ms[key]:.0f}" for key in ("p50", "p90", "max")]
        table.add_row(
            case.name, case.system, case.parallelism, str(case.repeats), *pauses,
            str(case.lost_steps), same,
        )  # fmt: skip
    console.print(table)
    for case in cases:
        if case.error:
            console.print(f"{case.name} {case.system}: {case.error}", markup=False)
        if case.stages_ms:
            words = ", ".join(f"{name} {length:.0f}" for name, length in case.stages_ms.items())
            console.print(f"{case.name} stages, median ms: {words}")


def measure(given: argparse.Namespace, folder: Path) -> list[BenchCase]:
    """Every row that was asked for; one that fails costs only itself, or the platform's rows together."""
    cases = []
    if "engine-kill" in given.only:
        try:
            cases.append(engine(given.parallelism, given.ranks, given.repeats, folder / "alone"))
        except Exception as error:  # noqa: BLE001  the exact error is the row's figure
            cases.append(failed("engine-kill", "yoco", given.parallelism, given.ranks, error))
    for name in PLATFORM_CASES:
        if name not in given.only:
            continue
        try:
            cases += ours(given.parallelism, given.ranks, given.repeats, folder / "world", [name])
        except Exception as error:  # noqa: BLE001
            cases.append(failed(name, "yoco", given.parallelism, given.ranks, error))
    if "peers" in given.only:
        for found in peers.measure(given.ranks, given.peer_repeats, folder):
            if found.pauses_ms:
                cases.append(
                    BenchCase(
                        "kill", found.system, "ddp", given.ranks, len(found.pauses_ms),
                        percentiles(found.pauses_ms), found.lost_steps, None, {},
                    )
                )  # fmt: skip
            else:
                cases.append(failed("kill", found.system, "ddp", given.ranks, found.error))
    return cases


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--peer-repeats", type=int, default=5)
    parser.add_argument("--parallelism", choices=["ddp", "fsdp2"], default="ddp")
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=EVERYTHING, default=list(EVERYTHING))
    parser.add_argument("--quick", action="store_true", help="one of each: to see that it runs")
    given = parser.parse_args()
    if given.quick:
        given.repeats = given.peer_repeats = 1
    end_in_order()  # so that the world is taken down
    facts: dict[str, Any] = machine()
    folder = ROOT / "var" / "bench" / "failover"
    shutil.rmtree(folder, ignore_errors=True)
    console.print(f"{given.repeats} failures of each kind, {given.ranks} ranks")
    cases = measure(given, folder)
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(
        json.dumps({"machine": facts, "cases": [asdict(c) for c in cases]}, indent=2) + "\n"
    )
    show(cases)
    console.print(f"written to {OUT.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
