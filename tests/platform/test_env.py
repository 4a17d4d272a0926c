"""The environment is read loudly."""

from __future__ import annotations

from pathlib import Path

import pytest

from yoco_platform import env


def test_an_unset_variable_takes_its_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("YOCO_X", raising=False)
    assert env.text("YOCO_X", "here") == "here"
    assert env.integer("YOCO_X", 3) == 3
    assert env.seconds("YOCO_X", 0.5) == 0.5
    assert env.flag("YOCO_X", True) is True
    assert env.words("YOCO_X", "a, b") == ["a", "b"]


@pytest.mark.parametrize(
    ("value", "expected"), [("1", True), ("yes", True), ("0", False), ("", False)]
)
def test_a_flag_reads_one_and_zero(
    monkeypatch: pytest.MonkeyPatch, value: str, expected: bool
) -> None:
    monkeypatch.setenv("YOCO_X", value)
    assert env.flag("YOCO_X") is expected


def test_nonsense_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("YOCO_X", "soon")
    for read in (lambda: env.integer("YOCO_X", 1), lambda: env.flag("YOCO_X")):
        with pytest.raises(env.BadVariable, match="YOCO_X=soon"):
            read()
    with pytest.raises(env.BadVariable, match="YOCO_X=soon"):
        env.seconds("YOCO_X", 1.0)


@pytest.mark.parametrize("value", ["nan", "-1", "inf"])
def test_a_duration_must_be_one(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("YOCO_X", value)
    with pytest.raises(env.BadVariable):
        env.seconds("YOCO_X", 1.0)


def test_a_secret_may_lie_in_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("hidden\n", encoding="utf-8")
    monkeypatch.delenv("YOCO_X", raising=False)
    monkeypatch.setenv("YOCO_X_FILE", str(tmp_path / "key"))
    assert env.text("YOCO_X") == "hidden"
    monkeypatch.setenv("YOCO_X_FILE", str(tmp_path / "nowhere"))
    with pytest.raises(env.BadVariable, match="nowhere"):
        env.text("YOCO_X")
