"""The process group whose inside can change under a model.

torch takes a Python ProcessGroup that a backend's creator returns as the group itself, for the default
group, ``new_group`` and mesh dimensions alike; DDP, FSDP2, DeviceMesh and DTensor keep the object they know
while its inner group (Gloo for CPU tensors, NCCL for CUDA ones) is aborted and made anew.
"""

from __future__ import annotations

import datetime
import os
import socket
import stat
import zlib
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed.distributed_c10d import GroupName, _world

from . import sandbox
from .leaving import Ending, let_go
from .scattering import SCATTERS, scattered
from .work import LatchedWork, Tensors, over_or_gone, tensors_of

if TYPE_CHECKING:
    from .membership import Membership

BACKEND = "yoco"
_COLLECTIVES = (
    "allreduce", "allreduce_coalesced", "allgather", "_allgather_base", "allgather_coalesced",
    "allgather_into_tensor_coalesced", "all_gather_single", "all_gather_single_coalesced",
    "all_to_all_single", "reduce_scatter", "_reduce_scatter_base", "reduce_scatter_single",
    "reduce_scatter_single_coalesced", "reduce_scatter_tensor_coalesced", "broadcast", "reduce",
    "gather", "scatter", "alltoall", "alltoall_base", "barrier", "send", "recv", "recv_anysource",
)  # fmt: skip


_ONE_TO_ONE = ("send", "recv", "recv_anysource")
"""Not issued by every member, so not counted alike."""


class InnerGroup:
    """One generation's inside of a group, with the sockets that belong to it."""

    def __init__(self, store: Store, rank: int, size: int, timeout_s: float, device: Any) -> None:
        before = _connected_sockets()
        options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._timeout = datetime.timedelta(seconds=timeout_s)
        options._devices = [device]
        options._threads = 2
        # Any: torch's stubs describe this class only in part.
        self.gloo: Any = dist.ProcessGroupGloo(store, rank, size, options)
        self.gloo._set_sequence_number_for_group()
        self.ending = Ending()
        self.sockets = {
            fd: node for fd, node in _connected_sockets().items() if before.get(fd) != node
        }
        """descriptor -> inode"""

    def abort(self) -> None:
        """End every pending operation, and each that is begun later. From any thread.

        Most end as soon as their socket does; who waits through ``ending`` leaves the others.
        """
        now = _connected_sockets()
        for fd, node in self.sockets.items():
            if now.get(fd) == node:
                _shut(fd)
        self.sockets = {}
        self.ending.aborted()

    def let_go(self, outer: Any = None) -> None:
        """Drop the aborted group of gloo, and what else holds it."""
        self.ending.give_up()
        gloo, self.gloo = self.gloo, None
        let_go(self.ending, [outer, gloo])


