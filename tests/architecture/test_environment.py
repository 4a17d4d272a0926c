"""`.env.example` is complete: it names what is read, with the defaults, and nothing else."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys

from .sources import ROOT, python_files, tree, where

EXAMPLE = ROOT / ".env.example"
HANDED_DOWN = {"YOCO_LINK_FD", "YOCO_WORKER", "YOCO_RECONNECT"}
"""What an agent tells its worker by environment; nobody else sets it."""


def example() -> dict[str, str]:
    lines = EXAMPLE.read_text(encoding="utf-8").splitlines()
    pairs = (re.fullmatch(r"#?([A-Z][A-Z0-9_]+)=(.*)", line) for line in lines)
    return {pair[1]: pair[2] for pair in pairs if pair}


def platform_reads() -> dict[str, str]:
    """What the settings ask for, with defaults, in a process whose environment is bare."""
    program = (
        "import json; import yoco_platform.settings; from yoco_platform import env; "
        "print(json.dumps(env.READ))"
    )
    keep = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    environment = {**keep, "DATABASE_URL": "postgres://h/d", "REDIS_URL": "redis://h"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    read: dict[str, str] = json.loads(done.stdout)
    return read


def agent_reads() -> set[str]:
    """Names of YOCO_ variables that the agent and its engine look up, found in the source."""
    names = {
        node.value
        for path in python_files("agent", "yoco")
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if re.fullmatch(r"YOCO_[A-Z0-9_]+", node.value)
    }
    return names - HANDED_DOWN


def test_every_variable_that_the_platform_reads_is_in_the_example_with_its_default() -> None:
    read, written = platform_reads(), example()
    assert {name: written.get(name) for name in read} == read


def test_every_variable_that_the_agent_reads_is_in_the_example() -> None:
    assert agent_reads() - set(example()) == set()


def test_the_example_names_nothing_that_nobody_reads() -> None:
    unread = set(example()) - set(platform_reads()) - agent_reads()
    assert unread == set()


def test_the_platform_reads_its_environment_in_one_place() -> None:
    wrong = [
        where(path)
        for path in python_files("yoco_platform", "nodes", "jobs", "sla", "frontend")
        if re.search(r"os\.(environ\[|environ\.get|getenv)", path.read_text(encoding="utf-8"))
        and path.name != "env.py"
    ]
    assert wrong == []
