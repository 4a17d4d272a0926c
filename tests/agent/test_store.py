"""The key-value store over real sockets: what ranks rely on, and what a stranger gets."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from agent import store_wire
from agent.store_client import StoreClient, StoreError, StoreGone, StoreRefused, StoreTimeout
from agent.store_server import StoreServer

SECRET = "s3cret-of-generation-1"


class Running:
    """A store server in an event loop of its own thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()
        self.server = StoreServer("127.0.0.1")
        asyncio.run_coroutine_threadsafe(self.server.start(), self.loop).result(5)

    def call(self, function, *arguments):
        async def run():
            return function(*arguments)

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(5)

    def client(self, prefix: str = "a/1", secret: str = SECRET, **options) -> StoreClient:
        options.setdefault("connect_timeout_s", 2.0)
        return StoreClient("127.0.0.1", self.server.port, prefix, secret, **options)

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self.server.stop(), self.loop).result(5)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(5)
        self.loop.close()


@pytest.fixture
def store() -> Iterator[Running]:
    running = Running()
    running.call(running.server.open_prefix, "a/1", SECRET)
    yield running
    running.stop()


@pytest.fixture
def client(store: Running) -> Iterator[StoreClient]:
    client = store.client()
    yield client
    client.close()


def test_a_value_comes_back_as_it_was_set(client: StoreClient) -> None:
    value = bytes(range(256)) * 17
    client.set("key", value)
    assert client.get("key") == value
    client.set("empty", b"")
    assert client.get("empty") == b""


def test_get_waits_for_a_key_that_another_thread_sets(client: StoreClient) -> None:
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.get, "late", 5.0)
        assert not client.check(["late"])
        client.set("late", b"here")
        assert waiting.result(5) == b"here"


def test_get_of_a_key_that_never_comes_times_out_and_the_client_goes_on(
    client: StoreClient,
) -> None:
    began = time.monotonic()
    with pytest.raises(StoreTimeout, match="never"):
        client.get("never", 0.1)
    assert 0.1 <= time.monotonic() - began < 1.0
    client.set("other", b"1")
    assert client.get("other") == b"1"


def test_wait_returns_only_when_all_keys_are_there(client: StoreClient) -> None:
    client.set("one", b"")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.wait, ["one", "two"], 5.0)
        client.set("three", b"")
        assert not waiting.done()
        client.set("two", b"")
        assert waiting.result(5) is None
    with pytest.raises(StoreTimeout, match="four"):
        client.wait(["one", "four"], 0.05)


def test_add_counts_once_for_every_caller(store: Running, client: StoreClient) -> None:
    others = [store.client() for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        seen = list(pool.map(lambda i: others[i % 4].add("count", 1), range(200)))
    assert sorted(seen) == list(range(1, 201))
    assert client.add("count", -200) == 0
    assert client.get("count") == b"0"
    for other in others:
        other.close()


def test_add_to_something_that_is_no_counter_is_refused(client: StoreClient) -> None:
    client.set("text", b"abc")
    with pytest.raises(StoreError, match="counter"):
        client.add("text", 1)
    assert client.get("text") == b"abc"


def test_compare_set_follows_torchs_stores(client: StoreClient) -> None:
    assert client.compare_set("key", b"nothing", b"new") == b"nothing"
    assert not client.check(["key"])
    assert client.compare_set("key", b"", b"first") == b"first"
    assert client.compare_set("key", b"wrong", b"second") == b"first"
    assert client.compare_set("key", b"first", b"second") == b"second"
    assert client.get("key") == b"second"


def test_delete_num_keys_append_and_many_at_once(client: StoreClient) -> None:
    client.multi_set(["a", "b"], [b"1", b"2"])
    client.append("a", b"0")
    assert client.multi_get(["b", "a"]) == [b"2", b"10"]
    assert client.num_keys() == 2
    assert client.delete_key("a") is True
    assert client.delete_key("a") is False
    assert client.num_keys() == 1
    with pytest.raises(ValueError):
        client.multi_set(["a"], [])


def test_a_wrong_secret_is_refused(store: Running) -> None:
    with pytest.raises(StoreRefused):
        store.client(secret="guess")


def test_a_secret_opens_only_its_own_prefix(store: Running, client: StoreClient) -> None:
    store.call(store.server.open_prefix, "b/1", "other secret")
    with pytest.raises(StoreRefused):
        store.client("b/1", SECRET)
    other = store.client("b/1", "other secret")
    client.set("key", b"of a")
    assert not other.check(["key"])
    assert other.num_keys() == 0
    other.close()


def test_a_rank_that_comes_before_its_order_waits_for_the_prefix(store: Running) -> None:
    with ThreadPoolExecutor(1) as pool:
        early = pool.submit(store.client, "a/2", "second")
        time.sleep(0.1)
        assert not early.done()
        store.call(store.server.open_prefix, "a/2", "second")
        client = early.result(2)
        client.set("key", b"1")
        client.close()


def test_an_unknown_prefix_is_refused_when_patience_ends(store: Running) -> None:
    with pytest.raises(StoreRefused):
        store.client("nobody/1", SECRET, connect_timeout_s=0.1)


def test_opening_a_prefix_again_keeps_its_keys_and_another_secret_is_an_error(
    store: Running, client: StoreClient
) -> None:
    client.set("key", b"1")
    store.call(store.server.open_prefix, "a/1", SECRET)
    assert client.get("key") == b"1"
    with pytest.raises(ValueError, match="another secret"):
        store.call(store.server.open_prefix, "a/1", "another")


def test_deleting_a_prefix_ends_waits_and_drops_every_key(store: Running) -> None:
    client = store.client()
    client.set("key", b"1")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.get, "late", 30.0)
        while store.call(lambda: len(store.server._spaces["a/1"].waiters)) == 0:
            pass
        store.call(store.server.close_prefix, "a/1")
        with pytest.raises(StoreGone):
            waiting.result(5)
    store.call(store.server.open_prefix, "a/1", SECRET)
    fresh = store.client()
    assert fresh.num_keys() == 0
    fresh.close()
    client.close()


