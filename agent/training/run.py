"""``yoco.join()`` and what it returns: a run that goes through failures."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import torch
from torch import nn

from ..link import CheckpointLoaded, CheckpointMade, Joined, StateListed
from ..transfer.arena import Phase
from .alone import open_plain_group
from .borrowing import borrowed_weights
from .buddy_arena import BuddyArena
from .closures import refuse_closures
from .compiling import mark_compiling
from .errors import NotReady
from .feed import Feed
from .fences import Fences
from .fingerprint import fingerprint
from .looping import Loop
from .micro import MicroBatches
from .outside import refuse_writing_modules
from .progress import Progress
from .recovery import Recovery
from .refusals import RestoreFailed
from .report import StartReport, table_of
from .session import Session, worker_start
from .shadow import ShadowArena
from .standby import Standby
from .state import RankState
from .step import Counters, Stepper, guard
from .trail import Trail
from .watch import mark_backward, mark_forward
from .words import say

T = TypeVar("T")


def join() -> Run:
    """See ``yoco.join``."""
    told = worker_start()
    if told is None:
        rank, world_size = open_plain_group()
        return Run(None, rank, world_size)
    session = Session(*told)
    session.open()
    return Run(session, session.rank, session.world_size)


class Run:
    """One process of a job. Order of calls: ``protect`` once, then ``loop`` once.

    ``step`` committed optimizer steps, ``epoch`` finished passes over the loader, ``micro_step`` batches
    drawn since the last commit before the one being worked on.
    """

    def __init__(self, session: Session | None, rank: int, world_size: int) -> None:
        self._session = session
        self._rank = rank
        self.world_size = world_size
        self._trail = Trail()
        self._counters = Counters()
        self._progress = Progress(session)
        self._stepper: Stepper | None = None
        self._loop: Loop | None = None
        self._feed: Feed | None = None
        self._fences: Fences | None = None

    # --- where it stands ---

    @property
    def rank(self) -> int:
        """This process's rank; a standby takes another one when it is adopted."""
        return self._session.rank if self._session is not None else self._rank

    @property
    def step(self) -> int:
        return self._counters.step

    @property
    def micro_step(self) -> int:
        return max(self._counters.micro_step - 1, 0)

    @property
    def epoch(self) -> int:
        return self._feed.epoch if self._feed is not None else 0

    @property
    def protected(self) -> bool:
        return self._session is not None

    @property
    def rehearsing(self) -> bool:
        """True in a standby's sandboxed steps and while a torn step is finished: write nothing outside."""
        return self._session is not None and self._session.membership.sandboxed

    # --- setting up ---

    def protect(
        self,
        *,
        model: nn.Module | Sequence[nn.Module],
        optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
        scheduler: Any = None,
        loader: Any = None,
        **extras: Any,
    ) -> None:
        """Name what this rank's state is. ``extras``: anything with state_dict, a generator, a container.

        Raises Unprotectable, naming the thing, for whatever could not be carried over a failure.
        """
        models, optimizers = _listed(model), _listed(optimizer)
        refuse_closures(optimizers)
        refuse_writing_modules(models)
        state = RankState(
            models=models, optimizers=optimizers, schedulers=_listed(scheduler),
            loaders=_listed(loader), extras=extras,
            internal={"trail": self._trail, "counters": self._counters},
            rank=self.rank, world_size=self.world_size,
        )  # fmt: skip
        self._feed = state.feeds[0] if state.feeds else None
        stepper = self._stepper = Stepper(self._session, state, self._trail, self._counters)
        self._fences = Fences(self._session, stepper, self._progress, self._rank)
        stepper.guarded, stepper.setting_up = len(optimizers), True
        guard(stepper, optimizers)
        session = self._session
        if session is None:
            mark_backward(None, self._trail)
            return
        mark_backward(session.latch, self._trail, session.ran_forward)
        mark_forward(models, session.latch, session.ran_forward)
        mark_compiling(session)
        self._protect_in(session, state, stepper, models)

    def _protect_in(
        self, session: Session, state: RankState, stepper: Stepper, models: list[nn.Module]
    ) -> None:
        micro = MicroBatches(session, stepper, session.start.accumulation, models)
        stepper.further_costs = micro.cost.a_micro_batch
        recovery = Recovery(session, stepper, models, micro)
        stepper.after_applying = recovery.rehearse
        session.membership.before_collective = stepper.settle
        redundancy = state.redundancy(session.start.redundancy)
        if redundancy in ("shadow", "buddy"):
            stepper.gradients_kept = True
            stepper.shadow = ShadowArena(state)
        if redundancy == "buddy":
            stepper.buddy = BuddyArena(session, state)
        stepper.copies = recovery.copies()
        standby = Standby(session, stepper, recovery)
        self._loop = Loop(session, stepper, self._ready(), recovery, standby, self._progress)
        if session.standby:
            session.set_up()
            stepper.warming = True
            return
        report = StartReport(state, redundancy, micro.words)
        session.send(
            Joined(
                rank=session.rank, fingerprint=fingerprint(), parallelism=state.parallelism(),
                redundancy=redundancy, replica_group=state.replica_group(session.world_size),
                inventory=report.made(),
            )
        )  # fmt: skip
        if session.rank == 0:
            self._ready().after_first_step = lambda: _list_state(session, report)
        session.set_up()

    # --- training ---

    def loop(self, train: Callable[[], T]) -> T:
        """Call ``train``, again after each recovery, until it returns on every rank; its last result.

        Raises what ``train`` raises, RanksDiverged, NothingHeard, RestoreFailed.
        """
        if self._loop is not None:
            self._begin()
            return self._loop.run(train)
        fences = self._ready()
        self._begin()
        result = train()
        fences.note_commit()
        fences.digest(last=True)
        return result

    def batches(self) -> Iterator[Any]:
        """The rest of the current epoch's batches, from where the job stands.

        Without a loader it gives None for ever: the script makes its own batches.
        """
        fences = self._ready()
        self._begin()
        while True:
            self._end_step(fences)
            batch = None
            if self._feed is not None:
                try:
                    batch = self._feed.next()
                except StopIteration:
                    return
                self._trail.saw_batch(self._feed.last_hash)
            self._counters.micro_step += 1
            if self._session is not None:
                if not self.rehearsing:
                    drawn, step = self._counters.micro_step, self._counters.step + 1
                    self._session.header.set_drawn(step, drawn, self._trail.batch_hash)
                self._session.set_phase(Phase.FORWARD)
            yield batch

    def borrowed_weights(self) -> AbstractContextManager[None]:
        """``with run.borrowed_weights():`` after the optimizer's step, write other weights into the model,
        such as averaged ones, and evaluate. At its end every parameter, frozen one and buffer of the
        protected models is back, bit for bit.
        """
        self._ready()
        assert self._stepper is not None
        return borrowed_weights(self._stepper)

    def fence(self) -> None:
        """End the running step here, rather than at the next batch.

        For frameworks that evaluate or save after a step: what follows belongs to the next one, and must
        be done again by ``train`` when it is entered again.
        """
        self._end_step(self._ready())

    def _end_step(self, fences: Fences) -> None:
        if self._loop is not None:
            self._loop.boundary()
        else:
            fences.note_commit()

    def report(self, *, loss: float | None = None, grad_norm: float | None = None) -> None:
        """Values of the running step for charts and the trail."""
        self._progress.reported_loss = loss
        if grad_norm is not None:
            self._trail.saw_norm(grad_norm)

    def evaluating(self) -> contextlib.AbstractContextManager[None]:
        """Around an evaluation: this rank may take ``limits.evaluating_s`` while others wait for it.

        Not needed where a protected model runs in eval mode and without gradients: that is seen.
        """
        return self._within(Phase.EVALUATING)

    @contextlib.contextmanager
    def saving(self) -> Iterator[None]:
        """Around the saving of a checkpoint: ``limits.saving_s`` instead of ``limits.tail_s``.

        Reading an optimizer's state belongs inside: torch may step it for that, which is no step of the job.
        """
        self._ready()
        assert self._stepper is not None
        before, self._stepper.saving = self._stepper.saving, True
        try:
            with self._within(Phase.SAVING):
                yield
        finally:
            self._stepper.saving = before

    def _within(self, phase: int) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext() if self._session is None else self._session.within(phase)

    def checkpointed(self, step: int) -> None:
        """The script saved a checkpoint of its own that holds ``step``."""
        if self._session is not None and not self.rehearsing:
            self._session.send(CheckpointMade(step=step))

    # --- checkpoints ---

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint needs beside model and optimizer: of this rank, as of the last committed step.

        Data position, generators, scheduler, extras, buffers, trail. Call it before the batch's
        ``optimizer.step()``; before ``loop`` it is the empty form that a checkpoint is loaded into.
        """
        fences = self._ready()
        assert self._stepper is not None
        if self._stepper.open:
            raise NotReady(
                "save at the start of a batch, inside run.saving(): this step has not ended yet (outside "
                "of it torch's get_state_dict itself steps an optimizer that has no state)"
            )
        step, name = self._counters.step, f"rank-{self.rank}"
        return {"step": step, "world_size": self.world_size, name: fences.stored()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on after the step that ``state`` was saved at. Model and optimizer must have been loaded.

        Between ``protect`` and ``loop``, and never while ``rehearsing``. Raises RestoreFailed where the
        checkpoint is another job's (another number of ranks, model or loader) or has nothing of this rank.
        """
        self._ready()
        assert self._stepper is not None
        if not self._stepper.setting_up or self.rehearsing:
            raise NotReady("a checkpoint is loaded after run.protect(...) and before run.loop(...)")
        if state["world_size"] != self.world_size:
            raise RestoreFailed(
                "world_size_differs",
                f"the checkpoint is one of {state['world_size']} ranks, this job has {self.world_size}",
            )
        name = f"rank-{self.rank}"
        if name not in state:
            found = ", ".join(sorted(key for key in state if key.startswith("rank-"))) or "no rank"
            raise RestoreFailed(
                "rank_missing",
                f"the checkpoint has no state of {name}, only of {found[:99]}: every rank must save its own "
                "run.state_dict(), as torch.distributed.checkpoint's save does when all ranks call it",
            )
        self._stepper.state.restore_saved(state[name])
        if self._session is not None:
            self._session.send(CheckpointLoaded(step=self._counters.step))

    def _begin(self) -> None:
        assert self._stepper is not None and self._fences is not None
        if self._stepper.setting_up:
            self._stepper.setting_up = False
            self._fences.begin()

    def _ready(self) -> Fences:
        if self._fences is None:
            raise NotReady("call run.protect(...) first")
        return self._fences


def _list_state(session: Session, report: StartReport) -> None:
    """Told after the first step: optimizers make their state in it."""
    inventory = report.made()
    session.send(StateListed(inventory=inventory))
    say("\n".join(table_of(inventory)))


def _listed(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, list | tuple) else [value]
