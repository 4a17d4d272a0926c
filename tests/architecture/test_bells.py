"""Every bell wakes a task that exists, and a task is one call."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from celery import current_app
from django.conf import settings
from django.utils.module_loading import import_string

from .sources import functions, python_files, tree, where

PLATFORM = ("yoco_platform", "nodes", "jobs", "sla", "frontend")


def _constants(module: ast.Module) -> dict[str, str]:
    return {
        target.id: node.value.value
        for node in module.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name) and isinstance(node.value.value, str)
    }


def _bells() -> Iterator[tuple[Path, int, str | None]]:
    for path in python_files(*PLATFORM):
        module = tree(path)
        names = _constants(module)
        for node in ast.walk(module):
            if not isinstance(node, ast.Call) or not isinstance(
                node.func, ast.Name | ast.Attribute
            ):
                continue
            name = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
            if name not in {"ring", "ring_on_commit"} or path.name == "bells.py" or not node.args:
                continue
            argument = node.args[0]
            if isinstance(argument, ast.Constant):
                yield path, node.lineno, str(argument.value)
            elif isinstance(argument, ast.Name):
                yield path, node.lineno, names.get(argument.id)
            else:
                yield path, node.lineno, None


def test_each_bell_wakes_a_task_that_exists() -> None:
    current_app.loader.import_default_modules()
    bells = list(_bells())
    assert len(bells) > 0
    unknown = [
        f"{where(path, line)} {name}" for path, line, name in bells if name not in current_app.tasks
    ]
    assert unknown == []


def test_each_scheduled_task_exists() -> None:
    current_app.loader.import_default_modules()
    names = {entry["task"] for entry in settings.CELERY_BEAT_SCHEDULE.values()}
    assert names - set(current_app.tasks) == set()


def test_each_pass_of_the_clock_exists() -> None:
    for path in settings.CLOCK_PASSES:
        assert callable(import_string(path))


def test_a_task_is_three_lines() -> None:
    long = [
        f"{where(path, function.lineno)} {function.name}"
        for path in python_files(*PLATFORM)
        if path.name == "tasks.py"
        for function in functions(path)
        if (function.end_lineno or 0) - function.lineno + 1 > 4
    ]
    assert long == []
