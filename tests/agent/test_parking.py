"""Parked ranks: written to disk by real agents, found again, served to other nodes, refused when damaged."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from agent.parked_files import rank_found
from agent.protocol import (
    Adopt,
    MigrationFailed,
    ParkOrder,
    PauseOrder,
    RankBlocked,
    RankCommitted,
    RankExited,
    RankJoined,
    RankParked,
    ReleaseOrder,
    StopOrder,
    StoreRef,
    Transferred,
)
from agent.store_client import StoreClient

from .control_plane import ControlPlane
from .moving import Two
from .running import SECRET, launch, running


def park(job: Two, *ranks: int, step: int = 7, node: str = "node-a") -> str:
    port = job.plane.endpoints[node].store_port
    prefix = f"{job.job}-rank0/1"  # as the ranks' launch orders name it
    store = StoreRef(host="127.0.0.1", port=port, prefix=prefix, secret=SECRET)
    order = ParkOrder(
        job_id=job.job, attempt=1, generation=1, step=step, ranks=list(ranks), store=store
    )
    return job.plane.order(order, node=node)


def paused(job: Two, rank: int = 0, at: str = "at=7") -> str:
    """A rank on node-a that stands at a fence."""
    worker_id, port = f"{job.job}-rank{rank}", job.plane.endpoints["node-a"].store_port
    order = launch("worker.py", at, job_id=job.job, worker_id=worker_id, rank=rank, store_port=port)
    job.plane.order(order, node="node-a")
    job.plane.wait_event(RankJoined, worker_id=worker_id)
    job.kept("node-a", worker_id)
    job.plane.order(PauseOrder(job_id=job.job, attempt=1, generation=1, migration_id="p-1"))
    assert job.plane.wait_event(RankBlocked, worker_id=worker_id).outcome == "paused"
    return worker_id


def parked(job: Two) -> RankParked:
    """A rank that has been parked and whose worker has ended."""
    worker_id = paused(job)
    assert job.plane.wait_result(park(job, 0)).ok
    found: RankParked = job.plane.wait_event(RankParked, worker_id=worker_id)
    stop = StopOrder(job_id=job.job, attempt=1, worker_ids=[worker_id], reason="parked")
    assert job.plane.wait_result(job.plane.order(stop)).ok
    job.plane.wait_event(RankExited, worker_id=worker_id)
    return found


def resume(job: Two, standby: str) -> str:
    serve, fetch = job.stream(0, "custody", "all")
    job.regroup("node-a", 7, serve)
    adopt = Adopt(worker_id=standby, rank=0, finish="none", fetches=[fetch])
    return job.regroup("node-b", 7, adopt)


def test_a_parked_rank_goes_on_from_disk_on_another_node_after_its_worker_has_ended(
    two: Two,
) -> None:
    job = two.begin("parked")
    written = parked(job)
    assert two.a.worker(written.worker_id) is None
    assert (written.rank, written.step) == (0, 7)
    assert written.bytes_written == sum(
        path.stat().st_size for path in Path(written.folder).iterdir() if path.suffix != ".json"
    )
    standby = job.standby("node-b")
    assert two.plane.wait_result(resume(job, standby)).ok
    assert job.restored(standby) == {
        "storage": 7,
        "uniform": True,
        "blobs": {"small": [7, "small 7 of 0"], "fence": [7, "fence 7 of 0"]},
    }
    moved = two.plane.wait_event(Transferred, job_id=job.job)
    assert moved.source_digest == moved.target_digest != ""
    assert two.plane.wait_event(RankCommitted, worker_id=standby).step == 8


@pytest.mark.parametrize("name", ["arena", "fence", "header", "small"])
def test_a_flipped_byte_on_disk_is_found_and_nothing_of_it_is_run(two: Two, name: str) -> None:
    job = two.begin(f"flipped-{name}")
    path = Path(parked(job).folder) / name
    data = bytearray(path.read_bytes())
    data[40] ^= 1
    path.write_bytes(data)
    standby = job.standby("node-b")
    assert not two.plane.wait_result(resume(job, standby)).ok
    failed = two.plane.wait_event(MigrationFailed, worker_id=standby)
    assert f"is damaged: its file '{name}' digests to" in failed.message
    assert job.words("restored", standby) == []


def test_a_damaged_arena_leaves_the_private_state_beside_it_to_be_used(two: Two) -> None:
    job = two.begin("private-alone")
    arena = Path(parked(job).folder) / "arena"
    arena.write_bytes(b"?" * arena.stat().st_size)
    standby = job.standby("node-b")
    serve, fetch = job.stream(0, "custody", "private")
    job.regroup("node-a", 7, serve)
    adopt = Adopt(worker_id=standby, rank=0, finish="none", fetches=[fetch])
    assert two.plane.wait_result(job.regroup("node-b", 7, adopt)).ok
    assert job.restored(standby)["blobs"] == {"fence": [7, "fence 7 of 0"]}


def test_what_is_parked_outlives_its_agent_with_the_store_it_is_set_up_from(
    plane: ControlPlane, tmp_path: Path
) -> None:
    with running(plane, tmp_path / "a", "--carrier", "tcp") as a:
        job = Two(plane, a, a, "restart")
        worker_id = paused(job)
        address = ("127.0.0.1", plane.endpoints["node-a"].store_port, f"{worker_id}/1", SECRET)
        with closing(StoreClient(*address, timeout_s=10.0)) as client:
            client.set("setup/some", b"0")
        assert plane.wait_result(park(job, 0)).ok
        first = plane.wait_event(RankParked, worker_id=worker_id)
        a.end()
        a.start()
        plane.wait(lambda: len(plane.bodies(RankParked, worker_id=worker_id)) == 2, "said again")
        assert plane.bodies(RankParked, worker_id=worker_id) == [first, first]
        with closing(StoreClient(*address, timeout_s=10.0)) as client:
            assert client.get("setup/some") == b"0"


def test_parking_that_was_cut_short_leaves_nothing_after_a_restart(
    plane: ControlPlane, tmp_path: Path
) -> None:
    half = tmp_path / "a" / "parked" / "half" / "1.1.0.part"
    half.mkdir(parents=True)
    (half / "arena").write_bytes(b"torn")
    with running(plane, tmp_path / "a"):
        assert not half.exists()
        assert plane.bodies(RankParked) == []


def test_too_little_room_is_refused_in_words_and_the_rank_still_waits(
    plane: ControlPlane, tmp_path: Path
) -> None:
    with running(plane, tmp_path / "a", "--parked-bytes-max", "10000") as a:
        job = Two(plane, a, a, "no-room")
        worker_id = paused(job)
        refused = plane.wait_result(park(job, 0))
        assert (refused.ok, refused.code) == (False, "no_room_to_park")
        assert "and 10,000 are left of what this node keeps parked" in refused.message
        view = a.worker(worker_id)
        assert view is not None
        assert (view.state, view.custody) == ("blocked", "usable")
        assert not list((tmp_path / "a" / "parked").glob("*/*"))


def test_a_rank_that_does_not_stand_at_the_fence_is_not_parked(two: Two) -> None:
    job = two.begin("elsewhere")
    paused(job)
    refused = two.plane.wait_result(park(job, 0, step=8))
    assert (refused.ok, refused.code) == (False, "park_failed")
    assert "rank 0 does not stand at fence 8" in refused.message


@pytest.mark.parametrize(
    ("ranks", "generation", "kept"), [([0], 2, False), ([1], 2, True), ([0], 1, True)]
)
def test_parked_state_is_deleted_by_a_release_of_its_rank_and_generation(
    two: Two, ranks: list[int], generation: int, kept: bool
) -> None:
    job = two.begin(f"dropped-{ranks[0]}-{generation}")
    folder = Path(parked(job).folder)
    assert rank_found(folder) is not None
    release = ReleaseOrder(job_id=job.job, attempt=1, generation=generation, ranks=ranks)
    assert two.plane.wait_result(two.plane.order(release)).ok
    assert folder.exists() == kept


@pytest.mark.parametrize("attempt", [1, 2])
def test_a_stop_that_names_nobody_deletes_what_is_parked_and_one_that_names_its_worker_does_not(
    two: Two, attempt: int
) -> None:
    job = two.begin(f"let-go-{attempt}")
    written = parked(job)  # its worker was named in a stop, and what it wrote is still there
    assert rank_found(Path(written.folder)) is not None
    stop = StopOrder(job_id=job.job, attempt=attempt, worker_ids=[], reason="released")
    assert two.plane.wait_result(two.plane.order(stop)).ok
    assert not Path(written.folder).exists()
