"""No file over 400 lines, no function over 60; a test function has at most 40."""

from __future__ import annotations

import ast

from .sources import GLUE, PACKAGES, functions, python_files, where

FILE_LINES_MAX = 400
FUNCTION_LINES_MAX = 60
TEST_FUNCTION_LINES_MAX = 40


def _lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return (function.end_lineno or function.lineno) - function.lineno + 1


def test_no_file_has_outgrown_itself() -> None:
    too_long = {
        where(path): lines
        for path in python_files(*PACKAGES, *GLUE)
        if (lines := len(path.read_text(encoding="utf-8").splitlines())) > FILE_LINES_MAX
    }
    assert too_long == {}


def test_no_function_is_longer_than_a_screen() -> None:
    too_long = {
        f"{where(path, function.lineno)} {function.name}": _lines(function)
        for path in python_files(*PACKAGES, *GLUE)
        for function in functions(path)
        if _lines(function) > FUNCTION_LINES_MAX
    }
    assert too_long == {}


def test_no_test_is_longer_than_its_idea() -> None:
    too_long = {
        f"{where(path, function.lineno)} {function.name}": _lines(function)
        for path in python_files("tests")
        for function in functions(path)
        if _lines(function) > TEST_FUNCTION_LINES_MAX
    }
    assert too_long == {}


def test_no_file_is_a_junk_drawer() -> None:
    names = {"utils.py", "helpers.py", "common.py", "misc.py"}
    assert [where(path) for path in python_files(*PACKAGES, *GLUE) if path.name in names] == []
