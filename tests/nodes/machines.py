"""Machines for tests: plain functions, one a thing."""

from __future__ import annotations

import itertools
from datetime import datetime, timedelta
from typing import Any

from agent.protocol import (
    Endpoint,
    EnrollReply,
    EnrollRequest,
    Gpu,
    HeartbeatRequest,
    Inventory,
    Reading,
)
from nodes import services
from nodes.models import Gpu as GpuRow
from nodes.models import Node
from nodes.states import NodeState
from yoco_platform.core import clock
from yoco_platform.core.auth import Role, Viewer, hash_token
from yoco_platform.core.models import Cluster

_numbers = itertools.count(1)

OPERATOR = Viewer(name="olga", role=Role.OPERATOR)
VIEWER = Viewer(name="vera", role=Role.VIEWER)


def make_cluster(slug: str = "") -> Cluster:
    slug = slug or f"site-{next(_numbers)}"
    return Cluster.objects.create(slug=slug, name=slug)


def make_node(cluster: Cluster, state: NodeState = NodeState.READY, **fields: Any) -> Node:
    """A node that was heard just now, with one GPU and a complete inventory."""
    number = next(_numbers)
    now = clock.now()
    values: dict[str, Any] = {
        "name": f"node-{number}",
        "hostname": f"host-{number}",
        "pool": "train",
        "rack": f"r{number}",
        "failure_domain": f"d{number}",
        "state_since": now,
        "boot_id": "boot-1",
        "agent_version": "0.1",
        "endpoint": {"host": "127.0.0.1", "store_port": 4001, "data_port": 4002},
        "inventory_hash": "hash-1",
        "token_hash": hash_token(f"token-{number}"),
        "last_heard_at": now,
        **fields,
    }
    node = Node.objects.create(cluster=cluster, state=state, **values)
    GpuRow.objects.create(
        node=node, index=0, uuid=f"gpu-{number}-0", model="slot", memory_bytes=1, simulated=True
    )
    return node


def ago(seconds: float) -> datetime:
    return clock.now() - timedelta(seconds=seconds)


def make_inventory(num_gpus: int = 2, **fields: Any) -> Inventory:
    values: dict[str, Any] = {
        "hostname": "host-a",
        "pool": "train",
        "rack": "r1",
        "failure_domain": "d1",
        "endpoint": Endpoint(host="127.0.0.1", store_port=4001, data_port=4002),
        "gpus": [
            Gpu(index=i, uuid=f"gpu-{i}", model="slot", memory_bytes=2**30, simulated=True)
            for i in range(num_gpus)
        ],
        "agent_version": "0.1",
        **fields,
    }
    return Inventory(**values)


def make_request(node: str = "a", boot_id: str = "boot-1", **fields: Any) -> EnrollRequest:
    return EnrollRequest(node=node, boot_id=boot_id, inventory=make_inventory(**fields))


def make_token(cluster: Cluster, lifetime: timedelta = timedelta(hours=1)) -> str:
    return services.enrollment_token_create(viewer=OPERATOR, cluster=cluster, lifetime=lifetime)[1]


def enrol(cluster: Cluster, name: str = "a", **fields: Any) -> tuple[Node, EnrollReply]:
    reply = services.node_enroll(token=make_token(cluster), request=make_request(name, **fields))
    return services.node_for_token(reply.token), reply


def heat(value: float | None, entity: str = "gpu-0", outcome: Any = "ok") -> Reading:
    return Reading(
        check="gpu_temperature",
        entity=entity,
        outcome=outcome,
        value=value,
        unit="celsius",
        simulated=True,
    )


def beat(sequence: int, *readings: Reading, boot_id: str = "boot-1", **fields: Any) -> Any:
    values: dict[str, Any] = {"inventory_hash": "hash-1", **fields}
    return HeartbeatRequest(boot_id=boot_id, sequence=sequence, readings=list(readings), **values)
