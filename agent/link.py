"""What an agent and a worker it started say to each other, over an inherited socket pair.

The pair is ``AF_UNIX``/``SOCK_SEQPACKET``: one packet is one JSON message and up to ``FDS_MAX`` file
descriptors. Large things (manifests, blobs, tensors) never travel in a packet; they sit in memfds whose
descriptors do. A worker finds its end in ``YOCO_LINK_FD`` and what it is in ``YOCO_WORKER`` (WorkerStart).

Order of calls in a worker's life:
    Hello -> [rank] Layout, Joined, ArenaShared (after step 1) ... Points ... Finished
    Hello -> [standby] Layout, ArenaShared, Warm
             ... <- AdoptRank -> AdoptReady <- Restore -> Regrouped -> Committed
    failure: -> Blocked <- Resume -> Regrouped -> Committed
Either side may close at any time; the worker then keeps training and the agent keeps what it holds.
An agent that was restarted listens at the path in ``YOCO_RECONNECT``: the worker connects (``connect``), says
Hello, Layout and ArenaShared again, and Blocked if it is. The kernel tells the agent who connects.
"""

from __future__ import annotations

import array
import contextlib
import os
import signal
import socket
from collections.abc import Iterator
from typing import Literal

import msgspec

from .protocol import Limits, StateInventory, StoreRef

FDS_MAX = 253
PACKET_BYTES_MAX = 128 * 1024
LINK_FD = "YOCO_LINK_FD"
WORKER = "YOCO_WORKER"
RECONNECT = "YOCO_RECONNECT"
STACKS_SIGNAL = signal.SIGRTMIN + 7
"""A joined process writes the stacks of all its threads to its standard error; no script uses this one."""
ArenaName = Literal["live", "shadow", "buddy0", "buddy1"]
"""The rank's own arena, its local copy, and another rank's arena that is kept here, by step parity."""


class LinkMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of every packet."""


class WorkerStart(LinkMessage, frozen=True, kw_only=True):
    """What a worker is told at birth, as JSON in the environment variable ``YOCO_WORKER``."""

    worker_id: str
    job_id: str
    attempt: int
    generation: int
    rank: int | None
    provisional_rank: int
    world_size: int
    store: StoreRef
    redundancy: Literal["auto", "replica", "shadow", "buddy"]
    accumulation: Literal["redo", "keep"] = "redo"
    buddies: dict[str, str]
    limits: Limits
    bind_host: str
    """address of the interface that process groups and streams are bound to"""


# --- worker -> agent -------------------------------------------------------------------------------


class Hello(LinkMessage, tag="hello", frozen=True, kw_only=True):
    """yoco.join() was called."""

    pid: int


class Layout(LinkMessage, tag="layout", frozen=True, kw_only=True):
    """Descriptors, in this order: header page, then the slots ``small``, ``fence``, ``prepared``, ``buddy``,
    ``buddy_small``, ``micro``.

    Sent again, whole, when a slot had to grow.
    """


class ArenaShared(LinkMessage, tag="arena", frozen=True, kw_only=True):
    """A part of an arena: descriptor 0 of part 0 is the manifest (JSON in a memfd), the rest are storages.

    An arena is whole when all ``parts`` of one ``epoch`` arrived; the agent answers ``ArenaKept``.
    """

    which: ArenaName
    epoch: int
    part: int
    parts: int
    storage_ids: list[int]


class Joined(LinkMessage, tag="joined", frozen=True, kw_only=True):
    """``protect()`` returned on a rank."""

    rank: int
    fingerprint: str
    parallelism: str
    redundancy: str
    replica_group: list[int]
    inventory: StateInventory


class StateListed(LinkMessage, tag="state_listed", frozen=True, kw_only=True):
    """The report of ``Joined`` again, once the first step has made the optimizers' state."""

    inventory: StateInventory


class Warm(LinkMessage, tag="warm", frozen=True, kw_only=True):
    """A standby made its two sandboxed steps and waits for ``Adopt``."""

    provisional_rank: int
    fingerprint: str


class Blocked(LinkMessage, tag="blocked", frozen=True, kw_only=True):
    """The rank waits; its header page and slots say where it stands."""

    generation: int
    outcome: Literal["paused", "failed", "unknown", "stalled"]
    silent_s: float = 0.0
    replica_digest: str = ""
    """of the fence at which it paused, where replicas hold the same"""


class AdoptReady(LinkMessage, tag="adopt_ready", frozen=True, kw_only=True):
    """The standby's arena now has the shapes of ``rank``; the agent may write into it."""

    rank: int
    epoch: int


class AdoptFailed(LinkMessage, tag="adopt_failed", frozen=True, kw_only=True):
    rank: int
    code: str
    message: str


class Regrouped(LinkMessage, tag="regrouped", frozen=True, kw_only=True):
    """Standing in the new generation's group. Times are Unix seconds."""

    rank: int
    generation: int
    began_at: float
    ended_at: float


class Committed(LinkMessage, tag="committed", frozen=True, kw_only=True):
    """First commit of this rank in a generation (fields as protocol.RankCommitted)."""

    rank: int
    generation: int
    step: int
    previous_step: int
    pause_ms: float | None
    trail_head: str
    previous_trail_head: str
    trail_marks: dict[str, str]
    batch_hash: str
    redone_batch_hash: str
    redrawn_batch_hash: str = ""
    redone_micro_batches: int | None = None
    replica_digest: str
    at: float


class PointsMade(LinkMessage, tag="points", frozen=True, kw_only=True):
    """``generation``: in which these steps were committed."""

    generation: int
    points: list[tuple[int, float, float | None, float]]


