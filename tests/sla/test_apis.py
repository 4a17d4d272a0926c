"""The doors of the guarantee, through Django: roles, scopes, codes."""

from __future__ import annotations

from typing import Any

import pytest
from rest_framework.test import APIClient

from sla import services
from sla.models import Contract
from yoco_platform.core.auth import Role
from yoco_platform.core.models import Customer, User

from .books import make_contract, make_customer, make_incident, make_job, make_terms, missed

TERMS = {"effective_from": "2026-01-01", "target_numerator": 90, "target_denominator": 100}


def as_role(role: Role, customer: Customer | None = None) -> APIClient:
    name = f"{role}-{customer.slug if customer else ''}"
    user, _ = User.objects.get_or_create(
        username=name, defaults={"role": role, "customer": customer}
    )
    client = APIClient()
    client.force_authenticate(user)
    return client


@pytest.fixture
def finance(db: None) -> APIClient:
    return as_role(Role.FINANCE)


def body(**fields: Any) -> dict[str, Any]:
    return {
        "customer": make_customer().slug,
        "number": "C-2026-1",
        "first_date": "2026-01-01",
        "zone": "Europe/Berlin",
        "currency": "EUR",
        "terms": TERMS,
        **fields,
    }


def test_strangers_and_agents_see_no_books(db: None) -> None:
    contract = make_contract()
    for path in ("contracts", f"contracts/{contract.pk}", f"contracts/{contract.pk}/entries"):
        assert APIClient().get(f"/api/v1/{path}").status_code == 401


def test_finance_makes_a_contract(finance: APIClient) -> None:
    made = finance.post("/api/v1/contracts", body(), format="json")
    assert made.status_code == 201
    contract = Contract.objects.get()
    assert made.json() == {
        "id": contract.pk,
        "number": "C-2026-1",
        "customer": contract.customer.slug,
        "first_date": "2026-01-01",
        "zone": "Europe/Berlin",
        "currency": "EUR",
        "scope": [],
        "is_demo": False,
        "terminated_at": None,
    }
    assert contract.created_by == "finance-"


@pytest.mark.parametrize(
    ("fields", "status", "code"),
    [
        ({"customer": "nobody"}, 404, "customer_unknown"),
        ({"zone": "Europe/Atlantis"}, 422, "contract_refused"),
        ({"currency": "EURO"}, 422, "invalid_field"),
        ({"first_date": "2026-02-30"}, 422, "invalid_field"),
        ({"bonus": 1}, 422, "unknown_field"),
        ({"terms": {**TERMS, "credit_rate_bp": 25.5}}, 422, "terms_refused"),
        ({"terms": {**TERMS, "effective_from": "2027-01-01"}}, 422, "terms_refused"),
    ],
)
def test_a_contract_that_does_not_fit_gets_one_code(
    finance: APIClient, fields: dict[str, Any], status: int, code: str
) -> None:
    answer = finance.post("/api/v1/contracts", body(**fields), format="json")
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert not Contract.objects.exists()


@pytest.mark.parametrize("role", [Role.VIEWER, Role.OPERATOR, Role.AUDITOR, Role.ADMIN])
def test_nobody_else_makes_one(db: None, role: Role) -> None:
    assert as_role(role).post("/api/v1/contracts", body(), format="json").status_code == 403


def test_a_year_and_its_entries_are_read(db: None) -> None:
    contract = make_contract()
    job = make_job(contract.customer)
    covered, lost = make_incident(job), missed(job)
    services.entries_catch_up()
    viewer = as_role(Role.VIEWER)
    [year] = viewer.get(f"/api/v1/contracts/{contract.pk}/years").json()
    assert year["counts"] == {
        "recorded": 2,
        "qualifying": 2,
        "covered": 1,
        "missed": 1,
        "averted": 0,
        "excluded": {},
        "unsupported": 0,
        "merged": 0,
        "awaiting": 0,
    }
    assert (year["standing"], year["coverage_truncated"]) == ("below_target", "50.00")
    path = f"/api/v1/contracts/{contract.pk}/entries"
    page = viewer.get(path).json()
    assert [entry["incident_id"] for entry in page["results"]] == [lost.pk, covered.pk]
    assert page["results"][0]["record"]["failure"]["id"] == lost.number
    assert page["next"] is None
    some = viewer.get(path, {"verdict": "covered"}).json()["results"]
    assert [entry["incident_id"] for entry in some] == [covered.pk]
    first = viewer.get(path, {"limit": 1}).json()
    assert ([e["sequence"] for e in first["results"]], first["next"]) == ([2], 2)
    second = viewer.get(path, {"limit": 1, "before": first["next"]}).json()
    assert ([e["sequence"] for e in second["results"]], second["next"]) == ([1], None)
    wrong = viewer.get(f"/api/v1/contracts/{contract.pk}/entries", {"limit": 501})
    assert wrong.status_code == 422


def test_a_customer_reads_and_verifies_its_own_ledger_only(db: None) -> None:
    mine, theirs = make_contract(), make_contract()
    make_incident(make_job(mine.customer))
    services.entries_catch_up()
    client = as_role(Role.CUSTOMER_VIEWER, mine.customer)
    assert [c["id"] for c in client.get("/api/v1/contracts").json()] == [mine.pk]
    verification = client.get(f"/api/v1/contracts/{mine.pk}/verification").json()
    assert (verification["holds"], verification["checked"]) == (True, 1)
    for path in ("", "/terms", "/years", "/entries", "/verification"):
        answer = client.get(f"/api/v1/contracts/{theirs.pk}{path}")
        assert (answer.status_code, answer.json()["code"]) == (404, "contract_unknown")


def test_terms_are_read_with_what_is_left_empty_and_a_next_version_is_added(
    finance: APIClient,
) -> None:
    contract = make_contract(terms=make_terms(rounding=""))
    path = f"/api/v1/contracts/{contract.pk}/terms"
    [first] = finance.get(path).json()
    assert (first["version"], first["empty"]) == (1, ["rounding"])
    assert first["rules"]["credit_cap_minor"] == "none"
    added = finance.post(path, {**TERMS, "effective_from": "2099-01-01"}, format="json")
    assert (added.status_code, added.json()["version"]) == (201, 2)
    past = finance.post(path, {**TERMS, "effective_from": "2026-02-01"}, format="json")
    assert (past.status_code, past.json()["code"]) == (422, "terms_refused")
    assert as_role(Role.VIEWER).get(path).status_code == 403


def test_the_export_is_not_for_everyone(db: None) -> None:
    path = f"/api/v1/contracts/{make_contract().pk}/verification"
    assert as_role(Role.OPERATOR).get(path).status_code == 403
    assert as_role(Role.AUDITOR).get(path).status_code == 200


def test_the_admin_only_shows(db: None) -> None:
    from django.contrib.admin import site

    from nodes.models import Node
    from sla.models import Entry

    for model in (Node, Entry):
        shown = site.get_model_admin(model)
        request: Any = None
        assert not shown.has_add_permission(request)
        assert not shown.has_change_permission(request)
        assert not shown.has_delete_permission(request)
