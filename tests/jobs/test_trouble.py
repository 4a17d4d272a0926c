"""Failures on top of failures, and reports that come late, twice or from the past."""

from __future__ import annotations

import pytest

from agent import protocol
from jobs.models import (
    AgentEvent,
    Generation,
    Incident,
    Job,
    Migration,
    Move,
    Order,
    Point,
    Worker,
)
from jobs.reconcile import reconcile_all
from jobs.states import (
    CauseClass,
    IncidentState,
    JobState,
    MigrationState,
    OrderState,
    ProtectionState,
    Verdict,
    WorkerState,
)
from nodes.models import Node
from nodes.services import node_step
from nodes.states import NodeState

from .clockwork import Clockwork
from .situations import at
from .world import World, exited, points, who

pytestmark = pytest.mark.django_db


def broken(world: World, job: Job) -> Worker:
    """Rank 2 was killed and both others wait: the migration is written."""
    killed = world.kill(job, 2, at(184))
    for rank in (0, 1):
        world.block(job, rank, at(184))
    return killed


# --- A second failure during recovery ---------------------------------------------------------------


def test_a_survivor_lost_during_recovery_joins_the_same_incident(world: World) -> None:
    job = world.trained(standbys=2, world_size=2)
    world.kill(job, 1, at(184))
    world.block(job, 0, at(184))
    assert Migration.objects.count() == 1
    world.kill(job, 0, at(184))
    target = world.rank(job, 1)
    world.agent_of(target).report(
        protocol.MigrationFailed(
            **who(target), rank=1, migration_id=str(Migration.objects.get().pk),
            code="interrupted", message="the generation is over",
        )
    )  # fmt: skip
    incident = Incident.objects.get()
    first = Migration.objects.get()

    assert first.state == MigrationState.FAILED
    assert incident.ranks == [0, 1]
    assert incident.state == IncidentState.OPEN
    assert "standby" in incident.waiting_for


def test_a_failed_target_is_replaced_by_the_next_standby(world: World) -> None:
    world.by_node |= {(extra := world.add(9)).node.pk: extra}
    world.agents.append(extra)
    job = world.trained(standbys=2)
    killed = broken(world, job)
    target = world.rank(job, 2)
    world.regroup(job)
    world.agent_of(target).report(
        protocol.MigrationFailed(
            **who(target), rank=2, migration_id=str(Migration.objects.get().pk),
            code="digest_mismatch", message="bytes differ",
        )
    )  # fmt: skip
    survivors = {world.rank(job, 0).node_id, world.rank(job, 1).node_id}
    told = {a.node.pk for a in world.agents for o in a.take(protocol.InterruptOrder)}
    assert survivors <= told
    stopped = world.agent_of(target).take(protocol.StopOrder)
    assert [body.worker_ids for body in stopped] == [[str(target.pk)]]
    for rank in (0, 1):
        world.block(job, rank, at(184))
    moves = list(Move.objects.order_by("pk"))
    incident = world.heal(job)

    assert [move.failed_code for move in moves] == ["digest_mismatch", ""]
    assert moves[1].to_worker_id != target.pk
    assert moves[1].source == "replica"
    assert "custody: failed 1 times in this incident" in moves[1].passed_over
    assert moves[1].to_node_id != moves[0].to_node_id
    assert incident.verdict == Verdict.COVERED
    assert job.generation == 3
    killed.refresh_from_db()
    assert not killed.holds_state


def test_a_source_that_refuses_is_blamed(world: World) -> None:
    job = world.trained()
    killed = broken(world, job)
    agent = world.agent_of(killed)
    agent.beat()
    (order,) = [o for o in agent.orders if isinstance(o.body, protocol.RegroupOrder)]
    agent.answer(order, ok=False, code="source_missing", message="no arena here")
    reconcile_all()

    assert Move.objects.get().failed_code == "source_missing"
    assert Migration.objects.get().state == MigrationState.FAILED


