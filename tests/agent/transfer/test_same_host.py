"""Two agents on one machine: which carrier is chosen, and taking the memory of the dead."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator

import msgspec
import pytest

from agent.transfer import errors, wire
from agent.transfer.carrier import Move
from agent.transfer.channel import Channel
from agent.transfer.digest import storages_digests
from agent.transfer.fetch import fetch
from agent.transfer.handshake import Pass
from agent.transfer.plan import make_plan
from agent.transfer.same_host_carrier import SameHostCarrier
from agent.transfer.state import TransferReport

from .arenas import MODEL, Arena, Tensor
from .ways import IDENTITY, Way

Pair = Callable[..., tuple[Arena, Arena]]


def close_all(report: TransferReport) -> None:
    for fd in report.taken_fds.values():
        os.close(fd)


def auto(way: Way, arena: Arena, target: Arena, **changes: str) -> TransferReport:
    stream = way.offer(arena.source())
    endpoint = msgspec.structs.replace(way.endpoint, **changes)
    return fetch(
        endpoint,
        stream.stream_id,
        stream.secret,
        stream.identity,
        target.target(),
        own_host_key="this machine",
    )


def test_agents_of_one_machine_find_the_same_host_carrier(same_host: Way, pair_of: Pair) -> None:
    assert auto(same_host, *pair_of()).carrier == "same_host"


@pytest.mark.parametrize(
    "changes",
    [{"host_key": "another machine"}, {"host_key": ""}, {"unix_path": ""}],
    ids=["another machine", "no key", "no socket"],
)
def test_otherwise_they_use_tcp(same_host: Way, pair_of: Pair, changes: dict[str, str]) -> None:
    source, target = pair_of()
    assert auto(same_host, source, target, **changes).carrier == "tcp"
    assert target.content() == source.content()


def test_one_machine_but_not_one_file_system_falls_back_to_tcp(
    same_host: Way, pair_of: Pair
) -> None:
    source, target = pair_of()
    assert auto(same_host, source, target, unix_path="/nowhere/data.sock").carrier == "tcp"


def test_asked_for_by_name_there_is_no_fall_back(same_host: Way, pair_of: Pair) -> None:
    source, target = pair_of()
    stream = same_host.offer(source.source())
    endpoint = msgspec.structs.replace(same_host.endpoint, unix_path="/nowhere/data.sock")
    with pytest.raises(errors.PeerUnreachable):
        fetch(
            endpoint, stream.stream_id, stream.secret, stream.identity, target.target(), "same_host"
        )


def test_the_socket_is_for_its_owner_alone_and_goes_with_the_server(same_host: Way) -> None:
    path = same_host.server.unix_path
    assert os.stat(path).st_mode & 0o777 == 0o600
    same_host.server.stop()
    assert not os.path.exists(path)


def test_the_memory_of_the_dead_is_taken_not_copied(same_host: Way, pair_of: Pair) -> None:
    source, target = pair_of()
    stream = same_host.offer(source.source({"fence": (184, b"private")}, takeable=True))
    report = same_host.fetch(stream, target.target(), take=True)
    identities = {
        each: (os.fstat(fd).st_dev, os.fstat(fd).st_ino) for each, fd in report.taken_fds.items()
    }
    assert identities == {
        each + 100: (os.fstat(fd).st_dev, os.fstat(fd).st_ino) for each, fd in source.fds.items()
    }
    assert (report.proof, report.carrier) == ("identity", "same_host_take")
    assert (report.bytes_moved, report.blobs) == (7, {"fence": (184, b"private")})
    assert report.source_digest == report.target_digest
    assert target.content() == [bytes(each.bytes) for each in target.manifest.storages]
    close_all(report)


def test_taken_memory_outlives_the_source(same_host: Way, arena_of: Callable[..., Arena]) -> None:
    source, target = Arena(MODEL).fill(), arena_of(MODEL)
    before = source.content()
    plan = make_plan(source.manifest, target.manifest)
    digests = storages_digests(plan, source.fds)
    report = same_host.fetch(
        same_host.offer(source.source(takeable=True)), target.target(), take=True
    )
    source.close()
    same_host.server.stop()
    assert [os.pread(fd, 1 << 30, 0) for fd in report.taken_fds.values()] == before
    assert storages_digests(plan, report.taken_fds) == digests
    close_all(report)


def test_other_memory_has_another_identity(same_host: Way, pair_of: Pair) -> None:
    digests = set()
    for source, target in (pair_of(), pair_of()):
        stream = same_host.offer(source.source(takeable=True))
        report = same_host.fetch(stream, target.target(), take=True)
        digests.add(report.source_digest)
        close_all(report)
    assert len(digests) == 2


def test_the_memory_of_the_living_is_copied_even_when_asked_for(
    same_host: Way, pair_of: Pair
) -> None:
    source, target = pair_of()
    report = same_host.fetch(same_host.offer(source.source()), target.target(), take=True)
    assert (report.carrier, report.taken_fds) == ("same_host", {})
    assert target.content() == source.content()


def test_more_storages_than_one_message_carries_are_taken(same_host: Way, pair_of: Pair) -> None:
    source, target = pair_of([Tensor(f"own {i}", storage=i) for i in range(600)])
    report = same_host.fetch(
        same_host.offer(source.source(takeable=True)), target.target(), take=True
    )
    assert sorted(report.taken_fds) == list(range(100, 700))
    close_all(report)


# --- a source that hands over something else ---


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    pair = [Channel(end, 2.0) for end in socket.socketpair()]
    yield pair[0], pair[1]
    for channel in pair:
        channel.close()


def take_from(ends: tuple[Channel, Channel], source: Arena, target: Arena, way: Way) -> None:
    plan = make_plan(source.manifest, target.manifest)
    held = Pass("s", IDENTITY, b"", "")
    move = Move(ends[0], held, plan, target.target(), 1, 2.0, take=True)
    SameHostCarrier(way.endpoint).move(move)


@pytest.mark.parametrize("lie", ["inode", "id", "twice", "count", "short"])
def test_a_descriptor_that_is_not_the_named_memory_is_refused_and_closed(
    ends: tuple[Channel, Channel], same_host: Way, pair_of: Pair, lie: str
) -> None:
    source, target = pair_of([Tensor("a"), Tensor("b", storage=1)])
    named = [(each, *_identity(fd)) for each, fd in source.fds.items()]
    fds = list(source.fds.values())
    if lie == "inode":
        named[1] = (1, named[1][1], named[1][2] + 1)
    elif lie == "id":
        named[1] = (9, *named[1][1:])
    elif lie == "twice":
        named[1], fds[1] = named[0], fds[0]
    elif lie == "count":
        fds = fds[:1]
    else:
        os.ftruncate(fds[1], 3)
    ends[1].send(wire.Descriptors(storages=named))
    ends[1].send_descriptors(fds)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(errors.ProtocolViolation):
        take_from(ends, source, target, same_host)
    assert len(os.listdir("/proc/self/fd")) == before


def _identity(fd: int) -> tuple[int, int]:
    stat = os.fstat(fd)
    return stat.st_dev, stat.st_ino
