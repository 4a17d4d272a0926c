"""TRUNCATE is refused as well on tables of the books that hold anything (PostgreSQL; SQLite has none)."""

from __future__ import annotations

from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.state import StateApps

# An empty table may be emptied: there is nothing in it to lose.
_FORWARDS = """
CREATE FUNCTION {table}_refuse_truncate() RETURNS trigger AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM {table}) THEN
        RAISE EXCEPTION '{table} is append-only';
    END IF;
    RETURN NULL;
END;
$$ LANGUAGE plpgsql;
CREATE TRIGGER append_only_truncate_{table} BEFORE TRUNCATE ON {table}
    FOR EACH STATEMENT EXECUTE FUNCTION {table}_refuse_truncate();
"""
_BACKWARDS = """
DROP TRIGGER append_only_truncate_{table} ON {table};
DROP FUNCTION {table}_refuse_truncate();
"""


def never_truncated(table: str) -> migrations.RunPython:
    """A migration operation beside ``core.append_only.append_only``."""

    def forwards(apps: StateApps, editor: BaseDatabaseSchemaEditor) -> None:
        if editor.connection.vendor == "postgresql":
            editor.execute(_FORWARDS.format(table=table), params=None)

    def backwards(apps: StateApps, editor: BaseDatabaseSchemaEditor) -> None:
        if editor.connection.vendor == "postgresql":
            editor.execute(_BACKWARDS.format(table=table), params=None)

    return migrations.RunPython(forwards, backwards)