def test_a_kill_before_the_first_commit_starts_again_and_loses_nothing(world: World) -> None:
    job = world.submit()
    reconcile_all()
    world.launch(job)
    nothing = at(0, applying=-1, applied=-1)
    world.kill(job, 2, nothing)
    for rank in (0, 1):
        world.block(job, rank, nothing)
    incident = Incident.objects.get()
    job.refresh_from_db()

    assert (incident.verdict, incident.lost_steps) == (Verdict.UNSUPPORTED, 0)
    assert job.attempt == 2


# --- User code --------------------------------------------------------------------------------------


def test_the_same_exception_at_the_same_step_on_another_node_is_user_code(world: World) -> None:
    job = world.trained()
    world.kill(job, 2, at(184), exit_code=1, signal=None, detail="ValueError: bad batch")
    for rank in (0, 1):
        world.block(job, rank, at(184))
    world.transfer(job, world.regroup(job))
    world.kill(job, 2, at(184), exit_code=1, signal=None, detail="ValueError: bad batch")
    job.refresh_from_db()
    incident = Incident.objects.get()

    assert job.state == JobState.FAILED
    assert "user code" in job.end_reason
    assert "ValueError: bad batch" in job.end_reason
    assert incident.cause_class == CauseClass.USER_CODE
    assert not Order.objects.filter(job=job, kind="release").exists()


def test_the_first_exception_is_healed_like_any_loss(world: World) -> None:
    job = world.trained()
    world.kill(job, 2, at(184), exit_code=1, signal=None)
    for rank in (0, 1):
        world.block(job, rank, at(184))
    incident = world.heal(job)

    assert incident.verdict == Verdict.COVERED
    assert incident.cause_class == CauseClass.USER_CODE


def test_a_clean_exit_after_the_last_step_is_no_incident(world: World) -> None:
    job = world.trained()
    for worker in world.ranks(job):
        assert worker.rank is not None
        world.agent_of(worker).report(
            protocol.RankFinished(**who(worker), rank=worker.rank, step=200, trail_head="t"),
            exited(worker, at(200), exit_code=0, signal=None),
        )
    job.refresh_from_db()

    assert job.state == JobState.FINISHED
    assert job.committed_step == 200
    assert not Incident.objects.exists()
    assert Worker.objects.get(job=job, rank__isnull=True).state == WorkerState.EXITED


# --- Late, twice, from the past ---------------------------------------------------------------------


def test_a_repeated_batch_changes_nothing(world: World) -> None:
    job = world.trained()
    worker = world.rank(job, 2)
    agent = world.agent_of(worker)
    batch = agent.events(exited(worker, at(184)))
    first, again = agent.send(batch), agent.send(batch)

    assert first.accepted_to == again.accepted_to
    assert AgentEvent.objects.filter(kind="rank_exited").count() == 1
    assert Incident.objects.count() == 1


def test_reports_of_an_old_generation_are_kept_and_refused(world: World) -> None:
    job = world.trained()
    killed = broken(world, job)
    world.heal(job)
    survivor = world.rank(job, 0)
    old = {**who(survivor), "generation": 1}
    before = Job.objects.values().get(pk=job.pk)
    agent = world.agent_of(survivor)
    agent.report(
        protocol.RankBlocked(**old, rank=0, outcome="unknown", position=at(184)),
        *world.first_commit(job, killed, 900, 899),
    )
    world.agent_of(killed).report(exited(killed, at(184)))
    codes = list(AgentEvent.objects.order_by("-pk").values_list("refused_code", flat=True)[:3])

    assert codes == ["old_generation", "not_your_worker", "old_generation"]
    assert Job.objects.values().get(pk=job.pk) == before
    assert Incident.objects.count() == 1


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"worker_id": "no-uuid"}, "unknown_worker"),
        ({"worker_id": "00000000-0000-0000-0000-000000000000"}, "unknown_worker"),
        ({"attempt": 7}, "old_attempt"),
        ({"generation": 7}, "old_generation"),
        ({"job_id": "999999"}, "unknown_job"),
        ({"job_id": "not a number"}, "unknown_job"),
    ],
)
def test_a_report_about_something_else_is_refused_with_its_code(
    world: World, changed: dict[str, object], code: str
) -> None:
    job = world.trained()
    worker = world.rank(job, 0)
    fields = {**who(worker), **changed}
    world.agent_of(worker).report(
        protocol.RankBlocked(**fields, rank=0, outcome="unknown", position=at(184))
    )

    assert AgentEvent.objects.latest("pk").refused_code == code
    assert world.rank(job, 0).state == WorkerState.RUNNING


