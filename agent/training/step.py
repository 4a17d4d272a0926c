"""The guarded optimizer step: prepared, vote, apply. One vote covers every optimizer of the same batch."""

from __future__ import annotations

import functools
import struct
import time
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from ..link import Resume
from ..transfer.arena import Phase
from .buddy import Copies, Exchange, capacity_for, composite
from .buddy_arena import BuddyArena
from .closures import run_closure
from .errors import EngineError, GenerationOver, NotReady, VerdictImpossible
from .saving import step_aside
from .session import Session
from .shadow import ShadowArena
from .state import RankState
from .trail import Trail
from .vote import Ballot, Outcome, vote

_LENGTH = struct.Struct("<Q")
Call = Callable[..., Any]


class Counters:
    """Where the job stands; put back with every fence."""

    def __init__(self) -> None:
        self.step = 0
        self.micro_step = 0

    def state_dict(self) -> dict[str, int]:
        return {"step": self.step}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.step, self.micro_step = state["step"], 0


class CollectiveBetweenSteps(EngineError):
    """Two optimizers of one batch with a collective between their steps cannot be one commit."""

    code = "collective_between_steps"


class CollectiveInStep(EngineError):
    """An optimizer whose step needs the other ranks cannot step where they are not."""

    code = "collective_in_step"


@dataclass(frozen=True)
class Finishing:
    """What a rank does that was put before step ``step``'s end: see docs/engine.md."""

    kind: Literal["tail", "apply"]
    step: int
    prepared: bytes
    small: bytes
    """small(step) for a tail, small(step - 1) for an apply"""


