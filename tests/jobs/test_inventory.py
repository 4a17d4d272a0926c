"""What the engine protects: told by rank 0, kept on the job, shown over REST and on its page."""

from __future__ import annotations

import html

import msgspec
import pytest
from django.test import Client

from agent import protocol
from jobs.models import AgentEvent, Job
from yoco_platform.core.auth import Role
from yoco_platform.core.models import User

from .state_report import state_inventory
from .world import World, who

pytestmark = pytest.mark.django_db


@pytest.fixture
def staff(db: None) -> Client:
    client = Client()
    client.force_login(User.objects.create(username="operator", role=Role.OPERATOR))
    return client


def report(job: Job, rank: int, inventory: protocol.StateInventory, world: World) -> None:
    worker = world.ranks(job)[rank]
    told = protocol.StateListed(rank=rank, inventory=inventory, **who(worker))
    world.by_node[worker.node_id].report(told)
    job.refresh_from_db()


def test_rank_0_tells_at_the_start_and_again_after_the_first_step(world: World) -> None:
    job = world.trained()
    assert job.inventory == msgspec.to_builtins(state_inventory())
    more = msgspec.structs.replace(state_inventory(), private_bytes=99_000)
    report(job, 0, more, world)
    assert job.inventory["private_bytes"] == 99_000


def test_another_ranks_report_changes_nothing(world: World) -> None:
    job = world.trained()
    report(job, 1, msgspec.structs.replace(state_inventory(), private_bytes=1), world)
    assert job.inventory == msgspec.to_builtins(state_inventory())


def test_a_report_of_an_old_generation_changes_nothing(world: World) -> None:
    job = world.trained()
    Job.objects.filter(pk=job.pk).update(generation=job.generation + 1)
    world.ranks(job)
    worker = job.workers.get(rank=0)
    more = msgspec.structs.replace(state_inventory(), private_bytes=1)
    told = protocol.StateListed(rank=0, inventory=more, **who(worker))
    world.by_node[worker.node_id].report(told)
    assert AgentEvent.objects.order_by("-pk")[0].refused_code == "old_generation"
    job.refresh_from_db()
    assert job.inventory["private_bytes"] == state_inventory().private_bytes


def test_it_is_shown_over_rest_and_on_the_page(world: World, staff: Client) -> None:
    job = world.trained()
    rest = staff.get(f"/api/v1/jobs/{job.pk}").json()["inventory"]
    assert rest == msgspec.to_builtins(state_inventory())
    page = html.unescape(staff.get(f"/jobs/{job.pk}").content.decode())
    assert "1.32\u00a0MB" in page
    assert "ema (Averaged) was not handed over" in page


def test_before_rank_0_has_joined_there_is_none(world: World, staff: Client) -> None:
    job = world.submit()
    assert staff.get(f"/api/v1/jobs/{job.pk}").json()["inventory"] is None
    assert "Rank 0 has not joined yet" in staff.get(f"/jobs/{job.pk}").content.decode()
