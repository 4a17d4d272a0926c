"""Move one state between two processes in every way we have, beside what the machine and others can.

    python -m bench.transfer [--quick] [--sizes 64 1000 4000] [--repeats 3]

Prints a table and writes var/bench/transfer.json. Rounds are interleaved, so that a busy moment of the
machine hits every row. What lands first is compared with the source, outside the timed part, whoever carried
it. It never fails on a figure; a row that cannot run says why.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.machine import end_in_order, machine

from .state import FEW, MANY, Shape, allow_many_descriptors
from .ways import Peer, Sample, Target

OUTPUT = Path("var/bench/transfer.json")
MB = 1_000_000
RATIO_BYTES = 1000 * MB
COPIES = 5
"""of the state that stand in memory at once at most: source, target, a file, what was loaded, slack"""


@dataclass
class Row:
    """One way to move one state. ``verified``: the carrier itself proves what arrived."""

    carrier: str
    shape: Shape
    verified: bool
    measure: Callable[[Target], Sample] = field(repr=False)
    samples: list[Sample] = field(default_factory=list)
    error: str = ""

    def run(self, target: Target) -> None:
        if self.error:
            return
        first = not self.samples
        try:
            if first:
                target.held.clear()
            target.landed = target.held.digest
            sample = self.measure(target)
            if first and target.landed() != target.where["digest"]:
                raise RuntimeError("what landed is not what the source holds")
            self.samples.append(sample)
        except Exception as error:  # noqa: BLE001  the exact error is the row's figure
            self.error = f"{type(error).__name__}: {error}"
        finally:
            target.landed = target.held.digest
            said = target.peer.ask("forget")["failed"]
            if self.error and said:
                self.error += f" (source: {said})"

    @property
    def seconds(self) -> float | None:
        return statistics.median(s.seconds for s in self.samples) if self.samples else None

    def result(self) -> dict[str, Any]:
        seconds = None if self.error else self.seconds
        said: dict[str, Any] = {
            "carrier": self.carrier,
            "bytes": self.shape.bytes,
            "tensors": self.shape.tensors,
            "gb_per_s": None if seconds is None else round(self.shape.bytes / seconds / 1e9, 3),
            "verified": self.verified,
        }
        return {**said, "error": self.error} if self.error else said


def rows_of(shape: Shape) -> list[Row]:
    ways: list[tuple[str, bool, Callable[[Target], Sample]]] = [
        ("memcpy", False, Target.copy),
        ("one-bare-socket", False, lambda target: target.bare(1)),
        ("two-bare-sockets", False, lambda target: target.bare(2)),
        ("yoco-tcp", True, lambda target: target.ours("tcp")),
        ("yoco-tcp-mapped-inside", True, lambda target: target.ours("tcp", mapped=False)),
        ("yoco-tcp-tls", True, lambda target: target.ours("tcp", secure=True)),
        ("yoco-same-host-copied", True, lambda target: target.ours("same_host")),
        ("yoco-same-host", True, lambda target: target.ours("same_host", take=True)),
        ("torchft-http", False, lambda target: target.torchft_http(0)),
        ("torchft-http-4-chunks", False, lambda target: target.torchft_http(4)),
        ("torchft-pg", False, Target.torchft_pg),
        ("gloo-send", False, Target.gloo),
        ("torch-save-tmpfs", False, Target.torch_save),
        ("dcp-tmpfs", False, Target.dcp),
    ]
    return [Row(name, shape, verified, measure) for name, verified, measure in ways]


def measure(shape: Shape, repeats: int, only: set[str]) -> list[Row]:
    rows = [row for row in rows_of(shape) if not only or row.carrier in only]
    lacking = COPIES * shape.bytes - _available_bytes()
    if lacking > 0:
        for row in rows:
            row.error = f"NotEnoughMemory: {lacking / 1e9:.1f} GB more would have to be free"
        return rows
    with tempfile.TemporaryDirectory() as directory:
        peer = Peer(shape, Path(directory))
        try:
            target = Target(peer, shape)
            for _ in range(repeats):
                for row in rows:
                    row.run(target)
            target.close()
        finally:
            peer.close()
    return rows


def _available_bytes() -> int:
    found = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text())
    return int(found[1]) * 1024 if found else 0


def document(rows: list[Row]) -> dict[str, Any]:
    at = {row.carrier: row.seconds for row in rows if row.shape == Shape(RATIO_BYTES, FEW)}
    tcp, taken = at.get("yoco-tcp"), at.get("yoco-same-host")

    def ratio(other: float | None) -> float | None:
        return round(other / tcp, 3) if tcp and other else None

    # The faster of torchft's two settings is what we compare with.
    http = [s for s in (at.get("torchft-http"), at.get("torchft-http-4-chunks")) if s is not None]
    return {
        "machine": machine(),
        "rows": [row.result() for row in rows],
        "ratios": {
            "tcp_to_torchft_http": ratio(min(http, default=None)),
            "tcp_to_two_sockets": ratio(at.get("two-bare-sockets")),
        },
        "same_host_ms": None if taken is None else round(taken * 1000, 2),
    }


def print_table(rows: list[Row]) -> None:
    shape = None
    for row in rows:
        if row.shape != shape:
            shape = row.shape
            print(f"\n{shape.bytes / 1e9:.3f} GB in {shape.tensors} tensors, between two processes")
            print(
                f"  {'carrier':24}{'verified':>9}{'median ms':>11}{'best':>9}{'GB/s':>8}{'CPU s':>8}"
            )
        line = f"  {row.carrier:24}{'yes' if row.verified else 'no':>9}"
        if row.error or row.seconds is None:
            print(f"{line}  {row.error}")
            continue
        best = min(sample.seconds for sample in row.samples)
        cpu = statistics.median(sample.cpu_s for sample in row.samples)
        speed = row.shape.bytes / row.seconds / 1e9
        print(f"{line}{row.seconds * 1e3:>11.1f}{best * 1e3:>9.1f}{speed:>8.2f}{cpu:>8.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Move one state in every way we have.")
    parser.add_argument("--sizes", type=int, nargs="+", default=[64, 1000, 4000], help="in MB")
    parser.add_argument("--tensors", type=int, nargs="+", default=[FEW, MANY])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", nargs="+", default=[], help="carriers, by name")
    parser.add_argument("--quick", action="store_true", help="64 MB once: to see that it runs")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.sizes, arguments.repeats = [64], 1
    allow_many_descriptors()
    end_in_order()
    facts = machine()
    rows = [
        row
        for size in arguments.sizes
        for tensors in arguments.tensors
        for row in measure(Shape(size * MB, tensors), arguments.repeats, set(arguments.only))
    ]
    print_table(rows)
    found = {**document(rows), "machine": facts}
    print(
        f"\nratios at 1 GB in {FEW} tensors: {found['ratios']}, same host {found['same_host_ms']} ms"
    )
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    OUTPUT.write_text(json.dumps(found, indent=2) + "\n")
    print(f"written to {OUTPUT}")


if __name__ == "__main__":
    main()
