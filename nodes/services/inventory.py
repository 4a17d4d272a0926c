"""What a node is made of, checked and stored."""

from __future__ import annotations

import msgspec

from agent.protocol import Inventory

from ..errors import InventoryRefused
from ..models import Gpu, Node

GPUS_MAX = 64
LENGTHS = {"hostname": 255, "pool": 80, "rack": 80, "failure_domain": 80, "agent_version": 40}


def inventory_checked(inventory: Inventory) -> None:
    """Raises InventoryRefused, naming the field, when it does not fit or contradicts itself."""
    for field, longest in LENGTHS.items():
        length = len(getattr(inventory, field))
        if not 1 <= length <= longest:
            raise InventoryRefused(f"{field} has 1 to {longest} characters", field=field)
    if len(inventory.gpus) > GPUS_MAX:
        raise InventoryRefused(f"a node has at most {GPUS_MAX} GPUs", field="gpus")
    if len({gpu.index for gpu in inventory.gpus}) != len(inventory.gpus):
        raise InventoryRefused("two GPUs have the same index", field="gpus")
    if len({gpu.uuid for gpu in inventory.gpus}) != len(inventory.gpus):
        raise InventoryRefused("two GPUs have the same uuid", field="gpus")
    for gpu in inventory.gpus:
        fits = 0 <= gpu.index < 1024 and 1 <= len(gpu.uuid) <= 80 and len(gpu.model) <= 80
        if not fits or not 0 <= gpu.memory_bytes < 2**63:
            raise InventoryRefused(f"GPU {gpu.index} does not fit", field="gpus")
    ports = (inventory.endpoint.store_port, inventory.endpoint.data_port)
    if not inventory.endpoint.host or not all(0 < port < 65536 for port in ports):
        raise InventoryRefused("the endpoint names no host or no port", field="endpoint")


def inventory_columns(inventory: Inventory) -> dict[str, object]:
    """The columns of Node that an inventory fills."""
    return {
        "hostname": inventory.hostname,
        "pool": inventory.pool,
        "rack": inventory.rack,
        "failure_domain": inventory.failure_domain,
        "agent_version": inventory.agent_version,
        "runs_as_root": inventory.runs_as_root,
        "endpoint": msgspec.to_builtins(inventory.endpoint),
    }


def inventory_write(node: Node, inventory: Inventory) -> bool:
    """Store the devices; True when they are not those the node had before (and it had some)."""
    before = {(gpu.index, gpu.uuid) for gpu in node.gpus.all()}
    now = {(gpu.index, gpu.uuid) for gpu in inventory.gpus}
    node.gpus.exclude(index__in=[gpu.index for gpu in inventory.gpus]).delete()
    for gpu in inventory.gpus:
        Gpu.objects.update_or_create(
            node=node,
            index=gpu.index,
            defaults={
                "uuid": gpu.uuid,
                "model": gpu.model,
                "memory_bytes": gpu.memory_bytes,
                "simulated": gpu.simulated,
            },
        )
    return bool(before) and before != now
