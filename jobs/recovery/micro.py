"""Where inside a step the ranks go on: after the last micro-batch that all of them have kept. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from agent.protocol import Position


def kept_micro(position: Position | None, step: int) -> frozenset[int]:
    """Micro-batches of the step after ``step`` that whoever stands at this fence has kept."""
    if position is None or position.fence != step:
        return frozenset()
    return frozenset(micro for at, micro in position.micro if at == step + 1)


def finish_micro(position: Position | None, step: int) -> int:
    """The last micro-batch kept of a committed ``step`` whose end is still to be finished, 0 for none."""
    return max(kept_micro(position, step - 1), default=0)


def drawn_of(position: Position | None, step: int) -> tuple[int | None, str]:
    """How many batches of the step after ``step`` had been drawn, and their hash; None: nobody knows."""
    if position is None or position.drawn_step < 0:
        return None, ""
    if position.drawn_step != step + 1:
        return 0, ""
    return position.drawn, position.drawn_hash


def common_micro(positions: Mapping[int, Position | None], step: int) -> tuple[int, str]:
    """The micro-batch of the step after ``step`` to go on after, 0 for its fence, and words about it.

    ``positions``: rank -> where its private state stands that it will go on with, None where only a buddy
    has it. No words where nobody has kept any: the job does not keep them, or none was finished.
    """
    kept = {rank: kept_micro(position, step) for rank, position in positions.items()}
    if not any(kept.values()):
        return 0, ""
    common = max(frozenset.intersection(*kept.values()), default=0)
    if common:
        return common, f"all ranks go on in step {step + 1} after its micro-batch {common}"
    without = sorted(rank for rank, micros in kept.items() if not micros)
    why = "the ranks have kept none in common"
    if without:
        names = ", ".join(map(str, without))
        why = f"of rank {names} none is kept where its state is taken from"
    return 0, f"the micro-batches of step {step + 1} are computed again: {why}"
