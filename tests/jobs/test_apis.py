"""The REST doors: strict input, one answer to the stranger, everything the pages and the demo read."""

from __future__ import annotations

from typing import Any

import pytest
from rest_framework.test import APIClient

from jobs.models import Incident, Job
from jobs.states import JobState
from nodes.models import Node
from nodes.states import NodeState
from yoco_platform.core.auth import Role, hash_token
from yoco_platform.core.models import ApiToken, AuditEntry, Customer, User

from .situations import at
from .world import World

pytestmark = pytest.mark.django_db


def scheduler(world: World) -> APIClient:
    """A token of this cluster, acting for the only customer it may name."""
    plain = f"yoco_{world.cluster.slug}"
    ApiToken.objects.create(
        name="slurm", role=Role.SCHEDULER, token_hash=hash_token(plain), cluster=world.cluster,
        customer=world.customer,
    )  # fmt: skip
    client = APIClient()
    client.credentials(HTTP_AUTHORIZATION=f"Bearer {plain}")
    return client


def person(role: Role, **scope: Any) -> APIClient:
    user = User.objects.create(username=f"{role}-{User.objects.count()}", role=role, **scope)
    client = APIClient()
    client.force_authenticate(user)
    return client


def asked(**changed: Any) -> dict[str, Any]:
    body = {
        "name": "llm",
        "world_size": 3,
        "pool": "train",
        "command": ["python", "/srv/train.py"],
        "working_directory": "/srv",
        "run_as": "train",
    }
    return {**body, **changed}


def post(client: APIClient, body: dict[str, Any], **headers: str) -> Any:
    return client.post("/api/v1/jobs", body, format="json", **headers)


def test_a_scheduler_submits_a_job_for_its_own_cluster_and_customer(world: World) -> None:
    response = post(scheduler(world), asked())
    job = Job.objects.get()

    assert response.status_code == 201
    assert response.json()["id"] == job.pk
    assert (job.cluster, job.customer) == (world.cluster, world.customer)
    assert (job.state, job.submitted_by) == (JobState.SUBMITTED, "token:slurm")


def test_the_same_key_submits_once(world: World) -> None:
    client = scheduler(world)
    first = post(client, asked(), HTTP_IDEMPOTENCY_KEY="k1")
    again = post(client, asked(), HTTP_IDEMPOTENCY_KEY="k1")
    other = post(client, asked(name="other"), HTTP_IDEMPOTENCY_KEY="k1")

    assert first.json() == again.json()
    assert Job.objects.count() == 1
    assert (other.status_code, other.json()["code"]) == (409, "idempotency_key_reused")


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        pytest.param({"gpus": 3}, "unknown_field", id="a field nobody knows"),
        pytest.param({"world_size": 99}, "world_size_does_not_fit", id="beyond the pool"),
        pytest.param({"pool": "no-such"}, "world_size_does_not_fit", id="an empty pool"),
        pytest.param({"world_size": 0}, "invalid_field", id="nobody"),
        pytest.param({"world_size": "three"}, "invalid_field", id="no number"),
        pytest.param({"command": "python train.py"}, "invalid_field", id="a shell string"),
        pytest.param({"command": []}, "invalid_field", id="no command"),
        pytest.param({"command": ["python", "a\0b"]}, "invalid_field", id="a zero byte"),
        pytest.param({"working_directory": "srv"}, "invalid_field", id="a relative folder"),
        pytest.param({"run_as": "Root; rm"}, "invalid_field", id="no user name"),
        pytest.param({"environment": {"YOCO_WORKER": "x"}}, "invalid_field", id="ours"),
        pytest.param({"limits": {"stall_s": 99.0}}, "invalid_field", id="limits out of order"),
        pytest.param({"limits": {"patience": 1.0}}, "invalid_field", id="an unknown limit"),
        pytest.param({"redundancy": "twice"}, "invalid_field", id="an unknown redundancy"),
        pytest.param({"accumulation": "both"}, "invalid_field", id="an unknown accumulation"),
        pytest.param({"when_full": "maybe"}, "invalid_field", id="an unknown wish"),
        pytest.param({"cluster": "elsewhere"}, "not_found", id="another cluster"),
        pytest.param({"customer": "elsewhere"}, "not_found", id="another customer"),
    ],
)
def test_wrong_input_gets_one_clear_code_and_leaves_nothing(
    world: World, changed: dict[str, Any], code: str
) -> None:
    response = post(scheduler(world), asked(**changed))

    assert response.json()["code"] == code
    assert response.status_code == (404 if code == "not_found" else 422)
    assert not Job.objects.exists()


