"""What a node agent and the platform say to each other: the whole wire, and nothing else.

Every message is one JSON object, decoded strictly by msgspec: a field that is not listed here, or a
value of another type, is refused with the code ``bad_message``. Times are seconds since the Unix epoch
(float, UTC, the sender's clock); durations end in ``_s`` or ``_ms``; sizes in ``_bytes``.

The platform speaks ``PROTOCOL`` and the versions in ``SPOKEN``; others get ``protocol_not_spoken``.

Routes (docs/agent.md has the order of calls):
    POST /agent/v1/enroll               EnrollRequest    -> EnrollReply      one-time token
    POST /agent/v1/heartbeat            HeartbeatRequest -> HeartbeatReply   node token
    POST /agent/v1/events               EventBatch       -> EventsReply      node token
    POST /agent/v1/orders/<id>/result   OrderResult      -> Empty            node token
    WS   /agent/v1/doorbell             the text ``ring`` means: fetch your orders now
"""

from __future__ import annotations

from .base import BODY_BYTES_MAX, EVENTS_PER_BATCH_MAX, PROTOCOL, SPOKEN, Envelope, Message
from .events import (
    Checkpointed,
    CheckpointLoaded,
    Event,
    EventBatch,
    EventBody,
    EventsReply,
    MigrationFailed,
    NotJoined,
    Points,
    Position,
    RankBlocked,
    RankCommitted,
    RankCosts,
    RankEvent,
    RankExited,
    RankFinished,
    RankJoined,
    RankParked,
    Rejoined,
    StandbyWarm,
    StateDigest,
    StateInventory,
    StateListed,
    StatePart,
    Transferred,
    WorkerStarted,
)
from .heartbeats import HeartbeatReply, HeartbeatRequest
from .machines import (
    Endpoint,
    EnrollReply,
    EnrollRequest,
    Gpu,
    GroupStanding,
    Inventory,
    Reading,
    Standing,
    WorkerStatus,
)
from .orders import (
    Adopt,
    Empty,
    EndHungOrder,
    Fetch,
    InterruptOrder,
    LaunchOrder,
    Limits,
    Order,
    OrderBody,
    OrderResult,
    ParkOrder,
    PauseOrder,
    RegroupOrder,
    ReleaseOrder,
    Retire,
    Serve,
    StopOrder,
    StoreRef,
    Survive,
    WorkerSpec,
)

__all__ = [
    "BODY_BYTES_MAX",
    "EVENTS_PER_BATCH_MAX",
    "PROTOCOL",
    "SPOKEN",
    "Adopt",
    "CheckpointLoaded",
    "Checkpointed",
    "Empty",
    "EndHungOrder",
    "Endpoint",
    "EnrollReply",
    "EnrollRequest",
    "Envelope",
    "Event",
    "EventBatch",
    "EventBody",
    "EventsReply",
    "Fetch",
    "Gpu",
    "GroupStanding",
    "HeartbeatReply",
    "HeartbeatRequest",
    "InterruptOrder",
    "Inventory",
    "LaunchOrder",
    "Limits",
    "Message",
    "MigrationFailed",
    "NotJoined",
    "Order",
    "OrderBody",
    "OrderResult",
    "ParkOrder",
    "PauseOrder",
    "Points",
    "Position",
    "RankBlocked",
    "RankCommitted",
    "RankCosts",
    "RankEvent",
    "RankExited",
    "RankFinished",
    "RankJoined",
    "RankParked",
    "Reading",
    "RegroupOrder",
    "Rejoined",
    "ReleaseOrder",
    "Retire",
    "Serve",
    "StandbyWarm",
    "Standing",
    "StateDigest",
    "StateInventory",
    "StateListed",
    "StatePart",
    "StopOrder",
    "StoreRef",
    "Survive",
    "Transferred",
    "WorkerSpec",
    "WorkerStarted",
    "WorkerStatus",
]
