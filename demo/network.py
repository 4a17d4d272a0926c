"""One network namespace per node, on a bridge that exists only here, so that a node can fall silent.

A node whose bridge port is detached sends and receives nothing and resets nothing: what a pulled cable looks
like. The addresses (10.203.0.0/24) live inside the namespaces made here and nowhere else. Needs root, ``ip``
and the right to make namespaces; ``available()`` says whether this machine allows it.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import socket
import subprocess
import threading

SUBNET = "10.203.0"
PLATFORM_ADDRESS = f"{SUBNET}.1"
_CLONE_NEWNET = 0x40000000


class NetworkRefused(RuntimeError):
    """The machine did not let us make or change a namespace; the message says what ``ip`` said."""


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise NetworkRefused(f"ip {' '.join(words)}: {done.stderr.strip()}")


def available() -> bool:
    """True when namespaces, a bridge and veth pairs can be made here. Makes one and removes it."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return False
    try:
        with Network("probe"):
            return True
    except NetworkRefused:
        return False


class Network:
    """A lab namespace with a bridge, and one namespace per node plugged into it."""

    def __init__(self, name: str) -> None:
        self.lab = f"yoco-{name}-{os.getpid()}"
        self._nodes: dict[str, int] = {}
        self._ports: dict[str, str] = {}

    def __enter__(self) -> Network:
        _ip("netns", "add", self.lab)
        try:
            self._in_lab("link", "set", "lo", "up")
            self._in_lab("link", "add", "bridge", "type", "bridge")
            self._in_lab("addr", "add", f"{PLATFORM_ADDRESS}/24", "dev", "bridge")
            self._in_lab("link", "set", "bridge", "up")
        except NetworkRefused:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_exc: object) -> None:
        for name in [*self._nodes, ""]:
            subprocess.run(
                ["ip", "netns", "del", self.namespace(name)], capture_output=True, check=False
            )

    def namespace(self, node: str) -> str:
        return f"{self.lab}-{node}" if node else self.lab

    def add(self, node: str) -> str:
        """Plug a node in; returns its address."""
        index = len(self._nodes) + 11
        namespace, port = self.namespace(node), f"port{index}"
        _ip("netns", "add", namespace)
        self._nodes[node], self._ports[node] = index, port
        self._in_lab(
            "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", namespace
        )
        self._in_lab("link", "set", port, "master", "bridge", "up")
        address = f"{SUBNET}.{index}"
        _ip("-n", namespace, "addr", "add", f"{address}/24", "dev", "eth0")
        _ip("-n", namespace, "link", "set", "lo", "up")
        _ip("-n", namespace, "link", "set", "eth0", "up")
        return address

    def silence(self, node: str) -> None:
        """From now on every packet to and from the node is lost, without a reset."""
        self._in_lab("link", "set", self._ports[node], "nomaster")

    def restore(self, node: str) -> None:
        self._in_lab("link", "set", self._ports[node], "master", "bridge")

    def command(self, node: str, argv: list[str]) -> list[str]:
        """``argv`` as it must be started to run on the node."""
        return ["ip", "netns", "exec", self.namespace(node), *argv]

    def listen(self, port: int) -> socket.socket:
        """A listening socket inside the lab, at PLATFORM_ADDRESS, for a server that lives outside."""
        made: list[socket.socket | OSError] = []

        def inside() -> None:
            # setns() moves only the calling thread, and a socket keeps the namespace it was made in.
            fd = os.open(f"/run/netns/{self.lab}", os.O_RDONLY)
            try:
                if ctypes.CDLL(None, use_errno=True).setns(fd, _CLONE_NEWNET):
                    raise OSError(ctypes.get_errno(), "setns")
                made.append(socket.create_server((PLATFORM_ADDRESS, port), backlog=256))
            except OSError as error:
                made.append(error)
            finally:
                os.close(fd)

        thread = threading.Thread(target=inside)
        thread.start()
        thread.join()
        if isinstance(made[0], OSError):
            raise NetworkRefused(f"cannot listen inside {self.lab}: {made[0]}")
        return made[0]

    def _in_lab(self, *words: str) -> None:
        _ip("-n", self.lab, *words)
