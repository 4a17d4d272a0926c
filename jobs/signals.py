"""What the jobs app tells the apps above it. A receiver may ring a bell and nothing else."""

from __future__ import annotations

from django.dispatch import Signal

incident_resolved = Signal()
"""Sent after commit with ``incident_id: int``; the sender is the Incident class. This app changes
neither the verdict nor the evidence of that incident any more."""
