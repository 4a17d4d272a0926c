"""Worlds of real processes, and the odd folder that a user's script may live in."""

from __future__ import annotations

import shutil
import socket
from pathlib import Path

import pytest

from demo.world import ROOT

HOSTILE = ("agent", "jobs", "nodes", "sla", "frontend", "tests", "yoco_platform", "demo")


@pytest.fixture(scope="module")
def odd_script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A train.py beside folders that are named like ours and break whoever imports them."""
    folder = tmp_path_factory.mktemp("user")
    for name in HOSTILE:
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text(f'raise ImportError("the user\'s own {name}")\n')
    shutil.copy(ROOT / "examples" / "gpt.py", folder / "train.py")
    return folder / "train.py"


@pytest.fixture(scope="session")
def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])
