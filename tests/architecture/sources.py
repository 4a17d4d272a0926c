"""The files that the tests of this folder look at."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PACKAGES = ("yoco_platform", "nodes", "jobs", "sla", "agent", "frontend", "yoco")
GLUE = ("demo", "bench", "scripts", "examples")
SKIPPED = {"node_modules", "migrations", "__pycache__", "dist"}


def python_files(*folders: str) -> list[Path]:
    """Every Python file below these folders of the repository, migrations left out."""
    return sorted(
        path
        for folder in folders
        for path in (ROOT / folder).rglob("*.py")
        if not SKIPPED.intersection(path.relative_to(ROOT).parts)
    )


def templates() -> list[Path]:
    found = [*ROOT.glob("*/templates/**/*.html"), *ROOT.glob("*/*/templates/**/*.html")]
    return sorted(path for path in found if not SKIPPED.intersection(path.parts))


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def imported(path: Path) -> Iterator[tuple[int, str]]:
    """Line and absolute module name of every import, relative ones resolved."""
    package = list(path.relative_to(ROOT).with_suffix("").parts[:-1])
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                yield node.lineno, f"{module}.{alias.name}"


def where(path: Path, line: int = 0) -> str:
    return f"{path.relative_to(ROOT)}:{line}" if line else str(path.relative_to(ROOT))
