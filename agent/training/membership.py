"""Every process group of this process, in the order they were made, and the generation they stand in."""

from __future__ import annotations

import contextlib
import datetime
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, PrefixStore, Store

from ..protocol import Limits, StoreRef
from ..store_client import StoreError
from .errors import GenerationOver
from .group import BACKEND, InnerGroup, YocoProcessGroup
from .latch import Latch
from .recording import Recording
from .refusals import RestoreFailed
from .store import AgentStore, open_store
from .tallies import Tallies


class Membership:
    """Opens and closes generations. ``close`` may be called from any thread; the rest from the main one."""

    def __init__(
        self,
        rank: int,
        world_size: int,
        limits: Limits,
        bind_host: str,
        tallies: Tallies | None = None,
    ) -> None:
        self.rank = rank
        self.world_size = world_size
        self.latch = Latch()
        self.store = AgentStore(limits.collective_s)
        self.sandboxed = False
        self.before_collective: Callable[[], None] = lambda: None
        """called before each collective of the script, answered in the sandbox or not"""
        self.recorded: Recording | None = None
        """set-up is being recorded into this"""
        self.played: Recording | None = None
        """set-up is answered from this"""
        self.side: InnerGroup | None = None
        """gloo group of all ranks for the vote and the buddy's copy; torch does not know it"""
        self.with_bulk = False
        """arenas are copied between ranks"""
        self.bulk: InnerGroup | None = None
        """a second such group: an arena under way would hold up a vote"""
        self._limits = limits
        self._bind_host = bind_host
        self._groups: list[YocoProcessGroup] = []
        self.tallies = tallies or Tallies(None)
        self._side_tally = self.tallies.of_group("side", list(range(world_size)))
        self._formed: list[tuple[str, tuple[int, ...]]] = []
        """name and ranks of every group of the job, in the order they were made, own ones and others"""
        self._side_since: float | None = None
        self._device: Any = None
        self._lock = threading.Lock()

    @property
    def generation(self) -> int:
        return self.latch.generation

    def make_group(self, options: Any, _backend_options: Any) -> YocoProcessGroup:
        """torch's creator: every group of the process passes here."""
        group = YocoProcessGroup(options, self)
        if not self.sandboxed:
            group.connect(self.store, self.device)
        self._groups.append(group)
        if self._formed[-1:] != [(group.group_name, tuple(group.ranks))]:
            self._formed.append((group.group_name, tuple(group.ranks)))
        return group

    def form(
        self, ranks: list[int], timeout: datetime.timedelta, name: str, description: str | None
    ) -> YocoProcessGroup | None:
        """Note a further group, and make it where this rank is a member."""
        self._formed.append((name, tuple(ranks)))
        if self.rank not in ranks:
            return None
        # Any: torch does not export what its creators are given.
        options: Any = dist.distributed_c10d._DistributedBackendOptions()  # type: ignore[attr-defined]
        options.group_rank, options.group_size = ranks.index(self.rank), len(ranks)
        options.group_id, options.global_ranks_in_group = name, list(ranks)
        options.timeout = timeout
        group = self.make_group(options, None)
        group._set_group_desc(description or "undefined")
        return group

    @property
    def device(self) -> Any:
        """Gloo's device, bound to the interface of ``bind_host``; one for the life of the process."""
        if self._device is None:
            host = self._bind_host
            self._device = (
                dist.ProcessGroupGloo.create_device(hostname=host)
                if host
                else dist.ProcessGroupGloo.create_default_device()
            )
        return self._device

    def meet(self, generation: int, ref: StoreRef) -> None:
        """Stand in ``generation``: wait for all ranks at its store, then make every group anew.

        Raises GenerationOver when the generation ends before everybody stands in it, at once when it has
        ended already: whoever is waited for may never come.
        """
        self._drop()
        self.latch.begin(generation)
        self.latch.check()
        try:
            self._arrive(ref)
            for group in self._groups:
                group.connect(self.store, self.device)
            self._side_tally.reset()
            self.side = self._of_all("side")
            self.bulk = self._of_all("bulk") if self.with_bulk else None
        except (StoreError, RuntimeError) as error:
            self.latch.fail(error, generation)
            raise GenerationOver(f"generation {generation} could not be met: {error}") from error
        # Ended while the last group was made: nobody closed what did not exist yet.
        self.latch.check()
        self.tallies.own.taken()  # the way here was no step's work

    def _of_all(self, name: str) -> InnerGroup:
        return InnerGroup(
            PrefixStore(name, self.store), self.rank, self.world_size,
            self._limits.collective_s, self.device,
        )  # fmt: skip

    def _arrive(self, ref: StoreRef) -> None:
        client = open_store(
            ref, connect_timeout_s=self._limits.join_s, timeout_s=self._limits.join_s,
            bind_host=self._bind_host, connect=False,
        )  # fmt: skip
        with self._lock:
            self.store.turn_to(client)
            if self.latch.error is not None:  # ended before there was a client to close
                client.close()
        client.connect()
        client.set(f"arrived/{self.rank}", b"1")
        client.wait([f"arrived/{rank}" for rank in range(self.world_size)], self._limits.join_s)

    def close(self, generation: int, error: BaseException) -> None:
        """End ``generation``: every pending or later collective fails, whoever waits for it."""
        if not self.latch.fail(error, generation):
            return
        with self._lock:
            self.store.close()
        for group in list(self._groups):
            group.close()
        for group_of_all in (self.side, self.bulk):
            if group_of_all is not None:
                group_of_all.abort()

    def leave(self) -> None:
        """Let go whoever waits for the future of a collective that was aborted and has not ended."""
        for group in list(self._groups):
            group.leave()

    def _drop(self) -> None:
        of_all = [group for group in (self.side, self.bulk) if group is not None]
        # All are ended before the first is let go: what hears nothing of it is waited for once.
        for group in self._groups:
            group.close()
        for group_of_all in of_all:
            group_of_all.abort()
        for group in self._groups:
            group.drop()
        for group_of_all in of_all:
            group_of_all.let_go()
        self.side = self.bulk = None

    def take_rank(self, rank: int) -> None:
        """A standby stands in for ``rank``: each of its groups becomes the one that rank is in instead.

        All ranks run the same script, so the n-th group of one is to it what the n-th is to another.
        Raises RestoreFailed, nothing changed, where the two ranks' groups do not match.
        """
        mine = [ranks for _name, ranks in self._formed if self.rank in ranks]
        theirs = [(name, ranks) for name, ranks in self._formed if rank in ranks]
        if list(map(len, mine)) != [len(ranks) for _name, ranks in theirs]:
            raise RestoreFailed(
                "adoption_unsupported",
                f"rank {self.rank} is in groups {mine} and rank {rank} in groups "
                f"{[ranks for _name, ranks in theirs]}: neither can stand in for the other",
            )
        self.rank = rank
        for group, (name, ranks) in zip(self._groups, theirs, strict=True):
            group.take_place(name, list(ranks), rank)

    def trace(self) -> int:
        """Checksum over the collectives of the running step in groups of all ranks."""
        total = 0
        for group in self._groups:
            total = (total * 1_000_003 + group.trace) & ((1 << 61) - 1)
        return total

    def forget_trace(self) -> None:
        for group in self._groups:
            group.trace = 0

    def collectives(self) -> int:
        """Collectives issued so far in all groups."""
        return sum(group.sequence for group in self._groups)

    def oldest_pending_s(self) -> float:
        """Seconds for which the oldest unfinished collective, vote or copy has been waited for."""
        groups = (group.oldest_pending_s() for group in self._groups)
        return max([self._side_tally.oldest_pending_s(), *groups])

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Around whatever waits for the others on the side group."""
        handle = self._side_tally.begin()
        try:
            yield
        finally:
            self._side_tally.end(handle)


_running: Membership | None = None


def install(membership: Membership) -> None:
    """Make ``membership`` the one that torch's groups of backend "yoco" belong to."""
    global _running
    _running = membership
    if BACKEND not in dist.Backend.backend_list:
        dist.Backend.register_backend(BACKEND, _create, extended_api=True, devices=["cpu", "cuda"])


def _create(options: Any, backend_options: Any) -> YocoProcessGroup:
    if _running is None:
        raise RuntimeError("the backend yoco needs yoco.join() first")
    return _running.make_group(options, backend_options)


def init_torch(membership: Membership, timeout_s: float) -> None:
    """Make torch's default group. A sandboxed process meets nobody."""
    store: Store = HashStore() if membership.sandboxed else membership.store
    dist.init_process_group(
        BACKEND, store=store, rank=membership.rank, world_size=membership.world_size,
        timeout=datetime.timedelta(seconds=timeout_s),
    )  # fmt: skip
