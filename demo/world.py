"""A platform and its node agents on one machine: real processes, started here, ended here by pid."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from .network import PLATFORM_ADDRESS, Network, available

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
NORMAL_C, HOT_C = 45.0, 96.0


@dataclass(frozen=True)
class Seeded:
    """What demo/seed.py made: identities and the tokens to act with."""

    token: str
    passwords: dict[str, str]
    customer: str
    cluster: str
    contract_id: int
    enrollment_tokens: list[str]


@dataclass
class DemoNode:
    """One simulated node: an agent with its own state directory and, where allowed, its own network."""

    name: str
    rack: str
    failure_domain: str
    address: str
    state_dir: Path
    token: str
    process: subprocess.Popen[bytes] | None = field(default=None)

    def heat(self, celsius: float) -> None:
        """Change what the simulated sensor reads; written whole, so that no half file is read."""
        target = self.state_dir / "simulated.json"
        part = target.with_suffix(".part")
        part.write_text(json.dumps({"temperature_c": celsius}))
        part.replace(target)


class World:
    """``with World(folder) as world``: everything under ``folder`` is new; everything started is ended.

    ``services`` (DATABASE_URL, REDIS_URL, ...) makes it several platform processes in scale mode; without,
    the embedded defaults.
    """

    def __init__(
        self,
        folder: Path,
        *,
        port: int = 8000,
        node_names: tuple[str, ...] = ("a", "b", "c", "d"),
        services: Mapping[str, str] | None = None,
    ) -> None:
        self.folder, self.port = folder, port
        self._names = node_names
        self._services = services
        self._stack = ExitStack()
        self.network: Network | None = None
        self.nodes: dict[str, DemoNode] = {}
        self.seeded: Seeded
        self.platform: subprocess.Popen[bytes]
        self._helpers: list[subprocess.Popen[bytes]] = []
        self._listeners: list[socket.socket] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def url_for_agents(self) -> str:
        host = PLATFORM_ADDRESS if self.network else "127.0.0.1"
        return f"http://{host}:{self.port}"

    def __enter__(self) -> World:
        try:
            return self._enter()
        except BaseException:
            self.__exit__()
            raise

    def _enter(self) -> World:
        if self.folder.exists():
            shutil.rmtree(self.folder)
        self.folder.mkdir(parents=True)
        self._listeners = [socket.create_server(("127.0.0.1", self.port), backlog=256)]
        if available():
            self.network = self._stack.enter_context(Network("demo"))
            self._listeners.append(self.network.listen(self.port))
        self._run([str(BIN / "yoco"), "migrate"], "migrate")
        seeded = self._run([sys.executable, "-m", "demo.seed", str(len(self._names))], "seed")
        self.seeded = Seeded(**json.loads(seeded.splitlines()[-1]))
        self.start_platform()
        if self._services:
            self._helpers = [
                self._start([str(BIN / "yoco"), name], name, {}) for name in ("worker", "beat")
            ]
        for index, name in enumerate(self._names):
            address = self.network.add(name) if self.network else "127.0.0.1"
            self.nodes[name] = DemoNode(
                name=f"node-{name}",
                rack=f"r{index // 2 + 1}",
                failure_domain=f"power-{name}",
                address=address,
                state_dir=self.folder / f"node-{name}",
                token=self.seeded.enrollment_tokens[index],
            )
            self.nodes[name].state_dir.mkdir()
            self.start_agent(name)
        return self

    def __exit__(self, *_exc: object) -> None:
        for node in self.nodes.values():
            self.kill_workers(node)
            _end(node.process)
        for process in [getattr(self, "platform", None), *self._helpers]:
            _end(process)
        for listener in self._listeners:
            listener.close()
        self._stack.close()

    def environment(self) -> dict[str, str]:
        """Settings of the demo's processes: embedded defaults, a database of its own."""
        foreign = ("YOCO_", "DATABASE_URL", "REDIS_URL")
        keep = {k: v for k, v in os.environ.items() if not k.startswith(foreign)}
        keep["DJANGO_SETTINGS_MODULE"] = "yoco_platform.settings"
        return {
            **keep,
            **(self._services or {}),
            "YOCO_DATA_DIR": str(self.folder / "platform"),
            "YOCO_PUBLIC_URL": self.url,
            "YOCO_ALLOWED_HOSTS": f"127.0.0.1,localhost,{PLATFORM_ADDRESS}",
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
        }

    def start_platform(self) -> None:
        fds = [listener.fileno() for listener in self._listeners]
        command = "web" if self._services else "up"
        argv = [str(BIN / "yoco"), command, *(word for fd in fds for word in ("--fd", str(fd)))]
        self.platform = self._start(argv, "platform", {}, pass_fds=fds)
        # The socket listens already, so the first request waits until the platform serves it.
        httpx.get(f"{self.url}/healthz", timeout=90.0).raise_for_status()

    def kill_platform(self) -> None:
        self.platform.kill()
        self.platform.wait()

    def start_agent(self, name: str) -> None:
        node = self.nodes[name]
        argv = [str(BIN / "yoco-agent"), "run", "--state-dir", str(node.state_dir)]
        argv += ["--platform", self.url_for_agents, "--token", node.token, "--name", node.name]
        argv += ["--pool", "demo", "--rack", node.rack, "--failure-domain", node.failure_domain]
        argv += ["--bind", node.address, "--simulate-gpus", "1"]
        argv += ["--allow-user", _user(), "--allow-command", sys.executable]
        if self.network:
            argv = self.network.command(name, argv)
        environment = {"YOCO_ALLOW_ROOT": "1"} if os.geteuid() == 0 else {}
        node.process = self._start(argv, node.name, environment)

    def lose(self, name: str) -> str:
        """Take a whole node away, silently where namespaces allow it; returns which it was."""
        node = self.nodes[name]
        if self.network:
            self.network.silence(name)
            return "silent"
        self.kill_workers(node)
        _kill(node.process)
        return "killed"

    def bring_back(self, name: str) -> None:
        """Power the lost node off and on: its old processes end, its network and agent return."""
        node = self.nodes[name]
        self.kill_workers(node)
        _kill(node.process)
        if self.network:
            self.network.restore(name)
        self.start_agent(name)

    def worker_pid(self, worker_id: str) -> int:
        """The process of a worker, found by what it was started with. Raises LookupError."""
        for pid, start in _workers():
            if start.get("worker_id") == worker_id:
                return pid
        raise LookupError(f"no process of worker {worker_id}")

    def kill_workers(self, node: DemoNode) -> None:
        marker = str(node.state_dir)
        for pid, environment in _environments():
            if environment.get("YOCO_RECONNECT", "").startswith(marker):
                _signal(pid, signal.SIGKILL)

    def _run(self, argv: list[str], name: str) -> str:
        done = subprocess.run(
            argv, env=self.environment(), cwd=ROOT, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(f"{name} ended with {done.returncode}:\n{done.stderr[-4000:]}")
        return done.stdout

    def _start(
        self,
        argv: list[str],
        name: str,
        extra: Mapping[str, str],
        pass_fds: list[int] | None = None,
    ) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                argv,
                env={**self.environment(), **extra},
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=pass_fds or (),
                start_new_session=True,
            )


def _user() -> str:
    import pwd

    return pwd.getpwuid(os.geteuid()).pw_name


def _environments() -> list[tuple[int, dict[str, str]]]:
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            raw = (entry / "environ").read_bytes()
        except OSError:
            continue
        pairs = (item.partition("=") for item in raw.decode(errors="replace").split("\0") if item)
        found.append((int(entry.name), {name: value for name, _, value in pairs}))
    return found


def _workers() -> list[tuple[int, dict[str, Any]]]:
    """Processes started as workers themselves: session leaders that carry YOCO_WORKER."""
    return [
        (pid, json.loads(environment["YOCO_WORKER"]))
        for pid, environment in _environments()
        if "YOCO_WORKER" in environment and _session(pid) == pid
    ]


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return -1


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def _kill(process: subprocess.Popen[bytes] | None) -> None:
    if process is not None and process.poll() is None:
        process.kill()
        process.wait()


def _end(process: subprocess.Popen[bytes] | None) -> None:
    if process is None or process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(timeout=5)
    except subprocess.TimeoutExpired:
        _kill(process)
