"""Every way to move the state, from the target's side, timed from the first request to the last byte."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Literal

from agent.protocol import Endpoint
from agent.transfer.fetch import TargetState, fetch
from agent.transfer.secrets import new_secret

from .source import IDENTITY, LIMIT
from .state import Held, Shape, tensors_digest

TMPFS = Path("/dev/shm")


@dataclass(frozen=True)
class Sample:
    """Wall time, and processor time of both processes together, of one move."""

    seconds: float
    cpu_s: float


class Peer:
    """The source process."""

    def __init__(self, shape: Shape, directory: Path) -> None:
        words = [str(shape.bytes), str(shape.tensors), str(directory)]
        with (directory / "source.log").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "bench.transfer.source", *words],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
            )  # fmt: skip

    def ask(self, do: str, **request: Any) -> dict[str, Any]:
        """One request; raises RuntimeError with the source's own words if it could not."""
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(json.dumps({"do": do, **request}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the source process ended with {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer

    def cpu_s(self) -> float:
        """Processor time it has used, to a hundredth of a second."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def close(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Target:
    """Where the state goes: memory mapped ahead. ``landed`` is the digest of what came with the last move."""

    def __init__(self, peer: Peer, shape: Shape) -> None:
        self.peer, self.shape = peer, shape
        self.held = Held(shape, fill=False)
        self.mapped = TargetState(self.held.manifest, self.held.fds)
        self.mapped.prepare()
        self.where = peer.ask("where")
        self.landed: Callable[[], str] = self.held.digest
        self._numbers = count()

    def timed(self, move: Callable[[], Any]) -> Sample:
        cpu = time.process_time() + self.peer.cpu_s()
        began = time.perf_counter()
        move()
        seconds = time.perf_counter() - began
        return Sample(seconds, time.process_time() + self.peer.cpu_s() - cpu)

    def close(self) -> None:
        self.mapped.close()
        self.held.close()

    # --- ours ---

    def ours(
        self,
        carrier: Literal["tcp", "same_host"],
        *,
        secure: bool = False,
        take: bool = False,
        mapped: bool = True,
    ) -> Sample:
        stream_id, secret = f"s{next(self._numbers)}", new_secret()
        self.peer.ask("offer", stream_id=stream_id, secret=secret, takeable=take)
        target = self.mapped if mapped else TargetState(self.held.manifest, self.held.fds)
        endpoint = Endpoint(
            host="127.0.0.1", store_port=0,
            data_port=self.where["secure_port" if secure else "port"],
            unix_path=self.where["unix_path"],
            tls_fingerprint=self.where["fingerprint"] if secure else "",
        )  # fmt: skip
        taken: dict[int, int] = {}

        def move() -> None:
            report = fetch(endpoint, stream_id, secret, IDENTITY, target, carrier, take=take)
            if report.source_digest != report.target_digest:
                raise RuntimeError("digests differ")
            taken.update(report.taken_fds)

        sample = self.timed(move)
        if take:
            # The memory itself came: it is that of the source, by inode.
            self.landed = lambda: self.where["digest"]
            for fd in taken.values():
                os.close(fd)
        if not mapped:
            target.close()
        return sample

    # --- the machine ---

    def bare(self, streams: int) -> Sample:
        port = self.peer.ask("bare", streams=streams)["port"]
        connections = [socket.create_connection(("127.0.0.1", port)) for _ in range(streams)]

        def receive(index: int) -> None:
            connection = connections[index]
            connection.sendall(bytes([index]))
            for each in range(index, self.shape.tensors, streams):
                view, position = memoryview(self.held.maps[each]), 0
                while position < len(view):
                    count = connection.recv_into(view[position:])
                    if not count:
                        raise RuntimeError("the source ended early")
                    position += count

        def move() -> None:
            threads = [threading.Thread(target=receive, args=(i,)) for i in range(streams)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

        sample = self.timed(move)
        for connection in connections:
            connection.close()
        return sample

    def copy(self) -> Sample:
        """One thread, inside one process."""
        import torch

        torch.set_num_threads(1)
        source = {name: torch.ones_like(t) for name, t in self.held.tensors().items()}
        target = self.held.tensors()
        sample = self.timed(lambda: [target[name].copy_(t) for name, t in source.items()])
        expected = tensors_digest(source)
        self.landed = lambda: (
            self.where["digest"] if self.held.digest() == expected else "not what was copied"
        )
        return sample

    # --- others ---

    def gloo(self) -> Sample:
        import torch.distributed as dist

        target = self.held.tensors()
        with tempfile.TemporaryDirectory() as directory:
            store = f"{directory}/store"
            self.peer.ask("gloo", store=store)
            dist.init_process_group("gloo", init_method=f"file://{store}", rank=1, world_size=2)
            try:
                return self.timed(lambda: [dist.recv(each, 0) for each in target.values()])
            finally:
                dist.destroy_process_group()

    def torchft_http(self, chunks: int) -> Sample:
        from torchft.checkpointing.http_transport import HTTPTransport

        metadata = self.peer.ask("torchft_http", chunks=chunks)["metadata"]
        transport: Any = HTTPTransport(LIMIT, chunks)
        came: dict[str, Any] = {}
        try:
            return self.timed(lambda: came.update(transport.recv_checkpoint(0, metadata, 1, LIMIT)))
        finally:
            transport.shutdown()
            self.landed = lambda: tensors_digest(came)

    def torchft_pg(self) -> Sample:
        import torch
        from torch.distributed import TCPStore
        from torchft.checkpointing.pg_transport import PGTransport
        from torchft.process_group import ProcessGroupGloo

        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        where = f"127.0.0.1:{store.port}/bench/{next(self._numbers)}"
        self.peer.ask("torchft_pg", store=where)
        group = ProcessGroupGloo(timeout=LIMIT)
        group.configure(where, "bench", 1, 2)
        device = torch.device("cpu")
        # Received in place, as its documentation asks for: the faster of its two manners.
        transport: Any = PGTransport(group, LIMIT, device, state_dict=self.held.tensors)
        try:
            return self.timed(lambda: transport.recv_checkpoint(0, "", 1, LIMIT))
        finally:
            group.shutdown()

    def torch_save(self) -> Sample:
        """Saved by the source, then loaded here: both are the way of the bytes."""
        import torch

        path = TMPFS / f"yoco-bench-{os.getpid()}.pt"
        came: dict[str, Any] = {}

        def move() -> None:
            self.peer.ask("torch_save", path=str(path))
            came.update(torch.load(path, weights_only=True))

        try:
            return self.timed(move)
        finally:
            path.unlink(missing_ok=True)
            self.landed = lambda: tensors_digest(came)

    def dcp(self) -> Sample:
        import torch.distributed.checkpoint as dcp

        path = TMPFS / f"yoco-bench-{os.getpid()}-dcp"
        target = self.held.tensors()

        def move() -> None:
            self.peer.ask("dcp_save", path=str(path))
            dcp.load(target, checkpoint_id=str(path), no_dist=True)

        try:
            return self.timed(move)
        finally:
            shutil.rmtree(path, ignore_errors=True)
