"""A lower job is parked for a higher one and comes back: rows, orders and words."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from agent import protocol
from jobs import services
from jobs.errors import StepRefused
from jobs.models import Incident, Job, JobTransition, Migration, Parking, Worker
from jobs.reconcile import reconcile_all
from jobs.reconcile.preempting import make_room
from jobs.reconcile.view import view_of
from jobs.services.parkings import parking_step
from jobs.states import (
    PARKING_FINAL,
    PARKING_STEPS,
    JobState,
    MigrationState,
    ParkingState,
    Verdict,
    WorkerState,
)
from nodes.models import Node
from nodes.services import node_step
from nodes.states import NodeState
from yoco_platform.core import clock

from .clockwork import Clockwork
from .situations import at
from .world import OPERATOR, World, who

pytestmark = pytest.mark.django_db
STEP = 186
QUERIES_FOR_ROOM = 17


@pytest.fixture
def crowd(db: None) -> World:
    """Six nodes: exactly enough for two jobs of three ranks."""
    return World(num_nodes=6)


def two_jobs(world: World, **lower: Any) -> tuple[Job, Job]:
    high = world.trained(name="high", priority=5, standbys=0)
    fields = {"name": "low", "priority": 1, "preemptible": True, "standbys": 0}
    return high, world.trained(**{**fields, **lower})


def cordon(node_id: int) -> None:
    node = Node.objects.get(pk=node_id)
    node_step(node=node, to=NodeState.CORDONED, reason="broken", actor="test")


def lose_a_node(world: World, job: Job) -> None:
    """Rank 1 is killed and its node is of no use any more; the others stop."""
    killed = world.rank(job, 1)
    cordon(killed.node_id)
    world.kill(job, 1, at(184))
    for rank in (0, 2):
        world.block(job, rank, at(184))
    reconcile_all()


def pause(world: World, job: Job) -> None:
    reconcile_all()
    for rank in range(3):
        world.block(job, rank, at(STEP, prepared=STEP), "paused")


def write(world: World, job: Job) -> dict[int, protocol.ParkOrder]:
    """Every agent follows its park order; the orders by node."""
    orders = {}
    for agent in world.agents:
        for order in agent.take(protocol.ParkOrder):
            orders[agent.node.pk] = order
            for rank in order.ranks:
                agent.report(on_disk(world.rank(job, rank), order.step))
    return orders


def on_disk(worker: Worker, step: int = STEP) -> protocol.RankParked:
    assert worker.rank is not None
    return protocol.RankParked(
        **who(worker),
        rank=worker.rank,
        step=step,
        digest=f"d{worker.rank}",
        bytes_written=4096,
        folder=f"/parked/{worker.rank}",
    )


def parked(world: World, **lower: Any) -> tuple[Job, Job]:
    high, low = two_jobs(world, **lower)
    lose_a_node(world, high)
    pause(world, low)
    write(world, low)
    for rank in range(3):
        # Their agents end them and keep nothing of them in memory: what counts is on disk.
        world.kill(low, rank, None, custody="none", signal=None, exit_code=0)
    high.refresh_from_db()
    low.refresh_from_db()
    return high, low


def test_the_lower_job_is_parked_at_a_fence_and_the_higher_goes_on_in_its_place(
    crowd: World,
) -> None:
    high, low = two_jobs(crowd)
    seats = {worker.node_id for worker in crowd.ranks(low)}
    lose_a_node(crowd, high)
    pause(crowd, low)
    orders = write(crowd, low)
    low.refresh_from_db()
    assert (low.state, low.committed_step) == (JobState.PARKED, STEP)
    assert {node: order.ranks for node, order in orders.items()} == {
        worker.node_id: [worker.rank] for worker in crowd.ranks(low)
    }
    reconcile_all()
    crowd.launch(high)
    incident = crowd.heal(high)

    assert (high.state, incident.verdict) == (JobState.RUNNING, Verdict.COVERED)
    assert crowd.rank(high, 1).node_id in seats


def test_parking_is_no_failure_and_its_row_says_why_and_where(crowd: World) -> None:
    high, low = parked(crowd)
    parking = Parking.objects.get()

    assert not Incident.objects.filter(job=low).exists()
    assert (parking.state, parking.step, parking.for_job) == (ParkingState.PARKED, STEP, high)
    assert parking.reasons[-1] == "low: priority 1, may be parked, frees 3 places"
    assert parking.ranks["2"]["folder"] == "/parked/2"
    assert JobTransition.objects.filter(job=low).latest("pk").reason == (
        "parked at step 186, waiting for 3 nodes: a job of higher priority took its places"
    )
    assert low.protection_reason == "parked: its state is on disk, each rank on one node"


def test_no_worker_is_ended_before_every_rank_is_on_disk(crowd: World) -> None:
    high, low = two_jobs(crowd)
    lose_a_node(crowd, high)
    pause(crowd, low)
    for rank in (0, 1):
        worker = crowd.rank(low, rank)
        crowd.agent_of(worker).report(on_disk(worker))
    assert [w.state for w in crowd.ranks(low)] == [WorkerState.BLOCKED] * 3
    assert not [stop for agent in crowd.agents for stop in agent.take(protocol.StopOrder)]
    last = crowd.rank(low, 2)
    crowd.agent_of(last).report(on_disk(last))

    assert [w.state for w in crowd.ranks(low)] == [WorkerState.EXITED] * 3
    assert all(w.holds_state for w in crowd.ranks(low))
    ended = [stop for agent in crowd.agents for stop in agent.take(protocol.StopOrder)]
    assert len(ended) == 3


def test_a_parked_job_leaves_the_place_it_gave_up_to_whom_it_gave_it(crowd: World) -> None:
    high, low = parked(crowd)
    reconcile_all()
    low.refresh_from_db()
    standby = Worker.objects.get(job=high, rank__isnull=True)

    assert low.state == JobState.PARKED
    assert standby.node_id in {worker.node_id for worker in crowd.ranks(low)}
    assert Parking.objects.get().words == (
        "parked at step 186, waiting for 1 node: 2 of 3 places are free"
    )


def test_a_parked_job_comes_back_by_its_kept_state_where_there_is_room(crowd: World) -> None:
    high, low = parked(crowd)
    reconcile_all()
    crowd.launch(high)
    crowd.heal(high)
    services.job_cancel(viewer=OPERATOR, job_id=high.pk, reason="done")
    reconcile_all()
    low.refresh_from_db()
    assert (low.state, Parking.objects.get().state) == (JobState.RECOVERING, ParkingState.RESUMING)
    crowd.launch(low)
    orders = crowd.regroup(low)
    roles = [role for order in orders.values() for role in order.roles]
    served = sorted(r.rank for r in roles if isinstance(r, protocol.Serve))
    assert served == [0, 1, 2]
    assert {r.holder for r in roles if isinstance(r, protocol.Serve)} == {"custody"}
    assert {order.resume_at for order in orders.values()} == {STEP}
    crowd.transfer(low, orders)
    crowd.rejoin_and_commit(low)
    reconcile_all()
    low.refresh_from_db()

    assert (low.state, low.generation, low.attempt) == (JobState.RUNNING, 2, 1)
    assert Parking.objects.get().state == ParkingState.RESUMED
    assert Migration.objects.get(job=low).state == MigrationState.DONE
    assert not Incident.objects.filter(job=low).exists()
    releases = [r for agent in crowd.agents for r in agent.take(protocol.ReleaseOrder)]
    assert sorted(r.ranks for r in releases if r.job_id == str(low.pk)) == [[0], [1], [2]]


def test_without_room_on_its_disk_nothing_ends_and_the_job_goes_on(crowd: World) -> None:
    high, low = two_jobs(crowd)
    lose_a_node(crowd, high)
    pause(crowd, low)
    agent = crowd.agent_of(crowd.rank(low, 1))
    agent.beat()
    (order,) = [o for o in agent.orders if isinstance(o.body, protocol.ParkOrder)]
    words = "parking needs 10 bytes and 3 are left"
    agent.answer(order, ok=False, code="no_room_to_park", message=words)
    reconcile_all()
    crowd.transfer(low, crowd.regroup(low))
    crowd.rejoin_and_commit(low)
    reconcile_all()
    low.refresh_from_db()
    parking = Parking.objects.get()
    waiting = Incident.objects.get(job=high).waiting_for

    assert (low.state, low.generation) == (JobState.RUNNING, 2)
    assert parking.state == ParkingState.FAILED
    assert words in parking.words
    assert not Incident.objects.filter(job=low).exists()
    assert waiting.endswith("no job can be parked for it (1 not parkable now)")


def test_an_agent_that_restarts_while_ranks_are_written_opens_no_incident(crowd: World) -> None:
    high, low = two_jobs(crowd)
    lose_a_node(crowd, high)
    pause(crowd, low)
    assert Parking.objects.get().state == ParkingState.WRITING
    crowd.block(low, 0, at(STEP, prepared=STEP), "paused")
    assert not Incident.objects.filter(job=low).exists()
    write(crowd, low)
    low.refresh_from_db()

    assert low.state == JobState.PARKED


def test_ranks_that_agree_on_no_fence_are_not_waited_for_for_ever(
    crowd: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clockwork(monkeypatch)
    high, low = two_jobs(crowd)
    lose_a_node(crowd, high)
    reconcile_all()
    crowd.block(low, 0, at(STEP, prepared=STEP), "paused")
    clock.pass_on(61.0)
    for agent in crowd.agents:
        agent.beat()
    clock.reconcile()
    (parking,) = Parking.objects.filter(job=low, state=ParkingState.FAILED)

    assert "agreed on no fence within 60 s" in parking.words


def test_a_rank_lost_while_its_job_is_paused_is_healed_and_not_parked(crowd: World) -> None:
    high, low = two_jobs(crowd)
    lose_a_node(crowd, high)
    pause(crowd, low)
    crowd.kill(low, 2, at(STEP, prepared=STEP))
    low.refresh_from_db()

    assert Parking.objects.get().state == ParkingState.FAILED
    assert low.state == JobState.RECOVERING
    assert Incident.objects.filter(job=low).count() == 1


LEFT_ALONE = [
    ({"priority": 5}, "1 not of lower priority"),
    ({"preemptible": False}, "1 not preemptible"),
]


@pytest.mark.parametrize(("lower", "words"), LEFT_ALONE)
def test_an_equal_or_protected_job_is_left_alone_and_the_incident_says_so_without_its_name(
    crowd: World, lower: dict[str, Any], words: str
) -> None:
    high, _low = two_jobs(crowd, **lower)
    lose_a_node(crowd, high)
    reconcile_all()

    assert not Parking.objects.exists()
    waiting = Incident.objects.get(job=high).waiting_for
    assert waiting.endswith(f"no job can be parked for it ({words})")
    assert "low" not in waiting.replace("lower", "")


def test_a_job_that_was_parked_as_often_as_allowed_within_a_day_is_left_alone(
    crowd: World,
) -> None:
    high, low = two_jobs(crowd)
    now = clock.now()
    for hours in (1, 2, 3, 30):
        at_time = now - timedelta(hours=hours)
        Parking.objects.create(
            job=low, for_job=high, num_slots=1, attempt=1, generation=1, state="resumed",
            state_since=at_time, wanted_at=at_time, parked_at=at_time,
        )  # fmt: skip
    lose_a_node(crowd, high)

    assert Parking.objects.count() == 4
    waiting = Incident.objects.get(job=high).waiting_for
    assert waiting.endswith("no job can be parked for it (1 parked too often today)")


@pytest.mark.parametrize("num_others", [2, 20])
def test_looking_for_room_reads_as_often_for_many_jobs_as_for_few(
    db: None, num_others: int, django_assert_num_queries: Any
) -> None:
    world = World(num_nodes=3, gpus=2)
    job = world.trained(name="high", priority=5, standbys=0)
    for agent in world.agents:
        cordon(agent.node.pk)
    world.kill(job, 1, at(184))
    job.refresh_from_db()
    for number in range(num_others):
        busy = world.submit(name=f"other-{number}", priority=1, preemptible=number % 2 == 0)
        Job.objects.filter(pk=busy.pk).update(state=JobState.RUNNING, committed_step=9)
        worker = world.rank(job, 0)
        worker.pk, worker.job, worker._state.adding = uuid4(), busy, True
        worker.save()
    view = view_of(job)
    view.job.state = JobState.RECOVERING
    with django_assert_num_queries(QUERIES_FOR_ROOM):
        make_room(view, 1)
    assert view.incident is not None
    assert f"{num_others // 2} not preemptible" in view.incident.waiting_for


def test_a_wish_is_withdrawn_when_the_place_is_found_elsewhere(crowd: World) -> None:
    high, _low = two_jobs(crowd)
    killed = crowd.rank(high, 1)
    lose_a_node(crowd, high)
    assert Parking.objects.get().state == ParkingState.PAUSING
    Parking.objects.update(state=ParkingState.WANTED)
    Node.objects.filter(pk=killed.node_id).update(state=NodeState.READY)
    reconcile_all()

    assert Parking.objects.get().state == ParkingState.WITHDRAWN


def test_a_standby_of_a_lower_job_gives_way_before_the_job_does(db: None) -> None:
    world = World(num_nodes=7)
    high = world.trained(name="high", priority=5, standbys=0)
    low = world.trained(name="low", priority=1, preemptible=True)
    spare = Worker.objects.get(job=low, rank__isnull=True)
    lose_a_node(world, high)
    spare.refresh_from_db()
    reconcile_all()

    assert spare.state == WorkerState.EXITED
    assert not Parking.objects.exists()
    assert Worker.objects.get(job=high, rank__isnull=True).node_id == spare.node_id
    assert world.ranks(low)[0].state == WorkerState.RUNNING


def test_cancelling_a_parked_job_lets_its_state_go(crowd: World) -> None:
    _high, low = parked(crowd)
    services.job_cancel(viewer=OPERATOR, job_id=low.pk, reason="enough")
    reconcile_all()
    releases = [r for agent in crowd.agents for r in agent.take(protocol.ReleaseOrder)]

    assert sorted((r.ranks, r.generation) for r in releases) == [([0], 2), ([1], 2), ([2], 2)]
    assert Parking.objects.get().state == ParkingState.WITHDRAWN


def test_an_agent_that_tells_of_a_parked_rank_nobody_needs_is_told_to_let_it_go(
    crowd: World,
) -> None:
    _high, low = parked(crowd)
    worker = crowd.rank(low, 1)
    agent = crowd.agent_of(worker)
    agent.report(on_disk(worker))
    assert agent.take(protocol.ReleaseOrder) == []
    services.job_cancel(viewer=OPERATOR, job_id=low.pk, reason="enough")
    reconcile_all()
    agent.take(protocol.ReleaseOrder)
    agent.report(on_disk(worker))

    assert [order.ranks for order in agent.take(protocol.ReleaseOrder)] == [[1]]


def test_a_job_that_cannot_come_back_is_parked_again_and_loses_nothing(
    crowd: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    clockwork = Clockwork(monkeypatch)
    high, low = parked(crowd)
    services.job_cancel(viewer=OPERATOR, job_id=high.pk, reason="done")
    clockwork.reconcile()
    low.refresh_from_db()
    assert low.state == JobState.RECOVERING
    clockwork.pass_on(361)
    clockwork.reconcile()
    low.refresh_from_db()

    assert (low.state, low.attempt, low.committed_step) == (JobState.PARKED, 1, STEP)
    assert "0 of 3 standbys were warm after 360 s" in Parking.objects.get().words
    assert not Incident.objects.filter(job=low).exists()


def test_a_parked_job_waits_for_a_silent_node_that_keeps_a_rank(crowd: World) -> None:
    high, low = parked(crowd)
    services.job_cancel(viewer=OPERATOR, job_id=high.pk, reason="done")
    keeper = crowd.rank(low, 1).node
    Node.objects.filter(pk=keeper.pk).update(state=NodeState.LOST)
    reconcile_all()
    low.refresh_from_db()

    assert low.state == JobState.PARKED
    assert Parking.objects.get().words == (
        f"parked at step 186: {keeper.name}, which keeps rank 1, is not heard"
    )


def test_a_node_that_falls_silent_while_its_job_comes_back_is_waited_for(crowd: World) -> None:
    high, low = parked(crowd)
    services.job_cancel(viewer=OPERATOR, job_id=high.pk, reason="done")
    reconcile_all()
    keeper = crowd.rank(low, 1).node
    Node.objects.filter(pk=keeper.pk).update(state=NodeState.LOST)
    crowd.launch(low)
    reconcile_all()
    low.refresh_from_db()
    assert (low.state, low.attempt) == (JobState.RECOVERING, 1)
    assert not Migration.objects.filter(job=low).exists()
    Node.objects.filter(pk=keeper.pk).update(state=NodeState.READY)
    reconcile_all()

    assert Migration.objects.get(job=low).moves.count() == 3


def test_damaged_parked_state_is_an_incident_and_a_replica_is_the_next_source(
    crowd: World,
) -> None:
    high, low = parked(crowd)
    services.job_cancel(viewer=OPERATOR, job_id=high.pk, reason="done")
    reconcile_all()
    crowd.launch(low)
    orders = crowd.regroup(low)
    crowd.transfer(low, orders)
    migration = Migration.objects.get(job=low)
    target = crowd.rank(low, 1)
    crowd.agent_of(target).report(
        protocol.MigrationFailed(
            **who(target), rank=1, migration_id=str(migration.pk),
            code="source_unavailable", message="the parked state of rank 1 is damaged",
        )
    )  # fmt: skip
    for rank in (0, 2):
        crowd.block(low, rank, at(STEP, prepared=STEP))
    crowd.launch(low)
    again = Migration.objects.filter(job=low).latest("pk")
    incident = crowd.heal(low)

    assert Parking.objects.get().state == ParkingState.FAILED
    assert "is damaged" in incident.summary
    assert [(move.rank, move.source) for move in again.moves.all()] == [(1, "replica")]
    assert (incident.verdict, incident.lost_steps) == (Verdict.AWAITING, 0)
    assert low.state == JobState.RUNNING


# --- The table of states ----------------------------------------------------------------------------


def test_every_parking_state_is_reached_from_a_wish() -> None:
    reached, edge = {ParkingState.WANTED}, [ParkingState.WANTED]
    while edge:
        for after in PARKING_STEPS[edge.pop()] - reached:
            reached.add(after)
            edge.append(after)

    assert reached == set(ParkingState)
    assert {ParkingState.RESUMED, ParkingState.WITHDRAWN, ParkingState.FAILED} == PARKING_FINAL


@pytest.mark.parametrize("believed", list(ParkingState))
def test_a_parking_steps_only_along_its_table(world: World, believed: ParkingState) -> None:
    job = world.submit()
    now = clock.now()
    for to in ParkingState:
        parking = Parking.objects.create(
            job=job, for_job=job, num_slots=1, attempt=1, generation=1, state=believed,
            state_since=now, wanted_at=now,
        )  # fmt: skip
        if to in PARKING_STEPS[believed]:
            parking_step(parking=parking, to=to, words="because")
            assert Parking.objects.get().state == to
        else:
            with pytest.raises(StepRefused):
                parking_step(parking=parking, to=to, words="because")
            assert Parking.objects.get().state == believed
        parking.delete()
