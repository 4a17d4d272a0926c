"""While other weights stand in a model everything of it may be written; afterwards all of its own is back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from agent.training.borrowing import borrowed_weights
from agent.training.encoding_arrays import bytes_view
from agent.training.errors import NotReady
from agent.training.looping import Loop
from agent.training.packs import Pack
from agent.training.run import Run
from agent.training.state import RankState
from agent.training.step import Counters, Stepper
from agent.training.trail import Trail

from .state.ranks import run_ranks

WIDTH = 160  # a weight of 102 400 bytes lies in the arena, everything else is small
Write = Callable[[nn.Module], None]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trained = nn.Linear(WIDTH, WIDTH)
        self.frozen = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.norm = nn.BatchNorm1d(WIDTH)
        self.register_buffer("table", torch.randn(WIDTH, WIDTH))
        self.register_buffer("missing", None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.norm(self.frozen(self.trained(x)) @ self.table)
        return found


def everything_of(model: nn.Module) -> dict[str, Any]:
    """Name -> (object, address, bits) of all that is registered."""
    found: dict[str, Any] = {}
    for path, module in model.named_modules():
        for key, tensor in [*module._parameters.items(), *module._buffers.items()]:
            bits = None if tensor is None else bytes_view(tensor).tobytes()
            found[f"{path}.{key}"] = (id(tensor), tensor is not None and tensor.data_ptr(), bits)
    return found


def forward_in_train_mode(model: nn.Module) -> None:
    model.train()
    model(torch.randn(4, WIDTH))


def average_of_the_whole_state_dict(model: nn.Module) -> None:
    model.load_state_dict({name: torch.ones_like(t) for name, t in model.state_dict().items()})


def data_of_another_tensor(model: nn.Module) -> None:
    for tensor in [*model.parameters(), *model.buffers()]:
        tensor.data = AVERAGE if tensor.dim() == 2 else torch.ones_like(tensor)


def other_objects(model: nn.Module) -> None:
    model.load_state_dict(
        {name: torch.ones_like(t) for name, t in model.state_dict().items()}, assign=True
    )
    model.missing = torch.ones(1)
    model.norm.num_batches_tracked = None


AVERAGE = torch.full((WIDTH, WIDTH), 0.5)


@pytest.mark.parametrize(
    "write",
    [
        forward_in_train_mode, average_of_the_whole_state_dict, data_of_another_tensor,
        other_objects,
    ],
)  # fmt: skip
@pytest.mark.parametrize("raises", [False, True])
def test_all_of_a_models_own_is_back_where_it_was(write: Write, raises: bool) -> None:
    model, stepper = stepped()
    before = everything_of(model)
    try:
        with torch.no_grad(), borrowed_weights(stepper):
            write(model)
            written = everything_of(model)
            if raises:
                raise KeyError
    except KeyError:
        pass
    assert written != before
    assert everything_of(model) == before
    assert bool((AVERAGE == 0.5).all())
    stepper.state.look_outside()
    assert stepper.state.written_outside == set()


class Tied(nn.Module):
    """Five rows over two ranks, one weight in two modules, and one buffer in two modules."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(5, 5), nn.Linear(5, 5)
        self.second.weight = self.first.weight
        for module in (self.first, self.second):
            module.register_buffer("scale", SCALE)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x)) * self.first.scale * self.second.scale


SCALE = torch.full((5,), 2.0)


def load_ones(model: nn.Module, assign: bool) -> None:
    ones = {name: torch.ones_like(t) for name, t in model.state_dict().items()}
    model.load_state_dict(ones, assign=assign)


