"""The source: a process of its own that gives one state away in every manner measured.

Reads one JSON request a line from standard input, answers each with one JSON line.
"""

from __future__ import annotations

import importlib
import json
import os
import socket
import sys
import threading
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from agent.transfer.secrets import StreamIdentity
from agent.transfer.server import DataServer, SourceState
from agent.transfer.tls import TlsIdentity

from .state import Held, Shape, allow_many_descriptors

LIMIT = timedelta(seconds=120)
IDENTITY = StreamIdentity(
    job_id="bench",
    attempt=1,
    generation=2,
    rank=0,
    step=100,
    what="all",
    source_node="a",
    target_node="b",
)


class Source:
    def __init__(self, shape: Shape, directory: Path) -> None:
        self.held = Held(shape, fill=True)
        self.plain = DataServer("127.0.0.1", unix_path=directory / "bench.sock")
        self.secure = DataServer("127.0.0.1", tls=TlsIdentity.load_or_create(directory / "tls"))
        self.plain.start()
        self.secure.start()
        _import_ahead()
        self._kept: list[Any] = []
        self._error = ""

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        return getattr(self, f"do_{request.pop('do')}")(**request)  # type: ignore[no-any-return]

    def do_where(self) -> dict[str, Any]:
        return {
            "port": self.plain.port,
            "unix_path": self.plain.unix_path,
            "secure_port": self.secure.port,
            "fingerprint": self.secure.tls_fingerprint,
            "digest": self.held.digest(),
        }

    def do_offer(self, stream_id: str, secret: str, takeable: bool) -> dict[str, Any]:
        state = SourceState(self.held.manifest, self.held.fds, takeable=takeable)
        for server in (self.plain, self.secure):
            server.offer(stream_id, secret, IDENTITY, lambda: state, 120.0)
        return {}

    def do_bare(self, streams: int) -> dict[str, Any]:
        """Storages over bare sockets, as fast as they go, unchecked; every ``streams``-th on each."""
        listener = socket.create_server(("127.0.0.1", 0))

        def send(index: int) -> None:
            connection, _ = listener.accept()
            with connection, suppress(ConnectionResetError):
                mine = connection.recv(1)[0]
                for each in range(mine, self.held.shape.tensors, streams):
                    connection.sendall(self.held.maps[each])
                connection.recv(1)

        threads = [threading.Thread(target=send, args=(i,), daemon=True) for i in range(streams)]
        for thread in threads:
            thread.start()
        self._kept = [listener]
        return {"port": listener.getsockname()[1]}

    def do_torchft_http(self, chunks: int) -> dict[str, Any]:
        from torchft.checkpointing.http_transport import HTTPTransport

        transport = HTTPTransport(LIMIT, chunks)
        transport.send_checkpoint([1], 1, self.held.tensors(), LIMIT)
        self._kept = [transport]
        return {"metadata": transport.metadata()}

    def do_torchft_pg(self, store: str) -> dict[str, Any]:
        def send() -> None:
            import torch
            from torchft.checkpointing.pg_transport import PGTransport
            from torchft.process_group import ProcessGroupGloo

            group = ProcessGroupGloo(timeout=LIMIT)
            group.configure(store, "bench", 0, 2)
            transport = PGTransport(group, LIMIT, torch.device("cpu"))
            transport.send_checkpoint([1], 1, self.held.tensors(), LIMIT)
            self._kept = [group]

        self._in_thread(send)
        return {}

    def do_gloo(self, store: str) -> dict[str, Any]:
        def send() -> None:
            import torch.distributed as dist

            dist.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=2)
            for tensor in self.held.tensors().values():
                dist.send(tensor, 1)
            dist.destroy_process_group()

        self._in_thread(send)
        return {}

    def do_torch_save(self, path: str) -> dict[str, Any]:
        import torch

        torch.save(self.held.tensors(), path)
        return {}

    def do_dcp_save(self, path: str) -> dict[str, Any]:
        import torch.distributed.checkpoint as dcp

        dcp.save(self.held.tensors(), checkpoint_id=path, no_dist=True)
        return {}

    def do_forget(self) -> dict[str, Any]:
        """Let go of what a row needed; says what went wrong on this side meanwhile."""
        for each in self._kept:
            if hasattr(each, "shutdown") and not isinstance(each, socket.socket):
                each.shutdown()
        self._kept.clear()
        error, self._error = self._error, ""
        return {"failed": error}

    def _in_thread(self, work: Any) -> None:
        def run() -> None:
            try:
                work()
            except Exception as error:  # noqa: BLE001  told with the row
                self._error = f"{type(error).__name__}: {error}"

        threading.Thread(target=run, daemon=True).start()


def _import_ahead() -> None:
    """Else the first move of a row would be timed with its imports."""
    for name in ("torch.distributed.checkpoint", "torchft.checkpointing.pg_transport"):
        with suppress(ImportError):
            importlib.import_module(name)


def main() -> None:
    allow_many_descriptors()
    # Libraries print; the answers go where only we write.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    source = Source(Shape(int(sys.argv[1]), int(sys.argv[2])), Path(sys.argv[3]))
    for line in sys.stdin:
        try:
            answer = source.answer(json.loads(line))
        except Exception as error:  # noqa: BLE001  the exact error is the row's figure
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)
    os._exit(0)  # threads of libraries would be waited for


if __name__ == "__main__":
    main()
