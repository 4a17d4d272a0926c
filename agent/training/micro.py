"""Gradient accumulation: what a finished micro-batch leaves, kept so that it need not be computed again.

Under the setting ``keep`` the state after each micro-batch (private state and gradient accumulators) goes
into the slot ``micro``, which holds the last two, and the ranks agree by one small MIN that all have stored
it before any begins the next one. So they are never further apart than one micro-batch, and all hold a
common one. The same MIN carries pause requests: a planned move need not wait for the step's end.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ..transfer.arena import Phase, micro_key, of_micro_key
from .errors import GenerationOver, VerdictImpossible
from .refusals import Unprotectable
from .session import Session
from .step import Stepper, split_prepared
from .vote import Ballot, Outcome, vote
from .words import say

_LENGTH = struct.Struct("<Q")


@dataclass
class KeepingCost:
    """What keeping has cost so far."""

    times: int = 0
    bytes: int = 0
    """of the last one"""
    store_s: float = 0.0
    agree_s: float = 0.0

    def a_micro_batch(self) -> dict[str, float]:
        """The mean cost of one, nothing before the first was kept; see protocol.RankCosts."""
        times = self.times
        if not times:
            return {}
        return {
            "micro_batch_bytes": float(self.bytes),
            "micro_batch_store_ms": round(self.store_s / times * 1000.0, 3),
            "micro_batch_agree_ms": round(self.agree_s / times * 1000.0, 3),
        }


def cannot_keep(models: Sequence[nn.Module]) -> str:
    """Why the micro-batches of these models cannot be kept, in words; "" when they can."""
    for model in models:
        for module in model.modules():
            if not isinstance(module, DistributedDataParallel):
                continue
            if module.find_unused_parameters:
                return (
                    "DDP with find_unused_parameters remembers inside its reducer which parameters "
                    "earlier micro-batches used, and that cannot be read"
                )
            if module.static_graph:
                return "DDP with static_graph counts inside its reducer, and that cannot be read"
    return ""


class MicroBatches:
    """``boundary`` is called between two batches; ``stand_at`` where a rank goes on inside a step."""

    def __init__(
        self, session: Session, stepper: Stepper, setting: str, models: Sequence[nn.Module]
    ) -> None:
        self._session = session
        self._stepper = stepper
        self.why_not = cannot_keep(models) if setting == "keep" else ""
        """why micro-batches are computed again although ``keep`` was asked for"""
        self.keeping = setting == "keep" and not self.why_not
        self.cost = KeepingCost()
        self._agreed = -1
        """key of the last micro-batch that every rank has kept"""
        self._due: Any = None
        """accumulators to be put back before the next batch is drawn"""
        self._said_ahead = False
        if self.why_not:
            say(f"accumulation 'keep' works as 'redo' here: {self.why_not}")

    @property
    def words(self) -> str:
        """The setting as it works here, for the start report."""
        if self.why_not:
            return f"redo, because {self.why_not}"
        return "keep" if self.keeping else "redo"

    def boundary(self) -> None:
        """Between two batches. Raises GenerationOver where ``train`` must be left."""
        stepper = self._stepper
        if self._due is not None:
            # Only now: a script may well clear its gradients where ``train`` begins.
            stepper.state.put_accumulators(self._due)
            self._due = None
        finished = stepper.counters.micro_step
        sandboxed = self._session.membership.sandboxed
        if not self.keeping or not finished or stepper.warming or sandboxed:
            return
        key = micro_key(stepper.counters.step + 1, finished)
        if key != self._agreed:  # it is at the end of an epoch, where none was drawn
            self._keep(key)

    def _keep(self, key: int) -> None:
        session, stepper = self._session, self._stepper
        session.set_phase(Phase.VOTE)
        began = time.perf_counter()
        self._store(key)
        stored = time.perf_counter()
        ballot = Ballot(key, True, session.pause_wanted, session.membership.trace())
        result = vote(session.membership, ballot, session.limits.collective_s)
        self.cost.times += 1
        self.cost.store_s += stored - began
        self.cost.agree_s += time.perf_counter() - stored
        if result.outcome is not Outcome.PASSED:
            raise GenerationOver("the generation ended between two micro-batches")
        self._agreed = key
        if result.pause:
            stepper.pause_agreed = True
            raise GenerationOver("paused")

    def _store(self, key: int) -> None:
        session, stepper = self._session, self._stepper
        pending = stepper.trail.pending()
        if stepper.trail.num_backwards < stepper.counters.micro_step:
            self._say_ahead()
            return
        try:
            state = stepper.state.capture_micro()
        except Unprotectable as refusal:
            # The others keep theirs in vain: what all hold decides.
            if not self.why_not:
                self.why_not = str(refusal)
                say(f"micro-batches cannot be kept and would be computed again: {refusal}")
            return
        session.refuse_writes(stepper.state.written_outside)
        blob = b"".join((_LENGTH.pack(len(pending)), pending, state))
        self.cost.bytes = len(blob)
        session.store_slot("micro", session.rank, key, blob)

    def _say_ahead(self) -> None:
        """What a script holds drawn and not computed is in no state: who went on from here would miss it."""
        if not self._said_ahead:
            self._said_ahead = True
            say(
                f"step {self._stepper.counters.step + 1} has had fewer backward() than batches, as where "
                "they are drawn ahead of it: such micro-batches are not kept, and where a rank is lost the "
                "step is computed again"
            )

    def stand_at(self, step: int, micro: int, blob: bytes | None = None) -> None:
        """Stand in ``step`` after its micro-batch ``micro``. Raises VerdictImpossible, RestoreFailed.

        ``blob`` None: this rank's own.
        """
        session, stepper = self._session, self._stepper
        key = micro_key(step, micro)
        if blob is None:
            kept = session.custody.slots("micro").read(key)
            if kept is None:
                raise VerdictImpossible(f"micro-batch {micro} of step {step} is not kept here")
            blob = kept.data
        else:
            session.store_slot("micro", session.rank, key, blob)
        pending, state = split_prepared(blob)
        self._due = stepper.state.restore_micro(state)
        stepper.trail.take_pending(pending)
        stepper.counters.micro_step = micro
        self._agreed = key
        session.refuse_writes(stepper.state.written_outside)

    def last_of(self, step: int) -> int:
        """The last micro-batch of ``step`` kept here, 0 for none."""
        kept = map(of_micro_key, self._session.custody.slots("micro").marks())
        return max((micro for at, micro in kept if at == step), default=0)

    def forget(self) -> None:
        """The step begins again from its fence."""
        self._due, self._agreed = None, -1
