"""PostgreSQL, Redis and Chromium for tests: given, found on loopback, or started for this run.

Order for each: the environment variable; what already answers on loopback; Debian's own binaries, started
under var/ on a free port and ended afterwards; the same after apt-get, as root. Else ``Missing``.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "var" / "test-services"
START_S = 30.0


class Missing(Exception):
    """A service is not to be had here; the message says what to do."""


@contextmanager
def services() -> Iterator[dict[str, str]]:
    """The environment of a test run on real services, which live until the end of the block."""
    with ExitStack() as stack:
        yield {
            "DATABASE_URL": stack.enter_context(postgres()),
            "REDIS_URL": stack.enter_context(redis()),
            "YOCO_CHROMIUM": chromium(),
        }


@contextmanager
def postgres() -> Iterator[str]:
    given = os.environ.get("DATABASE_URL")
    if given:
        yield given
        return
    on_loopback = "postgres://postgres@127.0.0.1:5432/test"
    if _postgres_answers(on_loopback):
        yield on_loopback
        return
    binaries = _postgres_binaries()
    if binaries is None:
        _apt_install("PostgreSQL", "DATABASE_URL", "postgresql")
        binaries = _postgres_binaries()
    if binaries is None:
        raise Missing(_words("PostgreSQL", "DATABASE_URL", "postgresql"))
    with _started_postgres(binaries) as url:
        yield url


@contextmanager
def redis() -> Iterator[str]:
    given = os.environ.get("REDIS_URL")
    if given:
        yield given
        return
    if _redis_answers(6379):
        yield "redis://127.0.0.1:6379/0"
        return
    if shutil.which("redis-server") is None:
        _apt_install("Redis", "REDIS_URL", "redis-server")
    program = shutil.which("redis-server")
    if program is None:
        raise Missing(_words("Redis", "REDIS_URL", "redis-server"))
    with _started_redis(program) as url:
        yield url


def chromium() -> str:
    """Path of a Chromium for the browser tests."""
    given = os.environ.get("YOCO_CHROMIUM")
    if given:
        return given
    for attempt in (1, 2):
        for name in ("chromium", "chromium-browser", "google-chrome"):
            path = shutil.which(name)
            if path:
                return path
        if attempt == 1:
            _apt_install("Chromium", "YOCO_CHROMIUM", "chromium")
    raise Missing(_words("Chromium", "YOCO_CHROMIUM", "chromium"))


# --- PostgreSQL -------------------------------------------------------------------------------


def _postgres_answers(url: str) -> bool:
    import psycopg

    try:
        with psycopg.connect(url, connect_timeout=2) as connection:
            return connection.execute("SELECT rolcreatedb FROM pg_roles WHERE rolname = user").fetchone() == (True,)  # fmt: skip  # noqa: E501
    except psycopg.Error:
        return False


def _postgres_binaries() -> Path | None:
    found = sorted(
        Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: float(path.parts[4])
    )
    if found:
        return found[-1].parent
    on_path = shutil.which("initdb")
    return Path(on_path).resolve().parent if on_path else None


@contextmanager
def _started_postgres(binaries: Path) -> Iterator[str]:
    # PostgreSQL refuses to run as root, so root runs it as the user that its package made.
    as_user = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
    port = _free_port()
    with _folder_for("postgres", as_user) as folder:
        data = folder / "data"
        command = [*as_user, str(binaries / "initdb"), "-D", str(data), "-U", "postgres"]
        subprocess.run(
            [*command, "--auth=trust", "--no-sync"], check=True, stdout=subprocess.DEVNULL
        )
        server = _start(
            [*as_user, str(binaries / "postgres"), "-D", str(data), "-p", str(port),
             "-h", "127.0.0.1", "-k", str(folder), "-c", "fsync=off", "-c", "max_connections=200"],
            folder,
        )  # fmt: skip
        try:
            _wait_for("PostgreSQL", port, server, folder)
            url = f"postgres://postgres@127.0.0.1:{port}/postgres"
            _wait_until_ready(url)
            yield url
        finally:
            _end(server)


def _wait_until_ready(url: str) -> None:
    deadline = time.monotonic() + START_S
    while not _postgres_answers(url):
        if time.monotonic() > deadline:
            raise Missing("PostgreSQL was started but does not accept connections.")
        time.sleep(0.1)


# --- Redis ------------------------------------------------------------------------------------


def _redis_answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(16).startswith(b"+PONG")
    except OSError:
        return False


@contextmanager
def _started_redis(program: str) -> Iterator[str]:
    port = _free_port()
    with _folder_for("redis", []) as folder:
        command = [program, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir"]
        server = _start([*command, str(folder)], folder)
        try:
            _wait_for("Redis", port, server, folder)
            yield f"redis://127.0.0.1:{port}/0"
        finally:
            _end(server)


# --- Processes, folders, packages --------------------------------------------------------------


@contextmanager
def _folder_for(name: str, as_user: Sequence[str]) -> Iterator[Path]:
    """A fresh folder under var/, or under the system's temporary one where that user cannot reach it."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for parent in (FOLDER, Path(tempfile.gettempdir())):
        folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=parent))
        if as_user:
            shutil.chown(folder, "postgres")
        reachable = subprocess.run([*as_user, "test", "-w", str(folder)], cwd="/").returncode == 0
        if reachable:
            try:
                yield folder
            finally:
                shutil.rmtree(folder, ignore_errors=True)
            return
        shutil.rmtree(folder)
    raise Missing(f"No folder that {name} may write to.")


def _start(command: Sequence[str], folder: Path) -> subprocess.Popen[bytes]:
    with (folder / "log").open("wb") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, cwd="/")


def _wait_for(name: str, port: int, server: subprocess.Popen[bytes], folder: Path) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and server.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    log = (folder / "log").read_text(encoding="utf-8", errors="replace")
    raise Missing(f"{name} did not start:\n{log[-2000:]}")


def _end(server: subprocess.Popen[bytes]) -> None:
    """Stop a server that this run started, and only that one."""
    server.terminate()
    try:
        server.wait(10)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _apt_install(name: str, variable: str, package: str) -> None:
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise Missing(_words(name, variable, package))
    print(f"test: installing {package}", flush=True)
    # The package would otherwise start a server of its own on the standard port.
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    subprocess.run(["apt-get", "update", "-qq"], env=environment, stdout=subprocess.DEVNULL)
    command = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", package]
    subprocess.run(command, env=environment, stdout=subprocess.DEVNULL)


def _words(name: str, variable: str, package: str) -> str:
    return (
        f"{name} is needed: set {variable} to one that runs, or install it "
        f"(Debian: apt-get install {package})."
    )
