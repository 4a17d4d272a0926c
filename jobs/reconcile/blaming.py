"""The job's own code: what fails in the same way at the same step again is healed no further."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from ..causes import SAME_END, Cause, killed_as_hung, signal_name
from ..models import Incident
from ..services.incidents import incident_cause_set
from ..services.jobs import workers_stop
from ..states import WORKER_ALIVE, CauseClass, Verdict
from .ending import job_failed
from .view import View

SAME_END_MAX = 3
"""So often the same end of one rank at one step is enough, even where no other node was free."""
INCIDENTS_MAX = 20
_ENGINES = ("NothingHeard:", "VerdictImpossible:")
_ADDRESS = re.compile(r"0x[0-9a-fA-F]+")

_Note = dict[str, Any]  # Any: JSON of a JSONField


def user_code(view: View) -> bool:
    """The same end at the same step: on two nodes, or three times wherever it was."""
    if view.incident is None:
        return False
    # The latest first: its words are the ones to show.
    notes = [note for note in reversed(_exits(view.incident)) if _counts(note)]
    known = list(_known(view)) if notes else []
    for note in notes:
        same = [other for other in known if _is_same(note, other)]
        if any(other["node"] != note["node"] for other in same):
            _failed(view, note, "on two nodes")
            return True
        times = sum(1 for other in same if other["rank"] == note["rank"])
        if times >= SAME_END_MAX:
            _failed(view, note, f"{times} times")
            return True
    return False


def _known(view: View) -> Iterator[_Note]:
    """How ranks of this job ended, those of now among them."""
    for incident in Incident.objects.filter(job=view.job).order_by("-pk")[:INCIDENTS_MAX]:
        yield from filter(_counts, _exits(incident))


def _exits(incident: Incident) -> list[_Note]:
    notes: list[_Note] = incident.evidence.get("exits", [])
    return notes


def _counts(note: _Note) -> bool:
    """Whether this end may be the code's own doing.

    A signal is, where it ended a rank that ran: not one that was still to take over or that waited for
    the others, and not one that its own agent killed. What the engine raised because nobody told a waiting
    rank how to go on is never.
    """
    if note["signal"] is None:
        return note["exit_code"] is not None and not note.get("exception", "").startswith(_ENGINES)
    return bool(note.get("ran")) and not killed_as_hung(note["signal"], note["detail"])


def _is_same(note: _Note, other: _Note) -> bool:
    """Ranks are in step, so two that are killed at once end alike: only the same rank's next process
    tells a signal of its own from one that was sent to several."""
    ends = [
        (n["step"], n["exit_code"], n["signal"], _same_words(n.get("exception", "")))
        for n in (note, other)
    ]
    return ends[0] == ends[1] and (note["signal"] is None or note["rank"] == other["rank"])


def _same_words(exception: str) -> str:
    """Without addresses, which differ from process to process."""
    return _ADDRESS.sub("0x", exception)


def _how(note: _Note) -> str:
    if note["signal"] is not None:
        return f"was ended by {signal_name(note['signal'])}"
    if note.get("exception"):
        return f"raised {note['exception']}"
    return f"ended by itself with exit code {note['exit_code']}"


def _failed(view: View, note: _Note, where: str) -> None:
    """Stop the job; what its agents hold stays, of those that still run too, until a person lets it go."""
    how = _how(note)
    words = f"rank {note['rank']} {how} after step {note['step']}, {where}"
    assert view.incident is not None
    cause = Cause(CauseClass.USER_CODE, SAME_END, words)
    incident_cause_set(incident=view.incident, cause=cause, anew=True)
    reason = f"user code: {words}: {note['detail']}"
    alive = [m for m in view.members if m.state in WORKER_ALIVE and m.fingerprint]
    workers_stop(job=view.job, workers=alive, reason=reason, keep_state=True)
    job_failed(view, reason, Verdict.EXCLUDED)
