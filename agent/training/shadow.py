"""A second arena: a copy of what the optimizer writes, taken while the next step computes.

Written only between ``begin`` and ``finish``; ``finish`` comes before the optimizer writes its source.
"""

from __future__ import annotations

import threading
import time

import torch

from ..transfer.manifest import Manifest
from .state import RankState
from .storages import ArenaChange, check_room


class ShadowArena:
    """Shadow of ``state``'s arena. ``step`` is the step the copy is whole for, -1 while it is not."""

    def __init__(self, state: RankState) -> None:
        self._state = state
        self._copies: dict[int, torch.UntypedStorage] = {}
        self._sources: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._manifest: Manifest | None = None
        self._epoch = 0
        self._source_epoch = -1
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self.step = -1
        self.copy_s = 0.0
        """How long the last copy took, beside the training thread."""

    def rehome(self) -> ArenaChange | None:
        """Make room for every storage of the live arena; None when there is room already."""
        arena = self._state.arena
        if arena.manifest is None:
            raise RuntimeError("the live arena was not made yet: call RankState.rehome first")
        if arena.epoch == self._source_epoch:
            return None
        self.finish()
        storages = arena.storages()
        missing = sum(s.nbytes() for i, s in storages.items() if not self._fits(i, s))
        check_room(missing)
        self._copies = {
            i: self._copies[i] if self._fits(i, s) else shared_storage(s.nbytes())
            for i, s in storages.items()
        }
        self._sources = [(flat(self._copies[i]), flat(s)) for i, s in storages.items()]
        self._source_epoch, self.step = arena.epoch, -1
        self._epoch += 1
        fds = [self._copies[i]._share_fd_cpu_()[0] for i in storages]
        return ArenaChange(self._epoch, arena.manifest, list(storages), fds)

    @property
    def bytes(self) -> int:
        """Size of the copy."""
        return sum(copy.nbytes() for copy in self._copies.values())

    def _fits(self, storage_id: int, storage: torch.UntypedStorage) -> bool:
        kept = self._copies.get(storage_id)
        return kept is not None and kept.nbytes() == storage.nbytes()

    def begin(self, step: int) -> None:
        """Start copying the state of fence ``step`` on a thread."""
        self.finish()
        self.step = -1
        self._thread = threading.Thread(target=self._copy, args=(step,), name="yoco-shadow")
        self._thread.start()

    def _copy(self, step: int) -> None:
        began = time.perf_counter()
        try:
            for target, source in self._sources:
                target.copy_(source)
        except Exception as error:  # noqa: BLE001 - handed to finish(): a thread has nobody to raise to
            self._error = error
            return
        self.copy_s = time.perf_counter() - began
        self.step = step

    def finish(self) -> int:
        """Wait for the copy; the step it is whole for. Raises what the copy raised."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error
        return self.step


def flat(storage: torch.UntypedStorage) -> torch.Tensor:
    """Its bytes as a tensor, in place."""
    return torch.empty(0, dtype=torch.uint8).set_(storage)


def shared_storage(size: int) -> torch.UntypedStorage:
    """New shared memory of ``size`` bytes."""
    made: torch.UntypedStorage = torch.UntypedStorage._new_shared(size)  # type: ignore[no-untyped-call]
    return made
