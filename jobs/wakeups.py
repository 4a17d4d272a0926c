"""The names of the bells this app rings. Each has a task of the same name in tasks.py."""

from __future__ import annotations

from yoco_platform.core.bells import ring, ring_on_commit

RECONCILE = "jobs.reconcile"


def reconcile_soon() -> None:
    """Wake the reconciler once the running transaction is committed."""
    ring_on_commit(RECONCILE)


def reconcile_now() -> None:
    """Wake the reconciler."""
    ring(RECONCILE)
