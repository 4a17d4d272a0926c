"""What happens between two steps: state is stored, storages are followed, commits are told."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from ..link import Committed, DigestMade
from .costs import Costs
from .progress import Progress
from .recovery import Recovery
from .session import Session
from .standby import Standby
from .step import Stepper
from .trail import TrailFile

DIGEST_EVERY = "YOCO_DIGEST_EVERY"
TRAIL_FILE = "YOCO_TRAIL_FILE"


class Fences:
    """The only place where a rank's state is read. Without a session only trail and digests are kept."""

    def __init__(
        self, session: Session | None, stepper: Stepper, progress: Progress, rank: int
    ) -> None:
        self._session = session
        self._stepper = stepper
        self._progress = progress
        self._rank = rank
        self._digest_every = int(os.environ.get(DIGEST_EVERY, "0"))
        self._digested = -1
        self._path = os.environ.get(TRAIL_FILE, "")
        self._file: TrailFile | None = None
        self._kept = b""
        """the last fence, where no agent keeps it"""
        self.after_first_step: Callable[[], None] | None = None
        """called once, at the first fence that follows a step"""
        self._costs = Costs()

    def take(self, session: Session, standby: Standby) -> None:
        """Store fence(step), hand changed storages over, begin the shadow's copy."""
        stepper = self._stepper
        step = stepper.counters.step
        fence = stepper.state.capture_fence()
        session.refuse_writes(stepper.state.written_outside)
        session.store_slot("fence", session.rank, step, fence)
        if (
            session.header.get("fence") < 0
        ):  # the first one of this process: nothing was applied here
            session.store_slot("small", session.rank, step, stepper.state.capture_small())
            session.header.set("applying", step)
            session.header.set("applied", step)
        session.header.set_head(step, stepper.trail.head)
        session.header.set("fence", step)
        stepper.close()
        session.membership.forget_trace()
        if step > 0:
            standby.share_arena()
            self._begin_shadow(session, step)
            stepper.begin_copy(step)
            self._after_first_step()
        self.digest()

    def _after_first_step(self) -> None:
        call, self.after_first_step = self.after_first_step, None
        if call is not None:
            call()

    def _begin_shadow(self, session: Session, step: int) -> None:
        shadow = self._stepper.shadow
        if shadow is None:
            return
        change = shadow.rehome()
        if change is not None:
            session.send_packets(
                session.custody.share(
                    "shadow", change.epoch, change.manifest.encode(), change.storage_ids, change.fds
                )
            )
        session.header.set("shadow", -1)
        shadow.begin(step)

    def note_commit(self) -> None:
        """Tell charts and the trail's file of the step that was committed since the last fence."""
        stepper = self._stepper
        stepper.refuse_borrowed()
        if not stepper.open:
            return
        if self._session is not None and not self._session.membership.sandboxed:
            self._costs.note(self._session, stepper)
        self._progress.committed(stepper.counters.step, stepper.trail.last_loss, stepper.step_ms)
        file = self._trail_file()
        if file is not None:
            file.committed(stepper.trail, stepper.step_ms)
        if self._session is None:
            stepper.close()
            self._kept = stepper.state.capture_fence()
            self.digest()

    def begin(self) -> None:
        """Before the first batch. Where an agent keeps the fences, the first one is taken by ``loop``."""
        if self._session is None:
            self._kept = self._stepper.state.capture_fence()

    def stored(self) -> bytes:
        """Fence(step) of the running step, b"" before there is one."""
        if self._session is None:
            return self._kept
        fence = self._session.custody.slots("fence").read(self._stepper.counters.step)
        return b"" if fence is None else fence.data

    def digest(self, last: bool = False) -> None:
        """Digest of the whole state, every ``YOCO_DIGEST_EVERY`` steps and at the end."""
        stepper = self._stepper
        step = stepper.counters.step
        due = self._digest_every > 0 and step > 0 and step % self._digest_every == 0
        if not (due or last) or step == self._digested:
            return
        self._digested = step
        full, replica = stepper.state.digest()
        head = stepper.trail.head
        file = self._trail_file()
        if file is not None:
            file.digest(step, full, replica, head)
        if self._session is not None:
            self._session.send(DigestMade(step=step, digest=full, trail_head=head))

    def prove(self, session: Session, recovery: Recovery) -> None:
        """Report the first commit of a generation, with what proves that it follows the last one."""
        stepper, trail = self._stepper, self._stepper.trail
        _full, replica = stepper.state.digest()
        before = recovery.last_commit_at
        session.send(
            Committed(
                rank=session.rank, generation=session.membership.generation,
                step=stepper.counters.step, previous_step=recovery.previous_step,
                pause_ms=None if before is None else (stepper.committed_at - before) * 1000.0,
                trail_head=trail.head, trail_marks={} if recovery.survived else trail.marks(),
                previous_trail_head=recovery.previous_head,
                batch_hash=trail.last_batch_hash, redone_batch_hash=recovery.again.batch_hash,
                redrawn_batch_hash=trail.last_hash_of(recovery.again.num_hashed),
                redone_micro_batches=recovery.again.micro_batches,
                replica_digest=replica, at=time.time(),
            )
        )  # fmt: skip
        recovery.proven()
        session.publish_set_up()

    def _trail_file(self) -> TrailFile | None:
        if self._file is None and self._path:
            rank = self._session.rank if self._session is not None else self._rank
            self._file = TrailFile(self._path, rank)
        return self._file
