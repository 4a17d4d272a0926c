"""What a node accepts: decided by its own lists, whatever an order says."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from agent.config import AgentConfig
from agent.errors import ConfigInvalid, Refused
from agent.launch import admit

from .running import USER, launch


def accepted(tmp_path: Path, *prefixes: str, **changes: object) -> str:
    """The code of the refusal, or ""."""
    config = AgentConfig(
        state_dir=tmp_path, allow_users=(USER,), allow_commands=prefixes, allow_root=True
    )
    try:
        admit(launch("plain.py", **changes), config)
    except Refused as refused:
        return refused.code
    return ""


def test_a_bare_word_is_refused_although_it_means_a_listed_program(tmp_path: Path) -> None:
    """The job's own PATH would say which program that is."""
    name = Path(sys.executable).name
    assert accepted(tmp_path, sys.executable, command=[name, "-c", ""]) == "command_not_accepted"


def test_a_way_through_the_working_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "python3").touch()
    for name in ("./python3", "bin/../python3"):
        changes = {"command": [name], "working_directory": str(tmp_path)}
        assert accepted(tmp_path, str(tmp_path / "python3"), **changes) == "command_not_accepted"


def test_a_list_that_names_no_full_path_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigInvalid, match=r"full path, not 'python3'"):
        accepted(tmp_path, sys.executable, "python3")


@pytest.mark.parametrize(
    "name", ["PATH", "LD_PRELOAD", "LD_LIBRARY_PATH", "YOCO_WORKER", "YOCO_LINK_FD", "", "A B"]
)
def test_variables_that_choose_what_is_loaded_are_refused(tmp_path: Path, name: str) -> None:
    code = accepted(tmp_path, sys.executable, environment={name: "x"})
    assert code == "environment_not_accepted"


def test_ordinary_variables_pass(tmp_path: Path) -> None:
    names = ("PYTHONPATH", "OMP_NUM_THREADS", "YOCO_DIGEST_EVERY", "YOCO_TRAIL_FILE", "lower")
    environment = dict.fromkeys(names, "1")
    assert accepted(tmp_path, sys.executable, environment=environment) == ""
