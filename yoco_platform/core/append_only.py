"""Database triggers that refuse UPDATE, DELETE and REPLACE on tables whose rows are never edited."""

from __future__ import annotations

from collections.abc import Iterable

from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.state import StateApps

_POSTGRES = """
CREATE FUNCTION {table}_refuse_change() RETURNS trigger AS $$
BEGIN
    RAISE EXCEPTION '{table} is append-only';
END;
$$ LANGUAGE plpgsql;
CREATE TRIGGER append_only_{table} BEFORE UPDATE OR DELETE ON {table}
    FOR EACH ROW EXECUTE FUNCTION {table}_refuse_change();
"""
_SQLITE = """
CREATE TRIGGER append_only_{event}_{table} BEFORE {event} ON {table}
BEGIN
    SELECT RAISE(ABORT, '{table} is append-only');
END;
"""
# INSERT OR REPLACE deletes whatever is in its way, and SQLite fires no DELETE trigger for that.
_SQLITE_INSERT = """
CREATE TRIGGER append_only_insert_{table} BEFORE INSERT ON {table}
WHEN EXISTS (SELECT 1 FROM {table} AS old WHERE {clash})
BEGIN
    SELECT RAISE(ABORT, '{table} is append-only');
END;
"""
_EVENTS = ("update", "delete", "insert")


def append_only(table: str, keys: Iterable[str] = ()) -> migrations.RunPython:
    """A migration operation that makes ``table`` append-only on PostgreSQL and SQLite.

    ``keys``: what must be unique besides ``id``, each as columns in a row, ``"contract_id sequence"``. Of
    a partial one ``column=value`` says of which rows: ``"incident_id kind=failure"``.
    """
    clash = " OR ".join(_clash(key) for key in ("id", *keys))

    def forwards(apps: StateApps, editor: BaseDatabaseSchemaEditor) -> None:
        if editor.connection.vendor == "postgresql":
            editor.execute(_POSTGRES.format(table=table), params=None)
            return
        for event in ("update", "delete"):
            editor.execute(_SQLITE.format(table=table, event=event), params=None)
        editor.execute(_SQLITE_INSERT.format(table=table, clash=clash), params=None)

    def backwards(apps: StateApps, editor: BaseDatabaseSchemaEditor) -> None:
        if editor.connection.vendor == "postgresql":
            editor.execute(f"DROP TRIGGER append_only_{table} ON {table}", params=None)
            editor.execute(f"DROP FUNCTION {table}_refuse_change()", params=None)
            return
        for event in _EVENTS:
            editor.execute(f"DROP TRIGGER append_only_{event}_{table}", params=None)

    return migrations.RunPython(forwards, backwards)


def _clash(key: str) -> str:
    parts = []
    for word in key.split():
        column, _, value = word.partition("=")
        parts.append(f"old.{column} = NEW.{column}")
        if value:
            parts.append(f"old.{column} = '{value}'")
    return f"({' AND '.join(parts)})"
