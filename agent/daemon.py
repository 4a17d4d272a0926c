"""The agent process: everything of one node, put together and taken down again."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import resource
import signal
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec
import structlog

from . import identity, machine, readings
from .client import PlatformClient
from .config import AgentConfig
from .control import CONTROL_SOCKET, ControlServer
from .errors import ConfigInvalid, PlatformAway
from .executor import Executor, Node
from .hanging import Hanging
from .identity import Identity
from .local_jobs import LocalJobs
from .parking import ParkedStates
from .platform_link import PlatformLink
from .protocol import Endpoint, EnrollRequest, Inventory, WorkerStatus
from .readings import Devices
from .records import Records
from .reports import Reporter
from .spool import Spool
from .standings import Standings
from .states import WIRE
from .store_server import StoreServer
from .transfer.server import DataServer
from .transfer.tls import TlsIdentity, is_loopback
from .workers import Worker, Workers

_log = structlog.get_logger("yoco.agent")
DATA_SOCKET = "data.sock"
UNIX_PATH_MAX = 100


def new_boot_id() -> str:
    """Names this start of the agent; begins with the machine's own boot, so that both can be told."""
    return f"{machine.kernel_boot_id()[:18]}.{os.urandom(8).hex()}"


def agent_version() -> str:
    try:
        return metadata.version("yoco")
    except metadata.PackageNotFoundError:
        return "0+source"


class Agent:
    """``run`` until SIGTERM or SIGINT. Workers outlive it: the next run finds them again."""

    def __init__(self, config: AgentConfig) -> None:
        self.config = config
        self.boot_id = new_boot_id()
        self._stopped = asyncio.Event()

    async def run(self) -> None:
        """Raises ConfigInvalid, PlatformRefused (enrolment), OSError (a port that is taken)."""
        async with AsyncExitStack() as stack:
            await self._run(stack)

    async def _run(self, stack: AsyncExitStack) -> None:
        config, folder = self.config, self.config.state_dir
        _prepare(folder)
        stack.enter_context(_lock(folder))
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._stopped.set)
        records = Records(folder / "records.sqlite3")
        stack.callback(records.close)
        spool = Spool(folder / "spool.sqlite3", self.boot_id)
        stack.callback(spool.close)
        workers, reporter = self._workers(stack, records, spool)
        store = await _store(config, records)
        stack.push_async_callback(store.stop)
        data = _data(config, records)
        stack.push_async_callback(asyncio.to_thread, data.stop)
        endpoint = _endpoint(config, store, data)
        known = identity.load(folder)
        name = known.node if known else config.name
        devices = readings.find(config.simulate_gpus, name, folder)
        stack.callback(devices.close)
        inventory = _inventory(config, endpoint, devices.gpus())
        known = known or await self._enrolled(inventory)
        if known is None:
            return
        standings = Standings(workers)
        parked = ParkedStates(config.parked_dir or folder / "parked", config.parked_bytes_max)
        for rank in parked.open():
            spool.append(rank.event())
        node = Node(
            config,
            known.node_id,
            endpoint,
            records,
            workers,
            reporter,
            store,
            data,
            Hanging(workers, standings),
            parked,
            spool.append,
            real_gpus=any(not gpu.simulated for gpu in inventory.gpus),
        )
        await self._serve(stack, node, known, spool, inventory, devices, standings)

    def _workers(
        self, stack: AsyncExitStack, records: Records, spool: Spool
    ) -> tuple[Workers, Reporter]:
        """The workers of earlier runs, found again; the exits of those that are gone are told."""
        workers = Workers(self.config.state_dir, records)
        reporter = Reporter(workers, spool.append)
        ended = workers.open()
        stack.push_async_callback(workers.close)
        for worker in ended:
            reporter.exited(worker)
        for worker in workers:
            reporter.watch_join(worker)
        return workers, reporter

    async def _serve(
        self,
        stack: AsyncExitStack,
        node: Node,
        known: Identity,
        spool: Spool,
        inventory: Inventory,
        devices: Devices,
        standings: Standings,
    ) -> None:
        """Follow orders until told to stop."""
        executor = Executor(node)
        stack.push_async_callback(executor.close)
        client = PlatformClient(known.platform, known.token, node.config.http_timeout_s)
        stack.push_async_callback(client.close)
        link = PlatformLink(
            client,
            known.token,
            spool,
            node.records,
            executor,
            inventory,
            _hash(inventory),
            devices.readings,
            lambda: statuses(node.workers, standings),
        )
        standings.on_still = link.beat
        local = LocalJobs(node, known, link, spool, executor)
        control = ControlServer(node.config.state_dir / CONTROL_SOCKET, local.answer)
        await control.start()
        stack.push_async_callback(control.stop)
        _log.info("agent_runs", node=known.node, platform=known.platform, boot_id=self.boot_id)
        loops = [link.heartbeats, link.events, link.results, link.doorbell, standings.run]

        async def worker_logs() -> None:
            await node.workers.keep_logs(node.config.log_bytes_max)

        if node.config.log_bytes_max:
            loops.append(worker_logs)
        await self._until_stopped(loops)

    async def _enrolled(self, inventory: Inventory) -> Identity | None:
        """Enrol, however long the platform is away; None when stopped meanwhile."""
        config = self.config
        if not (config.platform and config.token and config.name):
            raise ConfigInvalid(
                "this node is not enrolled: give --platform, --token and --name, or run enroll first"
            )
        while not self._stopped.is_set():
            try:
                return await enroll(config, inventory, self.boot_id)
            except PlatformAway as error:
                _log.warning("platform_failed", code=error.code, reason=error.message)
            try:
                async with asyncio.timeout(1.0):
                    await self._stopped.wait()
            except TimeoutError:
                pass
        return None

    async def _until_stopped(self, loops: list[Callable[[], Coroutine[Any, Any, None]]]) -> None:
        """Any: what a coroutine sends and yields is nobody's business here."""
        tasks = [asyncio.create_task(loop(), name=loop.__name__) for loop in loops]
        stop = asyncio.create_task(self._stopped.wait())
        done, _ = await asyncio.wait([*tasks, stop], return_when=asyncio.FIRST_COMPLETED)
        for task in [*tasks, stop]:
            task.cancel()
        await asyncio.gather(*tasks, stop, return_exceptions=True)
        for task in done - {stop}:
            task.result()  # a loop that ended by itself did so by a fault: let it be seen


