"""The arena, the shadow of it, and the watch over what lies in it without being copied."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
import torch
from torch import nn

from agent.training import storages
from agent.training.refusals import RestoreFailed, Unprotectable
from agent.training.shadow import ShadowArena
from agent.training.state import RankState
from agent.transfer.manifest import Manifest

from .rig import Net, Run, arena_bytes, build, restore, snapshot, write_arena


def adamw(parameters: list[nn.Parameter]) -> Any:
    return torch.optim.AdamW(parameters, lr=1e-2)


@pytest.fixture
def run() -> Run:
    torch.set_num_threads(1)
    made = build(0, adamw)
    made.steps(2)
    return made


def test_rehoming_changes_no_value_and_is_asked_for_once(run: Run) -> None:
    before = run.state.digest()
    change = run.state.rehome()
    assert change is not None and change.epoch == 1
    assert run.state.digest() == before
    assert run.state.rehome() is None
    run.steps(2)
    assert run.state.rehome() is None


def test_the_manifest_describes_every_large_tensor_and_reads_back(run: Run) -> None:
    change = run.state.rehome()
    assert change is not None
    assert Manifest.decode(change.manifest.encode()) == change.manifest
    assert len(change.fds) == len(change.storage_ids) == len(change.manifest.storages)
    by_name = {h.name: h.tensor for h in run.state.catalogue.held}
    found = arena_bytes(run.state)
    for entry in change.manifest.tensors:
        assert found[entry.name] == by_name[entry.name].detach().numpy().tobytes()
    assert set(found) == {h.name for h in run.state.catalogue.held if storages.is_large(h.tensor)}
    assert {e.role for e in change.manifest.tensors} == {"parameter", "frozen", "optimizer"}


def test_a_process_that_holds_the_descriptors_has_every_byte_after_sigkill(run: Run) -> None:
    reader, writer = os.pipe()
    change = run.state.rehome()
    assert change is not None
    child = os.fork()
    if child == 0:
        with torch.no_grad():
            run.model.middle.weight.fill_(7.0)  # type: ignore[operator,union-attr]
        os.write(writer, b"x")
        signal.pause()
    assert os.read(reader, 1) == b"x"
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    entry = next(e for e in change.manifest.tensors if e.name == "m0.middle.weight")
    fd = dict(zip(change.storage_ids, change.fds, strict=True))[entry.storage_id]
    data = bytearray(os.pread(fd, entry.bytes, entry.offset_bytes))
    assert torch.frombuffer(data, dtype=torch.float32).eq(7.0).all()


@pytest.mark.parametrize("how", ["data", "assign"])
def test_replaced_parameters_are_moved_again_and_the_epoch_rises(run: Run, how: str) -> None:
    run.state.rehome()
    layer: Any = run.model.middle
    if how == "data":
        layer.weight.data = layer.weight.detach().clone()
    else:
        layer.load_state_dict({k: v.clone() for k, v in layer.state_dict().items()}, assign=True)
    change = run.state.rehome()
    assert change is not None and change.epoch == 2
    weight = layer.weight.detach()
    assert arena_bytes(run.state)["m0.middle.weight"] == weight.numpy().tobytes()
    assert weight.untyped_storage().is_shared()
    assert run.state.rehome() is None


def test_too_little_shared_memory_is_refused_in_words(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Room:
        f_bavail, f_frsize = 1, 4096

    monkeypatch.setattr(storages.os, "statvfs", lambda path: Room())
    with pytest.raises(Unprotectable, match=r"MB of shared memory are needed.*/dev/shm") as refusal:
        run.state.rehome()
    assert refusal.value.code == "shared_memory_short"
    assert not run.model.middle.weight.untyped_storage().is_shared()  # type: ignore[union-attr,operator]


def test_a_schema_is_equal_between_processes_and_differs_between_models() -> None:
    one, two = build(0, adamw), build(1, adamw)
    other = build(0, adamw, make_model=lambda: Net(torch.float64))
    for made in (one, two, other):
        made.steps(1)
    assert one.state.schema_hash() == two.state.schema_hash() != other.state.schema_hash()
    hashes = [r.state.rehome().manifest.schema_hash for r in (one, two, other)]  # type: ignore[union-attr]
    assert hashes[0] == hashes[1] != hashes[2]


# --- shadow -----------------------------------------------------------------------------------------


def shadow_bytes(shadow: ShadowArena, change: Any) -> dict[str, bytes]:
    fds = dict(zip(change.storage_ids, change.fds, strict=True))
    return {
        e.name: os.pread(fds[e.storage_id], e.bytes, e.offset_bytes)
        for e in change.manifest.tensors
    }


def test_the_shadow_keeps_the_fence_while_the_optimizer_writes_on(run: Run) -> None:
    run.state.rehome()
    shadow = ShadowArena(run.state)
    change = shadow.rehome()
    assert change is not None and shadow.rehome() is None
    at_fence = arena_bytes(run.state)
    shadow.begin(2)
    assert shadow.finish() == shadow.step == 2
    run.steps(1)
    assert shadow_bytes(shadow, change) == at_fence != arena_bytes(run.state)
    shadow.begin(3)
    shadow.finish()
    assert shadow_bytes(shadow, change) == arena_bytes(run.state)


def test_the_shadow_finishes_a_step_that_tore_the_live_arena(run: Run) -> None:
    run.state.rehome()
    saved = snapshot(run)
    shadow = ShadowArena(run.state)
    change = shadow.rehome()
    shadow.begin(2)
    shadow.finish()
    run.backward()
    prepared = run.state.capture_prepared(gradients=True)
    run.optimizer.step()
    run.optimizer.zero_grad()
    end = run.state.digest()
    standby = build(1, adamw)
    standby.steps(2)
    torn = type(saved)(shadow_bytes(shadow, change), saved.small, saved.fence, "")
    restore(standby, torn)
    standby.backward()
    standby.state.restore_prepared(prepared)
    standby.optimizer.step()
    standby.optimizer.zero_grad()
    assert standby.state.digest() == end


# --- what is not copied -----------------------------------------------------------------------------


class Table(nn.Module):
    """A large buffer that is written in forward from a given step on, behind autograd's back."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(16, 16)
        self.register_buffer("table", torch.zeros(200, 200))
        self.writing = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.writing:
            self.table.data.add_(1)
        return self.last(x) + self.table[0, :16]


