"""A job that had to go back to its checkpoint, on its incident's page and its own."""

from __future__ import annotations

import pytest

from jobs.states import IncidentState, Verdict

from .scene import Scene
from .test_views import signed_in, text, words

pytestmark = pytest.mark.django_db


def test_what_was_loaded_and_lost_is_on_both_pages_once_it_is_known(scene: Scene) -> None:
    incident = scene.incidents["gpt-small-1"]
    client = signed_in("viewer")
    page = f"/incidents/INC-{incident.pk}"
    assert "Checkpoint" not in words(text(client, f"{page}/regions/proof"))

    told = {"committed_step": 1185, "saved_step": 1150, "loaded_step": None}
    incident.state, incident.lost_steps, incident.resolved_at = IncidentState.RECOVERING, None, None
    incident.evidence = {**incident.evidence, "checkpoint": told}
    incident.save()
    waiting = words(text(client, f"{page}/regions/head"))
    assert "no source held what step 1,185 left" in waiting
    assert "Nothing is lost" not in waiting
    assert "Checkpoint step 1,150 saved waiting" in words(text(client, f"{page}/regions/proof"))

    incident.state, incident.verdict, incident.lost_steps = (
        IncidentState.FAILED, Verdict.MISSED, 65,
    )  # fmt: skip
    incident.evidence["checkpoint"] = {**told, "loaded_step": 1120}
    incident.resolved_at = incident.observed_at
    incident.save()
    proof = words(text(client, f"{page}/regions/proof"))
    assert "Committed step 1,185 1,121" in proof
    assert "Steps lost – 65" in proof
    assert "Checkpoint step 1,150 saved step 1,120 loaded" in proof
    job = words(text(client, f"/jobs/{incident.job_id}/regions/proof"))
    assert "Checkpoint read" in job and "checkpoint" in job.split("Source of state")[1]
