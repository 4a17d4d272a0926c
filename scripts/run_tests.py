"""``make test``: all tests on PostgreSQL and Redis, then the quick ones again on the embedded defaults."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scripts.services import ROOT, Missing, services
from scripts.support_matrix import PROVEN
from scripts.support_matrix import main as check_claims
from tests.proven import FILE

QUICK = "not e2e and not browser"
SIDE_BY_SIDE = ["-n", "2", "--dist", "loadfile", "--no-loadscope-reorder"]
"""Two processes; tests/conftest.py says what may run beside what."""
PLATFORM = ["tests/platform", "tests/nodes", "tests/jobs", "tests/sla", "tests/frontend"]
"""What runs on another database, broker or layer in embedded mode. Agent and engine know none of them."""


def main(arguments: list[str]) -> int:
    try:
        with services() as found:
            print(f"test: on {found['DATABASE_URL']} and {found['REDIS_URL']}", flush=True)
            real = {**found, "YOCO_TEST_EMBEDDED": "0"}
            if arguments:
                return _pytest(real, arguments)
            PROVEN.unlink(missing_ok=True)
            status = _pytest({**real, FILE: str(PROVEN)}, SIDE_BY_SIDE) or check_claims(["--check"])
            if status:
                return status
            print(
                "test: again on the embedded defaults (SQLite, memory broker and layer)", flush=True
            )
            # No path that only the first run can take: what needs a process of its own ran there.
            embedded = {"YOCO_CHROMIUM": found["YOCO_CHROMIUM"], "YOCO_TEST_EMBEDDED": "1"}
            return _pytest(embedded, [*SIDE_BY_SIDE, *PLATFORM, "-m", QUICK])
    except Missing as missing:
        print(f"test: {missing}", file=sys.stderr)
        return 2


def _pytest(environment: dict[str, str], arguments: list[str]) -> int:
    command = [sys.executable, "-m", "pytest", *arguments]
    return subprocess.run(command, cwd=ROOT, env={**os.environ, **environment}).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
