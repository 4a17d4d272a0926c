"""The platform goes away, the agent is killed, orders come twice: nothing is lost, nothing done twice."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from agent.protocol import (
    InterruptOrder,
    RankBlocked,
    RankExited,
    RankJoined,
    RegroupOrder,
    Rejoined,
    StopOrder,
    StoreRef,
    Survive,
    WorkerStarted,
)
from agent.records import Records

from .control_plane import ControlPlane
from .running import SECRET, RunningAgent, launch


def test_events_wait_on_disk_while_the_platform_is_away(
    plane: ControlPlane, agent: RunningAgent
) -> None:
    plane.order(launch("worker.py", worker_id="w0", job_id="j"))
    pid = plane.wait_event(WorkerStarted).pid
    plane.wait_event(RankJoined)
    plane.stop()
    os.kill(pid, signal.SIGKILL)
    agent.wait_status(lambda status: status.spool_length == 1)
    plane.start()
    exited = plane.wait_event(RankExited, timeout_s=15.0)
    assert (exited.worker_id, exited.signal, exited.custody) == ("w0", signal.SIGKILL, "usable")
    agent.wait_status(lambda status: status.spool_length == 0)
    assert [event.sequence for _, event, _ in plane.events] == [1, 2, 3]


def test_events_of_an_earlier_run_are_sent_under_its_own_boot_id(
    plane: ControlPlane, agent: RunningAgent
) -> None:
    plane.order(launch("plain.py", "0.5", "4", worker_id="w0"))
    plane.wait_event(WorkerStarted)
    plane.stop()
    agent.wait_status(lambda status: status.spool_length == 1)
    agent.kill()
    plane.start()
    agent.start()
    plane.order(launch("plain.py", "0", "5", worker_id="w1"))
    plane.wait_event(RankExited, worker_id="w1")
    assert plane.wait_event(RankExited, worker_id="w0").exit_code == 4
    boots = {boot: [] for boot, _, _ in plane.events}
    for boot, event, _ in plane.events:
        boots[boot].append(event.sequence)
    assert list(boots.values()) == [[1, 2], [1, 2]]


def test_an_event_the_platform_will_never_take_is_put_aside_and_blocks_nothing(
    plane: ControlPlane, agent: RunningAgent
) -> None:
    plane.refuse_event = lambda event: isinstance(event.body, WorkerStarted)
    plane.order(launch("plain.py", "0", "0", worker_id="w0"))
    plane.wait_event(RankExited, worker_id="w0")
    assert plane.bodies(WorkerStarted) == []
    agent.wait_status(lambda status: status.spool_refused == 1)


def test_an_order_that_comes_again_is_answered_again_and_done_once(
    plane: ControlPlane, agent: RunningAgent
) -> None:
    order_id = plane.order(launch("worker.py", worker_id="w0"))
    assert plane.wait_result(order_id).ok
    plane.wait_event(RankJoined)
    plane.again(order_id)
    plane.wait(lambda: plane.count_results(order_id) == 2, "a second answer")
    agent.kill()
    agent.start()
    plane.again(order_id)
    plane.wait(lambda: plane.count_results(order_id) == 3, "an answer after the restart")
    assert len(plane.bodies(WorkerStarted)) == 1
    other = plane.order(launch("worker.py", worker_id="w0", job_id="job-w0"))
    assert plane.wait_result(other).ok
    assert len(plane.bodies(WorkerStarted)) == 1


def test_an_order_past_its_deadline_is_refused(plane: ControlPlane, agent: RunningAgent) -> None:
    order_id = plane.order(launch("worker.py", worker_id="w0"), expires_in_s=0.0)
    result = plane.wait_result(order_id)
    assert (result.ok, result.code) == (False, "order_expired")
    assert plane.bodies(WorkerStarted) == []


def test_orders_come_by_the_heartbeat_alone_when_no_bell_rings(
    plane: ControlPlane, agent: RunningAgent
) -> None:
    plane.orders_in_events = False
    order_id = plane.order(launch("worker.py", worker_id="w0"), ring=False)
    assert plane.wait_result(order_id).ok


def test_the_doorbell_brings_an_order_at_once(plane: ControlPlane, agent: RunningAgent) -> None:
    plane.heartbeat_s = 60.0
    seen = len(plane.heartbeats)
    plane.wait(lambda: len(plane.heartbeats) > seen, "the slow cadence")
    rung_at = time.monotonic()
    assert plane.wait_result(plane.order(launch("worker.py", worker_id="w0"))).ok
    assert time.monotonic() - rung_at < 5.0


def test_a_killed_agent_finds_its_workers_again_and_says_what_it_no_longer_holds(
    plane: ControlPlane, agent: RunningAgent
) -> None:
    plane.order(launch("plain.py", "600", "0", worker_id="plain", job_id="p"))
    plane.order(launch("worker.py", worker_id="w0", job_id="j"))
    pid = plane.wait_event(WorkerStarted, worker_id="w0").pid
    plane.wait_event(RankJoined)
    log = agent.state_dir / "logs" / "w0.log"
    plane.wait(lambda: "kept 1" in log.read_text(), "custody")
    os.kill(pid, signal.SIGSTOP)  # so that it cannot reconnect yet
    agent.kill()
    agent.start()
    assert agent.worker("w0").custody == "unavailable"
    assert {w.worker_id: w.state for w in plane.heartbeats[-1].workers} == {
        "w0": "running",
        "plain": "starting",
    }
    os.kill(pid, signal.SIGCONT)
    plane.wait(lambda: "kept 2" in log.read_text(), "custody again")
    assert agent.worker("w0").custody == "usable"
    os.kill(pid, signal.SIGKILL)
    exited = plane.wait_event(RankExited, worker_id="w0")
    assert (exited.custody, exited.position.applied) == ("usable", 7)
    assert (exited.signal, exited.exit_code) == (None, None)
    os.kill(plane.wait_event(WorkerStarted, worker_id="plain").pid, signal.SIGKILL)
    assert plane.wait_event(RankExited, worker_id="plain").custody == "none"


def test_a_worker_that_died_while_the_agent_was_away_is_told_of(
    plane: ControlPlane, agent: RunningAgent
) -> None:
    plane.order(launch("worker.py", "fork", worker_id="w0"))
    pid = plane.wait_event(WorkerStarted).pid
    plane.wait_event(RankJoined)
    first = (agent.state_dir / "logs" / "w0.log").read_text().splitlines()[0]
    children = [int(word) for word in first.split()[1:]]
    agent.kill()
    os.kill(pid, signal.SIGKILL)
    agent.start()
    exited = plane.wait_event(RankExited)
    assert (exited.custody, exited.position) == ("unavailable", None)
    assert exited.detail == "it ended while the agent was away"
    assert not [child for child in children if _runs(child)]


def test_a_regroup_is_followed_by_an_agent_that_was_restarted_meanwhile(
    plane: ControlPlane, agent: RunningAgent
) -> None:
    plane.order(launch("worker.py", worker_id="w0", job_id="j"))
    plane.wait_event(RankJoined)
    plane.order(InterruptOrder(job_id="j", attempt=1, generation=1))
    plane.wait_event(RankBlocked)
    agent.kill()
    agent.start()
    order = RegroupOrder(
        job_id="j",
        attempt=1,
        from_generation=1,
        generation=2,
        migration_id="m",
        resume_at=7,
        store=StoreRef(host="127.0.0.1", port=1, prefix="j/2", secret=SECRET),
        buddies={},
        roles=[Survive(rank=0)],
    )
    assert plane.wait_result(plane.order(order)).ok
    assert plane.wait_event(Rejoined).generation == 2


def test_nothing_leaks_over_fifty_workers(plane: ControlPlane, agent: RunningAgent) -> None:
    def one(number: int) -> None:
        order = launch("worker.py", worker_id=f"w{number}", job_id=f"j{number}")
        plane.order(order)
        pid = plane.wait_event(WorkerStarted, worker_id=f"w{number}").pid
        plane.wait_event(RankJoined, worker_id=f"w{number}")
        os.kill(pid, signal.SIGKILL)
        plane.wait_event(RankExited, worker_id=f"w{number}")
        stop = StopOrder(job_id=f"j{number}", attempt=1, worker_ids=[], reason="done")
        assert plane.wait_result(plane.order(stop)).ok

    for number in range(3):
        one(number)
    before = agent.num_fds()
    for number in range(3, 53):
        one(number)
    assert agent.num_fds() <= before
    assert agent.status().workers == []


def test_the_agent_ends_on_sigterm_and_leaves_its_workers(
    plane: ControlPlane, agent: RunningAgent
) -> None:
    plane.order(launch("worker.py", worker_id="w0"))
    pid = plane.wait_event(WorkerStarted).pid
    plane.wait_event(RankJoined)
    assert agent.stop() == 0
    assert _runs(pid)


def test_an_old_result_is_kept_until_it_was_posted(tmp_path: Path) -> None:
    from agent.protocol import OrderResult

    records = Records(tmp_path / "records.sqlite3")
    records.save_result(OrderResult(order_id="a", ok=True))
    records.save_result(OrderResult(order_id="a", ok=False, code="other"))
    assert records.result("a") == OrderResult(order_id="a", ok=True)
    assert [result.order_id for result in records.unposted_results()] == ["a"]
    records.mark_posted("a")
    assert records.unposted_results() == []
    records.close()


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False
