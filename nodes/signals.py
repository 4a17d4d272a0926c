"""What the nodes app tells the apps above it. A receiver may ring a bell and nothing else."""

from __future__ import annotations

from django.dispatch import Signal

node_stepped = Signal()
"""Sent after commit with ``node_id: int`` and ``to_state: str``; sender is the Node class."""