@pytest.mark.parametrize("step", [-1, 10**12, 2**53 + 1, 2**64])
def test_a_step_that_nobody_can_have_made_is_refused_and_moves_nothing(
    world: World, step: int
) -> None:
    job = world.trained()
    worker = world.rank(job, 0)
    told = {**who(worker), "rank": 0}
    world.agent_of(worker).report(
        protocol.Points(**told, points=[(185, 1.0, 2.0, 40.0), (step, 1.0, 2.0, 40.0)]),
        *world.first_commit(job, worker, step, 184),
        protocol.RankFinished(**told, step=step, trail_head="t"),
        protocol.Checkpointed(**told, step=step),
    )
    codes = AgentEvent.objects.order_by("-pk").values_list("refused_code", flat=True)[:4]
    job.refresh_from_db()
    worker.refresh_from_db()

    assert list(codes) == ["impossible_step"] * 4
    assert (job.committed_step, job.checkpoint_step, worker.finished_step) == (184, None, None)
    assert not Point.objects.filter(job=job, step=185).exists()


def test_a_true_report_is_believed_however_many_before_it_were_dropped(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clockwork(monkeypatch)
    job = world.trained()
    worker = world.rank(job, 0)
    clock.pass_on(3600.0)
    world.agent_of(worker).report(points(worker, 3_000_000))
    job.refresh_from_db()

    assert job.committed_step == 3_000_000


def test_a_migration_of_another_generation_takes_no_evidence(world: World) -> None:
    job = world.trained()
    broken(world, job)
    migration = Migration.objects.get()
    target = world.rank(job, 2)
    fields = {
        "rank": 2, "source_node": "x", "holder": "custody", "carrier": "tcp", "bytes_moved": 1,
        "source_digest": "d", "target_digest": "d", "began_at": 1.0, "ended_at": 2.0,
    }  # fmt: skip
    old = {**who(target), "generation": 1}
    world.agent_of(target).report(
        protocol.Transferred(**old, migration_id=str(migration.pk), **fields),
        protocol.Transferred(**who(target), migration_id="77", **fields),
    )
    codes = set(
        AgentEvent.objects.filter(kind="transferred").values_list("refused_code", flat=True)
    )

    assert codes == {"old_generation", "unknown_migration"}
    assert Move.objects.get().transfers == []


def test_points_of_the_generation_before_are_history_and_kept(world: World) -> None:
    job = world.trained()
    broken(world, job)
    survivor = world.rank(job, 0)
    late = protocol.Points(
        **{**who(survivor), "generation": 1}, rank=0, points=[(183, 1.0, 2.5, 40.0)]
    )
    world.agent_of(survivor).report(late)

    assert Point.objects.get(job=job, step=183).generation == 1


def test_a_loss_that_is_no_number_keeps_its_step(world: World) -> None:
    job = world.trained()
    worker = world.rank(job, 0)
    diverged = protocol.Points(**who(worker), rank=0, points=[(190, 1.0, None, 40.0)])
    world.agent_of(worker).report(diverged)
    job.refresh_from_db()

    assert Point.objects.get(job=job, step=190).loss is None
    assert job.committed_step == 190


def test_a_job_never_keeps_more_than_two_thousand_points(world: World) -> None:
    job = world.trained()
    worker = world.rank(job, 0)
    for first in range(200, 2600, 300):
        world.agent_of(worker).report(points(worker, first + 299, first))
    steps = list(Point.objects.filter(job=job).values_list("step", flat=True))

    assert len(steps) <= 2_000
    assert max(steps) == 2599
    assert min(steps) == 184


def test_an_order_result_that_comes_late_changes_nothing(world: World) -> None:
    job = world.trained()
    killed = world.kill(job, 2, at(184))
    agent = world.agent_of(world.rank(job, 0))
    agent.beat()
    (order,) = agent.orders
    for rank in (0, 1):
        world.block(job, rank, at(184))
    response = agent.answer(order, ok=False, code="late")
    row = Order.objects.get(pk=order.order_id)

    assert response.status_code == 200
    assert (row.state, row.code) == (OrderState.EXPIRED, "superseded")
    assert world.by_node[killed.node_id].answer(order, ok=True).status_code == 404


# --- Silence ----------------------------------------------------------------------------------------


def test_silence_alone_moves_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clockwork(monkeypatch)
    job = world.trained()
    gone = world.agent_of(world.rank(job, 1))
    for _ in range(3):
        clock.pass_on(3.0)
        world.beat_all(gone)
        clock.reconcile()

    assert not Incident.objects.exists()
    assert world.rank(job, 1).state == WorkerState.RUNNING


def test_a_rung_agent_that_answers_is_not_judged(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clockwork(monkeypatch)
    job = world.trained()
    for rank in (0, 2):
        world.block(job, rank, at(184), "stalled")
    for _ in range(3):
        clock.pass_on(2.5)
        world.beat_all()
        clock.reconcile()

    assert world.rank(job, 1).state == WorkerState.RUNNING
    assert not Incident.objects.exists()
    assert not Order.objects.filter(kind="interrupt").exists()


def test_a_stalled_rank_whose_collective_comes_through_runs_again(world: World) -> None:
    job = world.trained()
    world.block(job, 0, at(184), "stalled")
    assert world.rank(job, 0).state == WorkerState.BLOCKED
    worker = world.rank(job, 0)
    world.agent_of(worker).report(points(worker, 186))
    reconcile_all()
    job.refresh_from_db()

    assert world.rank(job, 0).state == WorkerState.RUNNING
    assert (job.state, job.protection) == (JobState.RUNNING, ProtectionState.PROTECTED)


def test_ranks_that_stand_in_the_new_group_prove_that_nobody_is_silent(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clockwork(monkeypatch)
    job = world.trained()
    broken(world, job)
    orders = world.regroup(job)
    world.transfer(job, orders)
    survivor = world.rank(job, 0)
    world.agent_of(survivor).report(
        protocol.Rejoined(
            **who(survivor), rank=0, migration_id=str(Migration.objects.get().pk),
            began_at=1.0, ended_at=2.0,
        )
    )  # fmt: skip
    late = world.agent_of(world.rank(job, 2))
    for _ in range(5):
        clock.pass_on(3.0)
        world.beat_all(late)
        clock.reconcile()

    assert Migration.objects.get().state == MigrationState.MOVING
    assert world.rank(job, 2).state == WorkerState.REJOINING


def test_a_target_that_falls_silent_before_anybody_rejoined_is_given_up(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clockwork(monkeypatch)
    job = world.trained()
    broken(world, job)
    target = world.rank(job, 2)
    gone = world.agent_of(target)
    for _ in range(4):
        clock.pass_on(2.5)
        world.beat_all(gone)
        clock.reconcile()
    target.refresh_from_db()

    assert target.state == WorkerState.LOST
    assert Migration.objects.get().state == MigrationState.FAILED


def test_a_platform_that_hears_late_is_the_more_patient(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clockwork(monkeypatch)
    job = world.trained()
    gone = world.agent_of(world.rank(job, 1))
    clock.pass_on(4.0)
    for rank in (0, 2):
        world.agent_of(world.rank(job, rank)).late_s = 4.0
        world.block(job, rank, at(184), "stalled")
    for _ in range(3):
        clock.pass_on(2.5)
        world.beat_all(gone)
        clock.reconcile()
    assert world.rank(job, 1).state == WorkerState.RUNNING
    for _ in range(2):
        clock.pass_on(2.5)
        world.beat_all(gone)
        clock.reconcile()

    assert world.rank(job, 1).state == WorkerState.LOST


def test_a_job_whose_nodes_are_all_silent_starts_nowhere_else(world: World) -> None:
    job = world.trained()
    ranks = world.ranks(job)
    for worker in ranks:
        node = Node.objects.get(pk=worker.node_id)
        node_step(node=node, to=NodeState.SUSPECT, reason="silent", actor="test", rule="silence")
    reconcile_all()
    job.refresh_from_db()
    assert job.state == JobState.UNREACHABLE
    reconcile_all()
    assert {worker.pk for worker in world.ranks(job)} == {worker.pk for worker in ranks}
    assert not Migration.objects.exists()

    node_step(
        node=Node.objects.get(pk=ranks[0].node_id),
        to=NodeState.READY, reason="heard again", actor="test",
    )  # fmt: skip
    reconcile_all()
    job.refresh_from_db()
    assert job.state == JobState.RUNNING


def test_a_rank_whose_interrupt_failed_is_asked_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clockwork(monkeypatch)
    job = world.trained()
    world.kill(job, 2, at(184))
    world.block(job, 0, at(184))
    agent = world.agent_of(world.rank(job, 1))
    agent.beat()
    (order,) = agent.orders
    agent.answer(order, ok=False, code="unknown_worker")
    clock.pass_on(1.5)
    world.beat_all()
    clock.reconcile()

    assert len(agent.take(protocol.InterruptOrder)) == 2


def test_a_standby_whose_launch_was_refused_is_launched_elsewhere_after_three_refusals(
    world: World,
) -> None:
    world.by_node |= {(extra := world.add(9)).node.pk: extra}
    world.agents.append(extra)
    job = world.trained()
    standby = Worker.objects.get(job=job, state=WorkerState.STANDBY)
    first = world.agent_of(standby)
    first.report(exited(standby, None, rank=None, exit_code=1, signal=None))
    tried = []
    for _ in range(3):
        reconcile_all()
        waiting = Worker.objects.get(job=job, state=WorkerState.ORDERED)
        tried.append(waiting.node_id)
        agent = world.agent_of(waiting)
        agent.beat()
        (order,) = [o for o in agent.orders if isinstance(o.body, protocol.LaunchOrder)]
        agent.orders = []
        agent.answer(order, ok=False, code="command_not_accepted", message="not on the list")
    reconcile_all()
    job.refresh_from_db()

    assert tried[:2] == [first.node.pk, first.node.pk]
    assert tried[2] != first.node.pk


# --- The platform comes back ------------------------------------------------------------------------


def test_a_platform_that_was_killed_goes_on_from_the_rows(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    from jobs import agent_apis

    job = world.trained()
    with monkeypatch.context() as gone:
        # Events were stored; the process died before it looked at them.
        gone.setattr(agent_apis, "_reconcile", lambda job_id: None)
        killed = world.kill(job, 2, at(184))
        for rank in (0, 1):
            world.block(job, rank, at(184))
    assert not Migration.objects.exists()
    reconcile_all()
    assert Migration.objects.get().state == MigrationState.MOVING
    incident = world.heal(job)

    assert incident.verdict == Verdict.COVERED
    killed.refresh_from_db()
    assert killed.state == WorkerState.EXITED


def test_a_worker_its_agent_no_longer_lists_has_ended_unseen(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clockwork(monkeypatch)
    job = world.trained()
    lost = world.rank(job, 1)
    agent = world.agent_of(lost)
    agent.beat()
    agent.statuses = []
    agent.beat()
    clock.pass_on(9.0)
    monkeypatch.setattr("jobs.recollection.LOOK_AGAIN_S", 0.0)
    agent.beat()
    lost.refresh_from_db()

    assert (lost.state, lost.custody) == (WorkerState.EXITED, "unavailable")
    assert Incident.objects.get(job=job).ranks == [1]


def test_a_heartbeat_that_an_exit_overtook_does_not_cost_the_custody(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clockwork(monkeypatch)
    job = world.trained()
    worker = world.rank(job, 2)
    agent = world.agent_of(worker)
    agent.report(exited(worker, at(184)))
    monkeypatch.setattr("jobs.recollection.LOOK_AGAIN_S", 0.0)
    assert str(worker.pk) in [status.worker_id for status in agent.statuses]
    agent.beat()
    clock.pass_on(30.0)
    agent.beat()

    assert agent.take(protocol.StopOrder) == []


def test_a_job_over_which_a_pass_raises_is_put_aside_and_the_others_go_on(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    from jobs import reconcile

    bad, good = world.submit(world_size=1, standbys=0), world.submit(world_size=1, standbys=0)
    real = reconcile.start

    def start(view: reconcile.View) -> bool:
        if view.job.pk == bad.pk:
            raise RuntimeError("a bug")
        return real(view)

    monkeypatch.setattr(reconcile, "start", start)
    reconcile_all()
    bad.refresh_from_db()
    good.refresh_from_db()

    assert bad.state == JobState.SUBMITTED
    assert bad.put_aside_until is not None
    assert good.state == JobState.STARTING


# --- Never joined -----------------------------------------------------------------------------------


def test_a_script_that_never_joins_is_shown_as_not_protected_and_its_loss_is_unsupported(
    world: World,
) -> None:
    job = world.submit(world_size=1, standbys=0)
    reconcile_all()
    worker = world.rank(job, 0)
    agent = world.agent_of(worker)
    agent.report(
        protocol.WorkerStarted(**who(worker), rank=0, pid=1),
        protocol.NotJoined(**who(worker), rank=0),
    )
    job.refresh_from_db()
    assert (job.state, job.protection) == (JobState.RUNNING, ProtectionState.NEVER_JOINED)
    world.kill(job, 0, None)
    job.refresh_from_db()

    assert job.state == JobState.FAILED
    assert Incident.objects.get().verdict == Verdict.UNSUPPORTED


def test_a_launch_that_an_agent_refuses_fails_the_job_in_words(world: World) -> None:
    job = world.submit(world_size=1, standbys=0)
    reconcile_all()
    agent = world.agent_of(world.rank(job, 0))
    agent.beat()
    (order,) = agent.orders
    agent.answer(order, ok=False, code="script_not_found", message="/srv/train.py is not there")
    reconcile_all()
    job.refresh_from_db()

    assert job.state == JobState.FAILED
    assert "/srv/train.py is not there" in job.end_reason
    assert "script_not_found" in job.end_reason


# --- Standbys ---------------------------------------------------------------------------------------


def test_a_standby_of_a_broken_generation_hears_the_set_up_of_the_one_that_stood(
    world: World,
) -> None:
    job = world.trained()
    killed = broken(world, job)
    target = world.rank(job, 2)
    world.agent_of(target).report(
        protocol.MigrationFailed(
            **who(target), rank=2, migration_id=str(Migration.objects.get().pk),
            code="digest_mismatch", message="bytes differ",
        )
    )  # fmt: skip
    for rank in (0, 1):
        world.block(job, rank, at(184))
    agent = world.agent_of(killed)
    (launch,) = [
        *agent.take(protocol.LaunchOrder),
        *world.agent_of(target).take(protocol.LaunchOrder),
    ]
    stood = Generation.objects.get(job=job, number=1)

    assert launch.generation == job.generation
    assert launch.store.prefix == stood.store_prefix


def test_the_standby_that_a_lost_rank_waits_for_is_set_up_as_that_rank(world: World) -> None:
    job = world.trained()
    broken(world, job)
    target = world.rank(job, 2)
    assert target.provisional_rank == 1
    world.agent_of(target).report(
        protocol.MigrationFailed(
            **who(target), rank=2, migration_id=str(Migration.objects.get().pk),
            code="schema_mismatch", message="shapes differ",
        )
    )  # fmt: skip
    for rank in (0, 1):
        world.block(job, rank, at(184))

    assert Worker.objects.get(job=job, state=WorkerState.ORDERED).provisional_rank == 2
