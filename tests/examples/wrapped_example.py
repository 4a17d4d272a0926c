"""Runs an example as it is, with points at which a rank may be made to die, and a gate to wait at.

``EXAMPLE`` is the script, ``EXAMPLE_ARGUMENTS`` its arguments, ``JOB_KILL`` = rank:step:point. A step is
named by the number it has once it is committed; what lies between two steps belongs to the next one.
``JOB_SLOW`` = rank:seconds that it takes longer for each batch; every step's costs are told then.
``JOB_FORGETS``: the part of the state that is not put back from a checkpoint.
"""

from __future__ import annotations

import faulthandler
import json
import os
import runpy
import signal
import sys
import time
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.optim.optimizer import register_optimizer_step_pre_hook
from yoco.training import costs
from yoco.training import step as engine
from yoco.training.private import PrivateState
from yoco.training.run import Run
from yoco.training.vote import Outcome

import yoco
from tests.engine.killing import UNHEARD

GATE = os.environ.get("JOB_GATE", "")
GATE_STEP = 2
KILL = os.environ.get("JOB_KILL", "").split(":")
SLOW = os.environ.get("JOB_SLOW", "").split(":")
VOTED = ("inside", "tail")
"""points beyond the vote: every rank must have heard it first, else the step is rightly discarded"""
VOTE_HEARD_S = 20.0

runs: list[Run] = []


def die(point: str) -> None:
    """Die here, once, if this rank is to die at this point of this step."""
    run = runs[-1] if runs else None
    session = run._session if run is not None else None
    if run is None or session is None or session.membership.sandboxed or KILL[0] == "":
        return
    if [str(run.rank), str(run.step + (point != "tail")), point] != KILL:
        return
    if session.membership.generation == 0:
        if point in VOTED:
            wait_until_all_have_heard_the_vote(run, int(KILL[1]))
        os.kill(os.getpid(), signal.SIGKILL)


def vote_file(step: int, rank: int) -> str:
    return f"{GATE}.voted-{step}-{rank}"


def wait_until_all_have_heard_the_vote(run: Run, step: int) -> None:
    awaited = [vote_file(step, rank) for rank in range(run.world_size)]
    deadline = time.monotonic() + VOTE_HEARD_S
    while not all(map(os.path.exists, awaited)):
        if time.monotonic() > deadline:
            raise RuntimeError(f"{UNHEARD} of step {step}: {awaited}")
        time.sleep(0.002)


def wait_at_gate(run: Run) -> None:
    """Live ranks go beyond GATE_STEP only once the test has opened the gate."""
    while GATE and run.step == GATE_STEP and not run.rehearsing and not os.path.exists(GATE):
        time.sleep(0.005)


def hook_votes() -> None:
    real = engine.vote

    def vote(membership: Any, ballot: Any, timeout_s: float) -> Any:
        die("prepared")
        result = real(membership, ballot, timeout_s)
        if result.outcome is Outcome.PASSED and GATE:
            with open(vote_file(ballot.step, runs[-1].rank), "w"):
                pass
        return result

    engine.vote = vote


def hook_run() -> None:
    join, batches, committed = yoco.join, Run.batches, engine.Stepper._committed

    def joined() -> Run:
        runs.append(join())
        return runs[-1]

    def drawn(self: Run) -> Iterator[Any]:
        for batch in batches(self):
            wait_at_gate(self)
            die("data")
            if str(self.rank) == SLOW[0] and not self.rehearsing:
                time.sleep(float(SLOW[1]))
            yield batch

    def and_then(self: engine.Stepper) -> None:
        committed(self)
        die("tail")

    yoco.join, Run.batches = joined, drawn
    engine.Stepper._committed = and_then


def hook_torch() -> None:
    """Forward and backward of any module, the optimizer's step, and what a script does between steps."""

    def seen(_module: Any, _inputs: Any, output: Any) -> None:
        if torch.is_grad_enabled():
            die("forward")
            if isinstance(output, torch.Tensor) and output.requires_grad:
                output.register_hook(lambda _gradient: die("backward"))
        else:
            die("evaluation")

    torch.nn.modules.module.register_module_forward_hook(seen)
    register_optimizer_step_pre_hook(lambda *_: die("inside"))
    all_reduce, save = dist.all_reduce, dcp.save

    def reduced(*arguments: Any, **keywords: Any) -> Any:
        result = all_reduce(*arguments, **keywords)
        die("metrics")
        return result

    def saved(*arguments: Any, **keywords: Any) -> Any:
        die("saving")
        result = save(*arguments, **keywords)
        die("saved")
        return result

    dist.all_reduce, dcp.save = reduced, saved


def hook_costs() -> None:
    if len(SLOW) == 2:
        costs.EVERY_S = 0.0


def hook_forgetting() -> None:
    part = os.environ.get("JOB_FORGETS", "")
    if part:
        setattr(PrivateState, f"_set_{part}", lambda _self, _saved: None)


def say_what_the_agent_says() -> None:
    """The variables that an agent gives to each worker beside the engine's own."""
    told = json.loads(os.environ.get("YOCO_WORKER", "{}"))
    if told:
        os.environ["RANK"] = str(told["provisional_rank"])
        os.environ["WORLD_SIZE"] = str(told["world_size"])
        os.environ["MASTER_ADDR"] = "127.0.0.1"
    os.environ["LOCAL_RANK"], os.environ["LOCAL_WORLD_SIZE"] = "0", "1"


say_what_the_agent_says()
faulthandler.register(signal.SIGUSR1)
torch.set_num_threads(1)
hook_run()
hook_votes()
hook_torch()
hook_forgetting()
hook_costs()
os.chdir(os.path.dirname(os.environ["YOCO_TRAIL_FILE"]))
sys.argv = [os.environ["EXAMPLE"], *os.environ.get("EXAMPLE_ARGUMENTS", "").split()]
runpy.run_path(sys.argv[0], run_name="__main__")
