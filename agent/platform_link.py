"""The loops that keep a node in touch with the platform. None of them ever ends for its absence."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable

import structlog
from websockets.asyncio.client import connect
from websockets.exceptions import WebSocketException

from .client import PlatformClient
from .errors import PlatformAway, PlatformRefused
from .executor import Executor
from .protocol import (
    PROTOCOL,
    EventBatch,
    HeartbeatRequest,
    Inventory,
    OrderResult,
    Reading,
    WorkerStatus,
)
from .records import Records
from .spool import Spool

_log = structlog.get_logger("yoco.platform")
BACK_OFF_S = (0.2, 5.0)
PATIENCE_S = 0.25
"""What no job waits for is sent so much later, with what else there is then."""
DOORBELL_PATH = "/agent/v1/doorbell"
RING = "ring"


class PlatformLink:
    """Heartbeats, events, results and the doorbell of one node.

    ``heartbeats``, ``events``, ``results`` and ``doorbell`` run until they are cancelled. Each call
    has its time-out; after a failure they wait a little longer each time, and a success of any wakes
    the others.
    """

    def __init__(
        self,
        client: PlatformClient,
        token: str,
        spool: Spool,
        records: Records,
        executor: Executor,
        inventory: Inventory,
        inventory_hash: str,
        readings: Callable[[], list[Reading]],
        workers: Callable[[], list[WorkerStatus]],
    ) -> None:
        self.last_contact: float | None = None
        self.last_error = ""
        self.doorbell_open = False
        self._client = client
        self._token = token
        self._spool = spool
        self._records = records
        self._executor = executor
        self._inventory = inventory
        self._inventory_hash = inventory_hash
        self._readings = readings
        self._workers = workers
        self._beat_now = asyncio.Event()
        self._back = asyncio.Event()
        self._sequence = 0
        self._heartbeat_s = 2.0
        self._send_inventory = True

    def beat(self) -> None:
        """Send the next heartbeat now."""
        self._beat_now.set()

    async def heartbeats(self) -> None:
        while True:
            self._beat_now.clear()
            self._sequence += 1
            request = HeartbeatRequest(
                boot_id=self._spool.boot_id,
                sequence=self._sequence,
                inventory_hash=self._inventory_hash,
                inventory=self._inventory if self._send_inventory else None,
                readings=self._readings(),
                workers=self._workers(),
            )
            try:
                reply = await self._client.heartbeat(request)
            except (PlatformAway, PlatformRefused) as error:
                self._failed(error)
            else:
                self._heard()
                self._executor.take(reply.orders)
                self._heartbeat_s = min(max(reply.heartbeat_s, 0.1), 60.0)
                if reply.want_inventory and request.inventory is None:
                    self._beat_now.set()
                self._send_inventory = reply.want_inventory
            await _first(self._beat_now, self._heartbeat_s)

    async def events(self) -> None:
        """Send what the spool holds, oldest first, as soon as there is something."""
        pause, most = _BackOff(), 1_000_000
        while True:
            await self._spool.filled.wait()
            await _first(self._spool.pressing, PATIENCE_S)
            batch = self._spool.batch(most)
            if batch is None:
                continue
            try:
                reply = await self._client.events(
                    EventBatch(boot_id=batch.boot_id, events=batch.events)
                )
            except PlatformRefused as error:
                self._failed(error)
                if not _is_about_content(error):
                    await pause.wait(self._back)
                elif len(batch.events) > 1:
                    most = max(len(batch.events) // 2, 1)
                else:
                    self._spool.refuse(batch.boot_id, batch.events[0].sequence, error.code)
            except PlatformAway as error:
                self._failed(error)
                await pause.wait(self._back)
            else:
                pause, most = _BackOff(), 1_000_000
                self._heard()
                self._spool.accept(batch.boot_id, reply.accepted_to)
                self._executor.take(reply.orders)
                if reply.accepted_to < batch.events[0].sequence:
                    await pause.wait(self._back)

    async def results(self) -> None:
        pause = _BackOff()
        while True:
            await self._executor.results_ready.wait()
            self._executor.results_ready.clear()
            for result in self._records.unposted_results():
                if not await self._post(result):
                    self._executor.results_ready.set()
                    await pause.wait(self._back)
                    break
            else:
                pause = _BackOff()

    async def _post(self, result: OrderResult) -> bool:
        """False when it is to be tried again."""
        try:
            await self._client.order_result(result)
        except PlatformAway as error:
            self._failed(error)
            return False
        except PlatformRefused as error:
            self._failed(error)
            if not _is_about_content(error):
                return False
            _log.warning("result_refused", order=result.order_id, code=error.code)
        else:
            self._heard()
        self._records.mark_posted(result.order_id)
        return True

    async def doorbell(self) -> None:
        """Listen for the ring. It carries nothing: the heartbeat that follows fetches the orders."""
        address = self._client.platform.replace("http", "ws", 1) + DOORBELL_PATH
        headers = {"Authorization": f"Bearer {self._token}"}
        pause = _BackOff()
        while True:
            try:
                async with connect(
                    address,
                    additional_headers=headers,
                    open_timeout=5.0,
                    close_timeout=1.0,
                    ping_interval=10.0,
                    ping_timeout=10.0,
                    max_size=4096,
                    compression=None,
                    proxy=None,
                ) as bell:
                    pause, self.doorbell_open = _BackOff(), True
                    self._beat_now.set()
                    async for word in bell:
                        if word == RING:
                            self._beat_now.set()
            except (OSError, WebSocketException, TimeoutError) as error:
                _log.debug("doorbell_away", reason=str(error))
            finally:
                self.doorbell_open = False
            await pause.wait(self._back)

    def _heard(self) -> None:
        if self.last_error:
            _log.info("platform_back", protocol=PROTOCOL)
            self.last_error = ""
            self._back.set()
            self._back = asyncio.Event()
        self.last_contact = time.monotonic()

    def _failed(self, error: PlatformAway | PlatformRefused) -> None:
        words = f"{error.code}: {error.message}"
        if words != self.last_error:
            _log.warning("platform_failed", code=error.code, reason=error.message)
        self.last_error = words


class _BackOff:
    """Longer and longer waits, cut short when the platform is heard of again."""

    def __init__(self) -> None:
        self._next_s = BACK_OFF_S[0]

    async def wait(self, back: asyncio.Event) -> None:
        await _first(back, self._next_s * random.uniform(0.8, 1.2))
        self._next_s = min(self._next_s * 2, BACK_OFF_S[1])


async def _first(event: asyncio.Event, timeout_s: float) -> None:
    """Return when ``event`` is set, or after the time."""
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        pass


def _is_about_content(error: PlatformRefused) -> bool:
    """The message itself is refused: sending it again cannot help. A token can become valid again."""
    return error.status in (400, 404, 409, 410, 413, 422)
