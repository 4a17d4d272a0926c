"""The job the engine is tested with. ``JOB_KILL`` = rank:step:point[:generation[:how]] ends a rank there.

``how`` is one of HOWS, ``kill`` if not given. The point ``around+N`` is N microseconds after the vote began.
``point@7`` is that point in the step's micro-batch 7, once every rank has begun it; ``point@7~8`` once all
others have begun micro-batch 8.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import json
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

import yoco
from tests.engine.slow_link import half_received, slow_down

WIDTH = int(os.environ.get("JOB_WIDTH", "160"))
KIND = os.environ.get("JOB_KIND", "ddp")
STEPS = int(os.environ.get("JOB_STEPS", "12"))
WORKERS = int(os.environ.get("JOB_WORKERS", "0"))
EMPTY = bool(os.environ.get("JOB_EMPTY"))
MICRO = int(os.environ.get("JOB_MICRO", "1"))
ROOTS = "JOB_ROOTS" in os.environ
"""backward from several roots at once, of which none is the loss"""
AHEAD = int(os.environ.get("JOB_AHEAD", "0"))
"""how many batches are drawn ahead of the one that is computed, within a step"""
SYNC_LAST = bool(os.environ.get("JOB_SYNC_LAST"))
"""gradients are exchanged in the last micro-batch of a step only"""
FORGOTTEN = bool(os.environ.get("JOB_FORGOTTEN"))
"""gradient accumulators are not put back: what is compared must differ then"""
GATE = os.environ.get("JOB_GATE", "")
GATE_STEP = int(os.environ.get("JOB_GATE_STEP", "4"))
SECOND_EVERY = int(os.environ.get("JOB_SECOND", "0"))
"""a second optimizer steps in every n-th batch"""
PLATEAU = bool(os.environ.get("JOB_PLATEAU"))
TAIL = os.environ.get("JOB_TAIL", "")
PAUSED_IN = os.environ.get("JOB_PAUSED_IN", "").split(":")
UNKNOWN = os.environ.get("JOB_UNKNOWN", "").split(":")
"""rank:step: whose vote breaks although it has passed"""
HANGS = [h.split(":") for h in os.environ.get("JOB_HANG", "").split(",") if h]
"""rank:step:point:kind: what hangs there in generation 0; rank * means every one"""
FLIP = os.environ.get("JOB_FLIP", "").split(":")
"""rank:step: in whose first weights a bit turns over at the start of the batch after that step"""
KILLS = [k.split(":") for k in os.environ.get("JOB_KILL", "").split(",") if k]


class Numbers(Dataset):
    def __len__(self) -> int:
        return 16 * 9

    def __getitem__(self, index: int) -> torch.Tensor:
        if GATE and os.path.exists(f"{GATE}.deadlock-{run.rank}"):
            deadlock_while(os.getppid())
        return torch.randn(WIDTH, generator=torch.Generator().manual_seed(index))


def deadlock_while(parent: int) -> None:
    """For as long as the rank lives: a forked loader that outlived it would stay for ever."""
    lock = threading.Lock()
    lock.acquire()
    while os.getppid() == parent and not lock.acquire(timeout=0.1):
        pass


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        # Fewer rows than ranks: FSDP2 gives the last ranks an empty shard of it.
        self.gate = nn.Parameter(torch.full((2, 1), 0.5)) if EMPTY else None
        self.body = nn.Sequential(
            nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.ReLU(), nn.Dropout(0.1)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.body(x) * (1.0 if self.gate is None else self.gate.mean())


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block() for _ in range(3)])
        self.norm = nn.BatchNorm1d(WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.norm(x)


class Dying(torch.optim.AdamW):
    """Dies, when told to, between its two parameter groups: inside the step."""

    groups_begun = 0

    def _init_group(self, *arguments: Any) -> Any:
        self.groups_begun += 1
        if self.groups_begun % 2 == 0:
            die("inside")
        return super()._init_group(*arguments)


class Slowing(torch.optim.SGD):
    """Keeps a count outside its tensors, as many optimizers do, and steps by it."""

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            group["turns"] = group.get("turns", 0) + 1
            group["lr"] = 0.05 / group["turns"]
        super().step(closure)


PAST = ("tail", "after", "between", "second")
"""points where the step has been counted already"""
VOTED = ("voted", "before", "inside", *PAST)
"""points beyond the vote"""
VOTE_HEARD_S = 10.0


def hang(kind: str) -> None:
    if kind == "loop":
        while True:
            pass
    elif kind == "gil":
        ctypes.PyDLL(None).sleep(3600)  # a PyDLL keeps the GIL
    elif kind == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif kind == "evaluating":
        with run.evaluating():
            wait_until_released()
    elif kind == "raise":
        raise ValueError("told to\nand a second line")
    elif kind == "mistake":
        dist.all_reduce(torch.ones(1), dist.ReduceOp.BAND)  # bits of a float
    elif kind == "slow":
        wait_until_released()


def wait_until_released() -> None:
    while not os.path.exists(f"{GATE}.release"):
        time.sleep(0.01)


def hang_here(point: str) -> None:
    session = run._session
    if session is None or session.membership.sandboxed or session.membership.generation > 0:
        return
    here = [run.step + (0 if point in PAST else 1), point]
    for rank, step, where, kind in HANGS:
        if rank in ("*", str(run.rank)) and [int(step), where] == here:
            hang(kind)


def die(point: str) -> None:
    session = run._session
    if session is None or (session.standby and session.membership.sandboxed):
        return
    hang_here(point)
    here = [str(run.rank), str(run.step + (0 if point in PAST else 1)), point]
    for kill in KILLS:
        generation = int(kill[3]) if len(kill) > 3 else 0
        at, _, micro = kill[2].partition("@")
        mine, _, others = micro.partition("~")
        there = not micro or int(mine) == run._counters.micro_step
        if [*kill[:2], at] == here and there and session.membership.generation == generation:
            if point == "unkept":
                wait_until_others("kept", int(kill[1]), int(mine))
            elif micro:
                wait_until_others("begun", int(kill[1]), int(others or mine))
            if point in VOTED:
                wait_until_all_have_heard_the_vote(generation, int(kill[1]) + (point == "after"))
            wait_for(half_received())
            HOWS[kill[4] if len(kill) > 4 else "kill"]()


def end_by_exception() -> None:
    raise RuntimeError("a disaster was ordered")


def end_by_memory() -> None:
    raise MemoryError("a disaster was ordered")


def hold_the_interpreter() -> None:
    ctypes.PyDLL(None).sleep(1000)


HOWS: dict[str, Any] = {
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "segv": lambda: ctypes.string_at(0),
    "exception": end_by_exception,
    "memory": end_by_memory,
    "gil": hold_the_interpreter,
}


def die_around(step: int, generation: int) -> None:
    """From another thread, so many microseconds from now: anywhere from the vote to the next step."""
    for kill in KILLS:
        if kill[2].startswith("around+") and [kill[0], kill[1], kill[3]] == [
            str(run.rank), str(step), str(generation),
        ]:  # fmt: skip
            delay_s = int(kill[2].partition("+")[2]) / 1e6
            threading.Timer(delay_s, HOWS["kill"]).start()


def vote_file(rank: int, step: int, generation: int) -> str:
    return f"{GATE}.voted-{generation}-{step}-{rank}"


def micro_file(did: str, rank: int, step: int, micro: int) -> str:
    return f"{GATE}.{did}-{step}-{micro}-{rank}"


def tell_of_micro_batch(did: str, micro: int) -> None:
    """Let whoever is to die know how far this rank is."""
    if GATE and MICRO > 1 and not run.rehearsing:
        with open(micro_file(did, run.rank, run.step + 1, micro), "w"):
            pass


def wait_until_others(did: str, step: int, micro: int) -> None:
    ranks = [rank for rank in range(run.world_size) if rank != run.rank]
    wait_for([micro_file(did, rank, step, micro) for rank in ranks])


def wait_until_all_have_heard_the_vote(generation: int, step: int) -> None:
    """Else a rank that dies at once may be the only one that knows, and the step is rightly discarded."""
    wait_for([vote_file(rank, step, generation) for rank in range(run.world_size)])


def wait_for(awaited: list[str]) -> None:
    deadline = time.monotonic() + VOTE_HEARD_S
    while not all(map(os.path.exists, awaited)):
        if time.monotonic() > deadline:
            raise RuntimeError(f"not every rank has come so far: {awaited}")
        time.sleep(0.002)


def wait_at_gate() -> None:
    """Live ranks go beyond GATE_STEP only once the test has opened the gate."""
    while GATE and run.step == GATE_STEP and not run.rehearsing and not os.path.exists(GATE):
        time.sleep(0.005)


def hook_engine() -> None:
    """Kill points inside the engine: patched here, in the test's script."""
    from yoco.training import step as engine
    from yoco.training.vote import Outcome, Result

    real = engine.vote

    def vote(membership: Any, ballot: Any, timeout_s: float) -> Any:
        die("prepared")
        die_around(ballot.step, membership.generation)
        if stays_in_the_vote(membership, ballot):
            return Result(Outcome.UNKNOWN)
        result = real(membership, ballot, timeout_s)
        if result.outcome is Outcome.PASSED and GATE:
            with open(vote_file(run.rank, ballot.step, membership.generation), "w"):
                pass
        die("voted")
        if [str(run.rank), str(ballot.step)] == UNKNOWN and membership.generation == 0:
            membership.latch.fail(RuntimeError("told to"), membership.generation)
            return Result(Outcome.UNKNOWN)
        return result

    engine.vote = vote


