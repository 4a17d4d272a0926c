"""``make gpu-check``: what one GPU can show, in at most eight minutes. Writes var/gpu/check.json.

    python -m bench.gpu_check [--quick]

Four checks, each in a process of its own with a limit: three ranks on the one GPU over gloo (kill, heal,
==), CUDA generators, an NCCL group of one aborted and rebuilt, and what a mirror of the state in pinned host
memory costs a step. What the engine refuses is reported as not held, in its words. Several GPUs with NCCL are
not covered: they stay listed as never run. Without a GPU it says so and exits with 1.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from bench.machine import end_in_order, machine

OUTPUT = Path("var/gpu/check.json")
NEVER_RUN = ["NCCL between several GPUs", "FSDP2 with NCCL", "several nodes"]
STEPS = 20


@dataclass(frozen=True)
class Check:
    """``held`` False: it was tried and did not hold, or was refused; ``words`` say which."""

    name: str
    held: bool
    words: str
    figures: dict[str, Any]
    seconds: float


class NotHeld(RuntimeError):
    """A check's comparison came out wrong."""


def heal(quick: bool) -> dict[str, Any]:
    """Three ranks of the engine's test job with CUDA tensors over gloo; one is killed; compared by ==."""
    from bench.jobs.runs import Run, YocoRun

    steps = STEPS * (2 if quick else 5)
    with tempfile.TemporaryDirectory() as directory:
        runs: list[Run] = []
        try:
            for kind in (Run, YocoRun):
                folder = Path(directory) / kind.system
                run = kind(folder, ranks=3, steps=steps, device="cuda", step_ms_min=50)
                runs.append(run)
                if isinstance(run, YocoRun):
                    run.until(lambda run=run: run.warm() and run.step() > 3, 90)
                    run.kill(1)
                run.until(run.done, 120)
            finals = [run.finals() for run in runs]
        finally:
            for run in runs:
                run.close()
    if finals[0] != finals[1]:
        raise NotHeld("after the recovery the ranks do not hold what the unbroken job holds")
    return {"steps": steps}


def generators(quick: bool) -> dict[str, Any]:
    """State of the CUDA generator, and of an explicit one: taken, drawn from, put back, drawn again."""
    import torch

    from agent.training.encoding import decode, encode
    from agent.training.generators import GeneratorBank

    torch.cuda.manual_seed(7)
    own = torch.Generator(device="cuda").manual_seed(11)
    bank = GeneratorBank({"own": own})
    torch.rand(3, device="cuda")

    def draw() -> list[float]:
        drawn = torch.rand(64, device="cuda").tolist()
        return [*drawn, *torch.rand(64, device="cuda", generator=own).tolist()]

    saved = encode(bank.capture(), "generators")
    first, further = draw(), draw()
    bank.restore(decode(saved))  # type: ignore[arg-type]
    if draw() != first:
        raise NotHeld("numbers after the restore are not those that followed the capture")
    if first == further:
        raise NotHeld("two draws in a row were equal: the comparison proves nothing")
    return {"bytes": len(saved)}


def nccl(quick: bool) -> dict[str, Any]:
    """NCCL takes no second rank on a device: a group of one, aborted as an interrupt does, made anew."""
    import torch
    import torch.distributed as dist

    store = dist.HashStore()
    times = []
    for generation in range(3):
        began = time.perf_counter()
        dist.init_process_group(
            "nccl", store=dist.PrefixStore(f"g{generation}", store), rank=0, world_size=1
        )
        value = torch.full((1024,), 3.0 + generation, device="cuda")
        dist.all_reduce(value)
        torch.cuda.synchronize()
        times.append((time.perf_counter() - began) * 1000)
        if value.tolist() != [3.0 + generation] * 1024:
            raise NotHeld(f"generation {generation} reduced to other numbers")
        dist.distributed_c10d._abort_process_group()
    return {"first_ms": round(times[0], 1), "rebuilt_ms": round(median(times[1:]), 1)}


def mirror(quick: bool) -> dict[str, Any]:
    """Step time with and without a copy of the state to pinned host memory on a side stream."""
    import torch

    found: dict[str, Any] = {}
    for gigabytes in (1,) if quick else (1, 20):
        try:
            found[f"{gigabytes}_gb"] = _mirror_cost(torch, gigabytes)
        except (RuntimeError, MemoryError) as error:
            found[f"{gigabytes}_gb"] = {"error": str(error)[:300]}
    if all("error" in each for each in found.values()):
        raise NotHeld(json.dumps(found))
    return found


