"""Who and what a node is, and how it joins."""

from __future__ import annotations

from typing import Literal

from .base import Envelope, Message


class Gpu(Message, frozen=True, kw_only=True):
    """One device of a node. ``simulated`` devices are CPU slots and say so on every screen."""

    index: int
    uuid: str
    model: str
    memory_bytes: int
    simulated: bool = False


class Endpoint(Message, frozen=True, kw_only=True):
    """Where an agent can be reached by other agents and by ranks.

    ``unix_path`` and ``host_key`` let two agents on one machine find out that they share it;
    ``host_key`` is the kernel's boot id plus the agent's network namespace, never a secret.
    ``tls_fingerprint`` is the SHA-256 of the certificate that the data server shows: streams are
    encrypted when it is set, and off loopback it must be.
    """

    host: str
    store_port: int
    data_port: int
    unix_path: str = ""
    host_key: str = ""
    tls_fingerprint: str = ""


class Inventory(Message, frozen=True, kw_only=True):
    """What a node is made of. Sent whole at enrolment and whenever ``inventory_hash`` changed."""

    hostname: str
    pool: str
    rack: str
    failure_domain: str
    endpoint: Endpoint
    gpus: list[Gpu]
    agent_version: str
    runs_as_root: bool = False


class EnrollRequest(Envelope, frozen=True, kw_only=True):
    """Spends a one-time token. ``node`` is the name this node keeps for ever within its cluster."""

    node: str
    boot_id: str
    inventory: Inventory


class EnrollReply(Envelope, frozen=True, kw_only=True):
    """``token`` is bound to this node, shown once, stored hashed by the platform."""

    node_id: str
    cluster: str
    token: str
    heartbeat_s: float


class Reading(Message, frozen=True, kw_only=True):
    """One measured value of a device or of the node. Absent is never zero: see ``outcome``."""

    check: str
    entity: str
    outcome: Literal["ok", "unsupported", "no_permission", "transient", "fatal"]
    value: float | None = None
    unit: str = ""
    simulated: bool = False


class GroupStanding(Message, frozen=True, kw_only=True):
    """A rank in one process group: collectives issued in this generation, and the oldest unfinished one
    (0: none, -1: one without a number). ``key`` is the same on all members."""

    key: int
    issued: int
    pending: int


class Standing(Message, frozen=True, kw_only=True):
    """Where a rank stands that does not move. Durations by its node's clock.

    ``still_s``: since anything of this changed; ``beat_s``: since a thread of the process last ran by itself;
    ``usual_s``: the median time of its latest steps, 0 before any.
    """

    phase: str
    step: int
    still_s: float
    beat_s: float
    usual_s: float
    groups: list[GroupStanding]


class WorkerStatus(Message, frozen=True, kw_only=True):
    """A worker process as the agent sees it, in every heartbeat: the platform compares and corrects."""

    worker_id: str
    job_id: str
    attempt: int
    generation: int
    rank: int | None
    state: Literal["starting", "standby", "running", "blocked", "exited", "not_joined"]
    mark_step: int = -1
    mark_head: str = ""
    """newest mark of the rank's trail: its head at a step that is a multiple of 16, -1 before the first."""
    standing: Standing | None = None
    """only of a rank that has not moved for longer than its steps usually take, and than ``stall_s``"""
