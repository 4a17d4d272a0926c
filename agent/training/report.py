"""The start report: what is protected, how large, from where it would come back, and what was seen and not
recognised."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch

from ..protocol import StateInventory, StatePart
from .encoding import encode
from .seen import strangers

if TYPE_CHECKING:
    from .catalogue import Held
    from .state import RankState

TENSOR_KINDS = {
    "parameter": "parameters",
    "frozen": "frozen parameters",
    "buffer": "buffers",
    "optimizer": "optimizer state",
}
WORDS_MAX = 40
"""names of one kind, and words about what is not protected, that a report carries; the rest is counted"""
WITH_PROCESS = ("custody",)
SOURCES = {
    "replica": ["custody", "replica"],
    "shadow": ["custody", "shadow"],
    "buddy": ["custody", "shadow", "buddy"],
}
"""rungs for what the optimizer writes, by redundancy"""
WITH_NODE = {"replica": "replica", "buddy": "buddy"}


class StartReport:
    """Looks, when it is made, at what the names around ``protect`` lead to; ``made`` tells of now."""

    def __init__(self, state: RankState, redundancy: str, accumulation: str) -> None:
        self._state = state
        self._redundancy, self._accumulation = redundancy, accumulation
        self._strangers = strangers(state, sys._getframe())

    def made(self) -> StateInventory:
        return inventory_of(self._state, self._redundancy, self._accumulation, self._strangers)


def inventory_of(
    state: RankState, redundancy: str, accumulation: str, seen: list[str]
) -> StateInventory:
    """``redundancy`` as RankState.redundancy found it: it says where shared state comes back from. ``seen``:
    words for what was not handed over.

    ``sources`` are rungs of the ladder after the death of the process; those that also survive its node
    are named in ``survives_node``.
    """
    # Reading a fence is what follows tensors that came or went: it comes first.
    private_bytes = len(state.capture_fence())
    parts = [
        *_tensor_parts(state, redundancy),
        *_private_parts(state, _private_with_node(state, redundancy)),
    ]
    catalogue = state.catalogue
    return StateInventory(
        parallelism=state.parallelism(),
        redundancy=redundancy,
        accumulation=accumulation,
        models=[type(model).__qualname__ for model in catalogue.models],
        parts=parts,
        arena_bytes=_distinct_bytes(h.tensor for h in catalogue.held if catalogue.in_arena(h)),
        small_bytes=state.small_bytes,
        private_bytes=private_bytes,
        not_recognised=_bounded([*_loose_tensors(state), *seen]),
    )


def table_of(report: StateInventory) -> list[str]:
    """The report for a terminal: one line a part, then one a doubt."""
    size = f"{_size(report.total_bytes)} in {len(report.parts)} kinds of state"
    lines = [f"protects {size} of this rank ({report.parallelism}, redundancy {report.redundancy})"]
    for part in report.parts:
        names = f" ({', '.join(part.names)})" if part.names else ""
        node = ", ".join(part.survives_node) or "a checkpoint"
        lines.append(
            f"  {part.kind}{names}: {part.count}, {_size(part.size_bytes)}; "
            f"process lost: {', '.join(part.sources)}; node lost: {node}"
        )
    return lines + [f"  not protected: {words}" for words in report.not_recognised]


def _tensor_parts(state: RankState, redundancy: str) -> list[StatePart]:
    sources = SOURCES[redundancy]
    parts = []
    for role, kind in TENSOR_KINDS.items():
        held = [item for item in state.catalogue.held if item.role == role]
        if not held:
            continue
        shared = role != "buffer"
        parts.append(
            StatePart(
                kind=kind,
                names=_types(state.catalogue.optimizers) if role == "optimizer" else [],
                count=len(held),
                size_bytes=_bytes_of(held),
                sources=sources if shared else ["custody"],
                survives_node=_node_sources(state, redundancy, shared),
            )
        )
    return parts


def _node_sources(state: RankState, redundancy: str, shared: bool) -> list[str]:
    if not shared:
        return _private_with_node(state, redundancy)
    return [WITH_NODE[redundancy]] if redundancy in WITH_NODE else []


def _private_with_node(state: RankState, redundancy: str) -> list[str]:
    """A buddy keeps private state only where the rest would not be lost with the node."""
    return ["buddy"] if redundancy in WITH_NODE and state.world_size > 1 else []


def _private_parts(state: RankState, with_node: list[str]) -> list[StatePart]:
    named: list[tuple[str, list[str], str]] = [
        ("schedulers", _types(state.schedulers), "schedulers"),
        ("data position", [feed.words for feed in state.feeds], "loaders"),
        ("generators", state.bank.names(), "generators"),
        ("extras", state.extra_names(), "extras"),
    ]
    return [
        StatePart(
            kind=kind,
            names=_bounded(names),
            count=len(names),
            size_bytes=len(encode(state.captured(part), part)),
            sources=list(WITH_PROCESS),
            survives_node=with_node,
        )
        for kind, names, part in named
        if names
    ]


def _types(things: Iterable[Any]) -> list[str]:
    return [type(thing).__qualname__ for thing in things]


def _bytes_of(held: list[Held]) -> int:
    return sum(h.tensor.numel() * h.tensor.element_size() for h in held)


def _distinct_bytes(tensors: Iterable[torch.Tensor]) -> int:
    storages = [tensor.untyped_storage() for tensor in tensors]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def _size(num_bytes: int) -> str:
    value, unit = float(num_bytes), "B"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if value < 999.5 or unit == "TB":
            break
        value /= 1000
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.3g} {unit}"


def _loose_tensors(state: RankState) -> list[str]:
    """Tensors that a module holds as plain attributes."""
    return [
        f"{name}.{key} is a tensor but no buffer"
        for name, module in state.catalogue.modules
        for key, value in vars(module).items()
        if isinstance(value, torch.Tensor) and not isinstance(value, torch.nn.Parameter)
    ]


def _bounded(words: list[str]) -> list[str]:
    left = len(words) - WORDS_MAX
    return words if left <= 0 else [*words[:WORDS_MAX], f"and {left} more"]
