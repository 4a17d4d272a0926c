"""The parts by themselves: latch, trail, sandbox, wrapped step, the buddy's blob, custody's pages."""

from __future__ import annotations

import inspect
import itertools
import socket
import threading
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch
import torch.distributed as dist
from torch import nn

from agent.link import ArenaKept
from agent.protocol import Limits, StoreRef
from agent.training import sandbox
from agent.training.buddy import Copies, composite, split
from agent.training.catalogue import Catalogue, Held
from agent.training.custody import Custody
from agent.training.digests import replica_digest
from agent.training.errors import GenerationOver, NotReady
from agent.training.latch import Latch
from agent.training.membership import Membership
from agent.training.outside import OutsideWatch
from agent.training.run import Run
from agent.training.standby import NotFinite, Standby
from agent.training.step import CollectiveInStep, Counters, Stepper, guard, split_prepared
from agent.training.trail import FIRST_HEAD, Trail
from agent.training.work import LatchedWork

from .harness import StoreThread


class Broken:
    def wait(self, _timeout: object = None) -> None:
        raise RuntimeError("Connection reset by peer")

    def is_completed(self) -> bool:
        return True


def latch_of(generation: int) -> Latch:
    latch = Latch()
    latch.begin(generation)
    return latch


def test_an_error_inside_forward_is_kept_and_the_work_looks_finished() -> None:
    latch = latch_of(1)
    latch.enter()
    assert LatchedWork(latch, Broken(), []).wait() is True
    assert latch.swallowed
    assert "reset by peer" in str(latch.error)


def test_the_same_error_outside_is_raised() -> None:
    latch = latch_of(1)
    with pytest.raises(GenerationOver):
        LatchedWork(latch, Broken(), []).wait()
    assert not latch.swallowed


def test_inside_ends_with_the_models_forward() -> None:
    latch = latch_of(1)
    latch.enter()
    latch.leave()
    with pytest.raises(GenerationOver):
        LatchedWork(latch, Broken(), []).wait()


def test_backward_is_inside_by_itself() -> None:
    latch = latch_of(1)
    seen = []

    def look(gradient: torch.Tensor) -> None:
        seen.append(latch.inside)

    value = torch.ones(2, requires_grad=True)
    value.register_hook(look)
    value.sum().backward()
    assert seen == [True]
    assert not latch.inside


def test_a_late_error_of_an_older_generation_is_dropped() -> None:
    latch = latch_of(1)
    work = LatchedWork(latch, Broken(), [])
    latch.begin(2)
    assert work.wait() is True
    assert latch.error is None


def test_the_end_of_a_generation_is_kept_until_this_process_stands_in_it() -> None:
    latch = latch_of(1)
    for generation in (3, 2):
        assert (
            latch.fail(ConnectionAbortedError(f"{generation} was interrupted"), generation) is False
        )
    assert latch.error is None
    for generation in (2, 3):
        latch.begin(generation)
        assert latch.generation == generation
        with pytest.raises(GenerationOver):
            latch.check()
    latch.begin(4)
    latch.check()


@pytest.fixture
def alone() -> Membership:
    """Rank 0 of two; the other never comes, and nobody waits less than five minutes for it."""
    return Membership(0, 2, Limits(join_s=300.0), "127.0.0.1")


def interrupted(membership: Membership, generation: int) -> None:
    membership.close(generation, ConnectionAbortedError("interrupted"))


@pytest.mark.timeout(20)
def test_a_generation_that_was_interrupted_before_is_not_met(alone: Membership) -> None:
    ref = StoreRef(host="127.0.0.1", port=1, prefix="p", secret="s" * 32)
    alone.latch.begin(1)
    interrupted(alone, 2)
    with pytest.raises(GenerationOver):
        alone.meet(2, ref)
    assert alone.generation == 2


@pytest.mark.timeout(20)
@pytest.mark.parametrize("where", ["silent store", "unknown prefix", "absent rank", "no store"])
def test_an_interrupt_ends_the_wait_for_the_others(alone: Membership, where: str) -> None:
    store = StoreThread()
    with socket.create_server(("127.0.0.1", 0)) as silent, socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        ref = store.open()
        if where == "unknown prefix":
            ref = msgspec.structs.replace(ref, prefix="other")
        if where in ("silent store", "no store"):
            end = silent if where == "silent store" else nobody
            ref = msgspec.structs.replace(ref, port=end.getsockname()[1])
        timer = threading.Timer(0.3, interrupted, (alone, 1))
        timer.start()
        with pytest.raises(GenerationOver):
            alone.meet(1, ref)
        timer.join()
    store.close()


def test_a_script_that_catches_exceptions_does_not_swallow_the_end_of_a_generation() -> None:
    assert not issubclass(GenerationOver, Exception)


def committed(*losses: float, batches: tuple[str, ...] = ("a", "b", "c")) -> Trail:
    trail = Trail()
    for step, (loss, batch) in enumerate(zip(losses, batches, strict=False), start=1):
        trail.saw_batch(batch)
        trail.saw_loss(torch.tensor(loss))
        trail.commit(step)
    return trail


