"""Real ``yoco`` processes on free ports, ended by their own ids."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import httpx

ROOT = Path(__file__).resolve().parent.parent.parent
START_S = 60.0


def environment(data: Path, **more: str) -> dict[str, str]:
    """A bare environment of the embedded mode, with its data in a folder of its own."""
    keep = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return {**keep, "YOCO_DATA_DIR": str(data), "YOCO_LOG_LEVEL": "WARNING", **more}


def yoco(
    *arguments: str, env: Mapping[str, str], stdin: str = ""
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "yoco_platform.cli", *arguments],
        cwd=ROOT, env=dict(env), input=stdin, capture_output=True, text=True, timeout=100,
    )  # fmt: skip


def listening() -> socket.socket:
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(128)
    listener.set_inheritable(True)
    return listener


class Running:
    """A long-lived ``yoco`` process; its output is collected."""

    def __init__(self, *arguments: str, env: Mapping[str, str], fds: tuple[int, ...] = ()) -> None:
        self.output = ""
        self.process = subprocess.Popen(
            [sys.executable, "-u", "-m", "yoco_platform.cli", *arguments],
            cwd=ROOT, env=dict(env), pass_fds=fds, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.output += line

    def wait_until_served(self, url: str) -> None:
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                if httpx.get(f"{url}/healthz", timeout=2).status_code == 200:
                    return
            except httpx.HTTPError:
                threading.Event().wait(0.1)
        raise AssertionError(f"not served: {self.output}")

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        status = self.process.wait(30)
        self._reader.join(5)
        return status