def test_a_full_pool_makes_it_wait_or_refuses_as_asked(world: World) -> None:
    client = scheduler(world)
    world.trained()
    waits = post(client, asked())
    refused = post(client, asked(when_full="refuse"))
    beyond = post(client, asked(world_size=99, when_full="wait"))

    assert waits.status_code == 201
    assert refused.json()["code"] == "world_size_does_not_fit"
    assert beyond.status_code == 201


def test_nobody_and_the_wrong_role_are_turned_away(world: World) -> None:
    assert post(APIClient(), asked()).status_code == 401
    assert post(person(Role.VIEWER), asked()).status_code == 403
    assert APIClient().get("/api/v1/jobs").status_code == 401


def test_a_customer_sees_its_own_and_nothing_of_others(world: World) -> None:
    job = world.trained()
    world.kill(job, 2, at(184))
    incident = Incident.objects.get()
    stranger = World(num_nodes=0).customer
    own, other = (
        person(Role.CUSTOMER_VIEWER, customer=world.customer),
        person(Role.CUSTOMER_VIEWER, customer=stranger),
    )
    for path in (f"jobs/{job.pk}", f"incidents/{incident.pk}", f"jobs/{job.pk}/points"):
        assert own.get(f"/api/v1/{path}").status_code == 200
        assert other.get(f"/api/v1/{path}").status_code == 404
    assert [row["id"] for row in own.get("/api/v1/jobs").json()["results"]] == [job.pk]
    assert other.get("/api/v1/jobs").json()["results"] == []
    assert other.get("/api/v1/incidents").json()["results"] == []
    assert other.get("/api/v1/migrations").json() == []
    assert (
        own.post(f"/api/v1/jobs/{job.pk}/cancel", {"reason": "x"}, format="json").status_code == 403
    )


def test_pages_follow_one_another_without_gap_or_repeat(world: World) -> None:
    client = scheduler(world)
    made = [world.submit(name=f"job-{n}").pk for n in range(5)]
    first = client.get("/api/v1/jobs?limit=2").json()
    second = client.get(f"/api/v1/jobs?limit=2&before={first['next']}").json()
    third = client.get(f"/api/v1/jobs?limit=2&before={second['next']}").json()
    seen = [row["id"] for page in (first, second, third) for row in page["results"]]

    assert seen == sorted(made, reverse=True)
    assert third["next"] is None
    assert client.get("/api/v1/jobs?limit=9999").status_code == 422
    assert client.get("/api/v1/jobs?colour=red").json()["code"] == "unknown_field"


def test_an_incident_tells_its_stages_its_moves_and_its_proof(world: World) -> None:
    job = world.trained()
    world.kill(job, 2, at(184))
    for rank in (0, 1):
        world.block(job, rank, at(184))
    incident = world.heal(job)
    told = person(Role.VIEWER).get(f"/api/v1/incidents/{incident.pk}").json()
    (migration,) = told["migrations"]

    assert (told["verdict"], told["lost_steps"], told["pause_ms"]) == ("covered", 0, 80.0)
    assert told["evidence"]["transfer_verified"]["holds"] is True
    assert told["evidence"]["continuity_verified"]["holds"] is True
    assert told["evidence"]["replicas_agree"]["holds"] is True
    assert {stage["name"] for stage in migration["stages"]} == {
        "detect", "decide", "reserve", "transfer", "rejoin", "verify",
    }  # fmt: skip
    assert migration["moves"][0]["source"] == "custody"
    assert migration["moves"][0]["passed_over"] == ["live: the process has ended"]
    assert [step["to_state"] for step in told["transitions"]] == [
        "recovering", "verifying", "resolved",
    ]  # fmt: skip
    assert "secret" not in str(told)