async def enroll(config: AgentConfig, inventory: Inventory, boot_id: str) -> Identity:
    """Spend the one-time token and keep what comes back. Raises PlatformRefused, PlatformAway."""
    client = PlatformClient(config.platform, config.token, config.http_timeout_s)
    try:
        request = EnrollRequest(node=config.name, boot_id=boot_id, inventory=inventory)
        reply = await client.enroll(request)
    finally:
        await client.close()
    found = Identity(
        platform=client.platform,
        node=config.name,
        node_id=reply.node_id,
        cluster=reply.cluster,
        token=reply.token,
        heartbeat_s=reply.heartbeat_s,
    )
    identity.save(config.state_dir, found)
    return found


async def enroll_once(config: AgentConfig) -> Identity:
    """``yoco-agent enroll``: the ports are those that the daemon will take."""
    _prepare(config.state_dir)
    with _lock(config.state_dir):
        records = Records(config.state_dir / "records.sqlite3")
        store = await _store(config, records)
        data = _data(config, records)
        devices = readings.find(config.simulate_gpus, config.name, config.state_dir)
        try:
            inventory = _inventory(config, _endpoint(config, store, data), devices.gpus())
            return await enroll(config, inventory, new_boot_id())
        finally:
            devices.close()
            await asyncio.to_thread(data.stop)
            await store.stop()
            records.close()


def statuses(workers: Workers, standings: Standings) -> list[WorkerStatus]:
    """What a heartbeat says of the workers. Local jobs are not the platform's."""
    return [status_of(worker, standings) for worker in workers if not worker.record.local]


def status_of(worker: Worker, standings: Standings) -> WorkerStatus:
    record = worker.record
    mark_step, mark_head = worker.custody.mark()
    return WorkerStatus(
        worker_id=record.worker_id,
        job_id=record.job_id,
        attempt=record.attempt,
        generation=record.generation,
        rank=record.rank,
        state=WIRE[record.state],
        standing=standings.standing(worker),
        mark_step=mark_step,
        mark_head=mark_head,
    )


def _prepare(folder: Path) -> None:
    """The folder itself may be entered by workers of other users, for the link's socket alone."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o711)
    except OSError as error:
        raise ConfigInvalid(f"{folder}: {error}") from error
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class _lock:
    """One agent a state directory. Raises ConfigInvalid while another holds it."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "agent.lock"

    def __enter__(self) -> None:
        self._file = self._path.open("w")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._file.close()
            raise ConfigInvalid(f"another agent runs in {self._path.parent}") from error

    def __exit__(self, *_exc: object) -> None:
        self._file.close()


async def _store(config: AgentConfig, records: Records) -> StoreServer:
    """On the port of the last run if it is free, so that a restart changes nothing outside."""
    for port in _ports(config.store_port, records.fact("store_port")):
        store = StoreServer(config.bind, port)
        try:
            await store.start()
        except OSError:
            if port == config.store_port:
                raise
            continue
        records.save_fact("store_port", str(store.port))
        return store
    raise AssertionError("the last port tried is the configured one")


def _data(config: AgentConfig, records: Records) -> DataServer:
    tls: Any = None  # Any: the union that DataServer takes
    if config.tls == "off":
        tls = "off"
    elif config.tls_certificate and config.tls_key:
        tls = TlsIdentity.load(config.tls_certificate, config.tls_key)
    elif not is_loopback(config.bind):
        tls = TlsIdentity.load_or_create(config.state_dir / "tls")
    path = str(config.state_dir / DATA_SOCKET)
    unix_path = path if len(path.encode()) <= UNIX_PATH_MAX else None
    for port in _ports(config.data_port, records.fact("data_port")):
        data = DataServer(config.bind, port, unix_path, tls)
        try:
            data.start()
        except OSError:
            if port == config.data_port:
                raise
            continue
        records.save_fact("data_port", str(data.port))
        return data
    raise AssertionError("the last port tried is the configured one")


def _ports(configured: int, last: str) -> list[int]:
    return [configured] if configured or not last else [int(last), 0]


def _endpoint(config: AgentConfig, store: StoreServer, data: DataServer) -> Endpoint:
    return Endpoint(
        host=config.bind,
        store_port=store.port,
        data_port=data.port,
        unix_path=data.unix_path,
        host_key=machine.host_key(),
        tls_fingerprint=data.tls_fingerprint,
    )


def _inventory(config: AgentConfig, endpoint: Endpoint, gpus: list[Any]) -> Inventory:
    """Any: protocol.Gpu, as the devices give them."""
    hostname = machine.hostname()
    return Inventory(
        hostname=hostname,
        pool=config.pool,
        rack=config.rack or "unknown",
        failure_domain=config.failure_domain or hostname,
        endpoint=endpoint,
        gpus=gpus,
        agent_version=agent_version(),
        runs_as_root=config.allow_root,
    )


def _hash(inventory: Inventory) -> str:
    return hashlib.sha256(msgspec.json.encode(inventory)).hexdigest()[:32]
