"""News of the nodes app: a node that stepped may have ranks to move, or room for a standby."""

from __future__ import annotations

from typing import Any

from django.dispatch import receiver

from nodes.signals import node_stepped

from .wakeups import reconcile_soon


@receiver(node_stepped)
def node_has_stepped(**_news: Any) -> None:
    reconcile_soon()