def stays_in_the_vote(membership: Any, ballot: Any) -> bool:
    """Told to, this vote comes through for nobody, or this process is stopped inside of it."""
    kinds = [k for r, s, p, k in HANGS if p == "vote" and r in ("*", str(run.rank))
             and int(s) == ballot.step and membership.generation == 0]  # fmt: skip
    if kinds == ["lost"]:
        with membership.waiting():
            while membership.latch.error is None:
                time.sleep(0.01)
        return True
    if kinds == ["stop"]:
        with membership.waiting():
            os.kill(os.getpid(), signal.SIGSTOP)
    return False


def hook_micro_batches() -> None:
    """Tell of every kept micro-batch, die before one is kept, or forget the accumulators, when told to."""
    from yoco.training.micro import MicroBatches
    from yoco.training.state import RankState

    store = MicroBatches._store

    def stored(self: MicroBatches, key: int) -> None:
        die("unkept")
        store(self, key)
        tell_of_micro_batch("kept", run._counters.micro_step)

    MicroBatches._store = stored  # type: ignore[method-assign]
    if FORGOTTEN:
        RankState.put_accumulators = lambda *_: None  # type: ignore[method-assign,assignment]


def at_block(_module: nn.Module, _inputs: Any, output: torch.Tensor) -> None:
    die("forward")
    if output.requires_grad:
        output.register_hook(lambda _gradient: die("backward"))