class Stepper:
    """Carries out the optimizer steps of one rank. Without a ``session`` it only counts and chains."""

    def __init__(
        self, session: Session | None, state: RankState, trail: Trail, counters: Counters
    ) -> None:
        self.session = session
        self.state = state
        self.trail = trail
        self.counters = counters
        self.gradients_kept = False
        self.shadow: ShadowArena | None = None
        self.buddy: BuddyArena | None = None
        self.copies = Copies(None, None)
        self.finishing: Finishing | None = None
        self.finished_batches = 0
        """batches that were computed again to finish the last step finished here"""
        self.warming = False
        self.verdict: Resume | None = None
        """heard inside ``optimizer.step`` and not acted on yet"""
        self.after_applying: Callable[[Resume], None] = lambda _verdict: None
        """told the verdict once kept gradients begin to be applied"""
        self.further_costs: Callable[[], dict[str, float]] = dict
        """what keeping micro-batches costs, beside what is measured here"""
        self.pause_agreed = False
        self.open = False
        """an optimizer stepped since the last fence"""
        self.guarded = 1
        """optimizers whose steps pass here"""
        self._stepped: set[int] = set()
        self._often = False
        """an optimizer was seen to step twice in one batch: only the batch's end tells that all have"""
        self._unsettled = 0
        """a step of which some optimizers have stepped and others may follow; 0 for none"""
        self.committed_at = time.monotonic()
        self.broke_at = self.committed_at
        """when the last step before the failure was committed"""
        self.step_ms = 0.0
        self.own_ms = 0.0
        """of the last step, what this rank did not wait for others"""
        self.vote_s = 0.0
        self.prepare_s = 0.0
        self.borrowed = False
        """others stand in place of the own weights: no fence may be taken"""
        self.setting_up = False
        """no batch was drawn yet: whoever loads a checkpoint may step an optimizer to make its state"""
        self.saving = False
        """inside ``run.saving()``: see ``saving.step_aside``"""
        self._collectives = 0
        self.copy_bytes = 0
        """of what went to the buddy before the last vote"""
        self.copy_capacity = 0
        """bytes of a buddy's first message, alike on all ranks: from the last vote of this generation"""

    # --- what the wrapped method calls ---

    def carry(self, original: Call, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """``optimizer.step(...)`` of a protected optimizer. Raises GenerationOver when the step is torn."""
        if self.setting_up:
            return original(*arguments, **keywords)
        if self.session is None:
            return self._counted(original, arguments, keywords)
        call = functools.partial(original, *arguments, **keywords)
        if self.warming:
            return self._counted(call, (), {})
        if self.finishing is not None:
            return self._finish(self.session, self.finishing, call, id(original))
        if self.open:
            return self._further(self.session, call, id(original))
        return self._first(self.session, call, id(original))

    def _counted(self, call: Call, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        result = call(*arguments, **keywords)
        if not self.open:
            self._committed()
        return result

    def _first(self, session: Session, call: Callable[[], Any], who: int) -> Any:
        target = self.counters.step + 1
        outcome = self._prepare_and_vote(session, target)
        if outcome is Outcome.PASSED:
            return self._apply(session, target, call, who)
        self.broke_at = self.committed_at
        verdict, _fds = session.block("failed" if outcome is Outcome.FAILED else "unknown")
        if not isinstance(verdict, Resume):
            raise VerdictImpossible(f"a blocked rank was sent {type(verdict).__name__}")
        if verdict.resume_at == target and outcome is Outcome.UNKNOWN:
            # Committed elsewhere: what was kept here is applied, by this optimizer and by those that follow.
            self.after_applying(verdict)
            return self._apply(session, target, call, who)
        self.verdict = verdict
        raise GenerationOver(f"step {target} was discarded")

    def _prepare_and_vote(self, session: Session, target: int) -> Outcome:
        began = time.perf_counter()
        session.set_phase(Phase.VOTE)
        good = not session.latch.swallowed
        if good:
            good = self._prepare(session, target)
        prepared = time.perf_counter()
        trace = session.membership.trace() if good else 0
        ballot = Ballot(target, good, session.pause_wanted, trace, self.copy_bytes)
        if not good:
            # Without my yes it cannot pass: no need to ask the others.
            return Outcome.FAILED
        result = vote(session.membership, ballot, session.limits.collective_s)
        self.prepare_s, self.vote_s = prepared - began, time.perf_counter() - prepared
        self.pause_agreed = result.outcome is Outcome.PASSED and result.pause
        if result.outcome is Outcome.PASSED and result.copy_bytes:
            self.copy_capacity = capacity_for(result.copy_bytes)
        return result.outcome

    def _prepare(self, session: Session, target: int) -> bool:
        """Store what finishing the step needs, here and with the buddy. False when the group broke."""
        pending = self.trail.pending()
        private = self.state.capture_prepared(self.gradients_kept)
        session.refuse_writes(self.state.written_outside)
        blob = _LENGTH.pack(len(pending)) + pending + private
        session.header.set("has_gradients", int(self.gradients_kept))
        session.store_slot("prepared", session.rank, target, blob)
        session.header.set("prepared", target)
        if self.copies == Copies(None, None):
            return True
        if not self._copy_ended(session):
            return False
        fence = session.custody.slots("fence").read(target - 1)
        if fence is None or session.latch.error is not None:
            return False
        generation = session.membership.generation
        try:
            with session.membership.waiting():
                copy = composite(fence.data, blob)
                self.copy_bytes = len(copy)
                kept = Exchange(session.membership, self.copies, copy, self.copy_capacity).end()
        except RuntimeError as error:
            session.latch.fail(error, generation)
            return False
        if kept is not None and self.copies.of is not None:
            session.store_slot("buddy", self.copies.of, target, kept)
        return True

    def _apply(self, session: Session, target: int, call: Callable[[], Any], who: int) -> Any:
        session.latch.settle()
        self.end_shadow()
        session.set_phase(Phase.APPLY)
        session.header.set("applying", target)
        result = self._carry_out(session, target, call, who)
        session.set_phase(Phase.TAIL)
        self._committed()
        return result

    def _further(self, session: Session, call: Callable[[], Any], who: int) -> Any:
        """Another optimizer of the same batch, covered by the same vote."""
        if session.membership.collectives() != self._collectives:
            raise CollectiveBetweenSteps(
                "a collective ran between two optimizer steps of one batch: this cannot be protected yet"
            )
        self.state.look_outside()
        session.refuse_writes(self.state.written_outside)
        return self._carry_out(session, self.counters.step, call, who)

    def _carry_out(self, session: Session, step: int, call: Callable[[], Any], who: int) -> Any:
        """One optimizer's part of ``step``. Until the last one has stepped the arena is torn."""
        if session.header.get("applied") == step:
            session.header.set("applied", step - 1)
        self._unsettled = 0
        before = session.membership.collectives()
        result = call()
        self._collectives = session.membership.collectives()
        if session.membership.sandboxed and self._collectives != before:
            raise CollectiveInStep(
                f"step {step} was committed without this rank, and its optimizer runs collectives: it "
                "cannot be applied alone"
            )
        session.store_slot("small", session.rank, step, self.state.capture_small())
        self._often = self._often or who in self._stepped
        self._stepped.add(who)
        self._unsettled = step
        if len(self._stepped) == self.guarded and not self._often:
            self.settle()
        return result

    def settle(self) -> None:
        """No optimizer steps in this batch any more: the arena holds the whole step.

        Known once every optimizer has stepped, at a collective, since none may run between two optimizers
        of one batch, and at the batch's end.
        """
        step, self._unsettled = self._unsettled, 0
        if step and self.session is not None and not self.borrowed:
            self.session.header.set("applied", step)

    def borrow(self, step: int) -> None:
        """Weights of ``step`` make room for others: the arena is torn until ``give_back``."""
        if self.borrowed:
            raise NotReady("weights are borrowed already")
        # What a standby warms up with is nobody's state: its page says so, and nobody watches its writes.
        if self.session is not None and not self.warming:
            self.state.look_outside()
            self.end_shadow()
            if self.session.header.get("applied") == step:
                self.session.header.set("applied", step - 1)
        self.borrowed = True

    def refuse_borrowed(self) -> None:
        """Raise NotReady where a step would end, and its state be stored, with borrowed weights in place."""
        if self.borrowed:
            raise NotReady(
                "weights are borrowed: leave the block of run.borrowed_weights() before the step ends: "
                "before the next batch, run.fence() and the end of train"
            )

    def give_back(self, step: int) -> None:
        """The own weights are in place again."""
        self.borrowed = False
        if self.session is not None and not self.warming:
            self.state.note_written()
            if not self._unsettled:
                self.session.header.set("applied", step)

    def _finish(
        self, session: Session, finishing: Finishing, call: Callable[[], Any], who: int
    ) -> Any:
        """Stand in the middle of a step that was committed elsewhere: put back, apply or skip."""
        first = not self.open
        if first:
            pending, blob = split_prepared(finishing.prepared)
            self.state.restore_prepared(blob)
            self.trail.take_pending(pending)
            session.header.set("applying", finishing.step)
            self.finished_batches += self.counters.micro_step
        result = None
        if finishing.kind == "apply":
            result = self._carry_out(session, finishing.step, call, who)
        elif first:
            self.state.restore_words(finishing.small)
        if first:
            session.latch.settle()
            self._committed()
        return result

    def begin_finishing(self, finishing: Finishing) -> None:
        """From the fence before, or a kept micro-batch: run that step once more, up to the next fence."""
        pending, _blob = split_prepared(finishing.prepared)
        self.trail.tell_again(pending)
        self.close()
        self.finishing, self.finished_batches = finishing, -self.counters.micro_step

    def _committed(self) -> None:
        counters = self.counters
        counters.step += 1
        counters.micro_step = 0
        self.trail.commit(counters.step)
        self.open = True
        at = time.monotonic()
        self.step_ms, self.committed_at = (at - self.committed_at) * 1000.0, at
        if self.session is not None:
            self.session.tallies.stepped(self.step_ms)
            self.own_ms = self.session.tallies.own.taken() * 1000.0

    def close(self) -> None:
        """The batch has ended, at its fence or because its state is put back."""
        self.open = False
        self._stepped.clear()
        self._unsettled = 0

    def begin_copy(self, step: int) -> None:
        """Setting ``buddy``: send the arena of fence ``step`` to who keeps it. Alone nobody does."""
        session = self.session
        if self.buddy is None or session is None or session.membership.sandboxed:
            return
        small = session.custody.slots("small").read(step)
        if step > 0 and small is not None:
            self.buddy.begin(step, small.data, self.copies)

    def _copy_ended(self, session: Session) -> bool:
        """The keeper's yes in the vote says that it holds this rank's last fence whole."""
        if self.buddy is None:
            return True
        generation = session.membership.generation
        try:
            with session.membership.waiting():
                self.buddy.finish()
        except RuntimeError as error:
            session.latch.fail(error, generation)
            return False
        return True

    def end_shadow(self) -> None:
        """The copy of the last fence must be whole before its source changes."""
        if self.shadow is not None and self.session is not None:
            self.session.header.set("shadow", self.shadow.finish())


def split_prepared(blob: bytes) -> tuple[bytes, bytes]:
    """The trail's part and the state's part of a prepared blob. Raises ValueError when malformed."""
    if len(blob) < _LENGTH.size:
        raise ValueError("a prepared blob is at least 8 bytes long")
    (size,) = _LENGTH.unpack_from(blob)
    if size > len(blob) - _LENGTH.size:
        raise ValueError("the prepared blob is shorter than it says")
    return blob[_LENGTH.size : _LENGTH.size + size], blob[_LENGTH.size + size :]


def guard(stepper: Stepper, optimizers: Sequence[torch.optim.Optimizer]) -> None:
    """Wrap ``step`` of each optimizer, per instance.

    The wrapped method is a bound one and keeps the signature and marks of the one it wraps: schedulers
    look for ``__func__`` and their own mark, GradScaler looks at the signature.
    """
    for optimizer in optimizers:
        _guard_one(stepper, optimizer)


def _guard_one(stepper: Stepper, optimizer: torch.optim.Optimizer) -> None:
    original = optimizer.step

    @functools.wraps(getattr(original, "__func__", original))
    def step(_self: torch.optim.Optimizer, *arguments: Any, **keywords: Any) -> Any:
        if stepper.saving and not stepper.setting_up:
            return step_aside(stepper.state, optimizer, lambda: original(*arguments, **keywords))
        closed, arguments, keywords = run_closure(optimizer, arguments, keywords)
        result = stepper.carry(original, arguments, keywords)
        return result if closed is None else closed.loss

    # mypy: a method of one instance, on purpose.
    optimizer.step = types.MethodType(step, optimizer)  # type: ignore[method-assign]
