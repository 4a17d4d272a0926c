"""The control flow of a protected rank or standby: entering ``train``, fences, the ways out of it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from ..link import Finished
from ..transfer.arena import Phase
from .errors import GenerationOver
from .fences import Fences
from .progress import Progress
from .recovery import Recovery
from .session import Session
from .standby import Standby
from .step import Stepper
from .vote import Ballot, Outcome, vote
from .words import say

T = TypeVar("T")


@dataclass(frozen=True)
class Loop:
    """Everything a protected process needs to go through failures."""

    session: Session
    stepper: Stepper
    fences: Fences
    recovery: Recovery
    standby: Standby
    progress: Progress

    def run(self, train: Callable[[], T]) -> T:
        """Call ``train`` until it returns in a generation that nobody leaves early."""
        if not self.stepper.warming:
            self.fences.take(self.session, self.standby)
        while True:
            try:
                result = train()
                self._end()
                return result
            except GenerationOver:
                self._go_on()
            except Exception as error:  # whatever the script makes of torn values
                if not self.session.latch.swallowed:
                    self.session.tell_raised(error)
                    raise
                self._raised_while_latched(error)

    def boundary(self) -> None:
        """Between two batches. Raises GenerationOver where ``train`` must be left."""
        if self.stepper.open:
            self._reach_fence()
        if not self.session.membership.sandboxed:
            self.session.latch.check()
        self.recovery.micro.boundary()
        self.session.set_phase(Phase.DATA)

    def _reach_fence(self) -> None:
        session, stepper, recovery = self.session, self.stepper, self.recovery
        stepper.refuse_borrowed()
        if stepper.warming:
            stepper.close()
            if self.standby.warmed:
                raise GenerationOver("warm")
            return
        if session.latch.swallowed:
            raise GenerationOver("the tail was cut short")
        stepper.settle()
        self.fences.note_commit()
        self.fences.take(session, self.standby)
        if recovery.pending is not None:
            recovery.fence_reached()
            raise GenerationOver("met")
        if recovery.unproven:
            self.fences.prove(session, recovery)
        if stepper.pause_agreed:
            raise GenerationOver("paused")

    def _end(self) -> None:
        """``train`` returned here: it must return everywhere before anybody leaves."""
        session, stepper = self.session, self.stepper
        if stepper.open:
            self._reach_fence()
        if stepper.warming:
            raise GenerationOver("warm")
        session.latch.check()
        ballot = Ballot(stepper.counters.step, True, False, 0)
        if vote(session.membership, ballot, session.limits.blocked_s).outcome is not Outcome.PASSED:
            raise GenerationOver("the end was not reached by all")
        self.fences.digest(last=True)
        self.progress.flush()
        session.send(Finished(step=stepper.counters.step, trail_head=stepper.trail.head))
        session.set_phase(Phase.DONE)

    def _go_on(self) -> None:
        """GenerationOver came out of ``train``: stand where ``train`` can be entered again."""
        session, stepper, recovery = self.session, self.stepper, self.recovery
        session.membership.forget_trace()
        if stepper.warming:
            stepper.close()
            self.standby.share_arena()
            self.standby.report_warm()
            self.standby.adopt()
        elif recovery.pending is not None:
            recovery.rehearse_again()
        elif session.latch.error is not None or stepper.verdict is not None:
            recovery.recover(paused=False)
        elif stepper.pause_agreed:
            recovery.recover(paused=True)

    def _raised_while_latched(self, error: Exception) -> None:
        if self.stepper.state.parallelism() in ("fsdp2", "hsdp"):
            # Half-gathered modules: this process is healed like a dead one, from its custody.
            say(f"giving this rank up, its script raised in a torn step: {error!r}")
            os.kill(os.getpid(), 9)
        self._go_on()