def test_a_job_shows_its_ranks_and_its_standby(world: World) -> None:
    job = world.trained()
    told = scheduler(world).get(f"/api/v1/jobs/{job.pk}").json()

    assert [worker["rank"] for worker in told["workers"]] == [0, 1, 2, None]
    assert told["protection"] == "protected"
    assert told["committed_step"] == 184


def test_an_operator_cancels_a_job_once(world: World) -> None:
    job = world.trained()
    operator = person(Role.OPERATOR)
    first = operator.post(
        f"/api/v1/jobs/{job.pk}/cancel", {"reason": "done with it"}, format="json"
    )
    again = operator.post(
        f"/api/v1/jobs/{job.pk}/cancel", {"reason": "done with it"}, format="json"
    )

    assert first.json()["state"] == "cancelled"
    assert (again.status_code, again.json()["code"]) == (409, "job_ended")


def test_a_cancelled_jobs_workers_are_stopped(world: World) -> None:
    from agent import protocol
    from jobs.reconcile import reconcile_all

    job = world.trained()
    person(Role.OPERATOR).post(
        f"/api/v1/jobs/{job.pk}/cancel", {"reason": "done with it"}, format="json"
    )
    reconcile_all()
    stopped = [body for agent in world.agents for body in agent.take(protocol.StopOrder)]

    assert sum(len(body.worker_ids) for body in stopped) == 4


@pytest.mark.parametrize(("customers", "words"), [(0, "in /admin"), (2, "there are several")])
def test_a_submission_without_a_customer_says_what_to_do(
    world: World, customers: int, words: str
) -> None:
    client = scheduler(world)
    ApiToken.objects.update(customer=None)
    Customer.objects.all().delete()
    for number in range(customers):
        Customer.objects.create(slug=f"c-{number}", name="C")
    response = post(client, asked())

    assert (response.status_code, response.json()["code"]) == (422, "invalid_field")
    assert words in response.json()["detail"]


def irrevocable(world: World, door: str) -> str:
    """The path of something that cannot be undone and is due."""
    if door == "retire":
        node = world.agents[-1].node
        Node.objects.filter(pk=node.pk).update(state=NodeState.QUARANTINED)
        return f"/api/v1/nodes/{node.pk}/retire"
    job = world.submit()
    Job.objects.filter(pk=job.pk).update(state=JobState.FAILED)
    return f"/api/v1/jobs/{job.pk}/release-state"


@pytest.mark.parametrize("door", ["retire", "release-state"])
def test_what_cannot_be_undone_is_for_a_person_and_no_token(world: World, door: str) -> None:
    token = scheduler(world)
    ApiToken.objects.update(customer=None)  # of the site: it may drain nodes and cancel jobs
    path, body = irrevocable(world, door), {"reason": "sold"}
    refused = token.post(path, body, format="json")
    assert (refused.status_code, refused.json()["code"]) == (403, "person_needed")
    assert not AuditEntry.objects.filter(action__in=["node_retire", "job_state_release"]).exists()

    assert person(Role.VIEWER).post(path, body, format="json").json()["code"] == "forbidden"
    assert person(Role.OPERATOR).post(path, body, format="json").status_code == 200


def test_a_token_of_the_site_still_drains_nodes_and_cancels_jobs(world: World) -> None:
    token, body = scheduler(world), {"reason": "maintenance"}
    ApiToken.objects.update(customer=None)
    node, job = world.agents[-1].node, world.submit()
    for path in (f"/api/v1/nodes/{node.pk}/drain", f"/api/v1/jobs/{job.pk}/cancel"):
        assert token.post(path, body, format="json").status_code == 200
