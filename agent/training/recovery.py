"""From a broken generation to standing in the next one, on a rank that survived."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from ..link import Regrouped, Resume
from ..transfer.arena import Phase
from .buddy import Copies
from .errors import GenerationOver, VerdictImpossible
from .micro import MicroBatches
from .session import Session
from .step import Finishing, Stepper


@dataclass
class Again:
    """What a failure made this rank compute again, until its next commit is reported.

    ``batch_hash`` is over the ``num_hashed`` batches that the torn step had drawn. ``micro_batches`` None:
    nobody knows.
    """

    micro_batches: int | None = 0
    batch_hash: str = ""
    num_hashed: int = 0

    def begins(
        self, drawn: int | None, resume_micro: int, batch_hash: str, num_hashed: int
    ) -> None:
        """A step of which ``drawn`` batches had been drawn goes on after micro-batch ``resume_micro``."""
        if drawn is None or self.micro_batches is None:
            self.micro_batches = None
        else:
            self.micro_batches += max(drawn - resume_micro, 0)
        self.batch_hash, self.num_hashed = batch_hash, num_hashed

    def ran(self, batches: int) -> None:
        """So many more are computed again, as in a committed step that is run once more for its tail."""
        if self.micro_batches is not None:
            self.micro_batches += batches


class Recovery:
    """Acts on verdicts. ``generation_began`` becomes true until the first commit in it was reported."""

    def __init__(
        self,
        session: Session,
        stepper: Stepper,
        models: Sequence[nn.Module],
        micro: MicroBatches,
    ) -> None:
        self._session = session
        self._stepper = stepper
        self.micro = micro
        self._models = list(models)
        self.unproven = False
        """a generation began and its first commit was not reported yet"""
        self.pending: Resume | None = None
        """a generation to meet once a torn tail was finished"""
        self.again = Again()
        self.previous_head = ""
        self.previous_step = 0
        self.survived = True
        self.last_commit_at: float | None = None

    def recover(self, paused: bool) -> None:
        """Called where GenerationOver was caught: wait for the verdict and stand at its step."""
        session, stepper = self._session, self._stepper
        verdict, stepper.verdict = stepper.verdict, None
        if verdict is None:
            stepper.broke_at = stepper.committed_at
            # Before bytes are moved from here they are compared with those of the replicas.
            digest = stepper.state.digest()[1] if paused else ""
            heard, _fds = session.block("paused" if paused else "unknown", digest)
            if not isinstance(heard, Resume):
                raise VerdictImpossible(f"a blocked rank was sent {type(heard).__name__}")
            verdict = heard
        self._stand_at(verdict)

    def _stand_at(self, verdict: Resume) -> None:
        session, stepper, step = self._session, self._stepper, verdict.resume_at
        header = session.header
        if header.get("applied") != step:
            raise VerdictImpossible(
                f"resume at step {step} was asked for, this rank stands at {header.get('applied')}"
            )
        self._unwind()
        fence = session.custody.slots("fence").read(step)
        if fence is not None and header.get("fence") == step:
            trail, drawn = stepper.trail, stepper.counters.micro_step
            self.again.begins(drawn, verdict.resume_micro, trail.batch_hash, trail.num_batches)
            self._put_back(fence.data, step + 1, verdict.resume_micro)
            stepper.close()
            self.meet(verdict)
            return
        self._finish_tail(verdict)

    def _finish_tail(self, verdict: Resume) -> None:
        """The tail of a committed step was cut short: run that step again in the sandbox to its fence."""
        session, stepper, step = self._session, self._stepper, verdict.resume_at
        before = session.custody.slots("fence").read(step - 1)
        prepared = session.custody.slots("prepared").read(step)
        small = session.custody.slots("small").read(step)
        if before is None or prepared is None or small is None:
            raise VerdictImpossible(f"the tail of step {step} was cut short and its fence is gone")
        self._put_back(before.data, step, self.micro.last_of(step))
        stepper.begin_finishing(Finishing("tail", step, prepared.data, small.data))
        self.rehearse(verdict)

    def _put_back(self, fence: bytes, running: int, micro: int) -> None:
        """Stand at the fence before step ``running``, or in it after the micro-batch that all have kept."""
        state = self._stepper.state
        if micro:
            self.micro.stand_at(running, micro)
            return
        self.micro.forget()
        state.discard(fence)
        self._session.refuse_writes(state.written_outside)

    def rehearse(self, verdict: Resume) -> None:
        """Up to the next fence this rank is alone; there it meets the others.

        A collective of the tail is answered here on every rank: one that met at once would pair its own
        with the first forward of those that have no tail before them.
        """
        self._session.membership.sandboxed = True
        self.pending = verdict

    def rehearse_again(self) -> None:
        """``train`` was left before the fence, by work of the old generation that the script waited for."""
        if self.pending is not None and self._stepper.finishing is None:
            self._stand_at(self.pending)

    def fence_reached(self) -> None:
        """The fence of a finished step: leave the sandbox and meet the others."""
        verdict, self.pending = self.pending, None
        if self._stepper.finishing is not None:
            self.again.ran(self._stepper.finished_batches)
        self._stepper.finishing = None
        self._session.membership.sandboxed = False
        if verdict is not None:
            self.meet(verdict)

    def meet(self, verdict: Resume) -> None:
        """Stand in the new generation. A generation that ends meanwhile is waited out."""
        session, stepper = self._session, self._stepper
        step = verdict.resume_at
        self._remember()
        while True:
            began_at = time.time()
            session.pause_wanted = stepper.pause_agreed = False
            try:
                session.membership.meet(verdict.generation, verdict.store)
                break
            except GenerationOver:
                heard, _fds = session.block("unknown")
            if not isinstance(heard, Resume) or heard.resume_at != step:
                raise VerdictImpossible(f"this rank stands at step {step} and was sent {heard}")
            if heard.resume_micro != verdict.resume_micro:
                self._stand_elsewhere(verdict, heard)
            verdict = heard
        session.header.set("generation", verdict.generation)
        session.buddies = dict(verdict.buddies)
        stepper.copies, stepper.copy_capacity = self.copies(), 0
        if stepper.buddy is not None:
            stepper.buddy.new_keepers()
            stepper.begin_copy(step)
        session.set_phase(Phase.DATA)
        self.unproven = True
        session.send(
            Regrouped(
                rank=session.rank, generation=verdict.generation, began_at=began_at,
                ended_at=time.time(),
            )
        )  # fmt: skip

    def _stand_elsewhere(self, verdict: Resume, heard: Resume) -> None:
        """The next verdict names another micro-batch of the same step: somebody's was lost meanwhile."""
        step = heard.resume_at
        fence = self._session.custody.slots("fence").read(step)
        if fence is None:
            raise VerdictImpossible(f"fence {step} is gone")
        self.again.ran(verdict.resume_micro - heard.resume_micro)
        self._put_back(fence.data, step + 1, heard.resume_micro)

    def copies(self) -> Copies:
        """Who keeps whose state; nobody where a lost node would take the shard with it."""
        session, stepper = self._session, self._stepper
        if (stepper.gradients_kept and stepper.buddy is None) or session.world_size == 1:
            return Copies(None, None)
        return Copies.read(session.buddies, session.rank)

    def _remember(self) -> None:
        trail = self._stepper.trail
        self.previous_head, self.previous_step = trail.head, trail.step
        if self.last_commit_at is None and self.survived:
            self.last_commit_at = self._stepper.broke_at

    def proven(self) -> None:
        """The first commit of the generation was reported."""
        self.unproven = False
        self.survived = True
        self.last_commit_at = None
        self.again = Again()

    def _unwind(self) -> None:
        """FSDP2 modules that an exception left gathered are sharded again."""
        from torch.distributed.fsdp import FSDPModule

        for model in self._models:
            for module in model.modules():
                if isinstance(module, FSDPModule):
                    module.reshard()