def table_run() -> tuple[Run, Table]:
    run = build(0, adamw, make_model=Table)
    assert isinstance(run.model, Table)
    return run, run.model


def test_a_large_buffer_that_nobody_writes_is_not_copied_at_every_fence() -> None:
    run, model = table_run()
    run.steps(1)
    run.state.rehome()
    assert len(run.state.capture_fence()) < model.table.nbytes
    assert "m0.table" in arena_bytes(run.state)


def test_a_large_buffer_written_behind_autograds_back_is_found_and_copied_from_then_on() -> None:
    run, model = table_run()
    run.steps(1)
    run.state.rehome()
    run.state.capture_fence()
    model.writing = True
    version = model.table._version
    run.steps(1)
    assert model.table._version == version
    for _ in range(model.table.nbytes // (64 * 1024) + 2):
        run.state.capture_fence()
    fence = run.state.capture_fence()
    assert len(fence) > model.table.nbytes
    run.backward()
    run.state.discard(fence)
    assert model.table.eq(1).all()


def test_a_buffer_first_written_in_the_torn_step_is_an_error_not_a_wrong_value() -> None:
    run, _model = table_run()
    run.steps(2)
    saved = snapshot(run)
    torn = {**saved.arena, "m0.table": bytes(torch.full((200, 200), 3.0).numpy().tobytes())}
    standby, _ = table_run()
    standby.steps(2)
    with pytest.raises(RestoreFailed, match=r"m0\.table was written for the first time"):
        restore(standby, type(saved)(torn, saved.small, saved.fence, saved.digest))


def test_a_newcomer_can_be_taken_over_in_its_turn() -> None:
    """Frozen weights differ by seed: what the first take-over brought must be what the second checks."""
    first, second, third = (build(seed, adamw) for seed in (0, 1, 2))
    for run in (first, second, third):
        run.steps(2)
    saved = snapshot(first)
    expected = first.steps(4)
    write_arena(second.state, saved.arena)
    second.state.restore_small(saved.small)
    second.state.discard(saved.fence)
    assert second.steps(2) == expected[:2]
    for _ in range(8):
        second.state.capture_fence()
    passed_on = snapshot(second)
    assert len(passed_on.fence) == len(saved.fence)
    restore(third, passed_on)
    assert third.steps(2) == expected[2:]


def test_writing_weights_after_the_optimizer_is_noticed() -> None:
    def clip(run: Run, loss: float) -> None:
        with torch.no_grad():
            run.model.last.weight.clamp_(-0.01, 0.01)  # type: ignore[operator,union-attr]

    quiet, clipping = build(0, adamw), build(0, adamw, after=clip)
    for run in (quiet, clipping):
        run.steps(1)
        run.backward()
        run.optimizer.step()
        run.state.capture_small()
        run.optimizer.zero_grad()
        if run.after is not None:
            run.after(run, 0.0)
        run.state.capture_fence()
    assert quiet.state.written_outside == set()
    assert clipping.state.written_outside == {"m0.last.weight"}


def test_a_gradient_scaler_goes_on_with_its_scale() -> None:
    def scaled(seed: int) -> tuple[Run, torch.amp.GradScaler]:
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
        return build(seed, adamw, extras=lambda run: {"scaler": scaler}), scaler

    def step(run: Run, scaler: torch.amp.GradScaler) -> float:
        (x,) = run.state.feeds[0].next()
        loss = (run.model(x) - x).pow(2).mean()
        scaler.scale(loss).backward()
        scaler.step(run.optimizer)
        scaler.update()
        run.optimizer.zero_grad()
        return loss.item()

    unbroken, scaler = scaled(0)
    for _ in range(3):
        step(unbroken, scaler)
    saved = snapshot(unbroken)
    expected = [step(unbroken, scaler) for _ in range(3)]
    standby, other = scaled(1)
    step(standby, other)
    restore(standby, saved)
    assert [step(standby, other) for _ in range(3)] == expected
    assert other.state_dict() == scaler.state_dict()
    assert standby.state.digest() == unbroken.state.digest()


def test_two_views_of_the_same_state_agree_and_one_bit_makes_them_differ(run: Run) -> None:
    before = run.state.digest()[0]
    with torch.no_grad():
        raw = run.model.middle.weight.view(torch.int32)  # type: ignore[operator,union-attr]
        raw[5, 5] ^= 1
        assert run.state.digest()[0] != before
        raw[5, 5] ^= 1
    assert run.state.digest()[0] == before


def test_a_state_without_optimizer_or_loader_is_protected_too() -> None:
    state = RankState(models=[nn.Linear(4, 4)])
    fence, small = state.capture_fence(), state.capture_small()
    before = state.digest()
    torch.rand(3)
    assert state.digest() != before
    state.restore_small(small)
    state.restore_fence(fence)
    assert state.digest() == before
