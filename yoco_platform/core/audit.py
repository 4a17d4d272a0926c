"""The audit log: who did what to what, in the transaction that did it, each row chained to the last."""

from __future__ import annotations

import hashlib
from typing import Any

import rfc8785
from django.db import connection, transaction

from . import clock
from .auth import Viewer
from .locks import lock_key
from .models import AuditEntry

GENESIS = "0" * 64


def entry_hash(entry: AuditEntry) -> str:
    """SHA-256 over the canonical JSON of an entry, its predecessor's hash included."""
    fields = {
        "at": entry.at.isoformat(),
        "actor": entry.actor,
        "role": entry.role,
        "customer": entry.customer_id,
        "cluster": entry.cluster_id,
        "action": entry.action,
        "subject": entry.subject,
        "detail": entry.detail,
        "previous": entry.previous_hash,
    }
    return hashlib.sha256(rfc8785.dumps(fields)).hexdigest()


@transaction.atomic
def audit(
    viewer: Viewer, action: str, subject: str, detail: dict[str, Any] | None = None
) -> AuditEntry:
    """Append what ``viewer`` did. ``detail`` must be JSON and free of secrets."""
    if connection.vendor == "postgresql":
        # Two appends must not chain to the same predecessor; SQLite's IMMEDIATE sees to that itself.
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", [lock_key("core.audit")])
    last = AuditEntry.objects.order_by("-id").values_list("hash", flat=True).first()
    entry = AuditEntry(
        at=clock.now(),
        actor=viewer.name,
        role=viewer.role.value,
        customer_id=viewer.customer_id,
        cluster_id=viewer.cluster_id,
        action=action,
        subject=subject,
        detail=detail or {},
        previous_hash=last or GENESIS,
    )
    entry.hash = entry_hash(entry)
    entry.save(force_insert=True)
    return entry


def audit_verify() -> int | None:
    """Walk the whole chain: None when it holds, else the id of the first entry that does not."""
    previous = GENESIS
    for entry in AuditEntry.objects.order_by("id").iterator(chunk_size=1000):
        if entry.previous_hash != previous or entry.hash != entry_hash(entry):
            return entry.pk
        previous = entry.hash
    return None
