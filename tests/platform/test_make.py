"""The Makefile and the scripts behind it, in a folder with stand-ins."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .processes import ROOT

SETUP = "import os, sys, time; time.sleep(0.5); sys.exit(int(os.environ['FAIL']))"
STORY = "import os, time; print(time.time() - float(os.environ['YOCO_DEMO_BEGAN']))"


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    for name in ("scripts", "demo", ".venv/bin"):
        (tmp_path / name).mkdir(parents=True)
    shutil.copy(ROOT / "Makefile", tmp_path / "Makefile")
    (tmp_path / "scripts" / "setup.py").write_text(SETUP)
    (tmp_path / "demo" / "__init__.py").touch()
    (tmp_path / "demo" / "__main__.py").write_text(STORY)
    (tmp_path / ".venv" / "bin" / "python").symlink_to(sys.executable)
    return tmp_path


def make_demo(clone: Path, fail: int) -> subprocess.CompletedProcess[str]:
    # A make that runs this very test hands its own state down.
    inherited = ("YOCO_DEMO_BEGAN", "MAKEFLAGS", "MAKELEVEL", "MFLAGS", "MAKEOVERRIDES")
    keep = {name: value for name, value in os.environ.items() if name not in inherited}
    environment = {**keep, "FAIL": str(fail), "PYTHON": sys.executable}
    return subprocess.run(
        ["make", "demo"], cwd=clone, env=environment, capture_output=True, text=True
    )


def test_the_demo_counts_the_time_that_setup_took(clone: Path) -> None:
    done = make_demo(clone, 0)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) >= 0.5


def test_a_setup_that_fails_is_no_demo(clone: Path) -> None:
    done = make_demo(clone, 3)
    assert (done.returncode, done.stdout) == (2, "")
