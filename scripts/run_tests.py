"""``make test``: all tests on PostgreSQL and Redis, then the quick ones again on the embedded defaults.

With ``--unsteady N`` (continuous integration) up to N tests that failed beside the others are tried once
more, alone. What passes only then is named: a fault of the test or a race of the product, and it stays one.
"""

from __future__ import annotations

import json
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
TESTS_FAILED = 1
FAILED = ROOT / ".pytest_cache/v/cache/lastfailed"
PLATFORM = ["tests/platform", "tests/nodes", "tests/jobs", "tests/sla", "tests/frontend"]
"""What runs on another database, broker or layer in embedded mode. Agent and engine know none of them."""
PURE = ["--ignore", "tests/sla/replay"]
"""Reaches no database either."""


def main(arguments: list[str]) -> int:
    try:
        with services() as found:
            print(f"test: on {found['DATABASE_URL']} and {found['REDIS_URL']}", flush=True)
            real = {**found, "YOCO_TEST_EMBEDDED": "0"}
            unsteady = int(arguments[1]) if arguments[:1] == ["--unsteady"] else 0
            if arguments and not unsteady:
                return _pytest(real, arguments)
            PROVEN.unlink(missing_ok=True)
            status = _whole({**real, FILE: str(PROVEN)}, SIDE_BY_SIDE, unsteady)
            status = status or check_claims(["--check"])
            if status:
                return status
            print(
                "test: again on the embedded defaults (SQLite, memory broker and layer)", flush=True
            )
            # No path that only the first run can take: what needs a process of its own ran there.
            embedded = {"YOCO_CHROMIUM": found["YOCO_CHROMIUM"], "YOCO_TEST_EMBEDDED": "1"}
            return _whole(embedded, [*SIDE_BY_SIDE, *PLATFORM, *PURE, "-m", QUICK], unsteady)
    except Missing as missing:
        print(f"test: {missing}", file=sys.stderr)
        return 2


def _whole(environment: dict[str, str], arguments: list[str], unsteady: int) -> int:
    status = _pytest(environment, arguments)
    failed = sorted(json.loads(FAILED.read_text())) if status == TESTS_FAILED else []
    if not 0 < len(failed) <= unsteady:
        return status
    print(f"test: {len(failed)} failed beside the others; once more, alone", flush=True)
    status = _pytest(environment, failed)
    if status == 0:
        print("test: UNSTEADY, passed only alone:", *failed, sep="\n  ", flush=True)
    return status


def _pytest(environment: dict[str, str], arguments: list[str]) -> int:
    command = [sys.executable, "-m", "pytest", *arguments]
    return subprocess.run(command, cwd=ROOT, env={**os.environ, **environment}).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
