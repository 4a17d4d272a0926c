"""``make support-matrix``: write docs/support.md from what the last whole ``make test`` has proven.

``--check`` refuses a page that claims a row which no passed test of that run has proven.
"""

from __future__ import annotations

import json
import sys
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PROVEN = ROOT / "var" / "proven.json"
PAGE = ROOT / "docs" / "support.md"
NEVER = (
    "CUDA and NCCL: state on a GPU is refused at `protect()`; several GPUs have never been used",
    "TensorFlow and JAX",
    "more than one machine: nodes are processes and network namespaces of one host",
)
HEAD = """# What is supported

Written by `make support-matrix` from the tests that passed in `make test`: a job lost or moved a rank,
went on, and every parameter, buffer, optimizer tensor, generator and trail was `==` an unbroken twin's.
`make test` fails when this page claims a row that none of its passed tests has proven. *Through* says what
stood in the path: the engine with agents played by the test, or the whole platform.

| framework | parallelism | source | ranks | through | on |
|---|---|---|---|---|---|
"""


@dataclass(frozen=True, order=True)
class Row:
    framework: str
    parallelism: str
    source: str
    ranks: str
    through: str
    device: str

    @classmethod
    def of(cls, raw: dict[str, Any]) -> Row:
        return cls(
            raw["framework"], raw["parallelism"], raw["source"], str(raw["ranks"]), raw["through"],
            raw["device"],
        )  # fmt: skip

    def line(self) -> str:
        return f"| {' | '.join(astuple(self))} |"


def page_of(rows: set[Row]) -> str:
    lines = "\n".join(row.line() for row in sorted(rows))
    never = "\n".join(f"* {words}" for words in NEVER)
    return f"{HEAD}{lines}\n\n## Never run\n\n{never}\n"


def claimed(page: str) -> set[Row]:
    """Rows of a page; the two lines of the table's head are none."""
    lines = [line for line in page.splitlines() if line.startswith("|")][2:]
    return {Row(*(cell.strip() for cell in line.strip("|").split("|"))) for line in lines}


def main(arguments: list[str]) -> int:
    if not PROVEN.exists():
        print("support-matrix: run `make test` first: it writes var/proven.json", file=sys.stderr)
        return 1
    rows = {Row.of(raw) for raw in json.loads(PROVEN.read_text())}
    if "--check" not in arguments:
        PAGE.write_text(page_of(rows))
        print(f"support-matrix: {len(rows)} rows in {PAGE.relative_to(ROOT)}")
        return 0
    told = claimed(PAGE.read_text()) if PAGE.exists() else set()
    for row in sorted(told - rows):
        print(f"support-matrix: claimed and not proven: {row.line()}", file=sys.stderr)
    if rows - told:
        print(f"support-matrix: {len(rows - told)} proven rows are not on the page yet")
    return 1 if told - rows else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
