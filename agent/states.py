"""States of a worker process as its agent sees it, and the only steps between them."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

Name = Literal["starting", "standby", "running", "blocked", "exited", "not_joined"]


class WorkerState(StrEnum):
    STARTING = "starting"
    STANDBY = "standby"
    RUNNING = "running"
    BLOCKED = "blocked"
    NOT_JOINED = "not_joined"
    EXITED = "exited"


S = WorkerState
STEPS: dict[WorkerState, frozenset[WorkerState]] = {
    S.STARTING: frozenset({S.STANDBY, S.RUNNING, S.BLOCKED, S.NOT_JOINED, S.EXITED}),
    S.NOT_JOINED: frozenset({S.STARTING, S.STANDBY, S.RUNNING, S.BLOCKED, S.EXITED}),
    S.STANDBY: frozenset({S.RUNNING, S.BLOCKED, S.EXITED}),
    S.RUNNING: frozenset({S.BLOCKED, S.EXITED}),
    S.BLOCKED: frozenset({S.RUNNING, S.EXITED}),
    S.EXITED: frozenset(),
}
WIRE: dict[WorkerState, Name] = {
    S.STARTING: "starting",
    S.STANDBY: "standby",
    S.RUNNING: "running",
    S.BLOCKED: "blocked",
    S.NOT_JOINED: "not_joined",
    S.EXITED: "exited",
}
"""The same words as protocol.WorkerStatus has them."""


def may_step(before: WorkerState, after: WorkerState) -> bool:
    """Whether ``after`` may follow; staying is always allowed."""
    return after == before or after in STEPS[before]
