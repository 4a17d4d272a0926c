from __future__ import annotations

import socket
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from agent.transfer import errors
from agent.transfer.fetch import fetch
from agent.transfer.server import DataServer
from agent.transfer.state import TargetState
from agent.transfer.tcp_carrier import TcpCarrier
from agent.transfer.tls import TlsIdentity, connect_pinned, is_loopback

from .arenas import Arena
from .ways import Way

Pair = Callable[..., tuple[Arena, Arena]]


@pytest.fixture
def tls(tmp_path: Path) -> Iterator[Way]:
    made = Way("tls", tmp_path)
    yield made
    made.close()


def test_an_identity_is_made_once_and_its_key_is_private(tmp_path: Path) -> None:
    first = TlsIdentity.load_or_create(tmp_path / "tls")
    again = TlsIdentity.load_or_create(tmp_path / "tls")
    assert first == again
    assert stat.S_IMODE(first.key.stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "tls").stat().st_mode) == 0o700


def test_two_agents_have_different_certificates(tmp_path: Path) -> None:
    one, two = (TlsIdentity.load_or_create(tmp_path / name) for name in ("one", "two"))
    assert one.fingerprint != two.fingerprint


def test_an_unreadable_certificate_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "broken.pem").write_text("not a certificate")
    with pytest.raises(errors.TlsFailed, match=r"broken\.pem"):
        TlsIdentity.load(tmp_path / "broken.pem", tmp_path / "missing.pem")


def test_another_certificate_than_the_endpoints_hears_nothing(tls: Way, pair_of: Pair) -> None:
    source, target = pair_of()
    stream = tls.offer(source.source())
    wrong = msgspec.structs.replace(tls.endpoint, tls_fingerprint="0" * 64)
    with pytest.raises(errors.TlsFailed, match="certificate"):
        tls.fetch(stream, target.target(), carrier=TcpCarrier(wrong))
    tls.fetch(stream, target.target())
    tls.settle()
    assert target.content() == source.content()


def test_a_plain_target_gets_nothing_from_an_encrypted_port(tls: Way, pair_of: Pair) -> None:
    source, target = pair_of()
    plain = msgspec.structs.replace(tls.endpoint, tls_fingerprint="")
    with pytest.raises(errors.TransferError):
        tls.fetch(tls.offer(source.source()), target.target(), carrier=TcpCarrier(plain))
    tls.settle()
    assert target.content() == [bytes(each.bytes) for each in target.manifest.storages]


def test_an_encrypted_target_does_not_fall_back_to_a_plain_port(tcp: Way, pair_of: Pair) -> None:
    source, target = pair_of()
    pinned = msgspec.structs.replace(tcp.endpoint, tls_fingerprint="0" * 64)
    with pytest.raises(errors.TlsFailed):
        tcp.fetch(tcp.offer(source.source()), target.target(), carrier=TcpCarrier(pinned))


def test_off_loopback_a_server_encrypts_by_itself(tmp_path: Path) -> None:
    server = DataServer("0.0.0.0")
    server.start()
    try:
        assert server.tls == "pinned"
        assert len(server.tls_fingerprint) == 64
    finally:
        server.stop()


def test_encryption_can_be_turned_off_and_then_says_so(tmp_path: Path) -> None:
    server = DataServer("0.0.0.0", tls="off")
    server.start()
    try:
        assert (server.tls, server.tls_fingerprint) == ("off", "")
    finally:
        server.stop()


def test_off_loopback_a_target_refuses_plain_streams_unless_told(tcp: Way) -> None:
    elsewhere = msgspec.structs.replace(tcp.endpoint, host="192.0.2.7", tls_fingerprint="")
    stream = tcp.stream()
    with pytest.raises(errors.TlsRequired):
        fetch(elsewhere, stream.stream_id, stream.secret, stream.identity, TargetState())
    assert TcpCarrier(elsewhere, tls="off").tls_fingerprint == ""


def test_a_relay_that_ends_the_encryption_is_found_out(
    tls: Way, pair_of: Pair, tmp_path: Path
) -> None:
    """Even one whose certificate the target was made to trust: the proof covers what each side saw."""
    source, target = pair_of()
    relay = Relay(TlsIdentity.load_or_create(tmp_path / "relay"), tls)
    fooled = msgspec.structs.replace(
        tls.endpoint, data_port=relay.port, tls_fingerprint=relay.fingerprint
    )
    with pytest.raises(errors.SecretRefused):
        tls.fetch(tls.offer(source.source()), target.target(), carrier=TcpCarrier(fooled))
    relay.close()
    tls.settle()


class Relay:
    """Decrypts towards the target, encrypts towards the source, reads along."""

    def __init__(self, identity: TlsIdentity, way: Way) -> None:
        self.fingerprint = identity.fingerprint
        self._context = identity.server_context()
        self._way = way
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        raw, _ = self._listener.accept()
        target = self._context.wrap_socket(raw, server_side=True)
        address = ("127.0.0.1", self._way.server.port)
        source = connect_pinned(socket.create_connection(address), self._way.server.tls_fingerprint)
        for reader, writer in (
            (target, source),
            (source, target),
            (target, source),
            (source, target),
        ):
            writer.sendall(reader.recv(65536))
        target.close()
        source.close()

    def close(self) -> None:
        self._thread.join(timeout=5)
        self._listener.close()


@pytest.mark.parametrize(
    ("host", "here"),
    [
        ("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("localhost", True),
        ("10.0.0.1", False), ("0.0.0.0", False), ("::", False), ("node-7", False),
    ],
)  # fmt: skip
def test_what_counts_as_loopback(host: str, here: bool) -> None:
    assert is_loopback(host) is here
