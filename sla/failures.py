"""An ended incident as the guarantee sees it: from the jobs' verified evidence to a ``Failure``."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec

from .chain import instant
from .classification import LIVE_MIGRATION, Failure, Resumed

if TYPE_CHECKING:
    from jobs.models import Incident, Migration


def failure_of(incident: Incident, migrations: Sequence[Migration]) -> Failure:
    """The failure an incident is. ``migrations`` are those of the incident, in any order."""
    evidence = incident.evidence
    cause = evidence.get("cause") or {}
    resumed = _resumed(incident, migrations)
    held = resumed is not None and not resumed.checkpoint_read
    return Failure(
        id=incident.number,
        job=f"{incident.job_id}:{incident.job.name}",
        root_cause=f"{cause.get('row', 'unknown')}: {', '.join(incident.node_names)}",
        cause_class=incident.cause_class,
        occurred=incident.occurred_at,
        observed=incident.observed_at,
        recorded=incident.recorded_at,
        clock_uncertainty_ms=_clock_uncertainty_ms(incident),
        protected=incident.job.wants_protection and evidence.get("outcome") != "unsupported",
        predicted=incident.predicted,
        drill=bool(evidence.get("drill")),
        resumed=resumed,
        steady_at=incident.resolved_at if held else None,
        ended=evidence.get("outcome") == "missed",
        job_ended=evidence.get("job_ended", ""),
    )


def failure_data(failure: Failure) -> dict[str, Any]:  # Any: JSON
    """The failure in the guarantee's file format."""
    data: dict[str, Any] = msgspec.to_builtins(failure, builtin_types=(type(failure.occurred),))
    for name in ("ended", "job_ended"):
        data.pop(name)
    data["source"] = "platform"
    for name in ("occurred", "observed", "recorded", "steady_at"):
        data[name] = None if data[name] is None else instant(data[name])
    if data["resumed"] is not None:
        data["resumed"]["recorded"] = instant(data["resumed"]["recorded"])
    return data


def _clock_uncertainty_ms(incident: Incident) -> int:
    """Agents' clocks are not compared with ours yet: what lies between both is all that is known. Of a
    clock that was not believed even that is not, and it happened some time since ``not_before``."""
    doubt = incident.evidence.get("clock")
    since = datetime.fromisoformat(doubt["not_before"]) if doubt else incident.occurred_at
    return int(abs((incident.observed_at - since).total_seconds()) * 1000)


def _resumed(incident: Incident, migrations: Sequence[Migration]) -> Resumed | None:
    """How the run went on, from the evidence of the verifier; None when it did not."""
    evidence, recorded = incident.evidence, incident.resolved_at or incident.state_since
    commits = evidence.get("commits") or []
    if commits:
        done = [m for m in migrations if m.pk == evidence.get("migration_id")]
        sources = sorted({move.source for m in done for move in m.moves.all()})
        return Resumed(
            last_committed_step=max(incident.step, evidence["resume_at"]),
            next_committed_step=min(commit["step"] for commit in commits),
            recomputed_committed_steps=incident.lost_steps or 0,
            checkpoint_read="checkpoint" in sources,
            source="+".join(sources) or "none",
            mechanism=LIVE_MIGRATION if sources else "path_failover",
            digests_equal=_levels_hold(evidence),
            recorded=recorded,
        )
    rolled_back = evidence.get("checkpoint")
    if rolled_back and incident.lost_steps is not None:
        return Resumed(
            last_committed_step=rolled_back["committed_step"],
            next_committed_step=rolled_back["loaded_step"] + 1,
            recomputed_committed_steps=incident.lost_steps,
            checkpoint_read=True,
            source="checkpoint",
            mechanism="checkpoint_restart",
            digests_equal=False,
            recorded=recorded,
        )
    return None


def _levels_hold(evidence: dict[str, Any]) -> bool:  # Any: JSON
    """``covered`` needs the transfer verified and no level that failed.

    Continuity is null where steps and batches agree but nobody knew a moved rank's trail before the move
    (its whole node was lost); replicas are null where a shard has none. A level that is absent fails.
    """

    def holds(level: str) -> bool | None:
        said = evidence.get(level) or {}
        value: bool | None = said.get("holds", False)
        return value

    others = ("continuity_verified", "replicas_agree")
    return holds("transfer_verified") is True and all(holds(each) is not False for each in others)
