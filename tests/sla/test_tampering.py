"""The books refuse every change, and what somebody with the database in hand changed is found."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import DatabaseError, connection, transaction
from django.test import Client

from sla import selectors
from sla.chain import canonical, sha256
from sla.models import Contract, ContractYear, Entry, Terms
from yoco_platform.core.auth import Role
from yoco_platform.core.models import User

from .books import AUDITOR, make_contract, make_incident, make_job, missed
from .test_ledger import added


@pytest.fixture
def contract(db: None) -> Contract:
    return make_contract()


TABLES = ["sla_entry", "sla_terms", "sla_contractyear"]


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize(
    "statement",
    ["UPDATE {t} SET id = id", "DELETE FROM {t}", "TRUNCATE {t} CASCADE"],
)
def test_the_books_refuse_every_change(contract: Contract, table: str, statement: str) -> None:
    if statement.startswith("TRUNCATE") and connection.vendor != "postgresql":
        statement = "DELETE FROM {t} WHERE 1 = 1"
    added(make_incident(make_job(contract.customer)))
    connection.check_constraints()  # nothing is pending: what refuses now is the trigger
    with pytest.raises(DatabaseError, match="append-only"), transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute(statement.format(t=table))
    assert (Entry.objects.count(), Terms.objects.count(), ContractYear.objects.count()) == (1, 1, 1)


def test_not_even_through_the_models(contract: Contract) -> None:
    entry = added(make_incident(make_job(contract.customer)))
    with pytest.raises(DatabaseError, match="append-only"), transaction.atomic():
        Entry.objects.filter(pk=entry.pk).update(verdict="missed")
    with pytest.raises(DatabaseError, match="append-only"), transaction.atomic():
        entry.delete()


@pytest.mark.skipif(connection.vendor != "sqlite", reason="only SQLite replaces by an insert")
@pytest.mark.parametrize("table", ["sla_entry", "sla_terms", "sla_contractyear"])
def test_no_row_is_replaced_by_an_insert(contract: Contract, table: str) -> None:
    """A replacing insert deletes what is in its way without firing a DELETE trigger."""
    added(make_incident(make_job(contract.customer)))
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT * FROM {table}")
        before = cursor.fetchall()
        columns = [column[0] for column in cursor.description]
    others = ", ".join(column for column in columns if column != "id")
    for statement in (
        f"INSERT OR REPLACE INTO {table} SELECT * FROM {table}",
        f"REPLACE INTO {table} ({others}) SELECT {others} FROM {table}",
    ):
        with pytest.raises(DatabaseError, match="append-only"), transaction.atomic():
            with connection.cursor() as cursor:
                cursor.execute(statement)
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT * FROM {table}")
        assert cursor.fetchall() == before


@pytest.mark.skipif(connection.vendor != "sqlite", reason="only SQLite replaces by an insert")
@pytest.mark.parametrize("kept", ["hash", "sequence", "previous_hash", "incident_id"])
def test_no_single_key_of_an_entry_lets_it_be_replaced(contract: Contract, kept: str) -> None:
    entry = added(make_incident(make_job(contract.customer)))
    other = {
        "id": "NULL",
        "hash": "'another'",
        "sequence": "99",
        "previous_hash": "'another'",
        "incident_id": "NULL",
    }
    other.pop(kept)
    with connection.cursor() as cursor:
        cursor.execute("SELECT * FROM sla_entry")
        columns = [column[0] for column in cursor.description]
    values = ", ".join(other.get(column, column) for column in columns)
    with pytest.raises(DatabaseError, match="append-only"), transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute(f"INSERT OR REPLACE INTO sla_entry SELECT {values} FROM sla_entry")
    assert Entry.objects.get().pk == entry.pk


@pytest.fixture
def unlocked(db: None) -> Any:
    """Do what only somebody with the database in hand can do: write past the triggers."""

    def write(statement: str, *values: Any) -> None:
        with connection.cursor() as cursor:
            if connection.vendor == "postgresql":
                cursor.execute("SET LOCAL session_replication_role = replica")
            else:
                for event in ("update", "delete", "insert"):
                    cursor.execute(f"DROP TRIGGER IF EXISTS append_only_{event}_sla_entry")
            cursor.execute(statement, list(values))
            assert cursor.rowcount == 1
            if connection.vendor == "postgresql":
                cursor.execute("SET LOCAL session_replication_role = origin")

    return write


@pytest.fixture
def three(contract: Contract) -> list[Entry]:
    job = make_job(contract.customer)
    return [added(make_incident(job)), added(missed(job)), added(make_incident(job))]


def auditor() -> Client:
    user, _ = User.objects.get_or_create(username="audrey", defaults={"role": Role.AUDITOR})
    client = Client()
    client.force_login(user)
    return client


def verified(contract: Contract) -> tuple[bool, str]:
    verification = selectors.verify_chain(AUDITOR, contract)
    return verification.holds, verification.problem


def test_one_changed_byte_of_an_entry_is_found(
    contract: Contract, three: list[Entry], unlocked: Any
) -> None:
    assert verified(contract) == (True, "")
    forged = bytes(three[1].body).replace(b'"verdict":"missed"', b'"verdict":"averted"', 1)
    assert forged != bytes(three[1].body)
    unlocked("UPDATE sla_entry SET body = %s WHERE id = %s", forged, three[1].pk)
    assert verified(contract) == (False, "entry 2: its bytes do not have the hash that was stored")


def test_a_forged_entry_with_a_fresh_hash_breaks_the_next_link(
    contract: Contract, three: list[Entry], unlocked: Any
) -> None:
    forged = bytes(three[1].body).replace(b'"rule":"progress_lost"', b'"rule":"something"', 1)
    unlocked(
        "UPDATE sla_entry SET body = %s, hash = %s, rule = 'something' WHERE id = %s",
        forged,
        sha256(forged),
        three[1].pk,
    )
    assert verified(contract) == (False, "entry 3: it does not follow the entry before")


def test_changed_evidence_is_found(contract: Contract, three: list[Entry], unlocked: Any) -> None:
    unlocked("UPDATE sla_entry SET proof = %s WHERE id = %s", b"{}", three[0].pk)
    assert verified(contract) == (
        False,
        "entry 1: its evidence does not have the hash that was stored",
    )


def test_a_column_that_contradicts_its_bytes_is_found(
    contract: Contract, three: list[Entry], unlocked: Any
) -> None:
    unlocked("UPDATE sla_entry SET verdict = 'covered' WHERE id = %s", three[1].pk)
    assert verified(contract) == (
        False,
        "entry 2: its column verdict says covered, its bytes say missed",
    )


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"", "its bytes are no JSON object"),
        (b"not json", "its bytes are no JSON object"),
        (b"\xff\xfe\x00", "its bytes are no JSON object"),
        (b"[" * 100_000, "its bytes are no JSON object"),
        (b"[1]", "its bytes are no JSON object"),
        (b"{}", "its bytes do not say category, cause_class, contract, incident, kind, onset"),
    ],
)
def test_a_body_that_cannot_be_read_does_not_hold(
    contract: Contract, three: list[Entry], unlocked: Any, body: bytes, problem: str
) -> None:
    unlocked(
        "UPDATE sla_entry SET body = %s, hash = %s WHERE id = %s", body, sha256(body), three[1].pk
    )
    holds, found = verified(contract)
    assert not holds
    assert found.startswith(f"entry 2: {problem}")


def test_a_body_that_lacks_a_column_does_not_hold(
    contract: Contract, three: list[Entry], unlocked: Any
) -> None:
    said = three[1].record
    del said["verdict"]
    body = canonical(said)
    unlocked(
        "UPDATE sla_entry SET body = %s, hash = %s WHERE id = %s", body, sha256(body), three[1].pk
    )
    assert verified(contract) == (False, "entry 2: its bytes do not say verdict")


@pytest.mark.skipif(connection.vendor != "sqlite", reason="PostgreSQL keeps types of its own")
@pytest.mark.parametrize(
    ("column", "value", "problem"),
    [
        ("onset", "yesterday", "it cannot be read: its onset is no time"),
        ("recorded_at", "2026-99-99 00:00:00", "it cannot be read: "),
        ("onset", 5, "it cannot be read: "),
        ("body", 5, "its bytes do not have the hash"),
        ("body", "text", "it cannot be read: "),
    ],
)
def test_a_column_that_cannot_be_read_does_not_hold_on_any_door(
    contract: Contract,
    three: list[Entry],
    unlocked: Any,
    column: str,
    value: object,
    problem: str,
) -> None:
    unlocked(f"UPDATE sla_entry SET {column} = %s WHERE id = %s", value, three[1].pk)
    holds, found = verified(contract)
    assert not holds
    assert found.startswith(f"entry 2: {problem}")
    answers = [
        auditor().get(path, SERVER_NAME="127.0.0.1")
        for path in (
            f"/api/v1/contracts/{contract.pk}/verification",
            f"/api/v1/contracts/{contract.pk}/entries",
            f"/api/v1/contracts/{contract.pk}/years",
            f"/guarantee/{contract.pk}?verify=1",
            "/",
        )
    ]
    assert {answer.status_code for answer in answers} <= {200, 409}
    assert answers[0].json()["holds"] is False
    assert "entry 2: " in answers[3].content.decode()


def test_a_verdict_that_is_none_is_named_on_the_guarantee_page(
    contract: Contract, three: list[Entry], unlocked: Any
) -> None:
    unlocked("UPDATE sla_entry SET verdict = 'perhaps' WHERE id = %s", three[1].pk)
    page = auditor().get(f"/guarantee/{contract.pk}", SERVER_NAME="127.0.0.1")
    assert page.status_code == 409
    assert "entry 2: its column verdict says perhaps" in page.content.decode()
    years = auditor().get(f"/api/v1/contracts/{contract.pk}/years", SERVER_NAME="127.0.0.1")
    assert (years.status_code, years.json()["code"]) == (409, "ledger_broken")


def test_an_entry_cut_out_of_the_middle_is_found(
    contract: Contract, three: list[Entry], unlocked: Any
) -> None:
    unlocked("DELETE FROM sla_entry WHERE id = %s", three[1].pk)
    assert verified(contract) == (False, "entry 2: its number is 3")


def test_a_tail_cut_off_is_found(contract: Contract, three: list[Entry], unlocked: Any) -> None:
    unlocked("DELETE FROM sla_entry WHERE id = %s", three[2].pk)
    assert verified(contract) == (False, "3 entries were written, 2 are here")
