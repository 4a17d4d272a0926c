"""The agent's configuration: read once from command line, environment and a TOML file, in that order."""

from __future__ import annotations

import os
import shlex
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from .errors import ConfigInvalid

ENVIRONMENT: dict[str, str] = {
    "state_dir": "YOCO_STATE_DIR",
    "platform": "YOCO_PLATFORM",
    "token": "YOCO_TOKEN",
    "name": "YOCO_NODE_NAME",
    "pool": "YOCO_POOL",
    "rack": "YOCO_RACK",
    "failure_domain": "YOCO_FAILURE_DOMAIN",
    "bind": "YOCO_BIND",
    "store_port": "YOCO_STORE_PORT",
    "data_port": "YOCO_DATA_PORT",
    "simulate_gpus": "YOCO_SIMULATE_GPUS",
    "allow_users": "YOCO_ALLOW_USERS",
    "allow_commands": "YOCO_ALLOW_COMMANDS",
    "allow_root": "YOCO_ALLOW_ROOT",
    "carrier": "YOCO_CARRIER",
    "tls": "YOCO_TLS",
    "tls_certificate": "YOCO_TLS_CERTIFICATE",
    "tls_key": "YOCO_TLS_KEY",
    "parked_dir": "YOCO_PARKED_DIR",
    "parked_bytes_max": "YOCO_PARKED_BYTES_MAX",
    "log_bytes_max": "YOCO_LOG_BYTES_MAX",
}
"""Setting -> environment variable. Lists are separated by commas there. YOCO_CONFIG names the file."""
TOKEN_FILE = "YOCO_TOKEN_FILE"  # noqa: S105  (a name, no secret)
"""A file that holds the token: one that is not there holds none, for an enrolled agent needs none."""
CONFIG_FILE = "YOCO_CONFIG"
_SECRET = frozenset({"token"})


@dataclass(frozen=True, kw_only=True)
class AgentConfig:
    """Everything the agent was told at its start.

    ``allow_users``: operating-system users whose jobs this node runs. ``allow_commands``: command
    prefixes it runs, each as words of a shell (never run by one) that begin with a full path; both empty
    by default: closed.
    ``carrier``: auto takes the memory itself between agents of one machine, tcp never does.
    ``tls``: auto encrypts state streams off loopback, off never does.
    ``parked_dir``: where the state of parked jobs lies, ``parked`` in the state directory by default;
    ``parked_bytes_max``: most of it this node keeps, 0: what its disk holds.
    ``log_bytes_max``: about as much is kept of what one worker prints, its last part; 0: all of it.
    """

    state_dir: Path
    platform: str = ""
    token: str = ""
    name: str = ""
    pool: str = "default"
    rack: str = ""
    failure_domain: str = ""
    bind: str = "127.0.0.1"
    store_port: int = 0
    data_port: int = 0
    simulate_gpus: int = 0
    allow_users: tuple[str, ...] = ()
    allow_commands: tuple[str, ...] = ()
    allow_root: bool = False
    carrier: str = "auto"
    tls: str = "auto"
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    http_timeout_s: float = 10.0
    stop_grace_s: float = 2.0
    parked_dir: Path | None = None
    parked_bytes_max: int = 0
    log_bytes_max: int = 64 * 1024 * 1024

    def __post_init__(self) -> None:
        checks = (
            (self.carrier in ("auto", "tcp"), f"carrier is auto or tcp, not {self.carrier!r}"),
            (self.tls in ("auto", "off"), f"tls is auto or off, not {self.tls!r}"),
            (0 <= self.simulate_gpus <= 1024, "simulate_gpus is from 0 to 1024"),
            (self.parked_bytes_max >= 0, "parked_bytes_max is 0 or more"),
            (self.log_bytes_max >= 0, "log_bytes_max is 0 or more"),
            (0 <= self.store_port < 65536, "store_port is from 0 to 65535"),
            (0 <= self.data_port < 65536, "data_port is from 0 to 65535"),
            (_is_address(self.bind), f"bind is an address of this host, not {self.bind!r}"),
            (
                not self.platform or self.platform.startswith(("http://", "https://")),
                f"platform is an http or https address, not {self.platform!r}",
            ),
            (
                (self.tls_certificate is None) == (self.tls_key is None),
                "tls_certificate and tls_key belong together",
            ),
            (all(_is_words(prefix) for prefix in self.allow_commands), "an allow_command is empty"),
            # An order names its program by full path: any other prefix would never match.
            *((_is_full(prefix), _not_full(prefix)) for prefix in self.allow_commands),
        )
        for holds, message in checks:
            if not holds:
                raise ConfigInvalid(message)

    @property
    def command_prefixes(self) -> tuple[tuple[str, ...], ...]:
        """``allow_commands`` as argument lists."""
        return tuple(tuple(shlex.split(prefix)) for prefix in self.allow_commands)


