"""``yoco-agent enroll | run | exec | status``: exit 0 done, 1 refused with a code, 2 bad use."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import structlog
from rich.console import Console

from . import config
from .control import (
    NEVER_JOINED,
    Ended,
    ExecRequest,
    NeverJoined,
    Problem,
    Reply,
    Started,
    Status,
    StatusRequest,
    StopRequest,
    ask,
)
from .errors import AgentError, ConfigInvalid
from .tail import follow

_errors = Console(stderr=True, soft_wrap=True)
EXIT_DONE, EXIT_REFUSED, EXIT_BAD_USE = 0, 1, 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; its exit status."""
    arguments = _parser().parse_args(argv)
    _log_to_stderr(arguments.verbose)
    try:
        status: int = asyncio.run(arguments.run(arguments))
    except ConfigInvalid as error:
        _say(error.code, error.message)
        return EXIT_BAD_USE
    except AgentError as error:
        _say(error.code, error.message)
        return EXIT_REFUSED
    except OSError as error:
        _say("system_error", str(error))
        return EXIT_REFUSED
    except KeyboardInterrupt:
        return 130
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="yoco-agent", description="The node agent of Yoco.")
    parser.add_argument("--verbose", action="store_true", help="log more to standard error")
    commands = parser.add_subparsers(required=True, metavar="enroll | run | exec | status")

    enroll = commands.add_parser("enroll", help="spend a one-time token; the node's own is kept")
    _add_node_options(enroll)
    enroll.set_defaults(run=_enroll)

    run = commands.add_parser("run", help="run the agent of this node until it is told to stop")
    _add_node_options(run)
    run.add_argument("--allow-user", action="append", dest="allow_users", metavar="NAME")
    run.add_argument("--allow-command", action="append", dest="allow_commands", metavar="PREFIX")
    run.add_argument("--carrier", choices=("auto", "tcp"))
    run.add_argument("--tls", choices=("auto", "off"))
    run.add_argument("--tls-certificate", metavar="PEM")
    run.add_argument("--tls-key", metavar="PEM")
    run.add_argument("--parked-dir", metavar="D", help="where the state of parked jobs lies")
    run.add_argument("--parked-bytes-max", type=int, metavar="N", help="most of it kept here")
    run.add_argument("--log-bytes-max", type=int, metavar="N", help="most of one worker's output")
    run.set_defaults(run=_run)

    execute = commands.add_parser("exec", help="run a command here, watched by the running agent")
    _add_state_dir(execute)
    execute.add_argument("--join-s", type=float, default=300.0, help="when to call it unjoined")
    execute.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND ...")
    execute.set_defaults(run=_exec)

    status = commands.add_parser("status", help="what the running agent holds")
    _add_state_dir(status)
    status.add_argument("--json", action="store_true")
    status.set_defaults(run=_status)
    return parser


