"""How a script of the engine's tests makes its ranks die: ``JOB_KILL`` = rank:step:point,...

The first of them in generation 0, the next in generation 1, and so on.
"""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import torch

GATE = os.environ.get("JOB_GATE", "")
GATE_STEP = int(os.environ.get("JOB_GATE_STEP", "4"))
KILLS = [kill.split(":") for kill in os.environ.get("JOB_KILL", "").split(",")]
COUNTED = ("after", "between", "tail", "swapped")
"""points where the step has been counted already"""
VOTE_HEARD_S = 20.0
UNHEARD = "not every rank has heard the vote"
"""said by a rank that could not die where it was told to"""


class Killer:
    """Points of one process of a job at which it may be told to die."""

    def __init__(self, run: Any) -> None:
        self._run = run
        if run._session is not None:
            self._follow_votes()

    def die(self, point: str) -> None:
        run, session = self._run, self._run._session
        if session is None or session.membership.sandboxed:
            return
        # The first optimizer of a batch counts its step, and a later one is inside the same step.
        counted = point in COUNTED or run._stepper.open
        step, generation = run.step + (not counted), session.membership.generation
        if KILLS[generation : generation + 1] != [[str(run.rank), str(step), point]]:
            return
        if point in ("inside", *COUNTED):
            self._wait_until_all_have_heard_the_vote(step)
        os.kill(os.getpid(), signal.SIGKILL)

    def wait_at_gate(self) -> None:
        """Live ranks go beyond GATE_STEP only once the test has opened the gate."""
        run = self._run
        while GATE and run.step == GATE_STEP and not run.rehearsing and not os.path.exists(GATE):
            time.sleep(0.005)

    def watch(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Die in forward, in backward, between two parameter groups of the optimizer."""

        def in_forward(module: torch.nn.Module, _inputs: Any, output: torch.Tensor) -> None:
            if not module.training:
                return  # an evaluation in the tail of the step before
            self.die("forward")
            if output.requires_grad:
                output.register_hook(lambda _gradient: self.die("backward"))

        model.register_forward_hook(in_forward)
        inside, groups = optimizer._init_group, []  # type: ignore[attr-defined]

        def init_group(*arguments: Any, **keywords: Any) -> Any:
            groups.append(None)
            if len(groups) % len(optimizer.param_groups) == 0:
                self.die("inside")
            return inside(*arguments, **keywords)

        optimizer._init_group = init_group  # type: ignore[attr-defined]

    def _follow_votes(self) -> None:
        from yoco.training import step as engine
        from yoco.training.vote import Outcome

        real = engine.vote

        def vote(membership: Any, ballot: Any, timeout_s: float) -> Any:
            result = real(membership, ballot, timeout_s)
            if result.outcome is Outcome.PASSED and GATE:
                with open(self._paper(self._run.rank, ballot.step), "w"):
                    pass
            return result

        engine.vote = vote

    @staticmethod
    def _paper(rank: int, step: int) -> str:
        return f"{GATE}.voted-{step}-{rank}"

    def _wait_until_all_have_heard_the_vote(self, step: int) -> None:
        awaited = [self._paper(rank, step) for rank in range(self._run.world_size)]
        deadline = time.monotonic() + VOTE_HEARD_S
        while not all(map(os.path.exists, awaited)):
            if time.monotonic() > deadline:
                raise RuntimeError(f"{UNHEARD} of step {step}: {awaited}")
            time.sleep(0.002)
