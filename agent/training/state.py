"""A rank's whole state: what is protected, how it is captured, put back, moved to another rank, compared.

Two halves. What only the optimizer writes lies in the arena (large storages, shared memory) and in the
``small`` blob. Everything else is private and goes into the blobs ``fence`` and ``prepared``.

A whole restore is: storages into the arena, ``restore_small``, ``restore_fence``. Storages never change
their place, objects never their identity.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import xxhash
from torch import nn

from .catalogue import Catalogue, Held
from .digests import full_digest, replica_digest
from .encoding import decode, encode
from .encoding_wire import Refused
from .extras import Extra
from .feed import Feed
from .generators import GeneratorBank, is_generator
from .gradients import Gradients
from .groups import OptimizerWords
from .locality import local
from .outside import OutsideWatch
from .packs import Pack
from .private import FENCE, PREPARED, PrivateState
from .refusals import DecodeFailed, RestoreFailed, Unprotectable
from .shards import (
    adopt_rank,
    parallelism_of,
    replica_group_of,
    reshape_optimizer_state,
)
from .storages import Arena, ArenaChange
from .tensors import PrivateTensors

_T = TypeVar("_T")


class RankState:
    """State of one rank in one process.

    ``loaders`` are loaders or Feeds, ``extras`` what the user named, ``internal`` the engine's own objects.
    Raises Unprotectable, naming the thing, for whatever could not be carried over a failure.
    """

    def __init__(
        self,
        *,
        models: Sequence[nn.Module],
        optimizers: Sequence[Any] = (),
        schedulers: Sequence[Any] = (),
        loaders: Sequence[Any] = (),
        extras: Mapping[str, Any] | None = None,
        internal: Mapping[str, Any] | None = None,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        self.rank = rank
        self.world_size = world_size
        named = dict(extras or {})
        generators = {name: thing for name, thing in named.items() if is_generator(thing)}
        self.bank = GeneratorBank(generators)
        self.feeds = [
            item if isinstance(item, Feed) else Feed(item, f"loader {index}", self.bank)
            for index, item in enumerate(loaders)
        ]
        self.catalogue = Catalogue(models, optimizers)
        self._tensors = PrivateTensors(self.catalogue)
        self._words = OptimizerWords(self.catalogue)
        self._extras = {
            name: Extra(f"extras[{name!r}]", thing)
            for name, thing in named.items()
            if name not in generators
        }
        self._internal = {
            name: Extra(f"internal[{name!r}]", thing) for name, thing in (internal or {}).items()
        }
        self._schedulers = list(schedulers)
        self._private = PrivateState(
            self.catalogue, self._tensors, self._words, self._schedulers, self.feeds, self._extras,
            self._internal, self.bank,
        )  # fmt: skip
        self._gradients = Gradients(self.catalogue)
        self.arena = Arena()
        self.written_outside: set[str] = set()
        """what only an optimizer may write and the script wrote: this cannot be carried over a failure"""
        self._outside = OutsideWatch()
        self._filled = False
        self._pack_small()
        self._check_encodable()

    def _check_encodable(self) -> None:
        for part, value in self._private.capture(FENCE).items():
            _encoded(value, part)

    # --- what it is ----------------------------------------------------------------------------

    @property
    def schedulers(self) -> list[Any]:
        return self._schedulers

    def extra_names(self) -> list[str]:
        return sorted(self._extras)

    def extra_things(self) -> list[Any]:
        return [extra.thing for extra in self._extras.values()] + self.bank.objects()

    def captured(self, part: str) -> Any:
        """One part of the private state, as it is now."""
        return self._private.capture((part,))[part]

    def schema_hash(self) -> str:
        """Equal where two processes can take each other's tensors, arena and small ones."""
        self._follow()
        described = [
            (h.name, h.role, str(h.tensor.dtype), tuple(h.tensor.shape), h.tensor.stride())
            for h in self.catalogue.held
        ]
        return xxhash.xxh3_128_hexdigest(repr(described).encode())

    def parallelism(self) -> str:
        return parallelism_of(self.catalogue.models)

    def redundancy(self, setting: str) -> str:
        """``replica``, ``shadow`` or ``buddy`` for a setting."""
        replicated = len(self.replica_group(self.world_size)) > 1
        if setting == "replica" and not replicated:
            raise Unprotectable(
                "no_replica",
                f"redundancy 'replica' was asked for, but no other rank holds the shard of rank {self.rank}",
            )
        if setting == "buddy" and self.world_size < 2:
            raise Unprotectable(
                "no_buddy", "redundancy 'buddy' was asked for, but the job has one rank"
            )
        if setting == "auto":
            return "replica" if replicated else "shadow"
        return setting

    def replica_group(self, world_size: int) -> list[int]:
        return replica_group_of(self.catalogue.models, self.rank, world_size)

    # --- what the optimizer writes -------------------------------------------------------------

    def _follow(self) -> bool:
        """Catch up with replaced objects. True when the catalogue is another one now."""
        if (
            not self.catalogue.moved()
            and not self.catalogue.buffers_moved()
            and self._small.stays()
            and self._tensors.pack.stays()
        ):
            return False
        self._refresh()
        return True

    def followed(self) -> Catalogue:
        """Names and tensors as they are now."""
        self._follow()
        return self.catalogue

    def _refresh(self) -> None:
        self.catalogue.refresh()
        self._tensors.refresh()
        self._words.refresh()
        self._pack_small()
        # Whoever followed first has seen the change: the next rehome must still hear of it.
        self.arena.outdated = self.arena.outdated or not self.arena.holds(self._large())

    def _large(self) -> list[Held]:
        return [held for held in self.catalogue.held if self.catalogue.in_arena(held)]

    def _pack_small(self) -> None:
        self._small = Pack([held for held in self.catalogue.held if self.catalogue.in_small(held)])

    def rehome(self) -> ArenaChange | None:
        """Move large storages into shared memory; None when all are there already."""
        if not self._follow() and self.arena.epoch and self.arena.unchanged():
            return None
        return self.arena.rehome(self._large(), self._small.layout)

    @property
    def small_bytes(self) -> int:
        return self._small.bytes

    def capture_small(self) -> bytes:
        """Small tensors and everything else an optimizer step may change; written after the apply."""
        self._follow()
        state = {"tensors": self._small.capture(), "optimizers": self._words.capture()}
        self._outside.note(self.catalogue.held)
        return _encoded(state, "small")

    def look_outside(self) -> None:
        """Look for writes outside the optimizer since the last fence or step."""
        self.written_outside.update(self._outside.written())

    def note_written(self) -> None:
        """The engine itself has written weights: they are as they should be now."""
        self._outside.note(self.catalogue.held)

    def restore_small(self, blob: bytes) -> None:
        """Put back what ``capture_small`` read. The arena was filled from elsewhere, it follows: the
        next fence put back is checked against it."""
        self._filled = True
        self._outside.forget()
        state = _decoded(blob, "small", ("tensors", "optimizers"))
        self._follow()
        _put_back("small", lambda: self._words.check(state["optimizers"]))
        _put_back("small", lambda: self._words.restore(state["optimizers"]))
        self._follow()
        _put_back("small", lambda: self._small.check(state["tensors"]))
        _put_back("small", lambda: self._small.restore(state["tensors"]))

    def restore_words(self, blob: bytes) -> None:
        """Put back what ``capture_small`` read beside tensors: hyper-parameters, counts."""
        state = _decoded(blob, "small", ("optimizers",))
        self._follow()
        _put_back("small", lambda: self._words.check(state["optimizers"]))
        _put_back("small", lambda: self._words.restore(state["optimizers"]))
        self._follow()

    # --- what is private -----------------------------------------------------------------------

    def capture_fence(self) -> bytes:
        """Everything private, between two steps."""
        self._follow()
        self._tensors.look()
        self.look_outside()
        self._outside.renew(self.catalogue.held)
        state = self._private.capture(FENCE)
        state["steady"] = self._tensors.watch.steady()
        return _encoded(state, "fence")

    def restore_fence(self, blob: bytes) -> None:
        """Put back everything private; the arena and the small tensors must be in place."""
        self._restore_private(_decoded(blob, "fence", (*FENCE, "steady")))

    def _restore_private(self, state: dict[str, Any]) -> None:
        self._follow()
        if self._filled:
            _put_back("steady", lambda: self._tensors.watch.accept(state["steady"]))
        else:
            self._tensors.watch.refuse_moved()
        self._private.restore(state, FENCE)
        self._outside.forget()
        self._filled = False
        self._follow()

    def capture_prepared(self, gradients: bool) -> bytes:
        """What the backward pass changed; with ``gradients`` also what the optimizer will read."""
        self._follow()
        self.look_outside()
        state = self._private.capture(PREPARED)
        if gradients:
            state["gradients"] = self._gradients.capture()
            state["optimizers"] = self._words.capture()
        return _encoded(state, "prepared")

    def restore_prepared(self, blob: bytes) -> None:
        state = _decoded(blob, "prepared", PREPARED)
        self._follow()
        parts: tuple[str, ...] = PREPARED
        if "gradients" in state:
            parts = ("optimizers", *PREPARED)
        self._private.restore(state, parts)
        if "gradients" in state:
            _put_back("gradients", lambda: self._gradients.restore(state["gradients"]))

    def discard(self, fence_blob: bytes) -> None:
        """Put back what a torn step changed: private state of the fence, and no gradients."""
        self.look_outside()
        self._gradients.drop()
        self.restore_fence(fence_blob)

    def restore_saved(self, fence_blob: bytes) -> None:
        """Put back a fence that a checkpoint holds, once weights and optimizer state were loaded from it."""
        self._filled = True
        self._outside.forget()
        self.restore_fence(fence_blob)

    def capture_micro(self) -> bytes:
        """Everything private and the gradient accumulators, between two micro-batches of one step."""
        self._follow()
        self._tensors.look()
        self.look_outside()
        state = self._private.capture([part for part in FENCE if part != "loaders"])
        state["loaders"] = [feed.state_within() for feed in self.feeds]
        state["steady"] = self._tensors.watch.steady()
        state["accumulators"] = self._gradients.capture_accumulators()
        return _encoded(state, "micro")

    def restore_micro(self, blob: bytes) -> Any:
        """Put back everything private; arena and small tensors must be in place. Returns the accumulators,
        for ``put_accumulators``."""
        self.look_outside()
        self._gradients.drop()
        state = _decoded(blob, "micro", (*FENCE, "steady", "accumulators"))
        self._restore_private(state)
        return state["accumulators"]

    def put_accumulators(self, saved: Any) -> None:
        _put_back("accumulators", lambda: self._gradients.restore_accumulators(saved))

    # --- another rank --------------------------------------------------------------------------

    def become_rank(self, rank: int) -> None:
        """Take the shapes and coordinates of ``rank``: state of that rank then loads in place.

        Values are not kept. Call it where ``torch.distributed.get_rank()`` is ``rank`` already, and
        ``rehome`` afterwards. Raises RestoreFailed where the parallelism does not allow it.
        """
        if rank == self.rank:
            return
        shapes = {id(p): tuple(local(p).shape) for p in self.catalogue.parameters.values()}
        self._gradients.drop()
        adopt_rank(self.catalogue.models, rank)
        reshape_optimizer_state(self.catalogue.optimizers, shapes)
        for feed in self.feeds:
            feed.become_rank(rank, self.rank)
        self.rank = rank
        self._refresh()
        # Another rank's shard may lie at the same address in another shape.
        self.arena.outdated = True

    # --- proof ---------------------------------------------------------------------------------

    def digest(self) -> tuple[str, str]:
        """(full, replica) xxh3-128, hexadecimal; replica is "" where no other rank holds the same."""
        self._follow()
        words = _encoded(self._words.capture(), "optimizers")
        state = self._private.capture(("schedulers", "extras", "module_extras", "generators"))
        full = full_digest(self.catalogue, words, _encoded(state, "private"))
        if len(self.replica_group(self.world_size)) < 2:
            return full, ""
        schedulers = _encoded(state["schedulers"], "schedulers")
        return full, replica_digest(self.catalogue, words, schedulers)


def _encoded(value: Any, name: str) -> bytes:
    try:
        return encode(value, name)
    except Refused as refusal:
        raise Unprotectable("cannot_encode", str(refusal)) from refusal


def _decoded(blob: bytes, name: str, parts: Sequence[str]) -> Any:
    try:
        state = decode(blob)
    except DecodeFailed as error:
        raise RestoreFailed("blob_malformed", f"the {name} blob cannot be read: {error}") from error
    if not isinstance(state, dict):
        raise RestoreFailed("blob_malformed", f"the {name} blob is a {type(state).__name__}")
    missing = [part for part in parts if part not in state]
    if missing:
        raise RestoreFailed("part_missing", f"the {name} blob has no {missing[0]}")
    return state


def _put_back(part: str, put: Callable[[], _T]) -> _T:
    try:
        return put()
    except (KeyError, TypeError, ValueError, IndexError, RuntimeError, AttributeError) as error:
        raise RestoreFailed(
            "part_unfit", f"{part} could not be put back: {type(error).__name__}: {error}"
        ) from error
