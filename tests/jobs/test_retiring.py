"""A node leaves for good by a door of its own: drained, empty, its token revoked, its history kept."""

from __future__ import annotations

import re
from typing import Any

import pytest
from rest_framework.test import APIClient

from jobs import services
from jobs.errors import NodeInUse
from jobs.models import Job, Worker
from jobs.reconcile import reconcile_all
from jobs.services.retiring import needs_of
from jobs.states import JobState
from nodes import selectors as node_reads
from nodes import services as node_services
from nodes.errors import ReasonMissing, StepRefused, TokenRefused
from nodes.models import Node
from nodes.states import STEPS, NodeState
from yoco_platform.core import clock
from yoco_platform.core.auth import SYSTEM, Role, Viewer, hash_token
from yoco_platform.core.errors import Forbidden
from yoco_platform.core.models import AuditEntry, User

from .world import OPERATOR, World

pytestmark = pytest.mark.django_db
VIEWER = Viewer(name="vera", role=Role.VIEWER)


def retire(node: Node, viewer: Viewer = OPERATOR, reason: str = "sold") -> None:
    services.node_retire(viewer=viewer, node=node, reason=reason)


def drained(world: World) -> Node:
    """A node on which nothing ever ran, drained as an operator does it."""
    node = world.agents[-1].node
    node_services.node_drain(viewer=OPERATOR, node=node, reason="old")
    reconcile_all()
    node.refresh_from_db()
    assert node.state == NodeState.CORDONED
    return node


def test_a_drained_node_is_retired_with_its_history_and_without_its_token(world: World) -> None:
    node = drained(world)
    Node.objects.filter(pk=node.pk).update(token_hash=hash_token("its-token"))
    node_reads.forget_remembered()
    assert node_reads.node_by_token("its-token").pk == node.pk
    before = node.transitions.count()

    retire(node)
    node.refresh_from_db()
    assert (node.state, node.held_state) == (NodeState.RETIRED, "")
    assert node.token_hash != hash_token("its-token")
    node_reads.forget_remembered()
    with pytest.raises(TokenRefused):
        node_reads.node_by_token("its-token")
    assert node.transitions.count() == before + 1
    assert node not in node_reads.nodes_list(SYSTEM)
    assert node_reads.node_get(VIEWER, node.pk) == node
    entry = AuditEntry.objects.get(action="node_retire")
    assert entry.detail == {"reason": "sold", "from_state": "cordoned"}


@pytest.mark.parametrize("standby", [False, True])
def test_a_node_with_a_rank_or_a_standby_is_not_retired(world: World, standby: bool) -> None:
    job = world.trained()
    workers = Worker.objects.filter(job=job, rank__isnull=standby)
    worker = workers.order_by("pk")[0]
    Node.objects.filter(pk=worker.node_id).update(state=NodeState.QUARANTINED)
    what = "a standby" if standby else f"rank {worker.rank}"
    with pytest.raises(NodeInUse, match=f"{what} of {job.name} runs on it"):
        retire(worker.node)


@pytest.mark.parametrize(("state", "needed"), [("parked", True), ("finished", False)])
def test_state_that_a_job_will_come_back_from_keeps_its_node(
    world: World, state: str, needed: bool
) -> None:
    job = world.trained()
    worker = world.rank(job, 1)
    Worker.objects.filter(pk=worker.pk).update(state="exited", holds_state=True)
    Job.objects.filter(pk=job.pk).update(state=JobState(state))
    kept = f"it keeps the state of rank 1 of {job.name}"
    assert needs_of(worker.node_id) == (kept if needed else "")


def test_state_of_what_failed_keeps_its_node_until_it_is_released(world: World) -> None:
    node = drained(world)
    jobs = [world.submit(name=name) for name in ("first", "second", "other")]
    for job, rank in ((jobs[0], 0), (jobs[0], 1), (jobs[1], 0)):
        Worker.objects.create(
            job=job, attempt=1, node=node, rank=rank, generation=1, state="exited",
            state_since=clock.now(), holds_state=True,
        )  # fmt: skip
    Job.objects.filter(pk__in=[job.pk for job in jobs]).update(state=JobState.FAILED)
    first, second = (f"{job.name} (job {job.pk})" for job in jobs[:2])
    with pytest.raises(NodeInUse, match=re.escape(f"until that is released: {first}, {second}")):
        retire(node)
    services.job_state_release(viewer=OPERATOR, job_id=jobs[0].pk, reason="looked at it")
    with pytest.raises(NodeInUse, match=re.escape(f"until that is released: {second}")):
        retire(node)
    services.job_state_release(viewer=OPERATOR, job_id=jobs[1].pk, reason="looked at it")

    retire(node)
    node.refresh_from_db()
    assert node.state == NodeState.RETIRED


def test_state_of_an_attempt_that_is_over_keeps_no_node(world: World) -> None:
    job = world.trained()
    worker = world.rank(job, 1)
    Worker.objects.filter(pk=worker.pk).update(state="exited", holds_state=True)
    assert needs_of(worker.node_id)
    Job.objects.filter(pk=job.pk).update(attempt=2)
    assert needs_of(worker.node_id) == ""


@pytest.mark.parametrize("state", sorted(NodeState))
def test_only_what_is_out_of_service_is_retired(world: World, state: NodeState) -> None:
    node = world.agents[-1].node
    Node.objects.filter(pk=node.pk).update(state=state)
    # Cordoned by a person without a drain: ranks may have been left on it.
    if NodeState.RETIRED in STEPS[state] and state != NodeState.CORDONED:
        retire(node)
    else:
        with pytest.raises(StepRefused):
            retire(node)
    node.refresh_from_db()
    assert (node.state == NodeState.RETIRED) == (
        state == NodeState.RETIRED
        or (NodeState.RETIRED in STEPS[state] and state != NodeState.CORDONED)
    )


@pytest.mark.parametrize(
    ("fields", "error"), [({"viewer": VIEWER}, Forbidden), ({"reason": " "}, ReasonMissing)]
)
def test_who_may_not_or_says_not_why_retires_nothing(
    world: World, fields: dict[str, Any], error: type[Exception]
) -> None:
    node = drained(world)
    with pytest.raises(error):
        retire(node, **fields)
    node.refresh_from_db()
    assert node.state == NodeState.CORDONED


def test_rest_retires_once_and_says_what_is_in_the_way(world: World) -> None:
    client = APIClient()
    client.force_authenticate(User.objects.create(username="otto", role=Role.OPERATOR))
    body = {"reason": "sold"}
    node, busy = drained(world), world.agents[0].node
    path = f"/api/v1/nodes/{busy.pk}/retire"
    refused = client.post(path, body, format="json")
    assert (refused.status_code, refused.json()["code"]) == (409, "step_refused")
    path = f"/api/v1/nodes/{node.pk}/retire"
    assert client.post(path, {}, format="json").status_code == 422
    answer = client.post(path, body, format="json")
    assert (answer.status_code, answer.json()["state"]) == (200, "retired")
    again = client.post(path, body, format="json")
    assert (again.status_code, again.json()["code"]) == (409, "step_refused")
