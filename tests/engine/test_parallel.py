"""Parallelisms beside DDP and plain FSDP2: a rank is lost, the job goes on and equals its unbroken twin."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from agent.training.leaving import LEAVE_S

from .conftest import Twin, assert_identical
from .harness import Coordinator, Failed, Worker

Job = Callable[..., Coordinator]
STEPS = 8
COMMON = {"JOB_STEPS": str(STEPS), "JOB_WIDTH": "256"}
"""wide enough for shards of 64 KiB and more, which lie in the arena"""
HSDP = {"JOB_KIND": "hsdp", **COMMON}


def test_hsdp_ranks_find_out_by_themselves_who_holds_the_same_shard(job: Job) -> None:
    coordinator = job(6, options={"standbys": 0}, **HSDP)
    ranks = coordinator.ranks
    coordinator.run(lambda: all(worker.joined for worker in ranks.values()))
    groups = {
        rank: list(worker.joined.replica_group) for rank, worker in ranks.items() if worker.joined
    }
    assert groups == {
        0: [0, 3], 1: [1, 4], 2: [2, 5], 3: [0, 3], 4: [1, 4], 5: [2, 5],
    }  # fmt: skip
    assert {w.joined.parallelism for w in coordinator.ranks.values() if w.joined} == {"hsdp"}
    assert {w.joined.redundancy for w in coordinator.ranks.values() if w.joined} == {"replica"}


@pytest.mark.parametrize(
    ("ranks", "rank", "point", "source", "finish", "resume_at"),
    [
        (4, 1, "forward", "custody", "none", 5),
        (4, 3, "inside", "replica", "tail", 6),
        (4, 2, "tail", "custody", "tail", 6),
        (6, 4, "inside", "replica", "tail", 6),
    ],
)
def test_an_hsdp_rank_killed_at_this_point_is_replaced_bit_for_bit(
    job: Job,
    twin: Twin,
    ranks: int,
    rank: int,
    point: str,
    source: str,
    finish: str,
    resume_at: int,
) -> None:
    coordinator = job(ranks, JOB_KILL=f"{rank}:6:{point}", **HSDP)
    coordinator.open_gate()
    coordinator.run(coordinator.finished, 90)
    assert coordinator.moved == [(rank, source, finish)]
    assert coordinator.resume_at == resume_at
    assert_identical(coordinator, twin(ranks, **HSDP), ranks, STEPS)


@pytest.mark.parametrize("point", ["forward", "inside"])
def test_an_hsdp_ranks_lost_node_is_healed_from_the_rank_that_replicates_its_shard(
    job: Job, twin: Twin, point: str
) -> None:
    coordinator = job(4, JOB_KILL=f"2:6:{point}", **HSDP)
    coordinator.open_gate()
    coordinator.custody_lost.add(coordinator.ranks[2].pid)
    coordinator.run(coordinator.finished, 90)
    assert [(rank, name) for rank, name, _finish in coordinator.moved] == [(2, "replica")]
    assert_identical(coordinator, twin(4, **HSDP), 4, STEPS)


@pytest.mark.parametrize("point", ["forward", "inside"])
def test_two_nodes_of_different_shards_are_lost_at_once(job: Job, twin: Twin, point: str) -> None:
    options = {"standbys": 2}
    coordinator = job(6, options=options, JOB_KILL=f"0:6:{point},2:6:{point}", **HSDP)
    coordinator.open_gate()
    coordinator.custody_lost |= {coordinator.ranks[rank].pid for rank in (0, 2)}
    coordinator.run(coordinator.finished, 90)
    assert sorted(name for _rank, name, _finish in coordinator.moved) == ["replica", "replica"]
    assert_identical(coordinator, twin(6, **HSDP), 6, STEPS)


WIDE = {**HSDP, "JOB_WIDTH": "512"}
HALF_SENT = {"JOB_KILL": "2:6:inside", "JOB_SLOW_LINK": "0:1:7", **WIDE}
"""rank 2 dies inside its optimizer once ranks 0 and 1, which share no shard group with it, have received a
part of what they need of each other for their next forward pass"""


def test_survivors_leave_a_collective_that_is_half_sent_when_the_generation_ends(
    job: Job, twin: Twin
) -> None:
    coordinator = job(4, **HALF_SENT)
    coordinator.open_gate()
    coordinator.run(coordinator.finished, 60)
    assert coordinator.moved == [(2, "replica", "tail")]
    assert_identical(coordinator, twin(4, **WIDE), 4, STEPS)


def test_gloo_alone_would_keep_them_waiting(job: Job) -> None:
    coordinator = job(4, JOB_NEVER_LEAVES="1", **HALF_SENT)
    coordinator.open_gate()
    coordinator.run(lambda: coordinator.ranks[3].blocked is not None)
    with pytest.raises(Failed, match="timed out"):
        coordinator.run(
            lambda: any(map(coordinator.waits, (coordinator.ranks[0], coordinator.ranks[1]))),
            5 * LEAVE_S,
        )


@pytest.mark.parametrize("provisional", [1, 2, 3])
def test_a_standby_takes_another_place_in_both_dimensions_of_a_mesh(
    job: Job, twin: Twin, provisional: int
) -> None:
    options = {"provisional": provisional}
    coordinator = job(4, options=options, JOB_KILL="0:6:forward", **HSDP)
    coordinator.open_gate()
    dead, standby = coordinator.ranks[0], coordinator.warm_standbys()[0]
    assert groups_shown(standby) == groups_shown(coordinator.ranks[provisional])
    wanted = groups_shown(dead)
    assert groups_shown(standby) != wanted
    coordinator.run(coordinator.finished, 90)
    assert coordinator.moved == [(0, "custody", "none")]
    assert coordinator.ranks[0] is standby
    assert groups_shown(standby) == wanted
    assert_identical(coordinator, twin(4, **HSDP), 4, STEPS)


def groups_shown(worker: Worker) -> list[int]:
    """By these the judge of hangs knows which ranks wait for each other."""
    assert worker.header is not None
    return [group.key for group in worker.header.groups()]


@pytest.mark.parametrize(
    ("kind", "ranks", "rank", "point", "source", "finish", "provisional"),
    [
        # 160 columns over three ranks: 54, 54 and 52.
        ("tp", 3, 2, "forward", "custody", "none", 0),
        ("tp", 3, 0, "inside", "shadow", "apply", 0),
        ("tp", 3, 1, "tail", "custody", "tail", 2),
        ("tp_fsdp2", 4, 3, "forward", "custody", "none", 0),
        ("tp_fsdp2", 4, 1, "inside", "shadow", "apply", 2),
    ],
)
def test_a_tensor_parallel_rank_is_replaced_bit_for_bit(
    job: Job,
    twin: Twin,
    kind: str,
    ranks: int,
    rank: int,
    point: str,
    source: str,
    finish: str,
    provisional: int,
) -> None:
    settings = {"JOB_KIND": kind, **COMMON}
    options = {"provisional": provisional}
    coordinator = job(ranks, options=options, JOB_KILL=f"{rank}:6:{point}", **settings)
    coordinator.open_gate()
    coordinator.run(coordinator.finished, 120)
    assert coordinator.moved == [(rank, source, finish)]
    assert_identical(coordinator, twin(ranks, **settings), ranks, STEPS)


@pytest.mark.parametrize(("rank", "provisional"), [(2, 0), (0, 2)])
@pytest.mark.parametrize("redundancy", ["auto", "buddy"])
def test_a_rank_with_an_empty_shard_is_lost_and_another_takes_its_shapes(
    job: Job, twin: Twin, rank: int, provisional: int, redundancy: str
) -> None:
    settings = {"JOB_KIND": "fsdp2", "JOB_EMPTY": "1", **COMMON}
    options = {"provisional": provisional, "redundancy": redundancy}
    coordinator = job(3, options=options, JOB_KILL=f"{rank}:6:inside", **settings)
    if redundancy == "buddy":
        coordinator.custody_lost.add(coordinator.ranks[rank].pid)
    coordinator.open_gate()
    coordinator.run(coordinator.finished, 90)
    source = "buddy" if redundancy == "buddy" else "shadow"
    assert coordinator.moved == [(rank, source, "apply")]
    assert_identical(coordinator, twin(3, **settings), 3, STEPS)
