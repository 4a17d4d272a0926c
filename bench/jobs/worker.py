"""The job: a small GPT under DDP, kept by ``JOB_SYSTEM``: plain, yoco or torchft.

Each rank appends {step, at} to steps.RANK.jsonl at every commit and leaves a digest of its parameters and
optimizer state in final.RANK when ``JOB_STEPS`` are done. Under ``plain`` a checkpoint is written every
``JOB_EVERY`` steps (0: never) and taken up at the start, as jobs under torchrun do.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import xxhash
from torch import nn
from torch.nn import functional
from torch.utils.data import DistributedSampler
from torchdata.stateful_dataloader import StatefulDataLoader

from examples.gpt import GPT, Windows, corpus, schedule, wrapped

FOLDER = Path(os.environ["JOB_FOLDER"])
SYSTEM = os.environ["JOB_SYSTEM"]
STEPS = int(os.environ["JOB_STEPS"])
EVERY = int(os.environ.get("JOB_EVERY", "0"))
DEVICE = os.environ.get("JOB_DEVICE", "cpu")
STEP_S_MIN = float(os.environ.get("JOB_STEP_MS_MIN", "0")) / 1000


class Job:
    """Model, optimizer, schedule and data of one rank, and its log."""

    def __init__(self, rank: int, world: int, wrap: Any) -> None:
        torch.manual_seed(0)
        self.core = GPT(64, 96, 2, heads=4, dropout=0.1).to(DEVICE)
        self.model: nn.Module = wrap(self.core)
        self.optimizer = torch.optim.AdamW(self.core.parameters(), lr=1e-3, weight_decay=0.1)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, schedule)
        windows = Windows(corpus(), 64)
        sampler: DistributedSampler[Any] = DistributedSampler(
            windows, world, rank, shuffle=True, seed=0, drop_last=True
        )
        self.loader: Any = StatefulDataLoader(windows, 4, sampler=sampler, drop_last=True)
        torch.manual_seed(1000 + rank)
        self._began = time.monotonic()

    def loss(self, batch: Any) -> torch.Tensor:
        tokens, targets = (part.to(DEVICE) for part in batch)
        with torch.device(DEVICE):  # the model makes its positions itself
            logits = self.model(tokens)
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())

    def committed(self, rank: int, step: int) -> None:
        row = {"step": step, "at": time.monotonic(), "pid": os.getpid()}
        with (FOLDER / f"steps.{rank}.jsonl").open("a") as log:
            log.write(json.dumps(row) + "\n")
        time.sleep(max(0.0, STEP_S_MIN - (time.monotonic() - self._began)))
        self._began = time.monotonic()

    def finish(self, rank: int) -> None:
        hasher = xxhash.xxh3_128()
        for parameter in self.core.parameters():
            hasher.update(parameter.detach().cpu().numpy())
            for value in self.optimizer.state[parameter].values():
                hasher.update(value.cpu().numpy())
        part = FOLDER / f"final.{rank}.part"
        part.write_text(hasher.hexdigest())
        part.rename(FOLDER / f"final.{rank}")

    def parts(self) -> dict[str, Any]:
        return {
            "model": self.core,
            "optimizer": self.optimizer,
            "scheduler": self.scheduler,
            "loader": self.loader,
        }


def endless(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


def plain() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    job = Job(rank, world, lambda core: wrapped(core, "ddp"))
    path, step = FOLDER / f"checkpoint.{rank}", 0
    if path.exists():
        saved = torch.load(path, weights_only=False)
        for name, part in job.parts().items():
            part.load_state_dict(saved[name])
        torch.set_rng_state(saved["rng"])
        step = saved["step"]
    for batch in endless(job.loader):
        if step >= STEPS:
            break
        job.loss(batch).backward()  # type: ignore[no-untyped-call]
        job.optimizer.step()
        job.optimizer.zero_grad()
        job.scheduler.step()
        step += 1
        job.committed(rank, step)
        if EVERY and step % EVERY == 0:
            state = {name: part.state_dict() for name, part in job.parts().items()}
            part_path = path.with_suffix(f".{rank}.part")
            torch.save({"step": step, "rng": torch.get_rng_state(), **state}, part_path)
            part_path.replace(path)
    job.finish(rank)
    dist.destroy_process_group()


def yoco_protected() -> None:
    import yoco

    run = yoco.join()
    job = Job(run.rank, run.world_size, lambda core: wrapped(core, "ddp"))
    run.protect(
        model=job.model, optimizer=job.optimizer, scheduler=job.scheduler, loader=job.loader
    )

    def train() -> None:
        while run.step < STEPS:
            for batch in run.batches():
                job.loss(batch).backward()  # type: ignore[no-untyped-call]
                job.optimizer.step()
                job.optimizer.zero_grad()
                job.scheduler.step()
                if not run.rehearsing:
                    job.committed(run.rank, run.step)
                if run.step >= STEPS:
                    return

    run.loop(train)
    job.finish(run.rank)


def torchft() -> None:
    from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo

    # Each rank is a replica group of one: torchft's manner of DDP.
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    limit = timedelta(seconds=60)
    job = Job(rank, world, lambda core: core)
    names = ("model", "optimizer", "scheduler")

    def load(state: dict[str, Any]) -> None:
        for name in names:
            job.parts()[name].load_state_dict(state[name])

    manager = Manager(
        pg=ProcessGroupGloo(timeout=limit), min_replica_size=1, load_state_dict=load,
        state_dict=lambda: {name: job.parts()[name].state_dict() for name in names},
        replica_id=f"rank{rank}_", store_addr="127.0.0.1", store_port=store.port, rank=0,
        world_size=1, timeout=limit, quorum_timeout=limit, hostname="127.0.0.1",
    )  # fmt: skip
    job.model = DistributedDataParallel(manager, job.core)
    optimizer = Optimizer(manager, job.optimizer)
    for batch in endless(job.loader):
        if manager.current_step() >= STEPS:
            break
        before = manager.current_step()
        optimizer.zero_grad()
        job.loss(batch).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if manager.current_step() > before:
            job.scheduler.step()
            job.committed(rank, manager.current_step())
    job.finish(rank)
    manager.shutdown(wait=False)
    os._exit(0)


if __name__ == "__main__":
    torch.set_num_threads(1)
    {"plain": plain, "yoco": yoco_protected, "torchft": torchft}[SYSTEM]()
