"""Doorbells of background work: a task is woken by name, after the commit, at most once a transaction.

A bell can neither hang nor fail a request; without it the clock's next pass does the same work.
"""

from __future__ import annotations

from celery import current_app
from django.db import connection, transaction

from .courier import courier


class _Ring:
    """A commit callback that knows which task it wakes, so that repeats can be seen."""

    __qualname__ = "core.bells.ring"

    def __init__(self, task_name: str) -> None:
        self.task_name = task_name

    def __call__(self) -> None:
        ring(self.task_name)


def ring(task_name: str) -> None:
    """Wake a task now."""
    courier.hand_over(task_name, lambda: current_app.send_task(task_name, ignore_result=True))


def ring_on_commit(task_name: str) -> None:
    """Wake the Celery task of this name once the running transaction is committed."""
    # Savepoints that roll back take their callbacks out of this list, so what it holds is the truth.
    for entry in connection.run_on_commit:
        waiting = entry[1]
        if isinstance(waiting, _Ring) and waiting.task_name == task_name:
            return
    transaction.on_commit(_Ring(task_name), robust=True)
