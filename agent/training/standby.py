"""A worker of the job that is no rank yet: warmed in the sandbox, then turned into the lost rank."""

from __future__ import annotations

import os

import torch

from ..link import AdoptFailed, AdoptRank, AdoptReady, Restore, Resume, Warm
from ..transfer.arena import Phase, micro_key
from .errors import EngineError, VerdictImpossible
from .fingerprint import fingerprint
from .recovery import Recovery
from .refusals import RestoreFailed, Unprotectable
from .session import Session
from .shards import note_meshes
from .step import Finishing, Stepper

WARM_STEPS = 2


class NotFinite(EngineError):
    """The sandboxed steps made values that are not finite."""

    code = "standby_not_finite"


class Standby:
    """Life of a standby inside ``run.loop``."""

    def __init__(self, session: Session, stepper: Stepper, recovery: Recovery) -> None:
        self._session = session
        self._stepper = stepper
        self._recovery = recovery

    @property
    def warmed(self) -> bool:
        return self._stepper.counters.step >= WARM_STEPS

    def report_warm(self) -> None:
        """Two steps were made: check them, hand the arena over, say so. Raises NotFinite."""
        for held in self._stepper.state.catalogue.held:
            if held.role != "buffer" and not _finite(held.tensor.detach()):
                raise NotFinite(f"after {WARM_STEPS} sandboxed steps {held.name} is not finite")
        session = self._session
        note_meshes()
        session.set_phase(Phase.STANDBY)
        session.send(Warm(provisional_rank=session.rank, fingerprint=fingerprint()))

    def adopt(self) -> None:
        """Wait until a rank is lost and take its place, up to where its step must be finished.

        Raises RestoreFailed or Unprotectable after telling the agent; the process then ends.
        """
        session = self._session
        order: AdoptRank | None = None
        while True:
            heard, fds = session.hear(None)
            try:
                if isinstance(heard, AdoptRank):
                    order = heard
                    self._take_shape(order)
                elif isinstance(heard, Restore) and order is not None and heard.rank == order.rank:
                    self._restore(order, _read(heard, fds))
                    return
            except (RestoreFailed, Unprotectable, EngineError, RuntimeError, ValueError) as error:
                code = str(getattr(error, "code", "adopt_failed"))
                rank = order.rank if order is not None else session.rank
                session.send(AdoptFailed(rank=rank, code=code, message=str(error)))
                raise
            finally:
                _close(fds)

    def _take_shape(self, order: AdoptRank) -> None:
        session, state = self._session, self._stepper.state
        if order.rank != session.rank:
            session.membership.take_rank(order.rank)
            state.become_rank(order.rank)
            session.rank = order.rank
        self.share_arena()
        session.send(AdoptReady(rank=order.rank, epoch=state.arena.epoch))

    def share_arena(self) -> None:
        """Hand changed storages over to the agent."""
        change = self._stepper.state.rehome()
        if change is not None:
            custody = self._session.custody
            packets = custody.share(
                "live", change.epoch, change.manifest.encode(), change.storage_ids, change.fds
            )
            self._session.send_packets(packets)

    def _restore(self, order: AdoptRank, blobs: dict[str, tuple[int, bytes]]) -> None:
        session, stepper, recovery = self._session, self._stepper, self._recovery
        state, step = stepper.state, order.resume_at
        arena_step = step - 1 if order.finish == "apply" else step
        fence_step = step if order.finish == "none" else step - 1
        small, fence = _blob(blobs, "small", arena_step), _blob(blobs, "fence", fence_step)
        state.restore_small(small)
        micro = order.resume_micro if order.finish == "none" else order.finish_micro
        if micro:
            kept = _blob(blobs, "micro", micro_key(fence_step + 1, micro))
            recovery.micro.stand_at(fence_step + 1, micro, kept)
        else:
            state.discard(fence)
        header = session.header
        header.set_drawn(step, 0, "")
        session.store_slot("small", session.rank, arena_step, small)
        session.store_slot("fence", session.rank, fence_step, fence)
        # The fence last: whoever reads the page of one that dies here must not take it for whole before.
        header.set("applying", arena_step)
        header.set("applied", arena_step)
        header.set("fence", fence_step)
        stepper.warming = False
        stepper.close()
        recovery.survived = False
        verdict = Resume(
            generation=order.generation, resume_at=step, resume_micro=order.resume_micro,
            store=order.store, buddies=order.buddies,
        )  # fmt: skip
        hashed = (order.drawn or 0) if order.drawn_hash else 0
        recovery.again.begins(order.drawn, order.resume_micro, order.drawn_hash, hashed)
        if order.finish == "none":
            session.membership.sandboxed = False
            recovery.meet(verdict)
            return
        prepared = _blob(blobs, "prepared", step)
        session.store_slot("prepared", session.rank, step, prepared)
        header.set("prepared", step)
        stepper.begin_finishing(Finishing(order.finish, step, prepared, small))
        recovery.pending = verdict


def _finite(tensor: torch.Tensor) -> bool:
    if not (tensor.is_floating_point() or tensor.is_complex()) or tensor.element_size() == 1:
        return True  # whole numbers always are, and of the shortest floats torch cannot tell
    return bool(torch.isfinite(tensor).all())


def _blob(blobs: dict[str, tuple[int, bytes]], name: str, step: int) -> bytes:
    if name not in blobs or blobs[name][0] != step:
        have = {key: value[0] for key, value in blobs.items()}
        raise VerdictImpossible(f"{name}({step}) is needed and these came: {have}")
    return blobs[name][1]


def _read(message: Restore, fds: list[int]) -> dict[str, tuple[int, bytes]]:
    blobs: dict[str, tuple[int, bytes]] = {}
    for name, step, fd in zip(message.blobs, message.steps, fds, strict=True):
        with open(fd, "rb", closefd=False) as paper:
            paper.seek(0)
            blobs[name] = (step, paper.read())
    return blobs


def _close(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)
