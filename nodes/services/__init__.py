"""The only writers of the nodes' tables. Doors, tasks and the apps above call these names."""

from __future__ import annotations

from .actions import (
    node_cordon,
    node_drain,
    node_emptied,
    node_quarantine,
    node_release,
    node_retire,
)
from .enrollment import enrollment_token_create, node_enroll, node_for_token
from .findings import breaker_reset, findings_evaluate
from .heartbeat import node_heard, node_touched
from .paces import paces_forgotten, paces_found
from .passes import find_lost, nodes_advance
from .policy import policy_create
from .step import node_step

__all__ = [
    "breaker_reset",
    "enrollment_token_create",
    "find_lost",
    "findings_evaluate",
    "node_cordon",
    "node_drain",
    "node_emptied",
    "node_enroll",
    "node_for_token",
    "node_heard",
    "node_quarantine",
    "node_release",
    "node_retire",
    "node_step",
    "node_touched",
    "nodes_advance",
    "paces_forgotten",
    "paces_found",
    "policy_create",
]
