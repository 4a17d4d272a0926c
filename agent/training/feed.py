"""Batches with a position: given exactly once, in the unbroken order, whatever happens in between.

A position belongs to batches handed out, never to batches prefetched. Batches given since the last
``state_dict()`` are kept: taking a step back hands them out again without touching the loader, and puts the
generators where drawing them had left them.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from .batches import batch_hash
from .encoding import decode, encode
from .generators import GeneratorBank
from .loaders import loader_generators, places_of, set_epoch, set_places, set_rank, source_of
from .refusals import RestoreFailed

__all__ = ["Feed", "batch_hash"]


@dataclass(frozen=True)
class _Place:
    """Where the loader stands.

    ``origin``: generators, the loader's own included, when the order was drawn; ``inner``: the loader's
    state; both encoded. ``started`` False: between two epochs, ``epoch`` is the next one.
    """

    epoch: int
    consumed: int
    started: bool
    origin: bytes
    inner: bytes


@dataclass(frozen=True)
class _Given:
    """One answer of the loader, kept until the next fence. ``ended``: it was the end of an epoch."""

    batch: Any
    hash: str
    ended: bool
    generators: dict[str, Any]
    place: _Place


_NOTHING = encode(None)


class Feed:
    """Iterates a loader. ``next()`` raises StopIteration once at the end of each epoch.

    ``epoch`` and ``consumed`` (batches of this epoch) say where it stands; ``last_hash`` is the hash of
    the batch given last.
    """

    def __init__(
        self, loader: Any, name: str = "loader", bank: GeneratorBank | None = None
    ) -> None:
        self._loader = loader
        self._source = source_of(loader, name)
        self._bank = bank or GeneratorBank()
        self._own = GeneratorBank(loader_generators(loader))
        self._iterator: Iterator[Any] | None = None
        self._origin = encode(self._own.capture())
        self._place = _Place(0, 0, False, self._origin, _NOTHING)
        self._mark, self._marked = secrets.token_bytes(8), self._place
        self._marked_within = False
        """the mark stands in the middle of a step, where another process may have none"""
        self._since: list[_Given] = []
        self._again: deque[_Given] = deque()
        self.last_hash = ""

    @property
    def epoch(self) -> int:
        return self._place.epoch

    @property
    def consumed(self) -> int:
        return self._place.consumed

    @property
    def words(self) -> str:
        """How this loader would be stood at its position, for the start report."""
        return f"{type(self._loader).__qualname__}: {self._source.words}"

    def parts(self) -> list[Any]:
        """The loader and the generators it draws from."""
        return [self._loader, *self._own.objects()]

    def __iter__(self) -> Feed:
        return self

    def __next__(self) -> Any:
        return self.next()

    def next(self) -> Any:
        """The next batch of the epoch, StopIteration at its end; the call after that begins the next."""
        given = self._again.popleft() if self._again else None
        if given is None:
            given = self._draw()
        else:
            self._bank.restore(given.generators)
        self._since.append(given)
        self._place = given.place
        if given.ended:
            raise StopIteration
        self.last_hash = given.hash
        return given.batch

    def _draw(self) -> _Given:
        place = self._place
        if self._iterator is None:
            set_epoch(self._loader, place.epoch)
            self._iterator = self._source.start(self._note)
        try:
            batch = next(self._iterator)
        except StopIteration:
            self._iterator = None
            self._note()
            place = _Place(place.epoch + 1, 0, False, self._origin, self._inner())
            return _Given(None, "", True, self._bank.capture(), place)
        place = _Place(place.epoch, place.consumed + 1, True, self._origin, self._inner())
        return _Given(batch, batch_hash(batch), False, self._bank.capture(), place)

    def _note(self) -> None:
        self._origin = encode(self._own.capture())

    def _inner(self) -> bytes:
        return encode(self._source.inner(), "loader state")

    # --- position ------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The position, and a mark: a later step back to here costs nothing."""
        if self._since:
            self._mark, self._marked = secrets.token_bytes(8), self._place
        self._since.clear()
        self._marked_within = False
        return self._position()

    def state_within(self) -> dict[str, Any]:
        """The position in the middle of a step: what was given since the mark is kept for a way back."""
        return {**self._position(), "given": len(self._since)}

    def _position(self) -> dict[str, Any]:
        place = self._place
        return {
            "mark": self._mark,
            "places": places_of(self._loader),
            "kind": self._source.kind,
            "epoch": place.epoch,
            "consumed": place.consumed,
            "started": place.started,
            "origin": place.origin,
            "inner": place.inner,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Stand at a position. Draws from the global generators: restore those afterwards.

        Raises RestoreFailed as ``check`` does.
        """
        self.check(state)
        place = _Place(
            state["epoch"], state["consumed"], state["started"], state["origin"], state["inner"]
        )
        given = state.get("given", 0)
        if set_places(self._loader, state["places"]):
            self._source.give_up(self._iterator, for_good=True)
            self._iterator, self._mark = None, b""
        if self._passed(state["mark"], given, place) and self._untouched(given):
            self._again.extendleft(reversed(self._since[given:]))
            del self._since[given:]
        else:
            self._stand(place)
            self._mark = secrets.token_bytes(8) if given else state["mark"]
            self._marked, self._marked_within = place, given > 0
            self._since.clear()
        self._place = place

    def _passed(self, mark: bytes, given: int, place: _Place) -> bool:
        """Whether this is where the loader stood after ``given`` answers since the present mark."""
        if mark != self._mark or given > len(self._since):
            return False
        return place == (self._since[given - 1].place if given else self._marked)

    def position(self) -> dict[str, Any]:
        """Where it stands within a step; what did not change since the last ``state_dict`` is left out."""
        place, marked, whole = self._place, self._marked, self._marked_within
        return {
            "epoch": place.epoch,
            "consumed": place.consumed,
            "started": place.started,
            "origin": None if not whole and place.origin == marked.origin else place.origin,
            "inner": None if not whole and place.inner == marked.inner else place.inner,
        }

    def take_position(self, position: dict[str, Any]) -> None:
        """Stand where ``position`` was asked, by a process that had saved the same ``state_dict`` before.

        Does nothing where it stands there already; else it draws from the global generators.
        """
        marked = self._marked
        place = _Place(
            position["epoch"], position["consumed"], position["started"],
            marked.origin if position["origin"] is None else position["origin"],
            marked.inner if position["inner"] is None else position["inner"],
        )  # fmt: skip
        if place == self._place:
            return
        self._stand(place)
        self._mark, self._marked, self._place = secrets.token_bytes(8), place, place
        self._marked_within = True
        self._since.clear()

    def check(self, state: dict[str, Any]) -> None:
        """Raise RestoreFailed when the position is of another kind of loader."""
        if state["kind"] != self._source.kind:
            raise RestoreFailed(
                "loader_differs",
                f"the position is one of kind {state['kind']!r}, this loader is {self._source.kind!r}",
            )
        if len(state["places"]) != len(places_of(self._loader)):
            raise RestoreFailed(
                "loader_differs", "this loader has other samplers than the saved one"
            )

    def _untouched(self, given: int) -> bool:
        """False when the script changed a batch to be given again in place: it must be loaded again."""
        again = self._since[given:]
        return all(each.ended or batch_hash(each.batch) == each.hash for each in again)

    def _stand(self, place: _Place) -> None:
        self._source.give_up(self._iterator)
        self._iterator = None
        self._again.clear()
        inner = decode(place.inner)
        set_epoch(self._loader, place.epoch)
        self._origin = place.origin
        origin = decode(place.origin)
        if place.started:
            self._iterator = self._source.stand(
                place.consumed, inner, lambda: self._own.restore(origin)
            )
        else:
            self._own.restore(origin)
            self._source.rest(inner)

    def close(self) -> None:
        """End worker processes; the feed may not be used afterwards."""
        self._source.give_up(self._iterator, for_good=True)
        self._iterator = None

    def become_rank(self, rank: int, old_rank: int) -> None:
        """Samplers that took the provisional rank take ``rank``; what was drawn for it is dropped."""
        dataset_changed = set_rank(self._loader, rank, old_rank)
        self._source.give_up(self._iterator, for_good=dataset_changed)
        self._iterator = None
        self._again.clear()
        self._since.clear()
        self._mark = secrets.token_bytes(8)
