"""What agents and ranks say of themselves when they start."""

from __future__ import annotations

from typing import Any

from agent import protocol

GB = 10**9


def state_inventory(
    *, parallelism: str = "ddp", redundancy: str = "replica", **_other: Any
) -> protocol.StateInventory:
    """What a rank that protects two layers says at start."""
    weights = protocol.StatePart(
        kind="parameters", names=[], count=4, size_bytes=1_320_000,
        sources=["custody", redundancy], survives_node=["replica"] if redundancy == "replica" else [],
    )  # fmt: skip
    generators = protocol.StatePart(
        kind="generators", names=["python", "torch"], count=2, size_bytes=7_600,
        sources=["custody"], survives_node=[],
    )  # fmt: skip
    return protocol.StateInventory(
        parallelism=parallelism, redundancy=redundancy, accumulation="redo", models=["Net"],
        parts=[weights, generators],
        arena_bytes=1_320_000, small_bytes=900, private_bytes=8_100,
        not_recognised=["ema (Averaged) was not handed over"],
    )  # fmt: skip


def node_inventory(name: str, index: int, gpus: int) -> protocol.Inventory:
    return protocol.Inventory(
        hostname=name,
        pool="train",
        rack=f"rack-{index}",
        failure_domain=f"power-{index}",
        endpoint=protocol.Endpoint(
            host="127.0.0.1", store_port=7000 + index, data_port=8000 + index
        ),
        gpus=[
            protocol.Gpu(index=g, uuid=f"{name}-{g}", model="CPU", memory_bytes=GB, simulated=True)
            for g in range(gpus)
        ],
        agent_version="1",
    )