def test_equal_steps_give_equal_heads_and_one_changed_bit_another() -> None:
    one, other = committed(0.5, 0.25, 1.0), committed(0.5, 0.25, 1.0)
    assert one.head == other.head != FIRST_HEAD
    assert committed(0.5, 0.25000003, 1.0).head != one.head
    assert committed(0.5, 0.25, 1.0, batches=("a", "x", "c")).head != one.head


def test_a_pending_step_can_be_carried_to_another_process() -> None:
    there, here = committed(0.5), committed(0.5)
    there.saw_batch("b")
    there.saw_loss(torch.tensor(0.25))
    here.saw_batch("wrong")
    here.take_pending(there.pending())
    here.commit(2)
    assert here.head == committed(0.5, 0.25).head
    assert here.last_loss == 0.25


def test_losses_of_a_step_that_is_run_again_are_those_it_had() -> None:
    there, here = committed(0.5), committed(0.5)
    for value in (0.25, 0.1):
        there.saw_loss(torch.tensor(value))
    here.tell_again(there.pending())
    losses = [torch.tensor(7.0), torch.tensor([7.0, 7.0]), torch.tensor([7.0]), torch.tensor(7.0)]
    for loss in losses:
        here.saw_loss(loss)
    assert losses[0].item() == torch.tensor(0.25).item()
    assert losses[1].tolist() == [7.0, 7.0]
    assert losses[2].item() == torch.tensor(0.1).item()
    assert losses[3].item() == 7.0


def test_a_loss_that_is_told_again_may_be_saved_for_its_own_backward() -> None:
    there, here = Trail(), Trail()
    there.saw_loss(torch.tensor(0.25))
    here.tell_again(there.pending())
    weight = torch.tensor(2.0, requires_grad=True)
    loss = weight.exp()  # saves its result
    here.saw_loss(loss)
    loss.backward()
    assert loss.item() == 0.25


def test_replicas_with_different_schedulers_have_different_digests() -> None:
    catalogue = Catalogue([nn.Linear(2, 2)], [])
    assert replica_digest(catalogue, b"", b"one") != replica_digest(catalogue, b"", b"other")


def test_an_optimizer_that_needs_the_others_is_not_applied_alone() -> None:
    header = {"applied": 5}
    issued = itertools.count()
    session: Any = SimpleNamespace(
        rank=0,
        header=SimpleNamespace(get=header.get, set=header.__setitem__),
        membership=SimpleNamespace(sandboxed=True, collectives=lambda: next(issued)),
    )
    state: Any = None
    stepper = Stepper(session, state, Trail(), Counters())
    with pytest.raises(CollectiveInStep):
        stepper._carry_out(session, 6, lambda: None, 1)
    assert header["applied"] == 5


