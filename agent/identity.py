"""Who this node is to the platform: its name and its token, in a file that only its user may read."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from .errors import ConfigInvalid


class Identity(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    platform: str
    node: str
    node_id: str
    cluster: str
    token: str
    heartbeat_s: float


def load(state_dir: Path) -> Identity | None:
    """The stored identity, None before enrolment. Raises ConfigInvalid when the file is damaged."""
    path = _path(state_dir)
    try:
        return msgspec.json.decode(path.read_bytes(), type=Identity)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigInvalid(f"{path}: {error}") from error


def save(state_dir: Path, identity: Identity) -> None:
    """Write whole or not at all, mode 0600."""
    path = _path(state_dir)
    part = path.with_suffix(".part")
    fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file:
        os.fchmod(fd, 0o600)
        file.write(msgspec.json.encode(identity))
        file.flush()
        os.fsync(fd)
    part.replace(path)


def _path(state_dir: Path) -> Path:
    return state_dir / "identity.json"
