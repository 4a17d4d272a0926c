"""What was agreed and what was booked cannot be edited, deleted or emptied."""

from __future__ import annotations

from django.db import migrations

from sla.append_only import never_truncated
from yoco_platform.core.append_only import append_only

TABLES = {
    "sla_terms": ["contract_id version", "contract_id effective_from"],
    "sla_contractyear": ["contract_id ordinal"],
    "sla_entry": [
        "contract_id sequence",
        "contract_id previous_hash",
        "hash",
        "incident_id kind=failure",
    ],
}


class Migration(migrations.Migration):
    dependencies = [("sla", "0001_initial")]

    operations = [
        operation
        for table, keys in TABLES.items()
        for operation in (append_only(table, keys), never_truncated(table))
    ]
