"""Which phase a process shows while protected models run: an evaluation may take 900 s, training may not."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import pytest
import torch
from torch import nn

from agent.link import WorkerStart
from agent.protocol import Limits, StoreRef
from agent.training.session import Session
from agent.training.watch import mark_forward
from agent.transfer.arena import Phase


@pytest.fixture
def session() -> Iterator[Session]:
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ref = StoreRef(host="127.0.0.1", port=1, prefix="p", secret="s" * 32)
    start = WorkerStart(
        worker_id="w", job_id="j", attempt=1, generation=0, rank=0, provisional_rank=0,
        world_size=1, store=ref, redundancy="auto", buddies={}, limits=Limits(),
        accumulation="redo", bind_host="127.0.0.1",
    )  # fmt: skip
    with mine, theirs:
        made = Session(start, mine)
        made.set_phase(Phase.FORWARD)
        yield made


def phase_of(session: Session) -> str:
    return Phase.WORDS[session.header.get("phase")]


def watched(session: Session, *models: nn.Module) -> None:
    mark_forward(models, session.latch, session.ran_forward)


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))


def phase_after(session: Session, model: nn.Module, *, gradients: bool) -> str:
    with contextlib.nullcontext() if gradients else torch.no_grad():
        model(torch.ones(4, 2))
    return phase_of(session)


def test_a_model_in_eval_mode_without_gradients_evaluates_until_it_trains(session: Session) -> None:
    model = net()
    watched(session, model)
    assert phase_after(session, model.eval(), gradients=False) == "evaluating"
    assert phase_after(session, model.train(), gradients=True) == "forward"
    with torch.inference_mode():
        model.eval()(torch.ones(4, 2))
    assert phase_of(session) == "evaluating"


def test_a_loop_that_never_calls_train_trains(session: Session) -> None:
    model = net().eval()
    watched(session, model)
    assert phase_after(session, model, gradients=True) == "forward"


def test_a_model_of_which_some_is_in_eval_mode_trains(session: Session) -> None:
    model = net()
    model[1].eval()
    watched(session, model)
    assert phase_after(session, model, gradients=True) == "forward"


def test_a_frozen_model_beside_one_that_trains_trains_too(session: Session) -> None:
    frozen, trained = net().eval().requires_grad_(False), net()
    watched(session, frozen, trained)
    assert phase_after(session, frozen, gradients=True) == "forward"


def test_models_that_cannot_train_at_all_evaluate(session: Session) -> None:
    frozen = net().eval().requires_grad_(False)
    watched(session, frozen)
    assert phase_after(session, frozen, gradients=True) == "evaluating"


def test_what_was_seen_once_ends_no_evaluation_that_the_script_says(session: Session) -> None:
    model = net()
    watched(session, model)
    assert phase_after(session, model.eval(), gradients=False) == "evaluating"
    session.set_phase(Phase.DATA)
    session.set_phase(Phase.FORWARD)
    with session.within(Phase.EVALUATING):
        assert phase_after(session, model.train(), gradients=True) == "evaluating"
    assert phase_of(session) == "forward"


def test_a_said_evaluation_inside_a_seen_one_leaves_the_seen_one_to_end_by_itself(
    session: Session,
) -> None:
    model = net()
    watched(session, model)
    assert phase_after(session, model.eval(), gradients=False) == "evaluating"
    with session.within(Phase.EVALUATING):
        pass
    assert phase_of(session) == "evaluating"
    assert phase_after(session, model.train(), gradients=True) == "forward"
