"""The last resort with real processes: a node of pure FSDP2 is lost for good, the job goes on from its own
checkpoint, ends equal to an unbroken run by ==, and the incident names the exact number of steps lost."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from demo.story import Story
from demo.twin import Digest, Twin
from demo.watch import Row
from demo.world import ROOT, World

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]
STEPS, EVERY = 160, 30
RANKS = 3


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory, free_port: int) -> Iterator[Story]:
    with World(tmp_path_factory.mktemp("world") / "w", port=free_port) as world:
        told = Story(world, print)
        told.watch.nodes_ready([node.name for node in world.nodes.values()])
        yield told


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example, slow enough to be interrupted."""
    text = (ROOT / "examples" / "checkpoint.py").read_text()
    slow = text.replace(
        "            save()\n", "            save()\n            time.sleep(0.08)\n"
    )
    path = tmp_path_factory.mktemp("user") / "train.py"
    path.write_text(slow.replace("import sys\n", "import sys\nimport time\n"))
    return path


def lines_of(trail: Path) -> list[Row]:
    return [json.loads(line) for line in trail.read_text().splitlines()]


def digests_of(trail: Path) -> dict[tuple[int, int], Digest]:
    """(rank, step) -> digest and trail head, told last."""
    rows = [row for row in lines_of(trail) if row["kind"] == "digest"]
    return {(row["rank"], row["step"]): (row["digest"], row["head"]) for row in rows}


def begun(story: Story, script: Path, folder: Path) -> int:
    body = story.job_body("fsdp2")
    body["name"], body["environment"]["YOCO_TRAIL_FILE"] = "checkpoint", str(folder / "trail.jsonl")
    body["command"] = [sys.executable, str(script), str(STEPS), str(folder / "ck"), str(EVERY)]
    return int(story.watch.rest.post("/jobs", body)["id"])


def running(story: Story, job_id: int, rank: int) -> Row:
    workers = story.watch.job(job_id)["workers"]
    return next(w for w in workers if (w["rank"], w["state"]) == (rank, "running"))


def until(story: Story, job_id: int, what: str, holds: Callable[[Row], bool]) -> None:
    def look() -> tuple[bool, str]:
        job = story.watch.job(job_id)
        assert job["state"] != "failed", job["end_reason"]
        return holds(job), f"{job['state']}, attempt {job['attempt']}, step {job['committed_step']}"

    story.watch.until(what, look)


def test_a_lost_node_without_another_copy_costs_the_steps_since_the_checkpoint(
    story: Story, script: Path, tmp_path: Path
) -> None:
    job_id = begun(story, script, tmp_path)
    story.watch.protected(job_id)
    # A rank that has moved saves, too: its shard must be found again under its own name.
    os.kill(story.world.worker_pid(running(story, job_id, 0)["id"]), signal.SIGKILL)
    healed = story.watch.incident(job_id, set())
    assert (healed["lost_steps"], healed["evidence"]["outcome"]) == (0, "covered")
    until(story, job_id, "a checkpoint", lambda job: (job["checkpoint_step"] or 0) > healed["step"])
    saved = story.watch.job(job_id)["checkpoint_step"]
    until(story, job_id, "steps beyond it", lambda job: job["committed_step"] > saved + 5)
    story.world.lose(running(story, job_id, 1)["node"].removeprefix("node-"))
    incident = story.watch.incident(job_id, {healed["id"]}, timeout_s=150.0)
    until(story, job_id, "the job to finish", lambda job: job["state"] == "finished")

    trail = lines_of(tmp_path / "trail.jsonl")
    commits = Counter(row["rank"] for row in trail if row["kind"] == "commit")
    told = incident["evidence"]["checkpoint"]
    assert told["loaded_step"] >= saved
    # What is there twice in the trail of the rank that was never lost was committed, and computed again.
    assert incident["lost_steps"] == commits[2] - STEPS > 0
    assert incident["lost_steps"] == told["committed_step"] - told["loaded_step"]
    assert incident["evidence"]["outcome"] == "missed"
    job = story.watch.job(job_id)
    assert (job["attempt"], job["committed_step"]) == (2, STEPS)

    twin = Twin(
        [str(script), str(STEPS), str(tmp_path / "twin-ck"), str(EVERY)], RANKS,
        tmp_path / "twin", {**story.job_body("fsdp2")["environment"]},
    ).finish(timeout_s=240.0)  # fmt: skip
    ours = digests_of(tmp_path / "trail.jsonl")
    assert {key: ours[key] for key in twin} == twin
    assert {(rank, STEPS) for rank in range(RANKS)} <= twin.keys()