def borrow_on_a_rank(rank: int, world_size: int, sharded: bool, assign: bool) -> dict[str, Any]:
    """What a model answers and holds before, within and after the block, and after one more step."""
    torch.manual_seed(0)
    model = Tied()
    if sharded:
        fully_shard(model, mesh=init_device_mesh("cpu", (world_size,)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    stepper = Stepper(None, RankState(models=[model], optimizers=[optimizer]), Trail(), Counters())
    stepper.open = True
    found: dict[str, Any] = {}

    def note(moment: str) -> None:
        with torch.no_grad():
            found[moment] = model(torch.ones(2, 5)).tolist()
        objects = [*model.first._parameters.values(), *model.second._parameters.values()]
        buffers = [model.first.scale, model.second.scale]
        found[f"{moment} objects"] = [id(tensor) for tensor in (*objects, *buffers)]

    def step() -> None:
        model(torch.ones(2, 5)).sum().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()

    step()
    note("before")
    with torch.no_grad(), borrowed_weights(stepper):
        load_ones(model, assign)
        note("within")
    note("after")
    step()
    note("moved")
    return found


@pytest.mark.parametrize("assign", [False, True], ids=["copied", "assigned"])
@pytest.mark.parametrize("sharded", [False, True], ids=["whole", "fsdp2"])
def test_what_was_loaded_into_shared_and_sharded_tensors_is_gone(
    sharded: bool, assign: bool
) -> None:
    for found in run_ranks(borrow_on_a_rank, 2, sharded, assign):
        assert found["within"] != found["before"]
        assert (found["within objects"] != found["before objects"]) == assign
        assert found["after"] == found["before"]
        assert found["after objects"] == found["before objects"]
        assert found["moved"] != found["after"]


def stepped() -> tuple[Net, Stepper]:
    model = Net()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
    stepper = Stepper(None, RankState(models=[model], optimizers=[optimizer]), Trail(), Counters())
    stepper.open = True
    return model, stepper


def in_a_fence(run: Run, _batches: Iterator[Any]) -> None:
    run.fence()


def in_the_next_batch(_run: Run, batches: Iterator[Any]) -> None:
    next(batches)


@pytest.mark.parametrize("end_the_step", [in_a_fence, in_the_next_batch])
def test_a_step_does_not_end_while_weights_are_borrowed(
    end_the_step: Callable[[Run, Iterator[Any]], None],
) -> None:
    model, run = nn.BatchNorm1d(2), Run(None, 0, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run.protect(model=model, optimizer=optimizer)
    batches = run.batches()
    next(batches)
    model(torch.ones(2, 2)).sum().backward()
    optimizer.step()
    with pytest.raises(NotReady, match="borrowed"), run.borrowed_weights():
        end_the_step(run, batches)
    run.fence()
    next(run.batches())
    assert run.step == 1
    assert isinstance(run.state_dict()["rank-0"], bytes)


def test_a_protected_rank_stores_no_fence_while_weights_are_borrowed() -> None:
    _model, stepper = stepped()
    stored: list[bool] = []
    session: Any = SimpleNamespace(
        latch=SimpleNamespace(swallowed=False, check=lambda: None),
        membership=SimpleNamespace(sandboxed=False),
        set_phase=lambda _phase: None,
    )
    fences: Any = SimpleNamespace(
        note_commit=lambda: None, take=lambda *_: stored.append(stepper.borrowed)
    )
    recovery: Any = SimpleNamespace(
        pending=None, unproven=False, micro=SimpleNamespace(boundary=lambda: None)
    )
    nothing: Any = None
    loop = Loop(session, stepper, fences, recovery, nothing, nothing)
    with pytest.raises(NotReady, match="borrowed"), borrowed_weights(stepper):
        loop.boundary()
    loop.boundary()
    assert stored == [False]


def test_what_cannot_be_kept_is_not_borrowed(monkeypatch: pytest.MonkeyPatch) -> None:
    _model, stepper = stepped()

    def too_much(_pack: Pack) -> dict[str, Any]:
        raise MemoryError

    with monkeypatch.context() as changed:
        changed.setattr(Pack, "capture", too_much)
        with pytest.raises(MemoryError), borrowed_weights(stepper):
            pass
    with borrowed_weights(stepper):
        assert stepper.borrowed
    assert not stepper.borrowed