def split_by_tensor(core: nn.Module) -> nn.Module:
    """Tensor parallel over all ranks, or over pairs of them with FSDP2 across the pairs."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    size = dist.get_world_size()
    both = init_device_mesh("cpu", (size // PER_PART, PER_PART), mesh_dim_names=("dp", "tp"))
    plan = {"0.body.0": ColwiseParallel(output_layouts=Replicate())}
    plan["1.body.0"] = RowwiseParallel(input_layouts=Replicate())
    parallelize_module(core.blocks, both["tp"], plan)
    if KIND == "tp_fsdp2":
        for block in core.blocks:
            fully_shard(block, mesh=both["dp"])
        fully_shard(core, mesh=both["dp"])
    return core


def build() -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    core: nn.Module = Net()
    if KIND in ("fsdp2", "hsdp"):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        size = dist.get_world_size()
        mesh = init_device_mesh("cpu", (size,))
        if KIND == "hsdp":
            mesh = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("replicate", "shard"))
        for block in core.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(core, mesh=mesh)
        return core, core
    if KIND in ("tp", "tp_fsdp2"):
        return split_by_tensor(core), core
    if KIND == "ddp":
        unused = bool(os.environ.get("JOB_UNUSED"))
        return DistributedDataParallel(core, bucket_cap_mb=0.2, find_unused_parameters=unused), core
    return core, core


torch.set_num_threads(1)
faulthandler.register(signal.SIGUSR1)
run = yoco.join()
PER_PART = {"tp": run.world_size, "tp_fsdp2": 2}.get(KIND, 1)
"""ranks that compute one batch together"""
part = run.rank // PER_PART
hook_engine()
hook_micro_batches()
slow_down(run)
names = [None] * dist.get_world_size()
dist.all_gather_object(names, f"rank {dist.get_rank()}")
model, core = build()
torch.manual_seed(1000 + part)
np.random.seed(7 + part)
random.seed(11 + part)
parameters = list(model.parameters())
others = list(core.blocks[2].parameters()) if SECOND_EVERY else []
parameters = [p for p in parameters if all(p is not other for other in others)]
half = len(parameters) // 2
optimizer = Dying(
    [{"params": parameters[:half]}, {"params": parameters[half:], "lr": 5e-4}], lr=1e-3
)
if TAIL == "hook":
    optimizer.register_step_post_hook(lambda *_: clip_weights())
optimizers: list[torch.optim.Optimizer] = [optimizer]
if SECOND_EVERY:
    second = Slowing(others, lr=0.05, momentum=0.9)
    second.register_step_post_hook(lambda *_: die("second"))
    optimizers.append(second)
scheduler: Any = (
    torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.7, patience=0, threshold=0.0)
    if PLATEAU
    else torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=50)
)
meter = {"sum": 0.0, "best": float("inf")}
data = Numbers()
sampler = DistributedSampler(
    data, num_replicas=run.world_size // PER_PART, rank=part, shuffle=True, seed=3
)
loader = DataLoader(data, batch_size=8, sampler=sampler, num_workers=WORKERS, drop_last=True)
run.protect(model=model, optimizer=optimizers, scheduler=scheduler, loader=loader, meter=meter)
core.blocks[1].register_forward_hook(at_block)
optimizer.register_step_pre_hook(lambda *_: die("before"))
optimizer.register_step_post_hook(lambda *_: die("after"))


def flip() -> None:
    """As a memory cell does: through no tensor's version, and nobody is told."""
    if [str(run.rank), str(run.step)] == FLIP and not run.rehearsing:
        (parameters[0].data if not hasattr(parameters[0].data, "to_local")
         else parameters[0].data.to_local()).view(torch.int32).view(-1).numpy()[0] ^= 1  # fmt: skip


