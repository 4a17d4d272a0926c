"""Custody, links, spool, sources of configuration: the parts of the agent by themselves."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

import pytest

from agent import link
from agent.config import load
from agent.custody import SLOT_NAMES, Custody, CustodyRefused
from agent.errors import ConfigInvalid
from agent.links import WorkerLink
from agent.protocol import Checkpointed, NotJoined, Points
from agent.spool import POINTS_LENGTH_MAX, Spool
from agent.transfer.arena import MARK_EVERY, Header, Slots
from agent.transfer.manifest import Manifest, StorageEntry, TensorEntry

SIZE = 512


def _memfd(size: int, data: bytes = b"") -> int:
    fd = os.memfd_create("test")
    os.ftruncate(fd, size)
    os.pwrite(fd, data, 0)
    return fd


def _layout() -> list[int]:
    header = Header.create()
    header.set("applied", 3)
    header.set("unclean", 0)
    slots = [Slots.create(name, SIZE) for name in SLOT_NAMES]
    slots[1].write(0, 3, b"fence")
    fds = [os.dup(header.fd), *(os.dup(each.fd) for each in slots)]
    for page in (header, *slots):
        page.close()
    return fds


def _manifest(*ids: int) -> bytes:
    tensors = [
        TensorEntry.of(f"t{i}", "parameter", shape=[SIZE], dtype="uint8", strides=[1], storage_id=i)
        for i in ids
    ]
    return Manifest.build([StorageEntry(i, SIZE) for i in ids], tensors).encode()


def _part(part: int, parts: int, ids: list[int], epoch: int = 1) -> link.ArenaShared:
    return link.ArenaShared(which="live", epoch=epoch, part=part, parts=parts, storage_ids=ids)


def _num_fds() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_an_arena_is_whole_when_all_its_parts_have_come_in_any_order() -> None:
    before = _num_fds()
    custody = Custody()
    assert custody.state == "none"
    custody.take_layout(_layout())
    assert custody.state == "unavailable"
    paper = _manifest(1, 2, 3)
    assert not custody.take_part(_part(1, 2, [3]), [_memfd(SIZE)])
    fds = [_memfd(len(paper), paper), _memfd(SIZE), _memfd(SIZE)]
    assert custody.take_part(_part(0, 2, [1, 2]), fds)
    assert custody.state == "usable"
    assert custody.num_fds == 10
    assert custody.blob("fence", 3) is not None
    custody.close()
    assert _num_fds() == before


def test_a_newer_epoch_replaces_an_arena_and_lets_the_old_one_go() -> None:
    custody = Custody()
    custody.take_layout(_layout())
    paper = _manifest(1)
    for epoch in (1, 2, 3):
        fds = [_memfd(len(paper), paper), _memfd(SIZE)]
        assert custody.take_part(_part(0, 1, [1], epoch), fds)
        custody.take_layout(_layout())
    before = _num_fds()
    assert custody.take_part(_part(0, 1, [1], 4), [_memfd(len(paper), paper), _memfd(SIZE)])
    assert _num_fds() == before
    custody.close()


@pytest.mark.parametrize(
    ("ids", "make"),
    [
        ([1], lambda: [_memfd(4, b"{}{}"), _memfd(SIZE)]),
        ([1], lambda: [_memfd(len(_manifest(1)), _manifest(1))]),
        ([1, 1], lambda: [_memfd(len(_manifest(1)), _manifest(1)), _memfd(SIZE), _memfd(SIZE)]),
        ([2], lambda: [_memfd(len(_manifest(1)), _manifest(1)), _memfd(SIZE)]),
        ([1], lambda: [_memfd(len(_manifest(1)), _manifest(1)), _memfd(SIZE - 1)]),
    ],
)
def test_descriptors_that_do_not_make_an_arena_are_refused_and_closed(ids, make) -> None:
    custody = Custody()
    custody.take_layout(_layout())
    before = _num_fds()
    with pytest.raises(CustodyRefused):
        custody.take_part(_part(0, 1, ids), make())
    assert _num_fds() == before
    assert custody.state == "unavailable"
    custody.close()


def test_a_layout_of_too_few_pages_is_refused_and_closed() -> None:
    custody, before = Custody(), _num_fds()
    with pytest.raises(CustodyRefused):
        custody.take_layout([_memfd(4096)])
    with pytest.raises(CustodyRefused):
        custody.take_layout([_memfd(10), *(_memfd(SIZE) for _ in range(6))])
    fds = _layout()
    os.close(fds[6])
    with pytest.raises(CustodyRefused, match="sealed"):
        custody.take_layout([*fds[:6], _memfd(4096)])
    assert _num_fds() == before


def test_a_workers_last_words_are_heard_although_it_read_none_of_ours() -> None:
    heard: list[object] = []

    async def scene() -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        end = WorkerLink(ours, lambda message, fds: heard.append(message))
        end.send(link.ArenaKept(which="live", epoch=1))
        link.send(theirs, link.Hello(pid=1))
        link.send(theirs, link.Finished(step=7, trail_head="t"))
        theirs.close()
        end.send(link.ArenaKept(which="live", epoch=2))
        end.drain()
        assert not end.open

    asyncio.run(scene())
    assert heard == [link.Hello(pid=1), link.Finished(step=7, trail_head="t")]


def test_a_packet_that_is_not_ours_ends_the_link_and_closes_its_descriptors() -> None:
    async def scene() -> None:
        before = _num_fds()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        end = WorkerLink(ours, lambda message, fds: None)
        fd = _memfd(10)
        socket.send_fds(theirs, [b'{"type": "nonsense"}'], [fd])
        os.close(fd)
        end.drain()
        assert not end.open
        theirs.close()
        assert _num_fds() == before

    asyncio.run(scene())


def _checkpoint(step: int) -> Checkpointed:
    return Checkpointed(job_id="j", attempt=1, generation=1, worker_id="w", rank=0, step=step)


def test_the_spool_keeps_order_and_identity_over_a_restart(tmp_path: Path) -> None:
    async def scene() -> None:
        spool = Spool(tmp_path / "spool", "boot-1")
        for step in range(5):
            spool.append(_checkpoint(step))
        spool.accept("boot-1", 2)
        spool.close()
        spool = Spool(tmp_path / "spool", "boot-2")
        assert spool.filled.is_set()
        spool.append(_checkpoint(9))
        first = spool.batch()
        assert (first.boot_id, [e.sequence for e in first.events]) == ("boot-1", [3, 4, 5])
        spool.accept("boot-1", 5)
        second = spool.batch()
        assert (second.boot_id, [e.sequence for e in second.events]) == ("boot-2", [1])
        spool.accept("boot-2", 1)
        assert (spool.batch(), len(spool), spool.filled.is_set()) == (None, 0, False)
        spool.close()

    asyncio.run(scene())


def test_evidence_waits_for_company_and_trouble_presses(tmp_path: Path) -> None:
    async def scene() -> None:
        spool = Spool(tmp_path / "spool", "boot-1")
        spool.append(_checkpoint(1))
        assert (spool.filled.is_set(), spool.pressing.is_set()) == (True, False)
        spool.append(NotJoined(job_id="j", attempt=1, generation=1, worker_id="w", rank=0))
        assert spool.pressing.is_set()
        spool.accept("boot-1", 2)
        assert (spool.filled.is_set(), spool.pressing.is_set()) == (False, False)
        spool.append(_checkpoint(2))
        spool.close()
        spool = Spool(tmp_path / "spool", "boot-2")
        assert spool.pressing.is_set()
        spool.close()

    asyncio.run(scene())


def test_a_full_spool_drops_points_and_nothing_else(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("agent.spool.POINTS_LENGTH_MAX", 3)
    assert POINTS_LENGTH_MAX == 50_000

    async def scene() -> None:
        spool = Spool(tmp_path / "spool", "boot")
        points = Points(
            job_id="j", attempt=1, generation=1, worker_id="w", rank=0, points=[(1, 1.0, 1.0, 1.0)]
        )
        for _ in range(5):
            spool.append(points)
        assert (len(spool), spool.dropped_points) == (3, 2)
        assert spool.append(_checkpoint(1)) is not None
        spool.close()

    asyncio.run(scene())


def test_the_command_line_beats_the_environment_which_beats_the_file(tmp_path: Path) -> None:
    file = tmp_path / "agent.toml"
    file.write_text('pool = "file"\nrack = "file"\nname = "file"\nallow_users = ["ann"]\n')
    environment = {"YOCO_RACK": "env", "YOCO_NODE_NAME": "env", "YOCO_ALLOW_COMMANDS": "/a b, /c"}
    arguments = {"config": str(file), "state_dir": str(tmp_path), "name": "line", "pool": None}
    found = load(arguments, environment)
    assert (found.pool, found.rack, found.name) == ("file", "env", "line")
    assert found.allow_users == ("ann",)
    assert found.command_prefixes == (("/a", "b"), ("/c",))


def test_the_token_may_be_in_a_file_that_is_gone_once_it_is_used(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("once-only\n")
    given = {"YOCO_TOKEN_FILE": str(tmp_path / "token")}
    gone = {"YOCO_TOKEN_FILE": str(tmp_path / "gone")}
    folder = {"YOCO_TOKEN_FILE": str(tmp_path)}
    state = {"state_dir": str(tmp_path)}
    assert load(state, given).token == "once-only"
    assert load(state, {**given, "YOCO_TOKEN": "itself"}).token == "itself"
    assert load(state, gone).token == ""
    with pytest.raises(ConfigInvalid, match="YOCO_TOKEN_FILE"):
        load(state, folder)


@pytest.mark.parametrize(
    ("text", "environment"),
    [
        ("unknown = 1", {}),
        ('token = "secret"', {}),
        ("pool = 7", {}),
        ("simulate_gpus = true", {}),
        ("not toml", {}),
        ("", {"YOCO_SIMULATE_GPUS": "many"}),
        ("", {"YOCO_ALLOW_ROOT": "yes"}),
        ("", {"YOCO_BIND": "not an address"}),
        ("", {"YOCO_CARRIER": "pigeon"}),
        ("", {"YOCO_PLATFORM": "ftp://x"}),
        ("", {"YOCO_TLS_KEY": "/only/a/key"}),
        ("", {"YOCO_ALLOW_COMMANDS": "'"}),
        ("", {"YOCO_ALLOW_COMMANDS": "/usr/bin/python3, python3 /opt/jobs/"}),
        ('allow_commands = ["./run"]', {}),
    ],
)
def test_a_bad_configuration_is_one_clear_error(
    tmp_path: Path, text: str, environment: dict[str, str]
) -> None:
    file = tmp_path / "agent.toml"
    file.write_text(text)
    with pytest.raises(ConfigInvalid):
        load({"config": str(file), "state_dir": str(tmp_path)}, environment)


def test_a_state_directory_is_needed() -> None:
    with pytest.raises(ConfigInvalid, match="state"):
        load({}, {})


HEADS = [f"{number:032x}" for number in (2**127 + 1, 2**64 - 1, 0)]


def test_the_trails_head_at_the_fence_is_read_from_the_page_of_a_dead_rank() -> None:
    header = Header.create()
    assert header.position().trail_head == ""
    for step, head in enumerate(HEADS, start=4):
        header.set_head(step, head)
        assert header.head(step) == head
        header.set("fence", step)
        assert header.position().trail_head == head
    assert [header.head(step) for step in (4, 5, 6)] == ["", HEADS[1], HEADS[2]]
    header.close()


def test_a_head_of_another_step_is_never_given_for_the_fence() -> None:
    """A standby that was given a rank's state stands at a fence whose head it has not made itself."""
    header = Header.create()
    header.set_head(2, HEADS[0])
    header.set("fence", 4)

    assert header.position().trail_head == ""
    header.close()


def test_the_newest_mark_outlives_the_heads_of_the_steps_that_follow() -> None:
    header = Header.create()
    assert header.mark() == (-1, "")
    for step, head in (
        (MARK_EVERY, HEADS[0]),
        (MARK_EVERY + 1, HEADS[1]),
        (MARK_EVERY + 2, HEADS[2]),
    ):
        header.set_head(step, head)
    assert header.mark() == (MARK_EVERY, HEADS[0])
    header.set_head(2 * MARK_EVERY, HEADS[2])
    assert header.mark() == (2 * MARK_EVERY, HEADS[2])
    header.close()