class YocoProcessGroup(dist.ProcessGroup):
    """What torch knows as the group. Its numbers can change too: a standby takes another rank."""

    def __init__(self, options: Any, membership: Membership) -> None:
        # The overload without a store is missing in torch's stubs.
        super().__init__(options.group_rank, options.group_size)  # type: ignore[call-arg]
        self._membership = membership
        self._name = str(options.group_id)
        self._meeting_name = self._name
        """what the group is called where its members meet: differs from the name torch knows on a process
        that was set up as another rank"""
        self._ranks = list(options.global_ranks_in_group) or list(range(options.group_size))
        self._rank = int(options.group_rank)
        self._size = int(options.group_size)
        self._timeout_s = options.timeout.total_seconds()
        self._inner: InnerGroup | None = None
        self._outer: dist.ProcessGroup | None = None
        self._tally = membership.tallies.of_group(self._name, self._ranks)
        self.sequence = 0
        """collectives issued since the group was made"""
        self.trace = 0
        """checksum over the collectives issued since ``Membership.forget_trace``"""
        self._set_group_name(GroupName(self._name))

    # --- what torch asks of a group ---

    @property
    def group_name(self) -> GroupName:
        return GroupName(self._name)

    def getBackendName(self) -> str:
        return BACKEND

    def name(self) -> str:
        return BACKEND

    def rank(self) -> int:
        return self._rank

    def getRank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._size

    def getSize(self) -> int:
        return self._size

    def set_timeout(self, timeout: datetime.timedelta) -> None:
        self._timeout_s = timeout.total_seconds()

    def _get_backend(self, device: torch.device) -> Any:
        return self._inner.gloo if self._inner is not None else super()._get_backend(device)

    def abort(self) -> None:
        self.close()

    def shutdown(self) -> None:
        self.close()

    def new_group(
        self,
        ranks: list[int],
        *,
        timeout: datetime.timedelta,
        pg_options: Any,
        group_name: str,
        group_desc: str | None,
    ) -> YocoProcessGroup | None:
        """torch asks the default group for every further one, on members and on all others alike."""
        return self._membership.form(ranks, timeout, group_name, group_desc)

    # --- generations ---

    @property
    def ranks(self) -> list[int]:
        """The job's ranks in this group, in the group's order."""
        return list(self._ranks)

    def connect(self, store: Store, device: Any) -> None:
        """Make the inside anew. Blocks until every member connects. Raises RuntimeError."""
        scoped = PrefixStore(f"group/{self._meeting_name}", store)
        inner = InnerGroup(scoped, self._rank, self._size, self._timeout_s, device)
        outer = dist.ProcessGroup(scoped, self._rank, self._size)
        outer._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
        outer._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, inner.gloo)
        self._inner, self._outer = inner, outer
        self._tally.reset()

    def close(self) -> None:
        """Abort the inside. From any thread; calls in progress end with an error."""
        inner = self._inner
        if inner is not None:
            inner.abort()

    def drop(self) -> None:
        """Let the aborted inside go; only the thread that issues collectives may do this."""
        inner, self._inner = self._inner, None
        outer, self._outer = self._outer, None
        if inner is not None:
            inner.let_go(outer)

    def leave(self) -> None:
        """Settle the futures of what was aborted and has not ended. From any thread but the waiting one."""
        inner = self._inner
        if inner is not None and inner.ending.hopeless:
            inner.ending.give_up()

    def take_place(self, name: str, ranks: list[int], rank: int) -> None:
        """Be, for the job's ``rank``, what the group ``name`` of ``ranks`` is on the others.

        The object stays, so that whoever knows it goes on with it.
        """
        self._meeting_name, self._ranks = name, list(ranks)
        self._rank = self._ranks.index(rank)
        self._tally.move_to(name, self._ranks)
        # torch asks this table who is who in a group.
        _world.pg_group_ranks[self] = {member: place for place, member in enumerate(self._ranks)}

    def oldest_pending_s(self) -> float:
        """Seconds for which the oldest unfinished collective has been waited for, 0.0 without one."""
        return self._tally.oldest_pending_s()

    def carry(self, name: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> LatchedWork:
        """Issue one collective on the inside; the one place where collectives pass."""
        membership, latch = self._membership, self._membership.latch
        result = tensors_of(arguments, keywords)
        membership.before_collective()
        if membership.sandboxed:
            sandbox.answer(membership, self, name, arguments, keywords)
            return LatchedWork(latch, None, result)
        self._count(name, result)
        if latch.error is not None or self._outer is None or self._inner is None:
            latch.answer()
            return LatchedWork(latch, None, result)
        one_to_one = name in _ONE_TO_ONE
        handle = self._tally.begin(numbered=not one_to_one)
        try:
            # No local name for it: a traceback would keep the group beyond ``drop``.
            if name in SCATTERS:
                inner = scattered(self._outer, name, arguments, keywords)
            else:
                inner = getattr(self._outer, name)(*arguments, **keywords)
        except RuntimeError as error:
            self._tally.end(handle)
            if latch.is_own(error, latch.generation):
                raise
            latch.fail(error, latch.generation)
            latch.answer()
            return LatchedWork(latch, None, result)
        except BaseException:
            self._tally.end(handle)
            raise
        if latch.error is not None:
            self.close()  # ended between the check above and the issue: end this one too
        if not one_to_one:
            self._inner.ending.begun(inner)
        work = LatchedWork(
            latch, inner, result, lambda: self._tally.end(handle), self._inner.ending, one_to_one
        )
        self._tally.follow(handle, over_or_gone(work))
        if membership.recorded is not None:
            membership.recorded.keep(self, name, work, result)
        return work

    def _count(self, name: str, result: Tensors) -> None:
        self.sequence += 1
        if self._size == self._membership.world_size and name not in _ONE_TO_ONE:
            size = 0 if name in _UNEVEN else sum(_numel(item) for item in result)
            self.trace = zlib.crc32(f"{name}:{size}".encode(), self.trace)


_UNEVEN = ("gather", "scatter", "alltoall", "alltoall_base", "all_to_all_single")
"""what one rank gives or gets may differ from what another does, rightly"""


def _numel(item: Any) -> int:
    return item.numel() if isinstance(item, torch.Tensor) else sum(_numel(part) for part in item)


def _carrier(name: str) -> Any:
    def collective(self: YocoProcessGroup, *arguments: Any, **keywords: Any) -> LatchedWork:
        return self.carry(name, arguments, keywords)

    collective.__name__ = name
    return collective


for _name in _COLLECTIVES:
    setattr(YocoProcessGroup, _name, _carrier(_name))


def _connected_sockets() -> dict[int, int]:
    """Descriptor -> inode of every connected TCP socket of this process."""
    found: dict[int, int] = {}
    for entry in os.listdir("/proc/self/fd"):
        fd = int(entry)
        try:
            status = os.fstat(fd)
            if not stat.S_ISSOCK(status.st_mode):
                continue
            probe = socket.socket(fileno=os.dup(fd))
        except OSError:
            continue
        with probe:
            if probe.family in (socket.AF_INET, socket.AF_INET6) and _has_peer(probe):
                found[fd] = status.st_ino
    return found


def _has_peer(probe: socket.socket) -> bool:
    try:
        probe.getpeername()
    except OSError:
        return False
    return True


def _shut(fd: int) -> None:
    try:
        with socket.socket(fileno=os.dup(fd)) as end:
            end.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # already gone
