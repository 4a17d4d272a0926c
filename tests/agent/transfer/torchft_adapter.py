"""Our transfer behind torchft's CheckpointTransport, so that torchft's own test can judge it.

As in the product, whoever receives has a state of the same form already: bytes land in it in place. What is
no tensor travels in a blob, in the engine's own encoding.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import msgspec
import torch
from torch.distributed.tensor import DTensor
from torchft.checkpointing.transport import CheckpointTransport

from agent.protocol import Endpoint
from agent.training.encoding import decode, encode
from agent.transfer.errors import StreamUnknown
from agent.transfer.fetch import fetch
from agent.transfer.manifest import Manifest, StorageEntry, TensorEntry
from agent.transfer.secrets import StreamIdentity, new_secret
from agent.transfer.server import DataServer
from agent.transfer.state import SourceState, TargetState

State = dict[str, object]


class Told(msgspec.Struct):
    """torchft's metadata: where we are, and what the secrets of all streams are derived from."""

    endpoint: Endpoint
    root: str


class Mirror:
    """Shared memory with the tensors of a state dict, by key."""

    def __init__(self, state: State) -> None:
        self.tensors = {key: _local(v) for key, v in state.items() if isinstance(v, torch.Tensor)}
        specs = [str(v._spec) for v in state.values() if isinstance(v, DTensor)]
        sizes = {key: t.untyped_storage().nbytes() for key, t in self.tensors.items()}
        numbers = {key: number for number, key in enumerate(self.tensors)}
        self.manifest = Manifest.build(
            [StorageEntry(numbers[key], size) for key, size in sizes.items()],
            [
                TensorEntry.of(
                    key, "parameter", shape=tensor.shape, strides=tensor.stride(),
                    dtype=str(tensor.dtype).removeprefix("torch."), storage_id=numbers[key],
                    offset_bytes=tensor.storage_offset() * tensor.element_size(),
                )
                for key, tensor in self.tensors.items()
            ],
            extra="".join(specs),
        )  # fmt: skip
        self.fds = {numbers[key]: _memory(size) for key, size in sizes.items()}

    def take_from_tensors(self) -> None:
        for fd, tensor in zip(self.fds.values(), self.tensors.values(), strict=True):
            os.pwrite(fd, bytes(tensor.untyped_storage()), 0)

    def give_to_tensors(self) -> None:
        for fd, tensor in zip(self.fds.values(), self.tensors.values(), strict=True):
            size = tensor.untyped_storage().nbytes()
            if size:
                came = torch.frombuffer(bytearray(os.pread(fd, size, 0)), dtype=torch.uint8)
                tensor.untyped_storage().copy_(came.untyped_storage())

    def close(self) -> None:
        for fd in self.fds.values():
            os.close(fd)
        self.fds = {}


class YocoTransport(CheckpointTransport[State]):
    """``template`` makes a state of the form that is to be received; its values do not matter."""

    def __init__(
        self,
        rank: int,
        template: Callable[[], State],
        carrier: Literal["tcp", "same_host"],
        at: Path,
    ) -> None:
        self._rank, self._template, self._carrier = rank, template, carrier
        self._root = new_secret()
        self._server = DataServer("127.0.0.1", unix_path=at / f"rank-{rank}.sock")
        self._server.start()
        self._sending: dict[str, threading.Event] = {}

    def metadata(self) -> str:
        endpoint = Endpoint(
            host="127.0.0.1",
            store_port=0,
            data_port=self._server.port,
            unix_path=self._server.unix_path,
        )
        return msgspec.json.encode(Told(endpoint, self._root)).decode()

    def send_checkpoint(
        self, dst_ranks: list[int], step: int, state_dict: State, timeout: timedelta
    ) -> None:
        words = {k: v for k, v in state_dict.items() if not isinstance(v, torch.Tensor)}
        blob = encode(words, "state")
        for rank in dst_ranks:
            mirror = Mirror(state_dict)
            mirror.take_from_tensors()
            stream, ended = f"{step}-{rank}", threading.Event()
            self._sending[stream] = ended
            self._server.offer(
                stream, _secret(self._root, stream), _identity(rank, step),
                lambda m=mirror: SourceState(m.manifest, m.fds, {"fence": (step, blob)}, release=m.close),
                timeout.total_seconds(), on_end=lambda _report, e=ended: e.set(),
            )  # fmt: skip

    def disallow_checkpoint(self) -> None:
        for stream, ended in self._sending.items():
            ended.wait(10.0)
            self._server.withdraw(stream)
        self._sending.clear()

    def recv_checkpoint(self, src_rank: int, metadata: str, step: int, timeout: timedelta) -> State:
        told = msgspec.json.decode(metadata, type=Told)
        state, stream = self._template(), f"{step}-{self._rank}"
        mirror = Mirror(state)
        target = TargetState(mirror.manifest, mirror.fds)
        began = time.monotonic()
        try:
            report = fetch(
                told.endpoint, stream, _secret(told.root, stream), _identity(self._rank, step),
                target, self._carrier, patience_s=timeout.total_seconds(),
            )  # fmt: skip
            mirror.give_to_tensors()
        except StreamUnknown as error:
            # torchft has one word for a source that offers nothing in time.
            waited = time.monotonic() - began
            raise TimeoutError(f"timed out after {waited:.3f} s: {error}") from error
        finally:
            target.close()
            mirror.close()
        words = decode(report.blobs["fence"][1])
        assert isinstance(words, dict)
        return {key: words.get(key, value) for key, value in state.items()}

    def shutdown(self, wait: bool = True) -> None:
        with suppress(OSError):
            self._server.stop()


def _identity(rank: int, step: int) -> StreamIdentity:
    return StreamIdentity(
        job_id="torchft", attempt=1, generation=1, rank=rank, step=step, what="all",
        source_node="source", target_node=f"target-{rank}",
    )  # fmt: skip


def _secret(root: str, stream: str) -> str:
    return hmac.new(bytes.fromhex(root), stream.encode(), hashlib.sha256).hexdigest()


def _local(tensor: torch.Tensor) -> Any:
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


def _memory(size: int) -> int:
    fd = os.memfd_create("yoco-torchft", os.MFD_CLOEXEC)
    os.ftruncate(fd, size)
    return fd
