"""Back to the script's own checkpoint: what was lost is known once the new attempt has gone on."""

from __future__ import annotations

from typing import Any

from ..models import Incident, Job
from ..recovery import GiveUp
from ..services.incidents import incident_end, incident_waits
from ..services.steps import incident_step
from ..states import JOB_FINAL, IncidentState, Verdict
from .view import View


def incident_rolled_back(*, job: Job, incident: Incident, decision: GiveUp) -> None:
    """No source is left. The incident stays open until ``restarts_judged`` knows the loaded step."""
    incident.evidence = {
        **incident.evidence,
        **passed_over(decision),
        "checkpoint": {
            "committed_step": max(job.committed_step, decision.resume_at),
            "saved_step": job.checkpoint_step,
            "loaded_step": None,
        },
    }
    incident.save(update_fields=["evidence"])
    if incident.state == IncidentState.OPEN:
        incident_step(incident=incident, to=IncidentState.RECOVERING, reason=decision.reason)
    incident_waits(
        incident=incident, words="started again: waits for the step that its script loads"
    )


def passed_over(decision: GiveUp) -> dict[str, Any]:
    """Why each source was refused, as evidence."""
    return {"passed_over": {str(k): list(v) for k, v in decision.passed_over.items()}}


def restarts_judged(view: View) -> None:
    """End the incidents of earlier attempts as missed, with the steps lost: committed minus loaded.

    The loaded step is believed once a step after it was committed, or a rank has returned.
    """
    job = view.job
    went_on = job.committed_step > view.began_at or any(
        m.finished_step is not None for m in view.members
    )
    if not view.rolled_back or not (went_on or job.state in JOB_FINAL):
        return
    for incident in view.rolled_back:
        _judged(view, incident, went_on)
    view.rolled_back = []


def _judged(view: View, incident: Incident, went_on: bool) -> None:
    job, told = view.job, incident.evidence["checkpoint"]
    committed, saved = told["committed_step"], told["saved_step"]
    if went_on:
        words = f"attempt {job.attempt} went on after step {view.began_at}, loaded by its script"
        if not view.began_at:
            words = f"attempt {job.attempt} began anew: its script loaded no checkpoint"
        if saved is not None and saved > view.began_at:
            words += f", which had told of one at step {saved}"
    else:
        words = f"the job was {job.state} before it went on"
    incident_end(
        incident=incident,
        to=IncidentState.FAILED,
        verdict=Verdict.MISSED,
        reason=f"step {committed} was committed last; {words}",
        lost_steps=max(committed - view.began_at, 0) if went_on else None,
        proof={"checkpoint": {**told, "loaded_step": view.began_at if went_on else None}},
    )
