"""A process group of one process that stands in for a rank it is not yet: its own input fills every slot."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

GROUPS: list[Solo] = []


class _Done(dist.Work):
    def __init__(self, result: list[torch.Tensor]) -> None:
        super().__init__()
        self._future: Any = torch.futures.Future()
        self._future.set_result(result)

    def wait(self, timeout: Any = None) -> bool:
        return True

    def is_completed(self) -> bool:
        return True

    def get_future(self) -> Any:
        return self._future


class Solo(dist.ProcessGroup):
    """As if every rank were this one. ``take_rank`` changes which one that is."""

    def __init__(self, options: Any) -> None:
        super().__init__(options.group_rank, options.group_size)
        self._own_rank, self._own_size = options.group_rank, options.group_size
        self._own_name = str(options.group_id)
        self._set_group_name(self._own_name)
        GROUPS.append(self)

    def take_rank(self, rank: int) -> None:
        self._own_rank = rank

    @property
    def group_name(self) -> str:
        return self._own_name

    def getBackendName(self) -> str:
        return "solo"

    def rank(self) -> int:
        return self._own_rank

    def size(self) -> int:
        return self._own_size

    def allreduce(self, tensors: list[torch.Tensor], opts: Any = None) -> dist.Work:
        return _Done(tensors)

    def broadcast(self, tensors: list[torch.Tensor], opts: Any = None) -> dist.Work:
        return _Done(tensors)

    def barrier(self, opts: Any = None) -> dist.Work:
        return _Done([])

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> dist.Work:
        for output in outputs[0]:
            output.copy_(inputs[0])
        return _Done(outputs[0])

    def _allgather_base(
        self, output: torch.Tensor, own: torch.Tensor, opts: Any = None
    ) -> dist.Work:
        output.view(self._own_size, -1).copy_(own.reshape(1, -1).expand(self._own_size, -1))
        return _Done([output])

    def _reduce_scatter_base(
        self, output: torch.Tensor, own: torch.Tensor, opts: Any = None
    ) -> dist.Work:
        output.view(-1).copy_(own.view(self._own_size, -1)[self._own_rank])
        return _Done([output])

    all_gather_single = _allgather_base
    reduce_scatter_single = _reduce_scatter_base


def start(rank: int, world_size: int) -> None:
    """Make this process rank ``rank`` of a world that has nobody else in it."""

    def make(options: Any, _backend: Any) -> Solo:
        return Solo(options)

    dist.Backend.register_backend("solo", make, extended_api=True, devices=["cpu"])
    dist.init_process_group("solo", store=dist.HashStore(), rank=rank, world_size=world_size)


def take_rank(rank: int) -> None:
    for group in GROUPS:
        group.take_rank(rank)
