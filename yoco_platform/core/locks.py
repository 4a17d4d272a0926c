"""One pass at a time, over all processes: taken without waiting, or not at all."""

from __future__ import annotations

import hashlib
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connection

_process_locks: defaultdict[str, threading.RLock] = defaultdict(threading.RLock)
_process_locks_guard = threading.Lock()


def lock_key(name: str) -> int:
    """A lock's name as PostgreSQL's signed 64-bit key."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big", signed=True)


@contextmanager
def advisory_lock(name: str) -> Iterator[bool]:
    """Yield True while this thread holds the lock, False at once when somebody else does.

    PostgreSQL: a session lock, freed by the server when the connection dies. SQLite: a lock of the
    process, which is the only one there is in embedded mode. Either may be taken again by its holder.
    """
    if connection.vendor == "postgresql":
        with _postgres_lock(name) as taken:
            yield taken
    else:
        with _process_lock(name) as taken:
            yield taken


@contextmanager
def _postgres_lock(name: str) -> Iterator[bool]:
    key = lock_key(name)
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_lock(%s)", [key])
        taken = bool(cursor.fetchone()[0])
    # What runs inside may close or lose Django's connection; with a pool the server session would
    # live on and keep the lock. So the lock is given back on the very session that took it.
    session = connection.connection
    try:
        yield taken
    finally:
        if taken and not session.closed:
            session.cursor().execute("SELECT pg_advisory_unlock(%s)", [key])


@contextmanager
def _process_lock(name: str) -> Iterator[bool]:
    with _process_locks_guard:
        lock = _process_locks[name]
    taken = lock.acquire(blocking=False)
    try:
        yield taken
    finally:
        if taken:
            lock.release()