def _mirror_cost(torch: Any, gigabytes: int) -> dict[str, float]:
    size = gigabytes * 10**9 // 16
    parts = [torch.ones(size // 4, device="cuda") for _ in range(16)]
    pinned = [torch.empty(size // 4, pin_memory=True) for _ in range(16)]
    work = torch.ones(4096, 4096, device="cuda")
    side, copied = torch.cuda.Stream(), torch.cuda.Event()

    def step(copy: bool) -> float:
        torch.cuda.synchronize()
        began = time.perf_counter()
        if copy:
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for host, part in zip(pinned, parts, strict=True):
                    host.copy_(part, non_blocking=True)
                copied.record()
        for _ in range(40):
            torch.mm(work, work)
        if copy:
            torch.cuda.current_stream().wait_event(copied)  # complete before the source is written
        for part in parts:
            part.mul_(1.0)
        torch.cuda.synchronize()
        return (time.perf_counter() - began) * 1000

    step(True)
    pairs = [(step(False), step(True)) for _ in range(10)]
    return {
        "step_ms": round(median(bare for bare, _ in pairs), 2),
        "mirror_ms": round(median(with_copy - bare for bare, with_copy in pairs), 2),
    }


CHECKS: dict[str, tuple[Callable[[bool], dict[str, Any]], float]] = {
    "three-ranks-one-gpu-gloo": (heal, 240.0),
    "cuda-generators": (generators, 60.0),
    "nccl-group-of-one-rebuilt": (nccl, 60.0),
    "mirror-cost": (mirror, 110.0),
}
"""name -> (check, limit in seconds): together less than eight minutes"""


def one(name: str, quick: bool) -> int:
    """In a process of its own: the last line of output is the result."""
    began = time.monotonic()
    try:
        figures = CHECKS[name][0](quick)
        check = Check(name, True, "held", figures, time.monotonic() - began)
    except Exception as error:  # noqa: BLE001  a refusal is the result
        words = f"{type(error).__name__}: {error}"[:1500]
        check = Check(name, False, words, {}, time.monotonic() - began)
    print(json.dumps(asdict(check)), flush=True)
    return 0


def carried_out(name: str, quick: bool) -> Check:
    limit = CHECKS[name][1]
    words = [
        sys.executable,
        "-m",
        "bench.gpu_check",
        "--one",
        name,
        *(["--quick"] if quick else []),
    ]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        out, err = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        process.terminate()  # it ends what it started
        try:
            process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
        return Check(name, False, f"did not end within {limit:.0f} s", {}, limit)
    try:
        return Check(**json.loads(out.splitlines()[-1]))
    except (IndexError, ValueError, TypeError):
        return Check(name, False, f"ended with {process.returncode}: {err[-500:]}", {}, 0.0)


def main() -> int:
    parser = argparse.ArgumentParser(description="What can be found out with one GPU.")
    parser.add_argument("--quick", action="store_true", help="fewer steps, 1 GB only")
    parser.add_argument("--one", choices=list(CHECKS), help=argparse.SUPPRESS)
    given = parser.parse_args()
    end_in_order()
    if given.one:
        return one(given.one, given.quick)
    import torch

    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    if not torch.cuda.is_available():
        document = {"machine": machine(), "device": None, "code": "no_gpu", "checks": []}
        OUTPUT.write_text(json.dumps({**document, "never_run": NEVER_RUN}, indent=2) + "\n")
        print(f"gpu-check: refused (no_gpu): torch {torch.__version__} sees no CUDA device here")
        return 1
    checks = []
    for name in CHECKS:
        checks.append(carried_out(name, given.quick))
        said = "held" if checks[-1].held else "NOT HELD"
        print(f"{name:28} {said:9} {checks[-1].seconds:6.1f} s  {checks[-1].figures or ''}")
        if not checks[-1].held:
            print(f"  {checks[-1].words}")
    document = {
        "machine": machine(), "device": torch.cuda.get_device_name(), "cuda": torch.version.cuda,
        "code": "", "checks": [asdict(check) for check in checks], "never_run": NEVER_RUN,
    }  # fmt: skip
    OUTPUT.write_text(json.dumps(document, indent=2) + "\n")
    print(f"never run: {', '.join(NEVER_RUN)}\nwritten to {OUTPUT}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
