"""Reduce-scatter: gloo's own bits, by work that completes, breaks and is let go like any other."""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.distributed as dist

from agent.training.group import InnerGroup
from agent.training.latch import Latch
from agent.training.leaving import LEAVE_S
from agent.training.scattering import SCATTERS, scattered
from agent.training.work import LatchedWork

RANKS = 3
Each = Callable[[Callable[[int], Any]], list[Any]]


@pytest.fixture
def groups() -> Iterator[list[InnerGroup]]:
    store = dist.HashStore()
    device = dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")
    with ThreadPoolExecutor(RANKS) as pool:
        made = pool.map(lambda rank: InnerGroup(store, rank, RANKS, 20.0, device), range(RANKS))
        groups = list(made)
    yield groups
    for group in groups:
        group.abort()
    for group in groups:
        group.let_go()


@pytest.fixture
def each() -> Iterator[Each]:
    with ThreadPoolExecutor(RANKS) as pool:
        yield lambda act: list(pool.map(act, range(RANKS)))


def call_of(name: str, output: Any, whole: Any) -> tuple[Any, Any]:
    if name == "reduce_scatter":
        return [output], [list(whole.chunk(RANKS))]
    return ([output], [whole]) if name.endswith("coalesced") else (output, whole)


def wholes(numel: int, dtype: torch.dtype) -> list[torch.Tensor]:
    torch.manual_seed(numel)
    return [torch.randn(RANKS * numel).to(dtype) for _ in range(RANKS)]


@pytest.mark.parametrize("numel", [1, 7, 1000, 30011])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", SCATTERS)
def test_every_kind_has_the_bits_of_gloos_own(
    groups: list[InnerGroup], each: Each, name: str, dtype: torch.dtype, numel: int
) -> None:
    inputs, options = wholes(numel, dtype), dist.ReduceScatterOptions()

    def own(rank: int) -> torch.Tensor:
        output = torch.empty(numel, dtype=dtype)
        groups[rank].gloo._reduce_scatter_base(output, inputs[rank], options).wait()
        return output

    def ours(rank: int) -> torch.Tensor:
        output = torch.empty(numel, dtype=dtype)
        arguments = [*call_of(name, output, inputs[rank]), options]
        scattered(groups[rank].gloo, name, arguments, {}).wait()
        return output

    assert list(map(torch.equal, each(own), each(ours))) == [True] * RANKS
    assert list(map(torch.equal, inputs, wholes(numel, dtype))) == [True] * RANKS


@pytest.mark.parametrize("way", ["waited for", "by its future"])
def test_it_is_let_go_once_it_has_come_through(
    groups: list[InnerGroup], each: Each, way: str
) -> None:
    inputs = wholes(7, torch.float32)

    def carried(rank: int) -> torch.Tensor:
        latch, ending, output = Latch(), groups[rank].ending, torch.empty(7)
        latch.begin(1)
        inner = scattered(groups[rank].gloo, "reduce_scatter_single", [output, inputs[rank]], {})
        ending.begun(inner)
        work = LatchedWork(latch, inner, [output], None, ending)
        work.wait() if way == "waited for" else work.get_future().wait()
        while not inner.is_completed():
            time.sleep(0.001)
        ending.seen(inner)
        assert ending._under_way == set()
        return output

    want = (inputs[0] + inputs[1] + inputs[2]).chunk(RANKS)
    assert all(torch.allclose(got, sure) for got, sure in zip(each(carried), want, strict=True))


def test_one_that_breaks_tells_at_once(groups: list[InnerGroup]) -> None:
    work = scattered(groups[0].gloo, "_reduce_scatter_base", [torch.ones(4), torch.ones(12)], {})
    for group in groups[1:]:
        group.abort()
    began = time.monotonic()
    with pytest.raises(RuntimeError, match="Connection"):
        groups[0].ending.wait(work)
    assert time.monotonic() - began < LEAVE_S
    assert work.is_completed()


def test_a_mistake_of_the_script_is_raised_as_it_is(groups: list[InnerGroup], each: Each) -> None:
    options = dist.ReduceScatterOptions()
    options.reduceOp = dist.ReduceOp.BAND

    def wrong(rank: int) -> str:
        arguments = [torch.ones(4), torch.ones(12), options]
        with pytest.raises(RuntimeError) as raised:
            groups[rank].ending.wait(scattered(groups[rank].gloo, SCATTERS[1], arguments, {}))
        return str(raised.value)

    assert all("BAND" in words for words in each(wrong))


def test_parts_that_do_not_fit_are_refused(groups: list[InnerGroup]) -> None:
    with pytest.raises(ValueError, match="11 elements for 3 ranks of 4"):
        scattered(groups[0].gloo, "reduce_scatter_single", [torch.ones(4), torch.ones(11)], {})


def test_its_limit_is_kept(groups: list[InnerGroup]) -> None:
    work = scattered(groups[0].gloo, "_reduce_scatter_base", [torch.ones(4), torch.ones(12)], {})
    began = time.monotonic()
    with pytest.raises(RuntimeError):
        work.wait(datetime.timedelta(seconds=0.1))
    assert time.monotonic() - began < 10.0
