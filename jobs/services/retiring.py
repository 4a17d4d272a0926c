"""A node leaves for good only when no job needs anything that is on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.db import transaction
from django.db.models import F, QuerySet

from nodes import selectors as node_reads
from nodes import services as node_services
from yoco_platform.core.auth import Permission, Viewer, require
from yoco_platform.core.models import Cluster

from ..errors import NodeInUse
from ..models import Worker
from ..states import JOB_FINAL, WORKER_ALIVE, JobState

if TYPE_CHECKING:
    from nodes.models import Node


@transaction.atomic
def node_retire(*, viewer: Viewer, node: Node, reason: str) -> Node:
    """Take a drained or dead node out of the inventory for good.

    Raises Forbidden, ReasonMissing, StepRefused, NodeInUse.

    The lock of its cluster is the one under which places are given, so nobody moves in meanwhile.
    """
    require(viewer, Permission.NODE_OPERATE)
    row = node_reads.node_get(viewer, node.pk)
    Cluster.objects.select_for_update(no_key=True).get(pk=row.cluster_id)
    words = needs_of(row.pk)
    if words:
        raise NodeInUse(f"{row.name} cannot be retired: {words}", node=row.name)
    return node_services.node_retire(viewer=viewer, node=row, reason=reason)


def needs_of(node_id: int) -> str:
    """What jobs still have on a node, in words; "" when nothing."""
    here = Worker.objects.filter(node_id=node_id).select_related("job").order_by("pk")
    alive = here.filter(state__in=WORKER_ALIVE).first()
    if alive is not None:
        what = "a standby" if alive.rank is None else f"rank {alive.rank}"
        return f"{what} of {alive.job.name} runs on it"
    held = here.filter(holds_state=True, attempt=F("job__attempt"))
    kept = held.exclude(job__state__in=JOB_FINAL).first()
    if kept is not None:
        return f"it keeps the state of rank {kept.rank} of {kept.job.name}"
    return _failed_kept(here)


def _failed_kept(here: QuerySet[Worker]) -> str:
    """Jobs that failed and whose state would go with the node; who wants that says so at each of them."""
    kept = here.filter(holds_state=True, job__state=JobState.FAILED).order_by("job_id")
    jobs = dict(kept.values_list("job_id", "job__name"))
    if not jobs:
        return ""
    names = ", ".join(f"{name} (job {job_id})" for job_id, name in jobs.items())
    return f"it keeps state of what has failed, until that is released: {names}"
