"""Real ranks in processes of their own, started from a fork-server that has torch loaded."""

from __future__ import annotations

import multiprocessing
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    ["torch._dynamo", "torch.distributed.fsdp", "torch.distributed.checkpoint", "torchdata"]
)


def run_ranks(target: Callable[..., Any], world_size: int, *arguments: Any) -> list[Any]:
    """``target(rank, world_size, *arguments)`` on gloo ranks; what each returned, in order."""
    with tempfile.TemporaryDirectory() as folder:
        store = f"{folder}/store"
        calls = [(target, rank, world_size, store, arguments) for rank in range(world_size)]
        return _run(_rank_main, calls)


def run_alone(target: Callable[..., Any], calls: Sequence[tuple[Any, ...]]) -> list[Any]:
    """``target(*call)`` in a process of its own for each call, all at once."""
    return _run(target, calls)


def _run(target: Callable[..., Any], calls: Sequence[tuple[Any, ...]]) -> list[Any]:
    pipes, processes = [], []
    for call in calls:
        mine, its = _CONTEXT.Pipe(duplex=False)
        process = _CONTEXT.Process(target=_report, args=(its, target, call), daemon=False)
        process.start()
        its.close()
        pipes.append(mine)
        processes.append(process)
    try:
        answers = [
            pipe.recv() if pipe.poll(120) else (False, "no answer in 120 s") for pipe in pipes
        ]
    finally:
        for process in processes:
            process.join(10)
            if process.is_alive():
                process.kill()
    for ok, answer in answers:
        if not ok:
            raise AssertionError(answer)
    return [answer for _ok, answer in answers]


def _report(pipe: Any, target: Callable[..., Any], call: tuple[Any, ...]) -> None:
    import traceback

    torch.set_num_threads(1)
    try:
        pipe.send((True, target(*call)))
    except BaseException:
        pipe.send((False, traceback.format_exc()))


def _rank_main(
    target: Callable[..., Any], rank: int, world_size: int, store: str, arguments: tuple[Any, ...]
) -> Any:
    dist.init_process_group(
        "gloo", store=dist.FileStore(store, world_size), rank=rank, world_size=world_size
    )
    try:
        return target(rank, world_size, *arguments)
    finally:
        dist.destroy_process_group()
