"""Whether this node accepts a job's command, and what its processes are started with."""

from __future__ import annotations

import hashlib
import os
import pwd
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from .config import AgentConfig
from .errors import (
    BadOrder,
    CommandNotAccepted,
    CommandNotFound,
    FolderNotFound,
    RootRefused,
    ScriptNotFound,
    StartFailed,
    UserNotAccepted,
)
from .link import RECONNECT, WORKER, WorkerStart
from .protocol import LaunchOrder, RankExited
from .records import WorkerRecord
from .states import WorkerState

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_OWN_PREFIX = "YOCO_"
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OWN_FOR_JOBS = frozenset({"YOCO_DIGEST_EVERY", "YOCO_TRAIL_FILE"})


@dataclass(frozen=True)
class User:
    """Who a worker runs as. ``switch`` False: the agent's own user, nothing to change."""

    name: str
    uid: int
    gid: int
    home: str
    switch: bool


def admit(order: LaunchOrder, config: AgentConfig) -> User:
    """Check an order against this node's own lists. Raises Refused; nothing was started then."""
    for worker in order.workers:
        if not _NAME.fullmatch(worker.worker_id):
            raise BadOrder(f"worker id {worker.worker_id[:80]!r} is no plain name")
        if worker.rank is not None and not 0 <= worker.rank < order.world_size:
            raise BadOrder(f"rank {worker.rank} of a world of {order.world_size}")
    if not order.command:
        raise BadOrder("the command is empty")
    if order.run_as not in config.allow_users:
        raise UserNotAccepted(f"this node does not run jobs of user {order.run_as!r}")
    _check_words(order, config)
    user = user_named(order.run_as, config.allow_root)
    check_command(order.command, order.working_directory)
    return user


def _check_words(order: LaunchOrder, config: AgentConfig) -> None:
    """Raises CommandNotAccepted, BadOrder: neither the words nor the variables of an order may choose
    another program than the one this node lists."""
    name = order.command[0]
    if not os.path.isabs(name):
        raise CommandNotAccepted(f"a command is named by its full path here, not {name!r}")
    if not any(_begins(order.command, prefix) for prefix in config.command_prefixes):
        raise CommandNotAccepted(f"this node does not run {name!r} like this")
    for variable in order.environment:
        if not _may_set(variable):
            message = f"an order may not set {variable[:80]!r}"
            raise BadOrder(message, "environment_not_accepted")


def _may_set(variable: str) -> bool:
    """Not what decides which program or library is loaded, and not what the agent tells its workers."""
    if not _VARIABLE.fullmatch(variable) or variable == "PATH" or variable.startswith("LD_"):
        return False
    return not variable.startswith(_OWN_PREFIX) or variable in _OWN_FOR_JOBS


def user_named(name: str, allow_root: bool) -> User:
    """Raises UserNotAccepted for an unknown user or one the agent cannot become; RootRefused."""
    try:
        entry = pwd.getpwnam(name)
    except KeyError as error:
        raise UserNotAccepted(f"there is no user {name!r} on this node") from error
    if entry.pw_uid == 0 and not allow_root:
        raise RootRefused("workers do not run as root unless YOCO_ALLOW_ROOT=1")
    own = os.geteuid()
    if own not in (0, entry.pw_uid):
        raise UserNotAccepted(f"the agent runs as user id {own} and cannot become {name!r}")
    return User(name, entry.pw_uid, entry.pw_gid, entry.pw_dir, own != entry.pw_uid)


def check_command(command: Sequence[str], working_directory: str) -> None:
    """Raises FolderNotFound, CommandNotFound, ScriptNotFound."""
    folder = Path(working_directory)
    if not folder.is_absolute() or not folder.is_dir():
        raise FolderNotFound(f"there is no folder {working_directory!r} on this node")
    name = command[0]
    found = (folder / name).is_file() if "/" in name else shutil.which(name) is not None
    if not found:
        raise CommandNotFound(f"there is no command {name!r} on this node")
    script = next((word for word in command[1:] if word.endswith(".py")), None)
    if script is not None and not (folder / script).is_file():
        raise ScriptNotFound(f"there is no script {script!r} in {working_directory!r}")


def _begins(command: Sequence[str], prefix: Sequence[str]) -> bool:
    """Whether the command's first words are the prefix's. A last word that ends in / is a folder."""
    if len(command) < len(prefix) or list(command[: len(prefix) - 1]) != list(prefix[:-1]):
        return False
    last, wanted = command[len(prefix) - 1], prefix[-1]
    if wanted.endswith("/"):
        return os.path.normpath(last).startswith(os.path.normpath(wanted) + "/")
    return last == wanted


def environment(
    order: Mapping[str, str],
    start: WorkerStart,
    user: User,
    *,
    reconnect: Path,
    gpu_index: int | None,
) -> dict[str, str]:
    """What a worker finds in its environment: the agent's, the order's, then what it is.

    The agent's own YOCO_ variables stay behind: its token is among them. ``gpu_index`` None leaves the
    devices as they are (simulated ones have no driver).
    """
    found = {k: v for k, v in os.environ.items() if not k.startswith(_OWN_PREFIX)}
    if user.switch:
        found |= {"HOME": user.home, "USER": user.name, "LOGNAME": user.name}
    found["PYTHONUNBUFFERED"] = "1"
    found |= dict(order)
    rank = start.provisional_rank if start.rank is None else start.rank
    found |= {
        "RANK": str(rank),
        "WORLD_SIZE": str(start.world_size),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "GROUP_RANK": str(rank),
        "MASTER_ADDR": start.store.host,
        "MASTER_PORT": str(_master_port(start.store.prefix)),
        WORKER: msgspec.json.encode(start).decode(),
        RECONNECT: str(reconnect),
    }
    if gpu_index is not None:
        found["CUDA_VISIBLE_DEVICES"] = str(gpu_index)
    return found


def _master_port(prefix: str) -> int:
    """Equal on all nodes of a generation, for scripts that never join and meet by themselves."""
    return 20000 + int.from_bytes(hashlib.sha256(prefix.encode()).digest()[:2], "little") % 10000


def record_of(start: WorkerStart, command: list[str], gpu_index: int = 0) -> WorkerRecord:
    """The record of a worker about to be started."""
    return WorkerRecord(
        worker_id=start.worker_id,
        job_id=start.job_id,
        attempt=start.attempt,
        generation=start.generation,
        rank=start.rank,
        provisional_rank=start.provisional_rank,
        world_size=start.world_size,
        pid=0,
        start_ticks=0,
        kernel_boot_id="",
        state=WorkerState.STARTING,
        limits=start.limits,
        log="",
        command=list(command),
        started_at=0.0,
        gpu_index=gpu_index,
    )


def never_started(start: WorkerStart, failure: StartFailed) -> RankExited:
    """What the platform is told of a worker that could not be started."""
    return RankExited(
        job_id=start.job_id,
        attempt=start.attempt,
        generation=start.generation,
        worker_id=start.worker_id,
        rank=start.rank,
        exit_code=None,
        signal=None,
        position=None,
        custody="none",
        detail=failure.message,
    )
