"""One rank of a measured job. Runs ``OVERHEAD_BLOCK_STEPS`` steps each time a byte comes through its pipe.

``OVERHEAD_SYSTEM``: ``plain`` (torch alone, our package is not asked for anything), ``yoco`` or ``torchft``.
Writes one JSON line a block: seconds for all its steps, fences included, and what the engine counted itself.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import functional
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from examples.gpt import GPT, wrapped

SYSTEM = os.environ["OVERHEAD_SYSTEM"]
PARALLELISM = os.environ["OVERHEAD_PARALLELISM"]
BATCH = int(os.environ["OVERHEAD_BATCH"])
BLOCK_STEPS = int(os.environ["OVERHEAD_BLOCK_STEPS"])
FOLDER = os.environ["OVERHEAD_FOLDER"]
RANK = int(os.environ["OVERHEAD_RANK"])
WORLD = int(os.environ["OVERHEAD_WORLD"])
LENGTH, WIDTH, LAYERS = 64, 96, 2
ENDLESS = 1_000_000


class Blocks:
    """Times ``BLOCK_STEPS`` steps after each byte; ``begin_step`` is called at the top of the loop."""

    def __init__(self, counted: Callable[[], dict[str, float]]) -> None:
        self._pipe = open(f"{FOLDER}/go.{RANK}", "rb", buffering=0)  # noqa: SIM115  open as long as the job
        self._out = open(f"{FOLDER}/blocks.{RANK}.jsonl", "a", buffering=1)  # noqa: SIM115
        self._counted = counted
        self._left = 0
        self._began = 0.0
        self._sums: dict[str, float] = {}

    def begin_step(self) -> bool:
        """Waits between blocks; False once there will be no other one."""
        if self._began:
            for name, value in self._counted().items():
                self._sums[name] = self._sums.get(name, 0.0) + value
            self._left -= 1
        if self._left > 0:
            return True
        if self._began:
            took = time.perf_counter() - self._began
            means = {name: value / BLOCK_STEPS for name, value in self._sums.items()}
            self._out.write(json.dumps({"step_s": took / BLOCK_STEPS, **means}) + "\n")
        if not self._pipe.read(1):
            return False
        self._left, self._sums, self._began = BLOCK_STEPS, {}, time.perf_counter()
        return True


def data() -> TensorDataset:
    torch.manual_seed(5)
    return TensorDataset(torch.randint(0, 256, (ENDLESS // 100, LENGTH + 1)))


def loader() -> DataLoader[Any]:
    numbers = data()
    sampler: DistributedSampler[Any] = DistributedSampler(numbers, WORLD, RANK, seed=3)
    return DataLoader(numbers, BATCH, sampler=sampler, drop_last=True)


def forever(batches: DataLoader[Any]) -> Iterator[Any]:
    while True:
        yield from batches


def loss_of(model: Any, tokens: torch.Tensor) -> torch.Tensor:
    logits = model(tokens[:, :-1])
    return functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def core() -> GPT:
    torch.manual_seed(0)
    return GPT(LENGTH, WIDTH, LAYERS, heads=4, dropout=0.1)


def plain() -> None:
    dist.init_process_group("gloo")
    model = wrapped(core(), PARALLELISM)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    blocks = Blocks(dict)
    for (tokens,) in forever(loader()):
        if not blocks.begin_step():
            return
        loss_of(model, tokens).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()


def yoco_protected() -> None:
    import yoco

    run = yoco.join()
    model = wrapped(core(), PARALLELISM)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    run.protect(model=model, optimizer=optimizer, loader=loader())
    stepper: Any = run._stepper
    blocks = Blocks(lambda: {"vote_s": stepper.vote_s, "prepare_s": stepper.prepare_s})

    def train() -> None:
        while True:
            for (tokens,) in run.batches():
                if not blocks.begin_step():
                    return
                loss_of(model, tokens).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                optimizer.zero_grad()

    run.loop(train)


def torchft() -> None:
    from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo

    # Each rank is a replica group of one, which is how torchft replaces DDP.
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    limit = timedelta(seconds=60)
    module = core()
    adam = torch.optim.AdamW(module.parameters(), lr=1e-3)

    def load(state: dict[str, Any]) -> None:
        module.load_state_dict(state["model"])
        adam.load_state_dict(state["optimizer"])

    manager = Manager(
        pg=ProcessGroupGloo(timeout=limit), min_replica_size=WORLD, load_state_dict=load,
        state_dict=lambda: {"model": module.state_dict(), "optimizer": adam.state_dict()},
        replica_id=f"rank{RANK}_", store_addr="127.0.0.1", store_port=store.port, rank=0,
        world_size=1, timeout=limit, quorum_timeout=limit, hostname="127.0.0.1",
    )  # fmt: skip
    model = DistributedDataParallel(manager, module)
    optimizer = Optimizer(manager, adam)
    blocks = Blocks(dict)
    for (tokens,) in forever(loader()):
        if not blocks.begin_step():
            break
        optimizer.zero_grad()
        loss_of(model, tokens).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    manager.shutdown(wait=False)
    os._exit(0)


if __name__ == "__main__":
    torch.set_num_threads(1)
    {"plain": plain, "yoco": yoco_protected, "torchft": torchft}[SYSTEM]()