def test_a_standby_whose_optimizer_state_is_not_finite_is_not_warm() -> None:
    layer = nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(layer.parameters())
    layer(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    optimizer.state[layer.weight]["exp_avg"].fill_(float("nan"))
    stepper: Any = SimpleNamespace(state=SimpleNamespace(catalogue=Catalogue([layer], [optimizer])))
    nothing: Any = None
    with pytest.raises(NotFinite, match="exp_avg"):
        Standby(nothing, stepper, nothing).report_warm()


def test_a_write_that_raises_no_version_is_found_when_its_window_comes_by() -> None:
    catalogue = Catalogue([nn.Linear(256, 256), nn.Linear(256, 256)], [])
    held = [Held(item.name, "parameter", item.tensor) for item in catalogue.held]
    watch, rounds = OutsideWatch(), 0
    for _ in range(20):
        watch.note(held)
        assert watch.written() == []
    found: list[str] = []
    while not found:
        watch.note(held)
        held[2].tensor.data[200].fill_(0.5)
        found = watch.written()
        held[2].tensor.data[200].fill_(0.25)
        rounds += 1
    assert found == [held[2].name]
    assert rounds <= 10  # two weights of four windows and two biases of one


def test_weights_that_are_put_back_are_not_taken_for_written() -> None:
    layer = nn.Linear(4, 4)
    watch = OutsideWatch()
    watch.note([Held("weight", "parameter", layer.weight)])
    watch.forget()
    with torch.no_grad():
        layer.weight.zero_()
    assert watch.written() == []


class FakeGroup:
    """Stands for a group of three in the sandbox."""

    def size(self) -> int:
        return 3

    def rank(self) -> int:
        return 1


def answered(name: str, *arguments: Any) -> None:
    sandbox._ANSWERS[name](FakeGroup(), list(arguments))  # type: ignore[arg-type]


def test_a_gather_in_the_sandbox_fills_every_slot() -> None:
    slots = [torch.full((2,), torch.nan) for _ in range(3)]
    answered("allgather", [slots], [torch.tensor([1.0, 2.0])])
    assert [slot.tolist() for slot in slots] == [[1.0, 2.0]] * 3
    flat = torch.full((6,), torch.nan)
    answered("_allgather_base", flat, torch.tensor([1.0, 2.0]))
    assert flat.tolist() == [1.0, 2.0] * 3


def test_sums_in_the_sandbox_are_those_of_three_equal_ranks() -> None:
    options = dist.AllreduceOptions()
    options.reduceOp = dist.ReduceOp.SUM
    value = torch.tensor([2.0])
    answered("allreduce", [value], options)
    assert value.item() == 6.0
    options.reduceOp = dist.ReduceOp.MAX
    answered("allreduce", [value], options)
    assert value.item() == 6.0
    scatter = dist.ReduceScatterOptions()
    scatter.reduceOp = dist.ReduceOp.SUM
    mine = torch.zeros(1)
    answered("_reduce_scatter_base", mine, torch.tensor([1.0, 2.0, 3.0]), scatter)
    assert mine.item() == 6.0


class Counting:
    saving = False

    def __init__(self) -> None:
        self.calls = 0

    def carry(self, original: Any, arguments: Any, keywords: Any) -> Any:
        self.calls += 1
        return original(*arguments, **keywords)


@pytest.mark.parametrize("scheduler_first", [True, False])
def test_a_wrapped_step_keeps_schedulers_and_scalers_content(
    scheduler_first: bool, recwarn: pytest.WarningsRecorder
) -> None:
    parameter = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.AdamW([parameter], lr=1.0)
    counting = Counting()
    if scheduler_first:
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        guard(counting, [optimizer])  # type: ignore[arg-type]
    else:
        guard(counting, [optimizer])  # type: ignore[arg-type]
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    scaler = torch.amp.GradScaler("cpu")
    for _ in range(2):
        scaler.scale(parameter.sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        scheduler.step()
    assert counting.calls == 2
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.01)
    assert not [w for w in recwarn if "lr_scheduler" in str(w.message)]
    assert hasattr(optimizer.step, "__func__") or scheduler_first is False
    assert "closure" in inspect.signature(torch.optim.AdamW.step).parameters


def test_a_composite_blob_comes_apart_again_and_a_short_one_is_refused() -> None:
    assert split(composite(b"fence", b"prepared")) == (b"fence", b"prepared")
    with pytest.raises(ValueError, match="shorter"):
        split((99).to_bytes(8, "little") + b"x")
    with pytest.raises(ValueError, match="8 bytes"):
        split_prepared(b"x")


def test_one_rank_keeps_one_copy() -> None:
    ring = {"0": "1", "1": "2", "2": "0"}
    assert Copies.read(ring, 1) == Copies(to=2, of=0)
    assert Copies.read({}, 1) == Copies(None, None)
    with pytest.raises(ValueError, match="one each"):
        Copies.read({"0": "2", "1": "2"}, 2)


def test_a_slot_that_grows_keeps_both_blobs_and_tells_the_agent() -> None:
    custody = Custody()
    assert custody.write("fence", 0, 4, b"four") == []
    packets = custody.write("fence", 0, 5, b"x" * 500_000)
    assert len(packets) == 1
    assert len(packets[0][1]) == 7
    four, five = custody.slots("fence").read(4), custody.slots("fence").read(5)
    assert four is not None
    assert five is not None
    assert (four.data, len(five.data)) == (b"four", 500_000)


def test_the_header_is_clean_only_for_the_arena_the_agent_holds() -> None:
    custody = Custody()
    custody.share("live", 1, b"{}", [], [])
    custody.share("live", 2, b"{}", [], [])
    custody.kept(ArenaKept(which="live", epoch=1))
    assert not custody.header.usable
    custody.kept(ArenaKept(which="live", epoch=2))
    assert custody.header.usable


def test_loop_before_protect_is_refused() -> None:
    run = Run(None, 0, 1)
    with pytest.raises(NotReady):
        run.loop(lambda: None)
    with pytest.raises(NotReady):
        next(run.batches())


@pytest.mark.parametrize("size", [0, 1, 4087, 4088, 4089, 100_000])
@pytest.mark.parametrize("capacity", [0, 4096, 65536])
def test_copies_of_any_length_arrive_whole(size: int, capacity: int) -> None:
    """Three ranks of one process, each on a thread, over a real gloo group."""
    from concurrent.futures import ThreadPoolExecutor
    from types import SimpleNamespace

    from agent.training.buddy import Exchange
    from agent.training.group import InnerGroup

    store = dist.HashStore()
    device = dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")

    def rank_of(rank: int) -> bytes | None:
        inner = InnerGroup(store, rank, 3, 10.0, device)
        membership: Any = SimpleNamespace(side=inner)
        blob = bytes([rank]) * (size + rank)
        copies = Copies(to=(rank + 1) % 3, of=(rank - 1) % 3)
        return Exchange(membership, copies, blob, capacity).end()

    with ThreadPoolExecutor(3) as pool:
        kept = list(pool.map(rank_of, range(3)))
    assert kept == [bytes([r]) * (size + r) for r in (2, 0, 1)]
