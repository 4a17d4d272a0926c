"""Setup and checks, with stand-ins for what they start."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
from pathlib import Path
from types import ModuleType

import pytest

from .processes import ROOT


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def setup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[ModuleType, list[str]]:
    module, worked = script("setup"), []
    bin_, stamps = tmp_path / ".venv" / "bin", tmp_path / "var" / "setup"
    for name, value in {"BIN": bin_, "STAMPS": stamps, "FRONTEND": tmp_path / "none"}.items():
        monkeypatch.setattr(module, name, value)

    def stand_in(name: str, makes: str) -> None:
        def work() -> None:
            worked.append(name)
            bin_.mkdir(parents=True, exist_ok=True)
            (bin_ / makes).touch()

        monkeypatch.setattr(module, name, work)

    stand_in("_make_venv", "python")
    stand_in("_install_packages", "django-admin")
    stand_in("_install_ourselves", "yoco")
    stand_in("_migrate", "nothing")
    return module, worked


def test_setup_is_done_once(setup: tuple[ModuleType, list[str]]) -> None:
    module, worked = setup
    assert (module.main(), module.main()) == (0, 0)
    assert worked == ["_make_venv", "_install_packages", "_install_ourselves", "_migrate"]


def test_a_virtual_environment_that_is_gone_gets_its_packages_again(
    setup: tuple[ModuleType, list[str]],
) -> None:
    module, worked = setup
    module.main()
    worked.clear()
    shutil.rmtree(module.BIN.parent)
    module.main()
    assert worked == ["_make_venv", "_install_packages", "_install_ourselves"]


@pytest.fixture
def checks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """With a front end, a path without npm, and nothing else to check."""
    module = script("run_checks")
    (tmp_path / "frontend").mkdir()
    (tmp_path / "frontend" / "package.json").touch()
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    for name, value in {"ROOT": tmp_path, "BIN": tmp_path / "bin", "CHECKS": []}.items():
        monkeypatch.setattr(module, name, value)
    return module


def test_the_front_end_is_checked_with_the_npm_beside_python(
    checks: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    npm = tmp_path / "bin" / "npm"
    npm.write_text("#!/bin/sh\nexec node\n")  # as npm does: the node of its path
    node = tmp_path / "bin" / "node"
    node.write_text("#!/bin/sh\nexit 0\n")
    for program in (npm, node):
        program.chmod(0o755)
    assert checks.main() == 0
    assert "front end holds" in capsys.readouterr().out
    assert os.environ["PATH"].startswith(str(tmp_path / "bin"))


def test_no_npm_is_no_pass(checks: ModuleType) -> None:
    with pytest.raises(SystemExit, match="there is no npm"):
        checks.main()


@pytest.mark.parametrize(
    ("failed", "alone", "status", "tries"),
    [
        ([], 0, 0, 1),
        (["t.py::a"], 0, 0, 2),
        (["t.py::a"], 1, 1, 2),
        (["t.py::a", "t.py::b", "t.py::c"], 0, 1, 1),
    ],
    ids=["nothing fails", "passes alone", "fails alone", "too many"],
)
def test_a_few_that_fail_beside_others_are_tried_alone_and_named(
    failed: list[str], alone: int, status: int, tries: int,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    module, ran = script("run_tests"), []

    def pytest_(environment: dict[str, str], arguments: list[str]) -> int:
        ran.append((environment, arguments))
        return alone if len(ran) == 2 else int(bool(failed))

    monkeypatch.setattr(module, "_pytest", pytest_)
    monkeypatch.setattr(module, "FAILED", tmp_path / "lastfailed")
    module.FAILED.write_text(json.dumps(dict.fromkeys(failed, True)))
    assert module._whole({"A": "b"}, ["-n", "2"], 2) == status
    assert len(ran) == tries
    assert ran[1:] == [({"A": "b"}, failed)][: tries - 1]
    assert ("UNSTEADY" in capsys.readouterr().out) == (tries == 2 and alone == 0)
