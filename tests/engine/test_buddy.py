"""Redundancy ``buddy``: the node of a rank whose shard nobody else holds is lost, and nothing is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from agent.custody import Arena
from agent.link import ArenaName, Regrouped

from .conftest import Twin, assert_identical
from .harness import Coordinator, Worker

Job = Callable[..., Coordinator]
STEPS = 9
FSDP = {"JOB_KIND": "fsdp2", "JOB_STEPS": str(STEPS), "JOB_WIDTH": "256"}
"""wide enough for shards of 64 KiB and more, which lie in the arena"""


def held(worker: Worker, which: ArenaName) -> Arena:
    arena = worker.custody.arena(which)
    assert arena is not None
    return arena


@pytest.mark.parametrize(
    ("point", "finishes", "resume_at"),
    [
        ("data", {"tail", "apply"}, 5),
        ("backward", {"tail", "apply"}, 5),
        ("prepared", {"none"}, 5),
        ("voted", {"apply"}, 6),
        ("inside", {"apply"}, 6),
        ("tail", {"tail", "apply"}, 6),
    ],
)
def test_a_lost_node_of_a_pure_shard_is_healed_from_its_buddy(
    job: Job, twin: Twin, point: str, finishes: set[str], resume_at: int
) -> None:
    rank = len(point) % 3
    coordinator = job(3, options={"redundancy": "buddy"}, JOB_KILL=f"{rank}:6:{point}", **FSDP)
    coordinator.run(coordinator.ready, 60)
    lost, keeper = coordinator.ranks[rank], coordinator.ranks[(rank + 1) % 3]
    sizes = [storage.bytes for storage in held(lost, "live").manifest.storages]
    assert min(sizes) >= 64 * 1024
    coordinator.open_gate()
    coordinator.custody_lost.add(lost.pid)
    coordinator.run(coordinator.finished, 60)
    kept = [held(keeper, name).manifest for name in ("buddy0", "buddy1")]
    assert [len(manifest.storages) for manifest in kept if manifest] == [len(sizes)] * 2
    ((moved, source, finish),) = coordinator.moved
    assert (moved, source) == (rank, "buddy")
    assert finish in finishes
    assert coordinator.resume_at == resume_at
    assert_identical(coordinator, twin(3, **FSDP), 3, STEPS)


@pytest.mark.parametrize("second", ["2:7:forward:1", "1:7:forward:1", "2:8:inside:1"])
def test_a_second_node_is_lost_before_and_after_the_copies_are_made_again(
    job: Job, twin: Twin, second: str
) -> None:
    options = {"redundancy": "buddy", "standbys": 2}
    coordinator = job(3, options=options, JOB_KILL=f"1:6:voted,{second}", **FSDP)
    rank = int(second[0])

    def lose_its_node_too(worker: Worker, message: Any) -> None:
        if isinstance(message, Regrouped) and (message.rank, message.generation) == (rank, 1):
            coordinator.custody_lost.add(worker.pid)

    coordinator.on_message = lose_its_node_too
    coordinator.open_gate()
    coordinator.custody_lost.add(coordinator.ranks[1].pid)
    coordinator.run(coordinator.finished, 60)
    assert [(r, source) for r, source, _ in coordinator.moved] == [(1, "buddy"), (rank, "buddy")]
    assert_identical(coordinator, twin(3, **FSDP), 3, STEPS)


def test_a_dead_keepers_agent_still_serves_what_it_kept(job: Job, twin: Twin) -> None:
    options = {"redundancy": "buddy", "standbys": 2}
    coordinator = job(3, options=options, JOB_KILL="1:6:forward,2:6:forward", **FSDP)
    coordinator.open_gate()
    coordinator.custody_lost.add(coordinator.ranks[1].pid)
    coordinator.run(coordinator.finished, 60)
    sources = {rank: source for rank, source, _finish in coordinator.moved}
    assert sources == {1: "buddy", 2: "custody"}
    assert_identical(coordinator, twin(3, **FSDP), 3, STEPS)


@pytest.mark.parametrize(
    ("point", "source", "finish"), [("forward", "custody", "none"), ("inside", "shadow", "apply")]
)
def test_a_lost_process_is_healed_from_its_own_node_as_under_shadow(
    job: Job, twin: Twin, point: str, source: str, finish: str
) -> None:
    coordinator = job(3, options={"redundancy": "buddy"}, JOB_KILL=f"1:6:{point}", **FSDP)
    coordinator.open_gate()
    coordinator.run(coordinator.finished, 60)
    assert coordinator.moved == [(1, source, finish)]
    survivor = coordinator.ranks[0]
    arena = held(survivor, "live").manifest
    told = survivor.costs[0]
    assert told["buddy_bytes"] > told["shadow_bytes"] == arena.total_bytes
    # The gradients go before the vote: a third of AdamW's weights, first and second moments.
    assert told["private_bytes"] > arena.total_bytes / 3
    assert min(told["buddy_ms"], told["shadow_ms"], told["vote_ms"]) > 0.0
    assert 0.0 <= told["buddy_wait_ms"] <= told["prepare_ms"]
    assert_identical(coordinator, twin(3, **FSDP), 3, STEPS)


def test_a_copy_follows_storages_that_come_late_and_an_agent_that_restarts(
    job: Job, twin: Twin
) -> None:
    settings = {"JOB_SECOND": "2", **FSDP}
    coordinator = job(3, options={"redundancy": "buddy"}, JOB_KILL="1:6:inside", **settings)
    coordinator.run(coordinator.ready)
    coordinator.restart_agent()
    coordinator.open_gate()
    coordinator.custody_lost.add(coordinator.ranks[1].pid)
    coordinator.run(coordinator.finished, 60)
    assert coordinator.moved == [(1, "buddy", "apply")]
    assert_identical(coordinator, twin(3, **settings), 3, STEPS)


def test_a_live_rank_is_moved_while_copies_are_under_way(job: Job, twin: Twin) -> None:
    coordinator = job(
        3, options={"redundancy": "buddy", "standbys": 2}, JOB_KILL="0:8:voted:1", **FSDP
    )
    coordinator.open_gate()
    coordinator.move(2)
    coordinator.custody_lost.add(coordinator.ranks[0].pid)
    coordinator.run(coordinator.finished, 60)
    assert coordinator.moved[0] == (2, "live", "none")
    assert coordinator.moved[1][:2] == (0, "buddy")
    assert_identical(coordinator, twin(3, **FSDP), 3, STEPS)
