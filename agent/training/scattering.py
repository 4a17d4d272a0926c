"""Reduce-scatter for gloo, with work that tells when it is done.

gloo (torch 2.13) sums all of it, as ``allreduce`` does, and copies one rank's part out of that; but the work
it gives for this is never completed, has no future and knows no limit. This is the same sum, to the bit,
issued so that whoever waits for it can leave.
"""

from __future__ import annotations

import datetime
import threading
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.futures import Future

SCATTERS = (
    "reduce_scatter", "_reduce_scatter_base", "reduce_scatter_single",
    "reduce_scatter_single_coalesced", "reduce_scatter_tensor_coalesced",
)  # fmt: skip


class Scattered:
    """Work of one reduce-scatter: each output gets its rank's part when it is waited for."""

    def __init__(self, works: list[Any], parts: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        self._works = works
        self._parts = parts
        self._lock = threading.Lock()

    def wait(self, timeout: datetime.timedelta | None = None) -> bool:
        for work in self._works:
            work.wait(timeout) if timeout is not None else work.wait()
        self._fill()
        return True

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self._works)

    def is_success(self) -> bool:
        return all(work.is_success() for work in self._works)

    def get_future(self) -> Future[Any]:
        every = torch.futures.collect_all([work.get_future() for work in self._works])
        return every.then(self._filled)

    def _filled(self, done: Future[Any]) -> None:
        for future in done.value():
            future.value()
        self._fill()

    def _fill(self) -> None:
        """Once: the script may have changed an output since."""
        with self._lock, torch.no_grad():
            for output, part in self._parts:
                output.copy_(part.view(output.shape))
            self._parts = []


def scattered(
    group: Any, name: str, arguments: Sequence[Any], keywords: dict[str, Any]
) -> Scattered:
    """Issue reduce-scatter ``name`` (one of ``SCATTERS``) on torch's ``group`` of gloo.

    Raises what ``allreduce`` raises, ValueError where the parts do not fit the group.
    """
    outputs, inputs, *others = [*arguments, *keywords.values()]
    works, parts = [], []
    for output, whole in _pairs(name, outputs, inputs):
        if whole.numel() != output.numel() * group.size():
            raise ValueError(
                f"{name}: {whole.numel()} elements for {group.size()} ranks of {output.numel()}"
            )
        works.append(group.allreduce([whole], _options(others)))
        parts.append((output, whole.view(group.size(), -1)[group.rank()]))
    return Scattered(works, parts)


def _pairs(name: str, outputs: Any, inputs: Any) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Each output and a copy of all that it is a part of, flat."""
    with torch.no_grad():
        if name == "reduce_scatter":
            if isinstance(outputs, torch.Tensor):
                outputs, inputs = [outputs], [inputs]
            flat = [torch.cat([part.reshape(-1) for part in parts]) for parts in inputs]
        else:
            flat = [whole.reshape(-1).clone() for whole in _listed(inputs)]
    return list(zip(_listed(outputs), flat, strict=True))


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _options(others: Sequence[Any]) -> Any:
    """What of a call's further arguments a sum over all ranks needs."""
    options = dist.AllreduceOptions()
    for other in others:
        operation: Any = getattr(other, "reduceOp", other)
        if isinstance(operation, dist.ReduceOp | dist.ReduceOp.RedOpType):
            options.reduceOp = operation  # type: ignore[assignment]  # torch's stub
        limit = getattr(other, "timeout", other)
        if isinstance(limit, datetime.timedelta):
            options.timeout = limit
    return options
