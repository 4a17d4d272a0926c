"""What the nodes app does when a bell rings. The clock calls the same passes."""

from __future__ import annotations

from celery import shared_task

from . import services


@shared_task(name="nodes.find_lost")
def find_lost() -> None:
    services.find_lost()


@shared_task(name="nodes.advance")
def advance() -> None:
    services.nodes_advance()
