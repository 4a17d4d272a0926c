"""What the daemon answers on its control socket: its status, and jobs that a person starts here."""

from __future__ import annotations

import os
import pwd
import secrets
import time
from collections.abc import AsyncIterator

from . import launch
from .control import (
    NEVER_JOINED,
    Done,
    Ended,
    ExecRequest,
    NeverJoined,
    Reply,
    Request,
    Started,
    Status,
    StatusRequest,
    StopRequest,
    WorkerView,
)
from .errors import BadOrder, UnknownWorker
from .executor import Executor, Node
from .identity import Identity
from .link import WorkerStart
from .platform_link import PlatformLink
from .protocol import Limits, StoreRef
from .spool import Spool
from .states import WorkerState
from .workers import Worker

FOREVER_S = 10 * 365 * 24 * 3600.0


class LocalJobs:
    """``answer`` is the control server's handler."""

    def __init__(
        self,
        node: Node,
        known: Identity,
        link: PlatformLink,
        spool: Spool,
        executor: Executor,
    ) -> None:
        self._node = node
        self._known = known
        self._link = link
        self._spool = spool
        self._executor = executor

    async def answer(self, request: Request) -> AsyncIterator[Reply]:
        """Replies to one request. Raises Refused, StartFailed."""
        match request:
            case StatusRequest():
                yield self._status()
            case StopRequest():
                await self._stop(request)
                yield Done()
            case ExecRequest():
                async for reply in self._exec(request):
                    yield reply

    def _status(self) -> Status:
        link, node = self._link, self._node
        contact = link.last_contact
        return Status(
            node=self._known.node,
            cluster=self._known.cluster,
            platform=self._known.platform,
            boot_id=self._spool.boot_id,
            runs_as_root=node.config.allow_root,
            workers=[view(worker) for worker in node.workers],
            spool_length=len(self._spool),
            spool_refused=self._spool.num_refused,
            points_dropped=self._spool.dropped_points,
            orders_running=len(self._executor.running),
            last_contact_s=None if contact is None else time.monotonic() - contact,
            last_error=link.last_error,
            doorbell=link.doorbell_open,
            store_port=node.store.port,
            data_port=node.data.port,
            stream_encryption=node.data.tls,
        )

    async def _exec(self, request: ExecRequest) -> AsyncIterator[Reply]:
        if not request.command:
            raise BadOrder("the command is empty")
        node = self._node
        # The caller can open the agent's own socket, so it is the agent's user: the lists of accepted
        # users and commands are for orders from elsewhere. The rule about root holds for both.
        own = pwd.getpwuid(os.geteuid()).pw_name
        user = launch.user_named(own, node.config.allow_root)
        launch.check_command(request.command, request.working_directory)
        worker = self._start(request, user)
        record = worker.record
        yield Started(worker_id=record.worker_id, pid=record.pid, log=record.log)
        if not await worker.until(lambda w: w.record.joined, request.join_s) and worker.alive:
            worker.step(WorkerState.NOT_JOINED)
            yield NeverJoined()
        await worker.until(lambda w: not w.alive, FOREVER_S)
        ending = worker.ending
        assert ending is not None
        detail = worker.last_line()
        node.workers.forget(worker)
        yield Ended(exit_code=ending.exit_code, signal=ending.signal, detail=detail)

    def _start(self, request: ExecRequest, user: launch.User) -> Worker:
        node = self._node
        worker_id = f"local-{secrets.token_hex(6)}"
        store = StoreRef(
            host=node.endpoint.host,
            port=node.store.port,
            prefix=f"{worker_id}/0",
            secret=secrets.token_hex(32),
        )
        start = WorkerStart(
            worker_id=worker_id,
            job_id=worker_id,
            attempt=1,
            generation=0,
            rank=0,
            provisional_rank=0,
            world_size=1,
            store=store,
            redundancy="auto",
            buddies={},
            limits=Limits(join_s=request.join_s),
            bind_host=node.config.bind,
        )
        record = launch.record_of(start, request.command)
        record.local = True
        environment = launch.environment(
            request.environment,
            start,
            user,
            reconnect=node.workers.reconnect_path,
            gpu_index=None,
        )
        node.store.open_prefix(store.prefix, store.secret)
        return node.workers.start(
            record,
            environment=environment,
            working_directory=request.working_directory,
            user=user,
        )

    async def _stop(self, request: StopRequest) -> None:
        worker = self._node.workers.get(request.worker_id)
        if worker is None or not worker.record.local:
            raise UnknownWorker(f"no local worker {request.worker_id!r} runs here")
        worker.discard = True
        await self._node.workers.quit(worker, "stopped", self._node.config.stop_grace_s)


def view(worker: Worker) -> WorkerView:
    """A worker as ``status`` shows it."""
    record, custody = worker.record, worker.custody
    return WorkerView(
        worker_id=record.worker_id,
        job_id=record.job_id,
        generation=record.generation,
        rank=record.rank,
        pid=record.pid,
        state=str(record.state),
        custody=custody.state,
        position=custody.position(),
        held_descriptors=custody.num_fds,
        protection=protection(worker),
        local=record.local,
        log=record.log,
    )


def protection(worker: Worker) -> str:
    """What this node can say of it: the job as a whole is judged by the platform."""
    record = worker.record
    if record.state == WorkerState.NOT_JOINED:
        return NEVER_JOINED
    if not record.joined:
        return "not protected: script has not joined yet"
    if record.rank is None:
        return "standby"
    if record.local:
        return "not protected: a local job has no spare"
    match worker.custody.state:
        case "usable":
            return "its state is in custody"
        case "unavailable":
            return "degraded: its state is not whole in custody yet"
        case _:
            return "not protected: nothing is in custody yet"
