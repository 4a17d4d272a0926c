"""The audit log is written once."""

from __future__ import annotations

from django.db import migrations

from yoco_platform.core.append_only import append_only


class Migration(migrations.Migration):
    dependencies = [("core", "0001_initial")]
    operations = [append_only("core_auditentry", ["hash"])]
