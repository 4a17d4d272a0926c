"""The chain of what a rank committed: (step, loss bits, gradient-norm bits, batch hash), each hashed on."""

from __future__ import annotations

import json
import os
import struct
from typing import Any

import torch
import xxhash

from ..transfer.arena import MARK_EVERY

FIRST_HEAD = "0" * 32
MARKS_MAX = 64
"""marks a trail remembers of itself: a head told before a node was lost is compared with them"""


class Trail:
    """``head`` covers every committed step. What the running step has drawn is pending until ``commit``."""

    def __init__(self) -> None:
        self.head = FIRST_HEAD
        self.step = 0
        self._marks: list[str] = []
        self.last_loss: float | None = None
        self.last_batch_hash = ""
        self._last_batches: list[str] = []
        self.num_backwards = 0
        """backward passes that the running step has had, those without one number at their root too"""
        self._losses: list[str] = []
        self._norm = ""
        self._batches: list[str] = []
        self._waiting: list[torch.Tensor] = []
        self._again: list[str] = []

    def saw_batch(self, batch_hash: str) -> None:
        self._batches.append(batch_hash)

    def saw_backward(self) -> None:
        self.num_backwards += 1

    def saw_loss(self, loss: torch.Tensor) -> None:
        """The root of a backward. Read later: on a device that would wait for it."""
        if self._again and loss.numel() == 1:
            _overwrite(loss, _value(self._again.pop(0)))
        self._waiting.append(loss.detach())

    def saw_norm(self, norm: float) -> None:
        self._norm = struct.pack("<d", norm).hex()

    @property
    def batch_hash(self) -> str:
        """Hash of what the running step has drawn so far, "" when nothing was."""
        return _joined(self._batches)

    @property
    def num_batches(self) -> int:
        """How many batches ``batch_hash`` is about."""
        return len(self._batches)

    def last_hash_of(self, count: int) -> str:
        """Hash of the first ``count`` batches of the step committed last."""
        return _joined(self._last_batches[:count])

    def pending(self) -> bytes:
        """The running step's part, to be kept with its prepared state."""
        self._read()
        told = [self._losses, self._norm, self._batches, self.num_backwards]
        return json.dumps(told).encode()

    def tell_again(self, data: bytes) -> None:
        """Give the next losses the values that ``pending`` kept: the step's forward is run once more, by
        other weights or without the other ranks, and what follows the optimizer may read its loss. Those of
        micro-batches that were put back are past."""
        losses, _norm, _batches, _backwards = json.loads(data)
        self._again = list(losses)[len(self._losses) :]

    def take_pending(self, data: bytes) -> None:
        """Put back what ``pending`` gave. Raises ValueError when it is something else."""
        losses, norm, batches, backwards = json.loads(data)
        self._losses, self._norm, self._batches = list(losses), str(norm), list(batches)
        self.num_backwards = int(backwards)
        self._waiting, self._again = [], []

    def forget_pending(self) -> None:
        self._losses, self._norm, self._batches, self._waiting = [], "", [], []
        self._again, self.num_backwards = [], 0

    def commit(self, step: int) -> None:
        """Chain the running step onto the head."""
        self._read()
        self.last_batch_hash = self.batch_hash
        self._last_batches = self._batches
        self.last_loss = _value(self._losses[-1]) if self._losses else None
        record = f"{self.head}|{step}|{','.join(self._losses)}|{self._norm}|{self.last_batch_hash}"
        self.head = xxhash.xxh3_128_hexdigest(record.encode())
        self.step = step
        if step % MARK_EVERY == 0:
            self._marks = [*self._marks, f"{step}:{self.head}"][-MARKS_MAX:]
        self.forget_pending()

    def marks(self) -> dict[str, str]:
        """Step (decimal) -> head, of the last ``MARKS_MAX`` multiples of ``MARK_EVERY``."""
        return dict(mark.split(":") for mark in self._marks)

    def state_dict(self) -> dict[str, Any]:
        return {"head": self.head, "step": self.step, "marks": ",".join(self._marks)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.head, self.step = str(state["head"]), int(state["step"])
        self._marks = str(state["marks"]).split(",") if state["marks"] else []
        self.forget_pending()

    def _read(self) -> None:
        for loss in self._waiting:
            if loss.numel() == 1:
                value = float(loss.float() if loss.dtype in _NARROW else loss)
                self._losses.append(struct.pack("<d", value).hex())
        self._waiting = []


_NARROW = (torch.float16, torch.bfloat16)


def _overwrite(loss: torch.Tensor, value: float) -> None:
    """In place, unseen by autograd, which may have saved this tensor for its backward."""
    getattr(loss, "_local_tensor", loss).data.fill_(value)


def _value(bits: str) -> float:
    return float(struct.unpack("<d", bytes.fromhex(bits))[0])


def _joined(parts: list[str]) -> str:
    if len(parts) < 2:
        return "".join(parts)
    return xxhash.xxh3_128_hexdigest("|".join(parts).encode())


class TrailFile:
    """JSON lines of commits and digests, appended whole, so that several ranks may share a file."""

    def __init__(self, path: str, rank: int) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._rank = rank

    def committed(self, trail: Trail, step_ms: float) -> None:
        self._write({
            "kind": "commit", "step": trail.step, "loss": trail.last_loss,
            "batch": trail.last_batch_hash, "head": trail.head, "step_ms": round(step_ms, 3),
        })  # fmt: skip

    def digest(self, step: int, full: str, replica: str, head: str) -> None:
        self._write(
            {"kind": "digest", "step": step, "digest": full, "replica": replica, "head": head}
        )

    def _write(self, line: dict[str, Any]) -> None:
        os.write(self._fd, json.dumps({"rank": self._rank, **line}).encode() + b"\n")