def load(
    arguments: Mapping[str, object], environment: Mapping[str, str] | None = None
) -> AgentConfig:
    """Merge the sources; what the command line leaves None is looked up further.

    Raises ConfigInvalid for an unknown key, a value of another type, or none for ``state_dir``.
    """
    env = os.environ if environment is None else environment
    file = arguments.get("config") or env.get(CONFIG_FILE)
    merged: dict[str, object] = dict(_read_file(Path(str(file))) if file else {})
    for key, variable in ENVIRONMENT.items():
        if env.get(variable):
            merged[key] = _from_text(key, env[variable])
    if "token" not in merged and env.get(TOKEN_FILE):
        merged["token"] = _read_token(Path(env[TOKEN_FILE]))
    known = {field.name for field in fields(AgentConfig)}
    given = {k: v for k, v in arguments.items() if v is not None and k in known}
    merged.update(given)
    if not merged.get("state_dir"):
        raise ConfigInvalid("no state directory: --state-dir or YOCO_STATE_DIR")
    return AgentConfig(**{key: _checked(key, value) for key, value in merged.items()})


def _read_file(path: Path) -> dict[str, object]:
    try:
        found = tomllib.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ConfigInvalid(f"{path}: {error}") from error
    unknown = found.keys() - {field.name for field in fields(AgentConfig)} | found.keys() & _SECRET
    if unknown:
        raise ConfigInvalid(f"{path}: no setting named {', '.join(sorted(unknown))}")
    return found


def _read_token(path: Path) -> str:
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        return ""
    except (OSError, ValueError) as error:
        raise ConfigInvalid(f"{TOKEN_FILE} names {path}: {error}") from error


def _from_text(key: str, text: str) -> object:
    kind = _KINDS[key]
    try:
        return kind(text)
    except ValueError as error:
        raise ConfigInvalid(f"{ENVIRONMENT[key]}: {error}") from error


def _checked(key: str, value: object) -> Any:  # Any: each setting has its own type
    paths = ("state_dir", "tls_certificate", "tls_key", "parked_dir")
    if key in paths and isinstance(value, str | Path):
        return Path(value).expanduser().absolute()
    if key in ("allow_users", "allow_commands"):
        if not isinstance(value, list | tuple) or not all(isinstance(v, str) for v in value):
            raise ConfigInvalid(f"{key} is a list of words")
        return tuple(value)
    wanted = {**dict.fromkeys(_INTEGERS, int), "allow_root": bool}
    number = key in ("http_timeout_s", "stop_grace_s")
    kind: type | tuple[type, ...] = (int, float) if number else wanted.get(key, str)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise ConfigInvalid(f"{key}: {value!r} is of the wrong type")
    return value


def _boolean(text: str) -> bool:
    if text in ("0", "1"):
        return text == "1"
    raise ValueError(f"0 or 1, not {text!r}")


def _list(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]


_INTEGERS = ("simulate_gpus", "store_port", "data_port", "parked_bytes_max", "log_bytes_max")
_KINDS: dict[str, Callable[[str], object]] = {
    **dict.fromkeys(ENVIRONMENT, str),
    **dict.fromkeys(_INTEGERS, int),
    "allow_users": _list,
    "allow_commands": _list,
    "allow_root": _boolean,
}


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return text == "localhost"
    return True


def _is_words(text: str) -> bool:
    try:
        return bool(shlex.split(text))
    except ValueError:
        return False


def _is_full(prefix: str) -> bool:
    return os.path.isabs(shlex.split(prefix)[0]) if _is_words(prefix) else False


def _not_full(prefix: str) -> str:
    return f"an allow_command begins with a full path, not {prefix!r}"
