"""Rows of the pages that the apps' selectors do not list by themselves, always through the viewer's eyes.

Tables of other apps are reached by their selectors and the relations of what those return: nothing
here names a model, so nothing here can forget whom it reads for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.db.models import Prefetch, QuerySet

from jobs import selectors as job_reads
from jobs.states import INCIDENT_OPEN, JOB_LIVE, MIGRATION_FINAL, MigrationState
from nodes import selectors as node_reads
from yoco_platform.core.auth import CUSTOMER_ROLES, Permission, Viewer, may

if TYPE_CHECKING:
    from jobs.models import Incident, Job, Migration
    from nodes.models import Node, NodeTransition

MIGRATION_LIVE = tuple(state for state in MigrationState if state not in MIGRATION_FINAL)


def sees_fleet(viewer: Viewer) -> bool:
    """Whether nodes are shown at all: customers see where their ranks sit, not the machines."""
    return may(viewer, Permission.FLEET_READ) and viewer.role not in CUSTOMER_ROLES


def jobs_live(viewer: Viewer) -> QuerySet[Job]:
    return job_reads.jobs_visible(viewer).filter(state__in=JOB_LIVE)


def incidents_open(viewer: Viewer) -> QuerySet[Incident]:
    return job_reads.incidents_visible(viewer).filter(state__in=INCIDENT_OPEN)


def migrations_live(viewer: Viewer) -> list[Migration]:
    """Migrations that are under way, oldest first, with their moves and stages."""
    jobs = job_reads.jobs_visible(viewer).filter(migrations__state__in=MIGRATION_LIVE).distinct()
    found: list[Migration] = []
    for job in jobs:
        found += (
            job.migrations.filter(state__in=MIGRATION_LIVE)
            .select_related("job", "incident")
            .prefetch_related("stages", "moves__from_node", "moves__to_node")
        )
    return sorted(found, key=lambda migration: migration.pk)


def nodes_of(viewer: Viewer) -> list[Node]:
    """Nodes with GPUs and open findings, by rack and name; retired ones are left out."""
    return list(node_reads.nodes_list(viewer).order_by("rack", "name"))


def node_steps(viewer: Viewer, limit: int) -> list[NodeTransition]:
    """The last steps of the nodes that stepped last, newest first."""
    nodes = node_reads.nodes_list(viewer).order_by("-state_since")[:limit]
    steps: list[NodeTransition] = []
    for node in nodes.prefetch_related(Prefetch("transitions")):
        steps += node.transitions.all()
    return sorted(steps, key=lambda step: step.at, reverse=True)[:limit]