def test_close_ends_a_call_in_progress_in_another_thread(client: StoreClient) -> None:
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.get, "late", 30.0)
        time.sleep(0.1)
        began = time.monotonic()
        client.close()
        with pytest.raises(StoreGone):
            waiting.result(5)
        assert time.monotonic() - began < 1.0
    with pytest.raises(StoreGone):
        client.set("key", b"")


def test_a_client_that_dies_while_waiting_leaves_nothing_behind(store: Running) -> None:
    client = store.client()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.get, "late", 30.0)
        time.sleep(0.1)
        assert store.call(lambda: len(store.server._spaces["a/1"].waiters)) == 1
        client.close()
        with pytest.raises(StoreGone):
            waiting.result(5)
    deadline = time.monotonic() + 5
    while store.server.num_connections and time.monotonic() < deadline:
        time.sleep(0.01)
    assert store.server.num_connections == 0
    assert store.call(lambda: len(store.server._spaces["a/1"].waiters)) == 0


def _opened(store: Running) -> socket.socket:
    """A raw connection that has proved the secret."""
    raw = socket.create_connection(("127.0.0.1", store.server.port), 5)
    _code, (nonce,) = _frame(raw)
    mine = os.urandom(store_wire.NONCE_BYTES)
    shown = store_wire.proof(SECRET, b"client", nonce, mine, b"a/1")
    fields = [b"a/1", mine, shown, store_wire.integer(0)]
    raw.sendall(store_wire.pack(store_wire.Op.OPEN, fields))
    assert _frame(raw)[0] == store_wire.Status.OK
    return raw


def _frame(raw: socket.socket) -> tuple[int, list[bytes]]:
    head = raw.recv(4, socket.MSG_WAITALL)
    return store_wire.unpack(raw.recv(struct.unpack("<I", head)[0], socket.MSG_WAITALL))


@pytest.mark.parametrize(
    "sent",
    [
        struct.pack("<I", 0),
        struct.pack("<I", store_wire.FRAME_BYTES_MAX + 1),
        struct.pack("<IB", 1, 99),
        store_wire.pack(store_wire.Op.OPEN, []),
        store_wire.pack(store_wire.Op.SET, [b"key"]),
        store_wire.pack(store_wire.Op.SET, [b"", b"value"]),
        store_wire.pack(store_wire.Op.SET, [b"k" * 2000, b"value"]),
        store_wire.pack(store_wire.Op.GET, [b"short", b"key"]),
        struct.pack("<IBI", 5, store_wire.Op.SET, 1000),
    ],
)
def test_a_malformed_frame_is_answered_and_ends_that_connection_only(
    store: Running, client: StoreClient, sent: bytes
) -> None:
    client.set("kept", b"1")
    with _opened(store) as raw:
        raw.sendall(sent)
        assert _frame(raw)[0] == store_wire.Status.BAD_FRAME
        assert raw.recv(1) == b""
    assert client.num_keys() == 1


def test_an_oversize_or_malformed_opening_is_refused_before_it_is_read(store: Running) -> None:
    for sent in (struct.pack("<I", 1 << 31), store_wire.pack(store_wire.Op.SET, [b"k", b"v"])):
        with socket.create_connection(("127.0.0.1", store.server.port), 5) as raw:
            assert _frame(raw)[0] == store_wire.Status.CHALLENGE
            raw.sendall(sent)
            assert _frame(raw)[0] == store_wire.Status.REFUSED
            assert raw.recv(1) == b""


def test_a_server_that_does_not_know_the_secret_is_found_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def impostor() -> None:
            connection, _ = listener.accept()
            with connection:
                nonce = bytes(store_wire.NONCE_BYTES)
                connection.sendall(store_wire.pack(store_wire.Status.CHALLENGE, [nonce]))
                _frame(connection)
                connection.sendall(store_wire.pack(store_wire.Status.OK, [bytes(32)]))

        thread = threading.Thread(target=impostor)
        thread.start()
        with pytest.raises(StoreRefused):
            StoreClient("127.0.0.1", listener.getsockname()[1], "a/1", SECRET)
        thread.join(5)


def test_nobody_listening_is_one_clear_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(StoreGone, match=str(port)):
        StoreClient("127.0.0.1", port, "a/1", SECRET, connect_timeout_s=0.1)
