"""``make lock``: every package that development needs, pinned to one version, from pyproject.toml.

torch stands without its local label (+cpu, +cu130): plain pip then takes the build that is at hand.
No hashes: with them pip would demand one for torch too, whose builds differ from machine to machine.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements.lock"
HEAD = "# Written by `make lock` from pyproject.toml. Do not edit.\n"


def main() -> int:
    command = [
        sys.executable, "-m", "piptools", "compile", "--quiet", "--strip-extras", "--allow-unsafe",
        "--no-header", "--no-emit-index-url", "--no-emit-find-links", "--no-emit-trusted-host",
        "--no-annotate", "--extra", "agent", "--extra", "dev", "--output-file", str(LOCK),
        *sys.argv[1:], "pyproject.toml",
    ]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT)
    if done.returncode:
        return done.returncode
    pins = [
        re.sub(r"\+\w+$", "", line)
        for line in LOCK.read_text(encoding="utf-8").splitlines()
        if line and not line.startswith(("#", "--", "pip=="))
    ]
    LOCK.write_text(HEAD + "\n".join(pins) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
