"""``make check``: everything that is checked without running the product. Ends at the first failure."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent

CHECKS: list[tuple[str, list[str]]] = [
    ("lint", ["ruff", "check", "--quiet", "."]),
    ("format", ["ruff", "format", "--check", "--quiet", "."]),
    ("import directions", ["lint-imports"]),
    ("types", ["mypy"]),
    ("migrations", ["python", "manage.py", "makemigrations", "--check", "--dry-run"]),
    ("configuration", ["python", "manage.py", "check", "--fail-level", "WARNING"]),
    ("schema", ["python", "manage.py", "spectacular", "--fail-on-warn", "--file", os.devnull]),
    ("sizes, templates, bells", ["python", "-m", "pytest", "-q", "tests/architecture"]),
]


def main() -> int:
    # Where the system has no usable Node, setup has put one beside this Python: it goes first, as in setup.
    os.environ["PATH"] = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "YOCO_TEST_EMBEDDED": "1", "DATABASE_URL": "", "REDIS_URL": ""}
    for name, command in [*CHECKS, *_front_end_checks()]:
        began = time.monotonic()
        program = BIN / command[0]
        line = [str(program) if program.exists() else command[0], *command[1:]]
        where = ROOT / "frontend" if command[0] == "npm" else ROOT
        done = subprocess.run(line, cwd=where, env=environment, capture_output=True, text=True)
        seconds = time.monotonic() - began
        if done.returncode:
            print(done.stdout + done.stderr)
            print(f"check: {name} failed: {' '.join(command)}")
            return 1
        print(f"check: {name} holds ({seconds:.1f} s)", flush=True)
    return 0


def _front_end_checks() -> list[tuple[str, list[str]]]:
    """Ends the program when there is a front end and nothing to check it with."""
    if not (ROOT / "frontend" / "package.json").exists():
        return []
    if shutil.which("npm") is None:
        sys.exit(
            "check: front end failed: there is no npm; "
            "remove frontend/node_modules and `make setup` brings a Node along"
        )
    return [("front end", ["npm", "run", "--silent", "check"])]


if __name__ == "__main__":
    sys.exit(main())
