"""The same failover on PostgreSQL and Redis with web, worker and beat as processes of their own."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from django.conf import settings

from demo.network import available
from demo.story import Chapter, Story
from demo.world import World

pytestmark = [pytest.mark.e2e, pytest.mark.postgres, pytest.mark.redis, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def database_url() -> Iterator[str]:
    """A database of this test's own on the server that the suite runs on."""
    one = settings.DATABASES["default"]
    name = f"yoco_e2e_{os.getpid()}"
    place = {"host": one["HOST"], "port": one["PORT"] or 5432, "user": one["USER"]}
    secret = {"password": one["PASSWORD"]} if one["PASSWORD"] else {}
    with psycopg.connect(**place, **secret, dbname="postgres", autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name}")
        try:
            colon = f":{one['PASSWORD']}" if one["PASSWORD"] else ""
            yield f"postgresql://{one['USER']}{colon}@{one['HOST']}:{place['port']}/{name}"
        finally:
            admin.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(scope="module")
def story(
    tmp_path_factory: pytest.TempPathFactory, database_url: str, free_port: int
) -> Iterator[Story]:
    services = {
        "DATABASE_URL": database_url,
        "REDIS_URL": settings.REDIS_URL,
        "YOCO_REDIS_PREFIX": f"e2e{os.getpid()}",
        "YOCO_SECRET_KEY": "for this test run only " * 3,
    }
    folder = tmp_path_factory.mktemp("scale") / "w"
    with World(folder, port=free_port, services=services) as world:
        told = Story(world, print)
        told.watch.nodes_ready([node.name for node in world.nodes.values()])
        yield told


@pytest.fixture(scope="module")
def chapter(story: Story) -> Chapter:
    return story.begin("ddp")


def test_a_killed_rank_is_healed_across_processes(story: Story, chapter: Chapter) -> None:
    story.kill(chapter)

    assert chapter.happened[-1][1]["verdict"] == "covered"
    assert chapter.happened[-1][1]["lost_steps"] == 0


def test_a_job_whose_nodes_are_all_silent_starts_nowhere_by_itself(
    story: Story, chapter: Chapter
) -> None:
    job = story.watch.protected(chapter.job_id)
    keys = {w["node"].removeprefix("node-") for w in job["workers"] if w["state"] == "running"}
    if available():
        for key in keys:
            story.world.lose(key)
    else:
        for key in keys:
            process = story.world.nodes[key].process
            assert process is not None
            os.kill(process.pid, signal.SIGSTOP)

    story.watch.until(
        "the job to be unreachable",
        lambda: ((s := story.watch.job(chapter.job_id)["state"]) == "unreachable", s),
    )

    after = story.watch.job(chapter.job_id)
    assert after["generation"] == job["generation"]
    assert {w["id"] for w in after["workers"]} == {w["id"] for w in job["workers"]}


def test_the_worlds_folder_holds_no_token_in_a_log(story: Story) -> None:
    logs = list(Path(story.world.folder).glob("*.log"))

    assert logs
    assert not [p.name for p in logs if story.world.seeded.token in p.read_text(errors="replace")]
