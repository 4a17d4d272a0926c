"""The support matrix claims what passed tests have proven, and nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import support_matrix
from scripts.support_matrix import Row, claimed, page_of

ROOT = Path(support_matrix.ROOT)
DDP = Row("PyTorch", "ddp", "custody", "3", "engine", "CPU, gloo")
FSDP2 = Row("PyTorch", "fsdp2", "shadow", "3", "engine", "CPU, gloo")


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    proven, page = tmp_path / "proven.json", tmp_path / "support.md"
    monkeypatch.setattr(support_matrix, "PROVEN", proven)
    monkeypatch.setattr(support_matrix, "PAGE", page)
    return proven, page


def raw(row: Row) -> dict[str, object]:
    return {
        "framework": row.framework, "parallelism": row.parallelism, "source": row.source,
        "ranks": int(row.ranks), "through": row.through, "device": row.device, "test": "t",
    }  # fmt: skip


def test_a_page_reads_back_as_the_rows_it_was_made_of() -> None:
    assert claimed(page_of({DDP, FSDP2})) == {DDP, FSDP2}


def test_a_page_that_claims_more_than_was_proven_is_refused(
    files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    proven, page = files
    proven.write_text(json.dumps([raw(DDP)]))
    page.write_text(page_of({DDP}))
    assert support_matrix.main(["--check"]) == 0
    page.write_text(page_of({DDP, FSDP2}))
    assert support_matrix.main(["--check"]) == 1
    assert f"claimed and not proven: {FSDP2.line()}" in capsys.readouterr().err


def test_without_a_test_run_nothing_is_claimed(files: tuple[Path, Path]) -> None:
    assert support_matrix.main([]) == 1
    assert not files[1].exists()


def test_only_a_test_that_passes_proves(tmp_path: Path) -> None:
    claim = 'proven(framework="F", parallelism="p", sources=["live"], ranks=3, through="engine")'
    (tmp_path / "test_claims.py").write_text(
        f"from tests.proven import proven\n\ndef test_holds():\n    {claim}\n\n"
        f"def test_breaks():\n    {claim}\n    assert 1 == 2\n"
    )
    (tmp_path / "conftest.py").write_text("from tests.proven import *\n")
    file = tmp_path / "proven.json"
    subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "/dev/null",
         "--rootdir", str(tmp_path), str(tmp_path)],
        env={"PYTHONPATH": str(ROOT), "YOCO_PROVEN_FILE": str(file), "PATH": "/usr/bin:/bin"},
        check=False, capture_output=True,
    )  # fmt: skip
    assert [row["test"].partition("::")[2] for row in json.loads(file.read_text())] == [
        "test_holds"
    ]
