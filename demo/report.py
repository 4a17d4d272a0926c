"""What a case of the story came to, on the terminal and in var/demo/summary.json."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class Case:
    """One failure of the story. ``identical``: every rank's digest and trail == the twin's."""

    name: str
    parallelism: str
    source: str
    pause_ms: float | None
    lost_steps: int | None
    world_size_before: int
    world_size_after: int
    identical: bool
    verdict: str
    incident_id: int
    ledger_entry_id: int | None

    @property
    def passed(self) -> bool:
        return self.identical and self.verdict == "covered" and self.lost_steps == 0


@dataclass(frozen=True)
class Summary:
    """Times in seconds. ``coverage`` is the contract's own count, in whole failures."""

    cases: list[Case]
    coverage: dict[str, int]
    setup_s: float
    story_s: float

    @property
    def passed(self) -> bool:
        return bool(self.cases) and all(case.passed for case in self.cases)

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self), indent=2) + "\n")

    def show(self, console: Console) -> None:
        # Narrow enough for 80 columns: a verdict that is cut off is none.
        table = Table(
            title="What happened (simulated GPUs, one machine)",
            box=None,
            padding=(0, 1, 0, 0),
        )
        for head in ("case", "job", "source", "pause ms", "lost", "ranks", "identical", "verdict"):
            number = head in ("pause ms", "lost")
            table.add_column(head, justify="right" if number else "left", no_wrap=True)
        for case in self.cases:
            table.add_row(
                case.name,
                case.parallelism,
                case.source,
                "–" if case.pause_ms is None else f"{case.pause_ms:.0f}",
                "–" if case.lost_steps is None else str(case.lost_steps),
                f"{case.world_size_before} → {case.world_size_after}",
                "yes" if case.identical else "NO",
                f"{case.verdict} INC-{case.incident_id}",
            )
        console.print(table)
        console.print(
            f"Coverage of the demo contract: {self.coverage['covered']} of "
            f"{self.coverage['qualifying']} qualifying failures. Story {self.story_s:.0f} s."
        )
