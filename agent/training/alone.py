"""A script started by hand or by torchrun: plain gloo, no protection, the same trail and digests."""

from __future__ import annotations

import os

import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from .words import say


def open_plain_group() -> tuple[int, int]:
    """Make torch's default group from RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT; (rank, size)."""
    say("not protected: no node agent started this process")
    if dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        dist.init_process_group("gloo")
    else:
        dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    return dist.get_rank(), dist.get_world_size()
