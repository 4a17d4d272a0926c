"""Tests about the tests: each asserts something, and none is skipped without saying why."""

from __future__ import annotations

import ast
from pathlib import Path

from .sources import functions, python_files, tree, where

ASSERTING_CALLS = {"raises", "warns", "fail", "expect", "assert_", "check"}


def _test_files() -> list[Path]:
    return [path for path in python_files("tests") if path.name.startswith("test_")]


def _called(node: ast.AST) -> str:
    if not isinstance(node, ast.Call):
        return ""
    function = node.func
    while isinstance(function, ast.Attribute):
        if (
            function.attr.startswith(("assert", "to_", "not_to_"))
            or function.attr in ASSERTING_CALLS
        ):
            return "assert"
        function = (
            function.value if not isinstance(function.value, ast.Call) else function.value.func
        )
    if isinstance(function, ast.Name):
        return function.id
    return ""


def _asserts(
    function: ast.AST, local: dict[str, ast.AST], seen: frozenset[str] = frozenset()
) -> bool:
    """Whether it asserts itself, or calls a function of the same file that does."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assert):
            return True
        name = _called(node)
        if name.startswith(("assert", "django_assert")) or name in ASSERTING_CALLS:
            return True
        if name in local and name not in seen and _asserts(local[name], local, seen | {name}):
            return True
    return False


def test_every_test_has_an_assertion() -> None:
    without = []
    for path in _test_files():
        local: dict[str, ast.AST] = {function.name: function for function in functions(path)}
        without += [
            where(path, function.lineno) + " " + function.name
            for function in functions(path)
            if function.name.startswith("test_") and not _asserts(function, local)
        ]
    assert without == []


def _keywords(call: ast.Call) -> set[str]:
    return {keyword.arg or "" for keyword in call.keywords}


SKIPS = {"skip", "xfail", "skipif"}


def _says_why(call: ast.Call) -> bool:
    words = any(isinstance(one, ast.Constant | ast.JoinedStr) for one in call.args)
    return words or "reason" in _keywords(call)


def test_nothing_is_skipped_without_a_reason() -> None:
    silent = []
    for path in python_files("tests"):
        nodes = list(ast.walk(tree(path)))
        reasoned = {
            id(node.func) for node in nodes if isinstance(node, ast.Call) and _says_why(node)
        }
        silent += [
            where(path, node.lineno)
            for node in nodes
            if isinstance(node, ast.Attribute) and node.attr in SKIPS and id(node) not in reasoned
        ]
    assert silent == []


def test_a_test_without_an_assertion_would_be_found() -> None:
    module = ast.parse(
        "def test_a():\n    print(1)\ndef test_b():\n    helper()\ndef helper():\n    assert 1"
    )
    found = {node.name: node for node in module.body if isinstance(node, ast.FunctionDef)}
    local: dict[str, ast.AST] = dict(found)
    assert not _asserts(found["test_a"], local)
    assert _asserts(found["test_b"], local)
