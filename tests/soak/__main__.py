"""``make soak``: kills around the vote and disasters of every kind, by the hundred, into var/bench/soak.json.

``ARGS="--kills 200 --disasters 100 --seed 7 --kind ddp"``; exit 1 where something is not as it must be.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench.machine import machine
from tests.engine.harness import ROOT, Hatchery

from .allowed import disagreements
from .disasters import around_the_vote, of_every_kind
from .runner import Outcome, Run, leaks, plain

BATCH = 50
"""Kills in one job; a job's schedule is written before it begins."""
SECONDS_EACH = 60.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="make soak", description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--disasters", type=int, default=100)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--kind", choices=("ddp", "fsdp2"), default="ddp")
    given = parser.parse_args()
    print(f"soak: seed {given.seed}, {given.kind}", flush=True)
    problems: list[str] = []
    report: dict[str, Any] = {"seed": given.seed, "kind": given.kind, "machine": machine()}
    hatchery = Hatchery()
    try:
        report["kills"] = _kills(hatchery, given, problems)
        report["disasters"] = _disasters(hatchery, given, problems)
    finally:
        hatchery.close()
    report["problems"] = problems
    path = ROOT / "var" / "bench" / "soak.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=1))
    for problem in problems:
        print(f"soak: {problem}")
    print(f"soak: {'failed' if problems else 'holds'}; written to {path.relative_to(ROOT)}")
    return 1 if problems else 0


def _kills(hatchery: Hatchery, given: argparse.Namespace, problems: list[str]) -> list[Any]:
    found: list[Any] = []
    for begun in range(0, given.kills, BATCH):
        number = min(BATCH, given.kills - begun)
        disasters = around_the_vote(given.seed + begun, number, ranks=3)
        outcome = _go(hatchery, Run(hatchery, _folder(), disasters, given.kind), number)
        wrong = disagreements(outcome.decisions, shadow=given.kind == "fsdp2")
        problems += wrong + outcome.differences()
        sources: dict[str, int] = {}
        for _rank, source, finish in outcome.moved:
            name = f"{source}/{finish}"
            sources[name] = sources.get(name, 0) + 1
        print(f"  {number} kills around the vote: {sources}, {len(wrong)} disagree", flush=True)
        found.append({**plain(outcome), "sources": sources})
    return found


def _disasters(
    hatchery: Hatchery, given: argparse.Namespace, problems: list[str]
) -> dict[str, Any]:
    if not given.disasters:
        return {}
    nodes = given.kind == "ddp"
    disasters = of_every_kind(given.seed, given.disasters, ranks=3, nodes=nodes)
    outcome = _go(hatchery, Run(hatchery, _folder(), disasters, given.kind), given.disasters)
    problems += outcome.differences()
    print("  recovery      fds  threads  shared maps   RSS MB  store keys")
    every = max(1, len(outcome.counters) // 10)
    for index in sorted({*range(0, len(outcome.counters), every), len(outcome.counters) - 1}):
        of, keys = outcome.counters[index], outcome.store_keys[index]
        print(
            f"  {index + 1:8} {of.fds:8} {of.threads:8} {of.shared_maps:12} {of.rss_mb:8.1f} {keys:11}"
        )
    problems += leaks(outcome)
    return plain(outcome)


def _go(hatchery: Hatchery, run: Run, number: int) -> Outcome:
    return run.go(timeout_s=SECONDS_EACH * (number + 1))


def _folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="yoco-soak-"))


if __name__ == "__main__":
    sys.exit(main())
