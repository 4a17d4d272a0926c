"""The audit log is chained, and neither code nor SQL edits it."""

from __future__ import annotations

import pytest
from django.db import DatabaseError, connection, transaction

from yoco_platform.core.audit import GENESIS, audit, audit_verify
from yoco_platform.core.auth import Role, Viewer
from yoco_platform.core.models import AuditEntry

ALICE = Viewer(name="alice", role=Role.OPERATOR)

pytestmark = pytest.mark.django_db


def test_each_entry_names_the_hash_of_the_one_before() -> None:
    entries = [audit(ALICE, "node.drain", f"node:{number}", {"n": number}) for number in range(3)]
    assert entries[0].previous_hash == GENESIS
    assert [entry.previous_hash for entry in entries[1:]] == [entry.hash for entry in entries[:2]]
    assert audit_verify() is None


@pytest.mark.parametrize("statement", ["UPDATE {} SET actor = 'x'", "DELETE FROM {}"])
def test_the_database_refuses_to_change_or_delete_an_entry(statement: str) -> None:
    audit(ALICE, "node.drain", "node:1")
    with pytest.raises(DatabaseError, match="append-only"), transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute(statement.format("core_auditentry"))
    assert AuditEntry.objects.get().actor == "alice"


@pytest.mark.skipif(connection.vendor != "sqlite", reason="only SQLite replaces by an insert")
@pytest.mark.parametrize("key", ["id", "hash"])
def test_an_entry_is_not_replaced_by_an_insert(key: str) -> None:
    audit(ALICE, "node.drain", "node:1")
    with connection.cursor() as cursor:
        cursor.execute("SELECT * FROM core_auditentry")
        columns = [column[0] for column in cursor.description]
    other = {"id": "NULL", "hash": "'another'", "actor": "'mallory'"}
    other.pop(key)
    values = ", ".join(other.get(column, column) for column in columns)
    with pytest.raises(DatabaseError, match="append-only"), transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute(
                f"INSERT OR REPLACE INTO core_auditentry SELECT {values} FROM core_auditentry"
            )
    assert AuditEntry.objects.get().actor == "alice"


def test_an_entry_that_does_not_fit_the_chain_is_found() -> None:
    audit(ALICE, "node.drain", "node:1")
    forged = AuditEntry(
        at=AuditEntry.objects.get().at,
        actor="mallory",
        role="admin",
        action="node.drain",
        subject="node:2",
        previous_hash=GENESIS,
        hash="f" * 64,
    )
    forged.save()
    audit(ALICE, "node.drain", "node:3")
    assert audit_verify() == forged.pk
