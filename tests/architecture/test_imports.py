"""Who may import whom. import-linter holds the layers; here is what it cannot say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from .sources import PACKAGES, ROOT, imported, python_files, where

PLATFORM = ("yoco_platform", "nodes", "jobs", "sla", "frontend")
WIRE = "agent.protocol"


def test_the_contracts_of_import_linter_hold() -> None:
    program = Path(sys.executable).parent / "lint-imports"
    done = subprocess.run([program, "--no-cache"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:]


def test_the_platform_knows_the_agent_by_its_wire_format_alone() -> None:
    wrong = [
        f"{where(path, line)} {name}"
        for path in python_files(*PLATFORM)
        for line, name in imported(path)
        if name.split(".")[0] == "agent" and not f"{name}.".startswith(f"{WIRE}.")
    ]
    assert [one for one in wrong if not one.endswith(" agent.protocol")] == []


def test_torch_is_imported_in_the_engine_alone() -> None:
    wrong = [
        f"{where(path, line)} {name}"
        for path in python_files(*PACKAGES)
        for line, name in imported(path)
        if name.split(".")[0] in {"torch", "torchdata"}
        and path.relative_to(ROOT).parts[:2] not in {("agent", "training"), ("agent", "transfer")}
    ]
    assert wrong == []


def test_the_agent_imports_only_relatively_within_itself() -> None:
    # In a user's process these modules are called yoco.*: an absolute name would load them twice.
    wrong = [
        f"{where(path, number)} {line.strip()}"
        for path in python_files("agent")
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if line.strip().startswith(("from agent", "import agent", "from yoco", "import yoco"))
        and ">>>" not in line
    ]
    assert wrong == []


def test_nobody_imports_the_tests() -> None:
    wrong = [
        f"{where(path, line)} {name}"
        for path in python_files(*PACKAGES)
        for line, name in imported(path)
        if name.split(".")[0] == "tests"
    ]
    assert wrong == []


def test_nothing_is_unpickled_and_no_shell_is_used() -> None:
    wrong = []
    for path in python_files(*PACKAGES):
        wrong += [
            f"{where(path, line)} {name}"
            for line, name in imported(path)
            if name.split(".")[0]
            in {"pickle", "cPickle", "dill", "cloudpickle", "shelve", "marshal"}
        ]
        if "shell=True" in path.read_text(encoding="utf-8"):
            wrong.append(f"{where(path)} shell=True")
    assert wrong == []


def test_only_the_publisher_sends_to_groups() -> None:
    wrong = [
        where(path)
        for path in python_files(*PLATFORM)
        if "group_send" in path.read_text(encoding="utf-8") and path.name != "realtime.py"
    ]
    assert wrong == []
