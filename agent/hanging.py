"""Ending ranks that hang: their stacks are recorded, the process is killed, its state stays in custody."""

from __future__ import annotations

import time

import structlog

from .errors import OldGeneration, RankMoved, UnknownWorker
from .protocol import EndHungOrder
from .stacks import stacks_of
from .standings import LOOK_S, SLACK, Place, Standings
from .workers import Worker, Workers

_log = structlog.get_logger("yoco.hanging")


class Hanging:
    """Follows the platform's judgement, and its own where a rank was told to stop and does not."""

    def __init__(self, workers: Workers, standings: Standings) -> None:
        self._workers = workers
        self._standings = standings

    async def end(self, order: EndHungOrder) -> None:
        """Raises UnknownWorker, OldGeneration, and RankMoved when it does not stand still any more."""
        worker = self._workers.get(order.worker_id)
        if worker is None or not worker.alive or worker.record.rank is None:
            raise UnknownWorker(f"no rank {order.worker_id} runs here")
        if (worker.record.attempt, worker.record.generation) != (order.attempt, order.generation):
            raise OldGeneration(f"it stands in generation {worker.record.generation} by now")
        self._still(worker, order.still_s)
        stacks = await stacks_of(worker)
        # That took a moment, and it may have used it.
        still_s = self._still(worker, order.still_s)
        self._end(worker, f"hung: {order.reason}", still_s, stacks)

    async def end_unless_stopped(self, worker: Worker, generation: int) -> None:
        """It was told to stop in ``generation``: end it when it stands still instead, or takes for ever."""

        def stopped(each: Worker) -> bool:
            return each.blocked is not None or each.record.generation != generation

        told_s = 0.0
        while not await worker.until(stopped, LOOK_S):
            if not worker.alive:
                return
            told_s += LOOK_S
            words = self._must_end(worker, told_s)
            if words:
                stacks = await stacks_of(worker)
                if worker.alive and not stopped(worker):
                    self._end(worker, words, self._standings.still_s(worker), stacks)
                return

    def _must_end(self, worker: Worker, told_s: float) -> str:
        """Why a rank that was told to stop ``told_s`` ago is ended; "" while it may take its time."""
        still_s, place = self._standings.still_s(worker), self._standings.place(worker)
        limit_s, usual_s = self._limit_of(worker, place)
        over = limit_s is not None and min(still_s, told_s) >= max(limit_s, SLACK * usual_s)
        if place is not None and over:
            return (
                f"hung: it did not stop: not moved for {still_s:.1f} s in {place.phase_word} "
                "after it was interrupted"
            )
        longest_s = max(worker.record.limits.collective_s, limit_s or 0.0)
        if told_s >= longest_s:
            return f"hung: it did not stop within {longest_s:g} s of being interrupted"
        return ""

    @staticmethod
    def _limit_of(worker: Worker, place: Place | None) -> tuple[float | None, float]:
        """(how long it may stand still where it is, None for no matter how long; its usual step), seconds."""
        limits, header = worker.record.limits, worker.custody.header
        if place is None or header is None:
            return None, 0.0
        frozen = (time.monotonic_ns() - header.get("beat_ns")) / 1e9 >= limits.stall_s
        limit_s = limits.of_phase(place.phase_word, place.applied, frozen=frozen)
        return limit_s, max(header.get("usual_ns"), 0) / 1e9

    def _still(self, worker: Worker, wanted_s: float) -> float:
        """Seconds since it moved. Raises RankMoved when they are fewer than ``wanted_s``, or it has ended."""
        still_s = self._standings.still_s(worker)
        if still_s < wanted_s or not worker.alive:
            raise RankMoved(f"rank {worker.record.rank} moved {still_s:.1f} s ago")
        return still_s

    def _end(self, worker: Worker, words: str, still_s: float, stacks: str) -> None:
        worker.detail, worker.stood_s, worker.stacks = words, still_s, stacks
        _log.warning("hung_rank_ended", worker=worker.record.worker_id, reason=words)
        self._workers.kill(worker)