@torch.no_grad()
def clip_weights() -> None:
    for parameter in model.parameters():
        (parameter.data if TAIL == "clip data" else parameter).clamp_(-0.05, 0.05)


def follow(value: float) -> None:
    """Everything a script may derive from the loss once the step is made."""
    meter["sum"] += value
    meter["best"] = min(meter["best"], value)
    scheduler.step(value)


def after_the_step(loss: torch.Tensor) -> None:
    die("tail")
    if TAIL == "collective":
        dist.all_reduce(torch.ones(1))
    if TAIL.startswith("clip"):
        clip_weights()
    if PLATEAU:
        follow(loss.item())
    else:
        scheduler.step()


def step_all() -> None:
    optimizer.step()
    die("between")
    if SECOND_EVERY and run.step % SECOND_EVERY == 0:
        second.step()
    for each in optimizers:
        each.zero_grad()


def share(loss: torch.Tensor) -> None:
    """One loss for all ranks, so that what follows it is alike everywhere."""
    mean = loss.detach().clone()
    dist.all_reduce(mean)
    loss.data.copy_(mean / run.world_size)


def accumulating(last: bool) -> Any:
    """Around one micro-batch: gradients are exchanged in the last one of a step only."""
    if not SYNC_LAST:
        return contextlib.nullcontext()
    if KIND == "fsdp2":
        model.set_requires_gradient_sync(last)
        return contextlib.nullcontext()
    return contextlib.nullcontext() if last else model.no_sync()


def wait_for_the_pause() -> None:
    """Live ranks finish this micro-batch (``step:micro``) only once they have heard of a planned move."""
    session = run._session
    here = [str(run.step + 1), str(run.micro_step + 1)]
    if session is None or run.rehearsing or session.membership.generation > 0 or here != PAUSED_IN:
        return
    while not session.pause_wanted:
        time.sleep(0.005)


def batches() -> Iterator[tuple[Any, bool]]:
    """(batch, whether it is its step's last)."""
    held: list[Any] = []
    for batch in run.batches():
        held.append(batch)
        last = run.micro_step + 1 >= MICRO
        while held and (last or len(held) > AHEAD):
            yield held.pop(0), last and not held


def train() -> None:
    for each in optimizers:
        each.zero_grad()  # as many scripts do: what a step has summed so far must outlast it
    while run.step < STEPS:
        for batch, last in batches():
            wait_at_gate()
            flip()
            tell_of_micro_batch("begun", run.micro_step + 1)
            wait_for_the_pause()
            die("data")
            noise = float(np.random.rand())
            if TAIL == "before":
                clip_weights()
            with accumulating(last):
                loss = (model(batch) - noise).pow(2).mean() / MICRO
                if PLATEAU:
                    share(loss)
                if ROOTS:
                    torch.autograd.backward([loss.mul(0.25), loss.mul(0.75)])
                else:
                    loss.backward()
            if not last:
                continue
            if os.environ.get("JOB_CLIP"):
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            step_all()
            after_the_step(loss)
            if run.step >= STEPS:
                return
        if PLATEAU:
            scheduler.step(float(next(iter(core.norm.parameters())).detach().sum()))


def save_with_dcp(folder: str) -> None:
    """What torch's own checkpoint makes of the meshes and shards as they are now."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict

    weights, states = get_state_dict(core, optimizers)
    dcp.save({"model": weights, "optimizer": states}, checkpoint_id=folder)


run.loop(train)
if os.environ.get("JOB_DCP"):
    save_with_dcp(os.environ["JOB_DCP"])
print(json.dumps({"done": run.step, "rank": run.rank, "names": names}), flush=True)
