"""How each kind of loader is started, and stood at a position it had before.

A source gives an iterator. What it needs to stand where another process stood: the state of the generators
at the moment its order was drawn, how many batches were consumed, and its own state where it keeps one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from .refusals import Unprotectable


class Source(Protocol):
    """One loader. ``kind`` travels with the position: a position fits its own kind only."""

    kind: str
    words: str

    def start(self, note: Callable[[], None]) -> Iterator[Any]:
        """The iterator of a new epoch; calls ``note`` just before the order is drawn."""

    def stand(self, consumed: int, inner: Any, prepare: Callable[[], None]) -> Iterator[Any]:
        """The iterator of the present epoch after ``consumed`` batches.

        Calls ``prepare``, which sets the generators to what ``note`` saw, just before the order is drawn.
        """

    def rest(self, inner: Any) -> None:
        """Between two epochs: take the state that the next epoch starts from."""

    def inner(self) -> Any:
        """The loader's own state after the batch just given; None when it keeps none."""

    def give_up(self, iterator: Any, for_good: bool = False) -> None:
        """An iterator is not needed any more. ``for_good``: neither are its worker processes.

        Ends them now, rather than when the iterator is collected, or keeps them for the next one.
        """


def source_of(loader: Any, name: str) -> Source:
    """The source for ``loader``. Raises Unprotectable when its position could not be found again."""
    if callable(getattr(loader, "state_dict", None)) and callable(
        getattr(loader, "load_state_dict", None)
    ):
        return StatefulSource(loader)
    if isinstance(loader, DataLoader) and not isinstance(loader.dataset, IterableDataset):
        return IndexedSource(loader)
    if not hasattr(loader, "__iter__"):
        raise Unprotectable(
            "loader_not_iterable", f"{name} is a {type(loader).__qualname__}, not iterable"
        )
    if iter(loader) is loader if hasattr(loader, "__next__") else False:
        raise Unprotectable(
            "loader_one_shot",
            f"{name} is a one-shot iterator ({type(loader).__qualname__}): hand over what makes it, or "
            "give it state_dict and load_state_dict",
        )
    return SkippingSource(loader)


def samplers_of(loader: Any) -> list[Any]:
    """The loader and every sampler in it, outermost first."""
    found: list[Any] = []
    queue = [loader]
    while queue:
        item = queue.pop(0)
        if item is None or any(item is other for other in found):
            continue
        found.append(item)
        queue += [getattr(item, key, None) for key in ("batch_sampler", "sampler")]
    return found


def loader_generators(loader: Any) -> dict[str, Any]:
    """Explicit generators of the loader and its samplers: they move with the data position."""
    found: dict[str, Any] = {}
    for index, item in enumerate(samplers_of(loader)):
        generator = getattr(item, "generator", None)
        if generator is not None and not any(generator is other for other in found.values()):
            found[f"loader{index}"] = generator
    return found


def set_epoch(loader: Any, epoch: int) -> None:
    for item in [*samplers_of(loader), getattr(loader, "dataset", None)]:
        call = getattr(item, "set_epoch", None)
        if callable(call):
            call(epoch)


def set_rank(loader: Any, rank: int, old_rank: int) -> bool:
    """Give samplers that took the provisional rank the real one; True when the dataset took it too."""
    dataset = getattr(loader, "dataset", None)
    changed = [(item, key) for item, key in _ranked(loader) if getattr(item, key) == old_rank]
    for item, key in changed:
        setattr(item, key, rank)
    return any(item is dataset for item, _key in changed)


_RANKED = (("rank", "num_replicas"), ("process_index", "num_processes"))
"""what samplers call the rank they draw for, and what else such a sampler has: torch's, Accelerate's"""


def _ranked(loader: Any) -> list[tuple[Any, str]]:
    """Samplers, and a dataset, that give each rank a part of its own, and what they call that rank."""
    items = [*samplers_of(loader), getattr(loader, "dataset", None)]
    return [
        (item, key)
        for item in items
        for key, beside in _RANKED
        if hasattr(item, key) and hasattr(item, beside)
    ]


def places_of(loader: Any) -> list[Any]:
    """Whose part each of them gives: no rank of the job where ranks share their batches (tensor parallel)."""
    return [getattr(item, key) for item, key in _ranked(loader)]


def set_places(loader: Any, places: list[Any]) -> bool:
    """Give the parts that ``places_of`` named; True when anything changed."""
    if places == places_of(loader):
        return False
    for (item, key), place in zip(_ranked(loader), places, strict=True):
        setattr(item, key, place)
    return True


