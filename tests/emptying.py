"""How tables are emptied between tests that commit: what Django does, made quick and allowed.

PostgreSQL: Django truncates every table, which rewrites as many files; here only tables that hold rows are
deleted from. SQLite: Django deletes, which append-only triggers refuse; they are lifted for that moment.
"""

from __future__ import annotations

from typing import Any

import pytest
from django.db.backends.postgresql.operations import DatabaseOperations as PostgresOperations
from django.db.backends.sqlite3.base import DatabaseWrapper
from django.db.backends.sqlite3.operations import DatabaseOperations as SqliteOperations

FILLED_BY_MIGRATE = {"django_content_type", "auth_permission"}
"""The same in every database of this version, so nothing to empty."""

_truncate = PostgresOperations.sql_flush
_delete = SqliteOperations.execute_sql_flush


def _postgres_flush(self: Any, style: Any, tables: list[str], **options: Any) -> list[str]:
    with self.connection.cursor() as cursor:
        cursor.execute("SELECT usesuper FROM pg_user WHERE usename = current_user")
        if not cursor.fetchone()[0]:
            return _truncate(self, style, tables, **options)
        filled = []
        for table in sorted(set(tables) - FILLED_BY_MIGRATE):
            cursor.execute(f'SELECT EXISTS (SELECT 1 FROM "{table}")')
            if cursor.fetchone()[0]:
                filled.append(table)
    if not filled:
        return []
    # As a replica the session fires neither foreign-key nor append-only triggers.
    return [
        "SET LOCAL session_replication_role = replica",
        *(f'DELETE FROM "{table}"' for table in filled),
    ]


def _sqlite_flush(self: Any, sql_list: list[str]) -> None:
    with self.connection.cursor() as cursor:
        cursor.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'")
        triggers = cursor.fetchall()
        for name, _ in triggers:
            cursor.execute(f'DROP TRIGGER "{name}"')
        _delete(self, sql_list)
        for _, sql in triggers:
            cursor.execute(sql)


def patch(monkeypatch: pytest.MonkeyPatch) -> None:
    assert DatabaseWrapper.ops_class is SqliteOperations
    monkeypatch.setattr(PostgresOperations, "sql_flush", _postgres_flush)
    monkeypatch.setattr(SqliteOperations, "execute_sql_flush", _sqlite_flush)
