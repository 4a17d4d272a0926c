"""Watches large tensors that nobody seems to write: frozen parameters, masks, tables.

They lie in the arena and are not copied at every fence. That is right only while nothing writes them, and a
tensor's version is no proof: batch norm and ``.data`` write without raising it. So a window of one of them
is read again at each fence, and one that moved once is copied at every fence from then on.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import xxhash

from .catalogue import Held
from .encoding_arrays import bytes_view
from .refusals import RestoreFailed

WINDOW_BYTES = 64 * 1024
CHECKED_BYTES_MAX = 256 * 1024 * 1024

_FIRST_TIME = "{} was written for the first time in the torn step: its value is lost"


class SteadyWatch:
    """``fickle`` holds the names of those that were seen to move."""

    def __init__(self) -> None:
        self.fickle: set[str] = set()
        self._held: list[Held] = []
        self._versions: list[int] = []
        self._pointers: list[int] = []
        self._windows: list[list[bytes]] = []
        self._digests: dict[str, str] = {}
        self._next = (0, 0)

    def watch(self, held: Sequence[Held]) -> None:
        """Take these as they are now. One that is watched already keeps what was known of it."""
        known = {item.name: index for index, item in enumerate(self._held)}
        windows = []
        for item in held:
            index = known.get(item.name)
            same = index is not None and self._held[index].tensor is item.tensor
            windows.append(self._windows[index] if same and index is not None else _windows(item))
        self._held, self._windows = list(held), windows
        self._note()

    def _note(self) -> None:
        self._versions = [version_of(item.tensor) for item in self._held]
        self._pointers = [item.tensor.data_ptr() for item in self._held]
        self._digests = {
            item.name: xxhash.xxh3_128_hexdigest(b"".join(windows))
            for item, windows in zip(self._held, self._windows, strict=True)
        }

    def moved(self) -> bool:
        """True when a tensor was seen to move that had not before; it is in ``fickle`` then."""
        suspects = [
            index
            for index, item in enumerate(self._held)
            if item.name not in self.fickle and version_of(item.tensor) != self._versions[index]
        ]
        found = [
            self._held[i].name for i in suspects if _windows(self._held[i]) != self._windows[i]
        ]
        for index in suspects:
            self._versions[index] = version_of(self._held[index].tensor)
        found += self._sample()
        self.fickle.update(found)
        return bool(found)

    def _sample(self) -> list[str]:
        """Read one window of one tensor again."""
        if not self._held:
            return []
        index, window = self._next
        index %= len(self._held)
        item = self._held[index]
        last = window + 1 >= len(self._windows[index])
        self._next = (index + 1, 0) if last else (index, window + 1)
        if item.name in self.fickle or window >= len(self._windows[index]):
            return []
        data = bytes_view(item.tensor)[window * WINDOW_BYTES : (window + 1) * WINDOW_BYTES]
        same = xxhash.xxh3_128_digest(data) == self._windows[index][window]
        return [] if same else [item.name]

    def steady(self) -> dict[str, str]:
        """name -> digest of everything that is still taken to be steady."""
        return {name: d for name, d in self._digests.items() if name not in self.fickle}

    def refuse_moved(self) -> None:
        """Raise RestoreFailed when one was written since it was looked at: nobody has its value of then."""
        for index, item in enumerate(self._held):
            if item.name in self.fickle or version_of(item.tensor) == self._versions[index]:
                continue
            if _windows(item) != self._windows[index]:
                raise RestoreFailed("steady_differs", _FIRST_TIME.format(item.name))

    def accept(self, saved: dict[str, str]) -> None:
        """The arena was filled from elsewhere: raise RestoreFailed unless it holds what was steady there.

        At most ``CHECKED_BYTES_MAX`` are read, buffers first: carriers have compared the bytes already, this
        finds a tensor that moved for the first time in the very step that was torn.
        """
        left = CHECKED_BYTES_MAX
        here = {item.name: item for item in self._held}
        for name in sorted(saved, key=lambda n: n in here and here[n].role != "buffer"):
            if name not in here:
                raise RestoreFailed("steady_differs", f"{name} is not among the tensors here")
            left -= here[name].tensor.untyped_storage().nbytes()
            if left >= 0 and _digest(here[name]) != saved[name]:
                raise RestoreFailed("steady_differs", _FIRST_TIME.format(name))
        self._windows = [_windows(item) for item in self._held]
        self._note()


def version_of(tensor: torch.Tensor) -> int:
    """How often autograd saw the tensor written; -1 where that is not counted."""
    try:
        return tensor._version
    except RuntimeError:  # inference tensors keep none
        return -1


def _windows(item: Held) -> list[bytes]:
    data = bytes_view(item.tensor)
    return [
        xxhash.xxh3_128_digest(data[at : at + WINDOW_BYTES])
        for at in range(0, len(data), WINDOW_BYTES)
    ]


def _digest(item: Held) -> str:
    return xxhash.xxh3_128_hexdigest(b"".join(_windows(item)))