class SkippingSource:
    """Any iterable that starts anew: stands at a position by reading up to it."""

    kind = "read"
    words = "reads ahead from the start of the epoch"

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def start(self, note: Callable[[], None]) -> Iterator[Any]:
        note()
        iterator: Iterator[Any] = iter(self._loader)
        return iterator

    def stand(self, consumed: int, inner: Any, prepare: Callable[[], None]) -> Iterator[Any]:
        prepare()
        iterator: Iterator[Any] = iter(self._loader)
        for _ in range(consumed):
            next(iterator)
        return iterator

    def rest(self, inner: Any) -> None:
        return None

    def inner(self) -> Any:
        return None

    def give_up(self, iterator: Any, for_good: bool = False) -> None:
        # Persistent workers belong to the loader, which starts its next iterator with them.
        persistent = iterator is not None and getattr(self._loader, "_iterator", None) is iterator
        if persistent and not for_good:
            return
        _shut_down(iterator)
        if persistent:
            self._loader._iterator = None


def _shut_down(iterator: Any) -> None:
    call = getattr(iterator, "_shutdown_workers", None)
    if callable(call):
        call()


class IndexedSource(SkippingSource):
    """A DataLoader over a map-style dataset: skips indices without loading what they stand for."""

    kind = "indexed"
    words = "skips indices of the sampler"

    def __init__(self, loader: Any) -> None:
        super().__init__(loader)
        self._spare: Any = None
        """an iterator given up whose workers are alive: the next one takes them over"""

    def give_up(self, iterator: Any, for_good: bool = False) -> None:
        spare, self._spare = self._spare, None
        if spare is not iterator:
            super().give_up(spare, for_good)
        if not for_good and _workers_alive(iterator):
            self._spare = iterator
        else:
            super().give_up(iterator, for_good)

    def start(self, note: Callable[[], None]) -> Iterator[Any]:
        return self._iterate(_Ahead(self._sampler(), 0, note))

    def stand(self, consumed: int, inner: Any, prepare: Callable[[], None]) -> Iterator[Any]:
        ahead = _Ahead(self._sampler(), consumed, prepare)
        iterator = self._iterate(ahead)
        ahead.settle()
        return iterator

    def _key(self) -> str:
        return "batch_sampler" if self._loader.batch_sampler is not None else "sampler"

    def _sampler(self) -> Any:
        return getattr(self._loader, self._key())

    def _iterate(self, ahead: _Ahead) -> Iterator[Any]:
        """An iterator over ``ahead``, set behind the loader's back: it refuses another sampler once it is
        made, and after this one iterator its own is in its place again."""
        loader, key, original = self._loader, self._key(), self._sampler()
        spare, self._spare = self._spare, None
        if _workers_alive(spare):
            spare._index_sampler = ahead
            spare._reset(loader)
            return spare  # type: ignore[no-any-return]
        loader.__dict__[key] = ahead
        try:
            kept = getattr(loader, "_iterator", None)
            if kept is not None:
                kept._index_sampler = ahead
            iterator: Iterator[Any] = iter(loader)
            return iterator
        finally:
            loader.__dict__[key] = original


def _workers_alive(iterator: Any) -> bool:
    return (
        isinstance(iterator, _MultiProcessingDataLoaderIter)
        and not iterator._shutdown
        and all(worker.is_alive() for worker in iterator._workers)
    )


class _Ahead:
    """A sampler that begins ``skip`` items further on, and says when it draws its order.

    A DataLoader may ask for an iterator and never use it, and draws a seed of its own between asking and
    using: the order is drawn at the first ``next``, as it is by the generator functions that samplers are.
    """

    def __init__(self, sampler: Any, skip: int, begins: Callable[[], None]) -> None:
        self._sampler = sampler
        self._skip = skip
        self._begins: Callable[[], None] | None = begins
        self._inner: Iterator[Any] | None = None

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return next(self.settle())

    def __len__(self) -> int:
        return len(self._sampler)

    def settle(self) -> Iterator[Any]:
        """Stand at the position now."""
        if self._inner is None:
            if self._begins is not None:
                self._begins()
            # Not kept: it would tie loader and feed into a cycle, and worker processes that only the
            # cycle collector ends take seconds to go.
            self._begins = None
            self._inner = iter(self._sampler)
            for _ in range(self._skip):
                next(self._inner)
        return self._inner


class StatefulSource:
    """A loader with ``state_dict`` and ``load_state_dict``, torchdata's StatefulDataLoader for one."""

    kind = "stateful"
    words = "keeps its own position"

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def start(self, note: Callable[[], None]) -> Iterator[Any]:
        note()
        iterator: Iterator[Any] = iter(self._loader)
        return iterator

    def stand(self, consumed: int, inner: Any, prepare: Callable[[], None]) -> Iterator[Any]:
        prepare()
        self._loader.load_state_dict(inner)
        # What iterates itself would begin a new epoch if it were asked again at the end of one.
        iterates_itself = hasattr(self._loader, "__next__")
        iterator: Iterator[Any] = self._loader if iterates_itself else iter(self._loader)
        return iterator

    def rest(self, inner: Any) -> None:
        if inner is not None:
            self._loader.load_state_dict(inner)

    def inner(self) -> Any:
        return self._loader.state_dict()

    def give_up(self, iterator: Any, for_good: bool = False) -> None:
        _shut_down(iterator)
        if getattr(self._loader, "_iterator", None) is iterator is not None:
            self._loader._iterator = None
