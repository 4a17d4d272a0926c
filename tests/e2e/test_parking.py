"""Two jobs and no spare: the lower gives way to the higher, comes back, and both equal their twins by ==."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from demo.story import DIGEST_EVERY, Story
from demo.twin import Twin
from demo.watch import Row
from demo.world import World

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]
NODES = ("a", "b", "c", "d", "e", "f")
SMALL = ("--width", "64", "--layers", "2")
LONG_S = 240.0


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory, free_port: int) -> Iterator[Story]:
    folder = tmp_path_factory.mktemp("parking") / "w"
    with World(folder, port=free_port, node_names=NODES) as world:
        told = Story(world, print)
        told.watch.nodes_ready([node.name for node in world.nodes.values()], timeout_s=LONG_S)
        yield told


def submit(story: Story, parallelism: str, **changed: Any) -> int:
    body = story.job_body(parallelism)
    body |= {"standbys": 0, "command": [*body["command"], *SMALL], **changed}
    return int(story.watch.rest.post("/jobs", body)["id"])


def until(story: Story, job_id: int, state: str) -> Row:
    def look() -> tuple[bool, str]:
        job = story.watch.job(job_id)
        return job["state"] == state, f"job {job_id} {job['state']} at {job['committed_step']}"

    story.watch.until(f"job {job_id} to be {state}", look, timeout_s=LONG_S)
    return story.watch.job(job_id)


def resumed(story: Story, job_id: int) -> Row:
    """Wait until its parking is closed, by the pass that follows its proof; the job as it then is."""

    def look() -> tuple[bool, str]:
        state = story.watch.job(job_id)["parkings"][0]["state"]
        return state == "resumed", f"its parking is {state}"

    story.watch.until("the parking to be closed", look, timeout_s=LONG_S)
    return story.watch.job(job_id)


def trained_beyond(story: Story, job_id: int, step: int) -> int:
    """Wait for the first step after ``step`` of which every rank has told its digest; which it is."""
    story.watch.committed(job_id, step + 1, timeout_s=LONG_S)
    found = story.watch.digest_step(job_id, step + 1)
    assert found is not None
    return found


def end(story: Story, job_id: int) -> None:
    story.watch.rest.post(f"/jobs/{job_id}/cancel", {"reason": "the test has seen enough"})


def places(job: Row) -> set[str]:
    """The nodes of its ranks in its last generation."""
    ranks = [w for w in job["workers"] if w["rank"] is not None]
    return {w["node"] for w in ranks if w["generation"] == job["generation"]}


def twins_of(story: Story, steps: dict[str, int]) -> dict[str, dict[int, tuple[str, str]]]:
    """parallelism -> rank -> digest and trail head at its step, of unbroken runs without us, side by side."""
    begun = {parallelism: _twin(story, parallelism, step) for parallelism, step in steps.items()}
    found: dict[str, dict[int, tuple[str, str]]] = {}
    try:
        for parallelism, twin in begun.items():
            digests = twin.finish(timeout_s=LONG_S)
            found[parallelism] = {
                rank: digest for (rank, at), digest in digests.items() if at == steps[parallelism]
            }
    finally:
        for twin in begun.values():
            twin.stop()
    return found


def _twin(story: Story, parallelism: str, step: int) -> Twin:
    job = story.job_body(parallelism)
    words = [*job["command"][1:], *SMALL, "--steps", str(step), "--step-ms-min", "0"]
    folder = story.world.folder / f"twin-{parallelism}"
    return Twin(words, story.world_size, folder, job["environment"])


def test_the_lower_of_two_jobs_is_parked_for_a_lost_rank_of_the_higher_and_both_equal_their_twins(
    story: Story,
) -> None:
    watch = story.watch
    lower = submit(story, "fsdp2", name="lower", priority=1, preemptible=True)
    higher = submit(story, "ddp", name="higher", priority=5)
    for job_id in (lower, higher):
        watch.committed(job_id, DIGEST_EVERY, timeout_s=LONG_S)
    lost = next(w for w in watch.job(higher)["workers"] if w["rank"] == 1)["node"]
    story.world.lose(lost.removeprefix("node-"))
    parked = until(story, lower, "parked")
    incident = watch.incident(higher, set(), timeout_s=LONG_S)
    higher_at = trained_beyond(story, higher, incident["evidence"]["resume_at"])
    assert incident["lost_steps"] == 0
    moves = incident["migrations"][-1]["moves"]
    assert [(move["rank"], move["to_node"] in places(parked)) for move in moves] == [(1, True)]
    assert watch.job(lower)["state"] == "parked"
    end(story, higher)
    until(story, lower, "running")
    lower_at = trained_beyond(story, lower, parked["committed_step"])
    came_back = resumed(story, lower)
    end(story, lower)
    assert watch.rest.get("/incidents", job_id=lower)["results"] == []
    assert len(came_back["parkings"]) == 1
    assert (came_back["attempt"], len(places(came_back))) == (1, 3)
    assert lost not in places(came_back)
    twins = twins_of(story, {"ddp": higher_at, "fsdp2": lower_at})
    assert watch.digests(higher, higher_at) == twins["ddp"]
    assert watch.digests(lower, lower_at) == twins["fsdp2"]
    assert watch.digests(lower, DIGEST_EVERY) != twins["fsdp2"]  # the comparison can tell
