"""The only writers of the jobs' tables. Doors, the reconciler and the apps above call these names."""

from __future__ import annotations

from .events import Taken, event_take, events_take
from .heartbeats import marks_note, standings_keep, workers_compare
from .incidents import (
    incident_cause_set,
    incident_end,
    incident_open,
    incident_waits,
    incidents_protected_again,
)
from .jobs import job_cancel, job_state_release, job_submit
from .migrations import Ground, migration_begin, migration_fail, migration_pause
from .orders import (
    order_create,
    order_result,
    orders_expire,
    orders_supersede,
    orders_take,
    stop_create,
)
from .retiring import node_retire
from .stages import stage_begin, stage_end
from .steps import incident_step, job_step, migration_step, worker_step

__all__ = [
    "Ground",
    "Taken",
    "event_take",
    "events_take",
    "incident_cause_set",
    "incident_end",
    "incident_open",
    "incident_step",
    "incident_waits",
    "incidents_protected_again",
    "job_cancel",
    "job_state_release",
    "job_step",
    "job_submit",
    "marks_note",
    "migration_begin",
    "migration_fail",
    "migration_pause",
    "migration_step",
    "node_retire",
    "order_create",
    "order_result",
    "orders_expire",
    "orders_supersede",
    "orders_take",
    "stage_begin",
    "stage_end",
    "standings_keep",
    "stop_create",
    "worker_step",
    "workers_compare",
]
