"""What the agent must know again after a restart: its workers, the orders it has done, its ports."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import msgspec

from .protocol import Limits, OrderResult
from .states import WorkerState

ORDERS_KEPT = 10_000

_SCHEMA = """
CREATE TABLE IF NOT EXISTS workers (worker_id TEXT PRIMARY KEY, record BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS orders (
    place INTEGER PRIMARY KEY AUTOINCREMENT, order_id TEXT NOT NULL UNIQUE,
    result BLOB NOT NULL, posted INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT NOT NULL);
"""


class WorkerRecord(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A worker as the disk knows it. (pid, start_ticks, kernel_boot_id) names its process for ever."""

    worker_id: str
    job_id: str
    attempt: int
    generation: int
    rank: int | None
    provisional_rank: int
    world_size: int
    pid: int
    start_ticks: int
    kernel_boot_id: str
    state: WorkerState
    limits: Limits
    log: str
    command: list[str]
    started_at: float
    gpu_index: int = 0
    cgroup: str = ""
    joined: bool = False
    finished: bool = False
    local: bool = False
    """started by ``yoco-agent exec``: the platform is not told of it"""
    retiring: bool = False
    migration_id: str = ""
    replica_group: list[int] = []


class Records:
    """One small database in the state directory. Used from the event loop's thread only."""

    def __init__(self, path: Path) -> None:
        self._db = sqlite3.connect(path, isolation_level=None)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = NORMAL")
        self._db.executescript(_SCHEMA)
        path.chmod(0o600)

    def workers(self) -> list[WorkerRecord]:
        rows = self._db.execute("SELECT record FROM workers").fetchall()
        return [msgspec.json.decode(row[0], type=WorkerRecord) for row in rows]

    def save_worker(self, record: WorkerRecord) -> None:
        self._db.execute(
            "INSERT INTO workers VALUES (?, ?)"
            " ON CONFLICT (worker_id) DO UPDATE SET record = excluded.record",
            (record.worker_id, msgspec.json.encode(record)),
        )

    def forget_worker(self, worker_id: str) -> None:
        self._db.execute("DELETE FROM workers WHERE worker_id = ?", (worker_id,))

    def result(self, order_id: str) -> OrderResult | None:
        """How an order ended here, None when it did not (yet)."""
        row = self._db.execute(
            "SELECT result FROM orders WHERE order_id = ?", (order_id,)
        ).fetchone()
        return msgspec.json.decode(row[0], type=OrderResult) if row else None

    def save_result(self, result: OrderResult) -> None:
        self._db.execute(
            "INSERT INTO orders (order_id, result) VALUES (?, ?) ON CONFLICT (order_id) DO NOTHING",
            (result.order_id, msgspec.json.encode(result)),
        )
        self._db.execute(
            "DELETE FROM orders WHERE posted = 1 AND place <= (SELECT max(place) FROM orders) - ?",
            (ORDERS_KEPT,),
        )

    def unposted_results(self) -> list[OrderResult]:
        rows = self._db.execute(
            "SELECT result FROM orders WHERE posted = 0 ORDER BY place LIMIT 100"
        ).fetchall()
        return [msgspec.json.decode(row[0], type=OrderResult) for row in rows]

    def mark_posted(self, order_id: str, posted: bool = True) -> None:
        self._db.execute("UPDATE orders SET posted = ? WHERE order_id = ?", (int(posted), order_id))

    def fact(self, name: str) -> str:
        row = self._db.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
        return str(row[0]) if row else ""

    def save_fact(self, name: str, value: str) -> None:
        self._db.execute(
            "INSERT INTO facts VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value",
            (name, value),
        )

    def close(self) -> None:
        self._db.close()
