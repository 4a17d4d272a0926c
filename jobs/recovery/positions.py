"""Where ranks stand, and which step was committed last. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from agent.protocol import Position

from .values import Finish


def applied(position: Position) -> int:
    """Last step whose apply ended; 0 before the first one (-1 in the header)."""
    return max(position.applied, position.fence, 0)


def began(position: Position) -> int:
    """Last step whose apply began."""
    return max(position.applying, applied(position))


def commit_rule(positions: Iterable[Position]) -> int:
    """Last committed step, by the positions of survivors and of the dead whose custody can be read.

    A step is committed once any of them has begun to apply it: the vote had passed, so everyone
    has what is needed to apply it too. What only an unreachable rank had applied is ignored.
    """
    return max((began(position) for position in positions), default=0)


def reaches(position: Position, step: int) -> bool:
    """Whether a live rank here can stand at ``step``: it does, or it kept its gradients."""
    if began(position) != applied(position):
        return False
    return applied(position) == step or (
        applied(position) == step - 1 and position.prepared == step
    )


def finish_from(position: Position, step: int) -> tuple[Finish | None, str]:
    """What is left of ``step`` for whoever takes this arena and its slots; None, and why not."""
    begun, done = began(position), applied(position)
    if begun > done:
        return None, f"torn: applying step {begun} had begun and had not ended"
    if done == step:
        return private_finish(position, step), (
            f"its private state (fence {position.fence}, prepared {position.prepared}) "
            f"does not complete step {step}"
        )
    if done != step - 1:
        return None, f"it stands at step {done}, the job at {step}"
    if position.prepared != step:
        return None, f"it stands at step {done} and prepared {position.prepared}, not {step}"
    if position.fence != step - 1:
        return None, f"its fence is {position.fence}, not {step - 1}"
    if not position.has_gradients:
        return None, f"it stands at step {done} and prepared {step} carries no gradients"
    return "apply", ""


def private_finish(position: Position, step: int) -> Finish | None:
    """How private state in these two slots becomes fence(step) beside shared state at ``step``."""
    if position.fence == step:
        return "none"
    if position.fence == step - 1 and position.prepared == step:
        return "tail"
    return None
