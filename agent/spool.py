"""Events on disk until the platform has them: nothing is lost while either side is away.

An event's identity is (boot id, sequence). The boot id is new at each start of the agent, so sequences
begin at 1 again; events of earlier starts are sent first, under their own boot id. The file survives a
killed agent; like the workers' memory it need not survive a power loss, so it is not synced at each event.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec

from .protocol import (
    EVENTS_PER_BATCH_MAX,
    Checkpointed,
    Event,
    EventBody,
    Points,
    RankCosts,
    Rejoined,
    StateDigest,
    Transferred,
)

BATCH_BYTES_MAX = 768 * 1024
POINTS_LENGTH_MAX = 50_000
"""Beyond this length chart points are dropped, and counted; other events never are."""
PATIENT = (Points, StateDigest, RankCosts, Checkpointed, Transferred, Rejoined)
"""Charts and evidence: no job waits for them."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS events (
    place INTEGER PRIMARY KEY AUTOINCREMENT,
    boot_id TEXT NOT NULL, sequence INTEGER NOT NULL, event BLOB NOT NULL,
    UNIQUE (boot_id, sequence)
);
CREATE TABLE IF NOT EXISTS refused (
    boot_id TEXT NOT NULL, sequence INTEGER NOT NULL, event BLOB NOT NULL, code TEXT NOT NULL
);
"""


@dataclass(frozen=True)
class Batch:
    """Events of one boot id, oldest first."""

    boot_id: str
    events: list[Event]


class Spool:
    """Used from the event loop's thread only. ``filled`` is set while something waits to be sent.

    ``pressing`` is set while something waits that a job may depend on; the rest may wait for company.
    """

    def __init__(self, path: Path, boot_id: str) -> None:
        self.boot_id = boot_id
        self.filled = asyncio.Event()
        self.pressing = asyncio.Event()
        self.dropped_points = 0
        self._db = sqlite3.connect(path, isolation_level=None)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = NORMAL")
        self._db.executescript(_SCHEMA)
        path.chmod(0o600)
        self._sequence = self._count("SELECT max(sequence) FROM events WHERE boot_id = ?", boot_id)
        self._length = self._count("SELECT count(*) FROM events")
        if self._length:
            self.filled.set()
            self.pressing.set()

    def __len__(self) -> int:
        return self._length

    @property
    def num_refused(self) -> int:
        """Events that the platform would not take, kept for a person to look at."""
        return self._count("SELECT count(*) FROM refused")

    def append(self, body: EventBody, occurred_at: float | None = None) -> Event | None:
        """Store an event that happened now (Unix seconds). None when it was a point too many."""
        if isinstance(body, Points) and self._length >= POINTS_LENGTH_MAX:
            self.dropped_points += 1
            return None
        self._sequence += 1
        at = time.time() if occurred_at is None else occurred_at
        event = Event(sequence=self._sequence, occurred_at=at, body=body)
        self._db.execute(
            "INSERT INTO events (boot_id, sequence, event) VALUES (?, ?, ?)",
            (self.boot_id, self._sequence, msgspec.json.encode(event)),
        )
        self._length += 1
        self.filled.set()
        if not isinstance(body, PATIENT):
            self.pressing.set()
        return event

    def batch(self, most: int = EVENTS_PER_BATCH_MAX) -> Batch | None:
        """The oldest events that fit one request, None when there are none."""
        rows = self._db.execute(
            "SELECT boot_id, event FROM events ORDER BY place LIMIT ?",
            (min(most, EVENTS_PER_BATCH_MAX),),
        ).fetchall()
        if not rows:
            return None
        boot_id, size, events = rows[0][0], 0, list[Event]()
        for other, event in rows:
            size += len(event)
            if other != boot_id or (events and size > BATCH_BYTES_MAX):
                break
            events.append(msgspec.json.decode(event, type=Event))
        return Batch(boot_id, events)

    def accept(self, boot_id: str, up_to: int) -> None:
        """Drop what the platform has stored."""
        done = self._db.execute(
            "DELETE FROM events WHERE boot_id = ? AND sequence <= ?", (boot_id, up_to)
        )
        self._shrink(done.rowcount)

    def refuse(self, boot_id: str, sequence: int, code: str) -> None:
        """Put one event aside that the platform will never take, so that others can follow."""
        key = (boot_id, sequence)
        self._db.execute("BEGIN")
        self._db.execute(
            "INSERT INTO refused SELECT boot_id, sequence, event, ? FROM events"
            " WHERE boot_id = ? AND sequence = ?",
            (code, *key),
        )
        done = self._db.execute("DELETE FROM events WHERE boot_id = ? AND sequence = ?", key)
        self._db.execute("COMMIT")
        self._shrink(done.rowcount)

    def close(self) -> None:
        self._db.close()

    def _shrink(self, count: int) -> None:
        self._length -= count
        if not self._length:
            self.filled.clear()
            self.pressing.clear()

    def _count(self, query: str, *values: str) -> int:
        (found,) = self._db.execute(query, values).fetchone()
        return int(found or 0)