def _add_state_dir(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--state-dir", metavar="D", help="what the agent keeps (YOCO_STATE_DIR)")
    parser.add_argument("--config", metavar="TOML", help="settings in a file (YOCO_CONFIG)")


def _add_node_options(parser: argparse.ArgumentParser) -> None:
    _add_state_dir(parser)
    parser.add_argument("--platform", metavar="URL")
    parser.add_argument("--token", help="one-time token; better in YOCO_TOKEN")
    parser.add_argument("--name", metavar="N", help="name of this node in its cluster, for ever")
    parser.add_argument("--pool", metavar="P")
    parser.add_argument("--rack", metavar="R")
    parser.add_argument("--failure-domain", metavar="F")
    parser.add_argument("--bind", metavar="ADDR", help="address of streams, stores and ranks")
    parser.add_argument("--store-port", type=int, metavar="PORT")
    parser.add_argument("--data-port", type=int, metavar="PORT")
    parser.add_argument("--simulate-gpus", type=int, metavar="N", help="CPU slots in place of GPUs")


def _config(arguments: argparse.Namespace) -> config.AgentConfig:
    return config.load(vars(arguments))


async def _enroll(arguments: argparse.Namespace) -> int:
    found = _config(arguments)
    for key in ("platform", "token", "name"):
        if not getattr(found, key):
            raise ConfigInvalid(f"--{key} is needed to enrol")
    from . import daemon  # the data plane and TLS: half a second that status and exec need not pay

    known = await daemon.enroll_once(found)
    Console().print(f"enrolled as [b]{known.node}[/] in cluster [b]{known.cluster}[/]")
    return EXIT_DONE


async def _run(arguments: argparse.Namespace) -> int:
    from . import daemon

    await daemon.Agent(_config(arguments)).run()
    return EXIT_DONE


async def _status(arguments: argparse.Namespace) -> int:
    found: list[Reply] = []

    async def keep(reply: Reply) -> None:
        found.append(reply)

    await ask(_config(arguments).state_dir, StatusRequest(), keep)
    status = _expect(found, Status)
    if arguments.json:
        sys.stdout.write(msgspec.json.encode(status).decode() + "\n")
    else:
        _print_status(status)
    return EXIT_DONE


def _print_status(status: Status) -> None:
    console = Console()
    heard = "never" if status.last_contact_s is None else f"{status.last_contact_s:.1f} s ago"
    root = "  [b red]workers may run as root[/]" if status.runs_as_root else ""
    console.print(f"node [b]{status.node}[/] in {status.cluster}, {status.platform}{root}")
    bell = "open" if status.doorbell else "away"
    console.print(
        f"platform heard {heard}, doorbell {bell}, {status.orders_running} orders running"
    )
    if status.last_error:
        console.print(f"[red]{status.last_error}[/]")
    console.print(
        f"spool {status.spool_length} events, {status.spool_refused} refused, "
        f"{status.points_dropped} points dropped; streams: encryption {status.stream_encryption}"
    )
    for worker in status.workers:
        at = worker.position
        who = "standby" if worker.rank is None else f"rank {worker.rank}"
        where = f", fence {at.fence}, prepared {at.prepared}, applied {at.applied}" if at else ""
        console.print(
            f"{worker.worker_id}: {who} of {worker.job_id}, generation {worker.generation}, "
            f"{worker.state}; custody {worker.custody} ({worker.held_descriptors} fds){where}; "
            f"[b]{worker.protection}[/]",
            soft_wrap=True,
        )


async def _exec(arguments: argparse.Namespace) -> int:
    command = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    if not command:
        raise ConfigInvalid("exec needs a command: yoco-agent exec -- COMMAND ...")
    state_dir = _config(arguments).state_dir
    request = ExecRequest(
        command=command,
        working_directory=os.getcwd(),
        environment=dict(os.environ),
        join_s=arguments.join_s,
    )
    run = _Execution(state_dir)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, run.interrupt)
    loop.add_signal_handler(signal.SIGTERM, run.interrupt)
    await ask(state_dir, request, run.hear)
    await run.finish()
    return run.exit_status


class _Execution:
    """The terminal's side of one ``exec``: shows the output, passes Ctrl-C on."""

    def __init__(self, state_dir: Path) -> None:
        self.exit_status = EXIT_REFUSED
        self._state_dir = state_dir
        self._worker_id = ""
        self._ended = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def hear(self, reply: Reply) -> None:
        match reply:
            case Problem():
                raise AgentError(reply.message, reply.code)
            case Started():
                self._worker_id = reply.worker_id
                _errors.print(f"{reply.worker_id}: process {reply.pid}, output in {reply.log}")
                show = follow(Path(reply.log), self._ended, sys.stdout.buffer)
                self._tasks.append(asyncio.create_task(show))
            case NeverJoined():
                _errors.print(f"[b yellow]{NEVER_JOINED}[/]")
            case Ended():
                self._ended.set()
                self.exit_status = EXIT_DONE if reply.exit_code == 0 else EXIT_REFUSED
                if reply.exit_code != 0:
                    how = f"signal {reply.signal}" if reply.signal else f"status {reply.exit_code}"
                    _say("command_failed", f"the command ended with {how}: {reply.detail}")

    def interrupt(self) -> None:
        self._tasks.append(asyncio.create_task(self._stop()))

    async def _stop(self) -> None:
        async def ignore(_reply: Reply) -> None: ...

        if self._worker_id:
            await ask(self._state_dir, StopRequest(worker_id=self._worker_id), ignore)

    async def finish(self) -> None:
        self._ended.set()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _expect(found: list[Reply], kind: type[Status]) -> Status:
    for reply in found:
        if isinstance(reply, Problem):
            raise AgentError(reply.message, reply.code)
        if isinstance(reply, kind):
            return reply
    raise AgentError("the agent did not answer", "agent_not_running")


def _say(code: str, message: str) -> None:
    _errors.print(f"[b red]{code}[/]: {message}", highlight=False)


def _log_to_stderr(verbose: bool) -> None:
    level = logging.DEBUG if verbose else logging.INFO
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.format_exc_info,
            structlog.processors.KeyValueRenderer(key_order=["timestamp", "level", "event"]),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