class DigestMade(LinkMessage, tag="digest", frozen=True, kw_only=True):
    step: int
    digest: str
    trail_head: str


class CostsMeasured(LinkMessage, tag="costs", frozen=True, kw_only=True):
    """What protection costs a step (fields as protocol.RankCosts)."""

    step: int
    costs: dict[str, float]


class CheckpointMade(LinkMessage, tag="checkpointed", frozen=True, kw_only=True):
    step: int


class CheckpointLoaded(LinkMessage, tag="checkpoint_loaded", frozen=True, kw_only=True):
    """The script loaded a checkpoint of its own: this rank goes on after ``step``."""

    step: int


class Raised(LinkMessage, tag="raised", frozen=True, kw_only=True):
    """The script raised what it does not catch, and will end: type and first line of the message."""

    exception: str


class Finished(LinkMessage, tag="finished", frozen=True, kw_only=True):
    step: int
    trail_head: str


# --- agent -> worker -------------------------------------------------------------------------------


class ArenaKept(LinkMessage, tag="arena_kept", frozen=True, kw_only=True):
    """The agent holds every storage of this epoch: the header may be marked clean."""

    which: ArenaName
    epoch: int


class Pause(LinkMessage, tag="pause", frozen=True, kw_only=True):
    """Ask the others, with the next vote, to stop at the fence that follows it."""

    generation: int


class Interrupt(LinkMessage, tag="interrupt", frozen=True, kw_only=True):
    """The generation is over: abort its groups and report ``Blocked``."""

    generation: int


class Resume(LinkMessage, tag="resume", frozen=True, kw_only=True):
    """A surviving rank's verdict: the committed step, the micro-batch of the next one that all have kept
    (0: none), and the generation to meet in."""

    generation: int
    resume_at: int
    resume_micro: int = 0
    store: StoreRef
    buddies: dict[str, str]


class AdoptRank(LinkMessage, tag="adopt", frozen=True, kw_only=True):
    """A standby becomes ``rank``: take its shapes, answer ``AdoptReady``, wait for ``Restore``."""

    rank: int
    generation: int
    resume_at: int
    resume_micro: int = 0
    drawn: int | None = None
    drawn_hash: str = ""
    finish_micro: int = 0
    finish: Literal["none", "tail", "apply"]
    store: StoreRef
    buddies: dict[str, str]


class Restore(LinkMessage, tag="restore", frozen=True, kw_only=True):
    """The storages are in place. Descriptors: one memfd per name in ``blobs``, in that order
    (of ``small``, ``fence``, ``prepared``, ``micro``); ``steps`` are the steps the blobs belong to, of
    ``micro`` its key."""

    rank: int
    generation: int
    blobs: list[Literal["small", "fence", "prepared", "micro"]]
    steps: list[int]


class Quit(LinkMessage, tag="quit", frozen=True, kw_only=True):
    """End at once, quietly: this worker's rank lives elsewhere or the job was stopped."""

    reason: str


FromWorker = (
    Hello
    | Layout
    | ArenaShared
    | Joined
    | StateListed
    | Warm
    | Blocked
    | AdoptReady
    | AdoptFailed
    | Regrouped
    | Committed
    | PointsMade
    | DigestMade
    | CostsMeasured
    | CheckpointMade
    | CheckpointLoaded
    | Raised
    | Finished
)
FromAgent = ArenaKept | Pause | Interrupt | Resume | AdoptRank | Restore | Quit

_encoder = msgspec.json.Encoder()
_from_worker = msgspec.json.Decoder(FromWorker)
_from_agent = msgspec.json.Decoder(FromAgent)


def send(link: socket.socket, message: LinkMessage, fds: list[int] | None = None) -> None:
    """Send one packet. Raises OSError when the other end is gone, ValueError beyond the limits."""
    data = _encoder.encode(message)
    if len(data) > PACKET_BYTES_MAX or len(fds or ()) > FDS_MAX:
        raise ValueError(f"link packet too large: {len(data)} bytes, {len(fds or ())} descriptors")
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    link.sendmsg([data], rights)


def _receive(link: socket.socket) -> tuple[bytes, list[int]]:
    fds = array.array("i")
    data, ancillary, _flags, _address = link.recvmsg(
        PACKET_BYTES_MAX, socket.CMSG_SPACE(4 * FDS_MAX)
    )
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(payload[: len(payload) - len(payload) % 4])
    for fd in fds:
        os.set_inheritable(fd, False)
    return data, list(fds)


def receive_from_worker(link: socket.socket) -> tuple[FromWorker, list[int]] | None:
    """One packet from a worker, None at its end. Raises msgspec.DecodeError on anything unknown."""
    data, fds = _receive(link)
    if not data:
        return None
    try:
        return _from_worker.decode(data), fds
    except msgspec.DecodeError:
        for fd in fds:
            os.close(fd)
        raise


def connect(path: str) -> socket.socket:
    """A worker's new link to an agent that was restarted. Raises OSError while none listens."""
    link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    try:
        with short_path(path) as short:
            link.connect(short)
    except BaseException:
        link.close()
        raise
    return link


@contextlib.contextmanager
def short_path(path: str) -> Iterator[str]:
    """A name for ``path`` that fits a unix address (108 bytes), however deep its folder lies."""
    folder, name = os.path.split(path)
    fd = os.open(folder or ".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}/{name}"
    finally:
        os.close(fd)


def receive_from_agent(link: socket.socket) -> tuple[FromAgent, list[int]] | None:
    """One packet from the agent, None at its end. Raises msgspec.DecodeError on anything unknown."""
    data, fds = _receive(link)
    return (_from_agent.decode(data), fds) if data else None
