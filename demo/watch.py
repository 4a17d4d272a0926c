"""What the story reads: jobs and incidents as a scheduler sees them, the ledger as an auditor does."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import httpx

from yoco.client import Client

from .world import World

Row = dict[str, Any]
LOOK_EVERY_S = 0.25
"""Each look costs the platform some milliseconds, which a failover on the same machine then lacks."""


class StoryFailed(RuntimeError):
    """The story cannot go on; the message says what it waited for and what it saw last."""


class Watch:
    """Reads over REST. ``say`` gets a line whenever what is waited for has moved on."""

    def __init__(self, world: World, say: Callable[[str], None]) -> None:
        self._world, self._say = world, say
        self.rest = Client(world.url, token=world.seeded.token)

    def until(
        self, what: str, look: Callable[[], tuple[bool, str]], *, timeout_s: float = 120.0
    ) -> None:
        """Look until it says yes. Raises StoryFailed with the last words it said."""
        deadline, said = time.monotonic() + timeout_s, ""
        while True:
            done, words = look()
            if words != said:
                self._say(words)
                said = words
            if done:
                return
            if time.monotonic() > deadline:
                raise StoryFailed(f"waited {timeout_s:.0f} s for {what}; last seen: {words}")
            time.sleep(LOOK_EVERY_S)

    def nodes_ready(self, names: list[str], timeout_s: float = 90.0) -> None:
        def look() -> tuple[bool, str]:
            states = {node["name"]: node["state"] for node in self.rest.get("/nodes")}
            ready = [name for name in names if states.get(name) == "ready"]
            return len(ready) == len(names), f"{len(ready)} of {len(names)} nodes ready"

        self.until("nodes to be ready", look, timeout_s=timeout_s)

    def job(self, job_id: int) -> Row:
        found: Row = self.rest.get(f"/jobs/{job_id}")
        return found

    def protected(self, job_id: int, timeout_s: float = 150.0) -> Row:
        """Wait until the job is protected, a warm standby included; the job as it then is."""
        seen: list[Row] = []

        def look() -> tuple[bool, str]:
            job = self.job(job_id)
            if job["state"] in ("failed", "cancelled", "finished"):
                raise StoryFailed(f"the job ended: {job['state']}, {job['end_reason']}")
            seen[:] = [job]
            words = f"job {job['state']}, {job['protection']}: {job['protection_reason']}"
            return job["state"] == "running" and job["protection"] == "protected", words

        self.until("the job to be protected", look, timeout_s=timeout_s)
        return seen[0]

    def committed(self, job_id: int, step: int, timeout_s: float = 120.0) -> None:
        """Wait until every rank's digest of a step at or after ``step`` has been reported."""

        def look() -> tuple[bool, str]:
            return self.digest_step(job_id, step) is not None, f"training on to step {step}"

        self.until(f"digests after step {step}", look, timeout_s=timeout_s)

    def digest_step(self, job_id: int, step: int) -> int | None:
        """The first step from ``step`` on of which every rank has reported a digest."""
        world_size = self.job(job_id)["world_size"]
        ranks: dict[int, set[int]] = {}
        for row in self.rest.get(f"/jobs/{job_id}/digests"):
            ranks.setdefault(row["step"], set()).add(row["rank"])
        whole = [at for at, seen in ranks.items() if at >= step and len(seen) == world_size]
        return min(whole, default=None)

    def digests(self, job_id: int, step: int) -> dict[int, tuple[str, str]]:
        """rank -> (digest, trail head) at one step."""
        rows = self.rest.get(f"/jobs/{job_id}/digests", step=step)
        return {row["rank"]: (row["digest"], row["trail_head"]) for row in rows}

    def incident(self, job_id: int, known: set[int], timeout_s: float = 90.0) -> Row:
        """Wait for a new incident of the job to come to its end; the whole of it."""
        seen: list[Row] = []

        def look() -> tuple[bool, str]:
            rows = self.rest.get("/incidents", job_id=job_id)["results"]
            fresh = [row for row in rows if row["id"] not in known]
            if not fresh:
                return False, "nobody has noticed yet"
            row = fresh[-1]
            seen[:] = [row]
            waits = f" ({row['waiting_for']})" if row["waiting_for"] else ""
            return row["state"] in ("resolved", "failed"), f"{row['number']} {row['state']}{waits}"

        self.until("the incident to end", look, timeout_s=timeout_s)
        whole: Row = self.rest.get(f"/incidents/{seen[0]['id']}")
        return whole

    def incidents(self, job_id: int) -> set[int]:
        return {row["id"] for row in self.rest.get("/incidents", job_id=job_id)["results"]}

    def auditor(self) -> httpx.Client:
        """A signed-in browser without the browser: the ledger is not a scheduler's to read."""
        client = httpx.Client(base_url=self._world.url, timeout=10.0, follow_redirects=True)
        client.get("/login")
        answer = client.post(
            "/login",
            data={
                "username": "auditor",
                "password": self._world.seeded.passwords["auditor"],
                "csrfmiddlewaretoken": client.cookies["csrftoken"],
            },
            headers={"Referer": self._world.url},
        )
        answer.raise_for_status()
        return client
