"""A small real control plane: HTTP and websocket on a loopback port, everything kept in lists."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

import msgspec
import uvicorn

from agent.protocol import (
    Empty,
    Endpoint,
    EnrollReply,
    EnrollRequest,
    Event,
    EventBatch,
    EventBody,
    EventsReply,
    HeartbeatReply,
    HeartbeatRequest,
    Order,
    OrderBody,
    OrderResult,
)

WAIT_S = 10.0


class ControlPlane:
    """Order of calls: ``start``, then anything; ``stop``. ``stop`` and ``start`` again make an outage.

    ``events`` are those taken, once each; ``batches`` everything that was posted.
    """

    def __init__(self, heartbeat_s: float = 0.5) -> None:
        self.heartbeat_s = heartbeat_s
        self.enrollment_tokens = {"one-time", "one-time-b"}
        self.tokens: dict[str, str] = {}
        self.enrolled: list[EnrollRequest] = []
        self.endpoints: dict[str, Endpoint] = {}
        self.heartbeats: list[HeartbeatRequest] = []
        self.batches: list[EventBatch] = []
        self.events: list[tuple[str, Event, float]] = []
        self.results: list[OrderResult] = []
        self.orders: dict[str, tuple[str, Order, bool]] = {}
        self.want_inventory = False
        self.orders_in_events = True
        self.refuse_event: Callable[[Event], bool] = lambda event: False
        self.changed = threading.Condition()
        self.bells_opened = 0
        self._bells: set[asyncio.Queue[str]] = set()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port: int = self._listener.getsockname()[1]
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        if self._listener.fileno() < 0:
            self._listener = socket.create_server(("127.0.0.1", self.port), backlog=64)
        config = uvicorn.Config(
            self._app,
            log_level="error",
            lifespan="off",
            interface="asgi3",
            ws="websockets-sansio",
            access_log=False,
        )
        server = self._server = uvicorn.Server(config)
        ready = threading.Event()

        async def serve() -> None:
            self._loop = asyncio.get_running_loop()
            task = asyncio.create_task(server.serve([self._listener]))
            while not server.started:
                await asyncio.sleep(0.01)
            ready.set()
            await task

        self._thread = threading.Thread(target=lambda: asyncio.run(serve()))
        self._thread.start()
        assert ready.wait(5)

    def stop(self) -> None:
        """Gone: connections end, the port refuses."""
        if self._server is None or self._thread is None or self._loop is None:
            return
        self._server.force_exit = self._server.should_exit = True
        for bell in list(self._bells):
            self._loop.call_soon_threadsafe(bell.put_nowait, "close")
        self._thread.join(10)
        self._listener.close()
        self._server = None

    def order(
        self,
        body: OrderBody,
        *,
        node: str = "node-a",
        expires_in_s: float = 30.0,
        ring: bool = True,
    ) -> str:
        """Put an order in the node's hands; its id."""
        order_id = str(uuid.uuid4())
        order = Order(order_id=order_id, expires_in_s=expires_in_s, body=body)
        with self.changed:
            self.orders[order_id] = (node, order, False)
        if ring:
            self.ring()
        return order_id

    def again(self, order_id: str) -> None:
        """Send an order once more, as if its result had never come."""
        with self.changed:
            node, order, _sent = self.orders[order_id]
            self.orders[order_id] = (node, order, False)
        self.ring()

    def ring(self) -> None:
        assert self._loop is not None
        for bell in list(self._bells):
            self._loop.call_soon_threadsafe(bell.put_nowait, "ring")

    def wait(self, holds: Callable[[], Any], what: str, timeout_s: float = WAIT_S) -> Any:
        """The first true value of ``holds``, looked at whenever something arrives."""
        with self.changed:
            found = self.changed.wait_for(holds, timeout_s)
        assert found, (
            f"not within {timeout_s} s: {what}; events: {[e[1].body for e in self.events]}"
        )
        return found

    def wait_event(self, kind: type[EventBody], timeout_s: float = WAIT_S, **fields: Any) -> Any:
        """The body of the first event of this kind with these fields."""

        def found() -> EventBody | None:
            return next(iter(self.bodies(kind, **fields)), None)

        return self.wait(found, f"{kind.__name__} {fields}", timeout_s)

    def bodies(self, kind: type[EventBody], **fields: Any) -> list[Any]:
        return [
            event.body
            for _boot, event, _at in list(self.events)
            if isinstance(event.body, kind)
            and all(getattr(event.body, name) == value for name, value in fields.items())
        ]

    def wait_result(self, order_id: str, timeout_s: float = WAIT_S) -> OrderResult:
        def found() -> OrderResult | None:
            return next((r for r in self.results if r.order_id == order_id), None)

        result: OrderResult = self.wait(found, f"result of {order_id}", timeout_s)
        return result

    def count_results(self, order_id: str) -> int:
        return sum(r.order_id == order_id for r in self.results)

    # --- the server itself ---

    async def _app(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        headers = {k.decode(): v.decode() for k, v in scope.get("headers", [])}
        token = headers.get("authorization", "").removeprefix("Bearer ")
        if scope["type"] == "websocket":
            await self._doorbell(token, receive, send)
            return
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        status, reply = self._answer(scope["path"], token, body)
        await send(
            {
                "type": "http.response.start",
                "status": status,
                "headers": [(b"content-type", b"application/json")],
            }
        )
        await send({"type": "http.response.body", "body": msgspec.json.encode(reply)})

    def _answer(self, path: str, token: str, body: bytes) -> tuple[int, Any]:
        with self.changed:
            status, reply = self._decide(path, token, body)
            self.changed.notify_all()
        return status, reply

    def _decide(self, path: str, token: str, body: bytes) -> tuple[int, Any]:
        if path == "/agent/v1/enroll":
            return self._enroll(token, body)
        node = self.tokens.get(token)
        if node is None:
            return 401, {"code": "token_refused", "detail": "this token is not valid"}
        try:
            if path == "/agent/v1/heartbeat":
                return self._heartbeat(node, msgspec.json.decode(body, type=HeartbeatRequest))
            if path == "/agent/v1/events":
                return self._events(node, msgspec.json.decode(body, type=EventBatch))
            if path.startswith("/agent/v1/orders/"):
                self.results.append(msgspec.json.decode(body, type=OrderResult))
                return 200, Empty()
        except msgspec.DecodeError as error:
            return 400, {"code": "bad_message", "detail": str(error)}
        return 404, {"code": "not_found", "detail": path}

    def _enroll(self, token: str, body: bytes) -> tuple[int, Any]:
        if token not in self.enrollment_tokens:
            return 401, {"code": "token_refused", "detail": "this token is not valid"}
        self.enrollment_tokens.discard(token)
        request = msgspec.json.decode(body, type=EnrollRequest)
        self.endpoints[request.node] = request.inventory.endpoint
        self.enrolled.append(request)
        bound = f"bound-{request.node}-{uuid.uuid4()}"
        self.tokens[bound] = request.node
        return 200, EnrollReply(
            node_id=request.node, cluster="test", token=bound, heartbeat_s=self.heartbeat_s
        )

    def _heartbeat(self, node: str, request: HeartbeatRequest) -> tuple[int, Any]:
        self.heartbeats.append(request)
        wanted = self.want_inventory and request.inventory is None
        return 200, HeartbeatReply(
            policy_version=1,
            want_inventory=wanted,
            heartbeat_s=self.heartbeat_s,
            orders=self._pending(node),
        )

    def _events(self, node: str, batch: EventBatch) -> tuple[int, Any]:
        if any(self.refuse_event(event) for event in batch.events):
            return 400, {"code": "bad_message", "detail": "an event of this batch is not ours"}
        self.batches.append(batch)
        known = {(boot, event.sequence) for boot, event, _ in self.events}
        for event in batch.events:
            if (batch.boot_id, event.sequence) not in known:
                self.events.append((batch.boot_id, event, time.time()))
        orders = self._pending(node) if self.orders_in_events else []
        return 200, EventsReply(accepted_to=batch.events[-1].sequence, orders=orders)

    def _pending(self, node: str) -> list[Order]:
        pending = [o for owner, o, sent in self.orders.values() if owner == node and not sent]
        for order in pending:
            self.orders[order.order_id] = (node, order, True)
        return pending

    async def _doorbell(self, token: str, receive: Any, send: Any) -> None:
        await receive()
        if token not in self.tokens:
            await send({"type": "websocket.close", "code": 4401})
            return
        await send({"type": "websocket.accept"})
        bell: asyncio.Queue[str] = asyncio.Queue()
        self._bells.add(bell)
        with self.changed:
            self.bells_opened += 1
            self.changed.notify_all()
        gone = asyncio.create_task(receive())
        try:
            while True:
                word = asyncio.create_task(bell.get())
                await asyncio.wait((gone, word), return_when=asyncio.FIRST_COMPLETED)
                if gone.done() or word.result() == "close":
                    word.cancel()
                    return
                await send({"type": "websocket.send", "text": word.result()})
        finally:
            gone.cancel()
            self._bells.discard(bell)
