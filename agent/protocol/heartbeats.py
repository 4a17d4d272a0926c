"""Liveness: what an agent says every few seconds, and what it hears back."""

from __future__ import annotations

from .base import Envelope
from .machines import Inventory, Reading, WorkerStatus
from .orders import Order


class HeartbeatRequest(Envelope, frozen=True, kw_only=True):
    boot_id: str
    sequence: int
    inventory_hash: str
    inventory: Inventory | None = None
    readings: list[Reading] = []
    workers: list[WorkerStatus] = []


class HeartbeatReply(Envelope, frozen=True, kw_only=True):
    policy_version: int
    want_inventory: bool
    heartbeat_s: float
    orders: list[Order]
