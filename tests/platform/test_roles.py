"""The role table is the one of the design, and the viewer is who he says."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import AnonymousUser
from django.db import IntegrityError, transaction
from django.test import RequestFactory

from yoco_platform.core.auth import (
    TABLE,
    Permission,
    Role,
    Viewer,
    hash_token,
    may,
    new_token,
    require,
    viewer_of,
)
from yoco_platform.core.errors import Forbidden, Unauthenticated
from yoco_platform.core.models import User

from .cast import make_customer, make_user

P = Permission


def test_every_role_has_its_row() -> None:
    assert set(TABLE) == set(Role)


def test_every_permission_is_somebodys() -> None:
    assert frozenset.union(*TABLE.values()) == frozenset(Permission)


@pytest.mark.parametrize(
    "permission",
    [P.CONTRACT_WRITE, P.CLASSIFICATION_CONFIRM, P.YEAR_CLOSE, P.STATEMENT_ISSUE, P.CONTEST_RULE],
)
def test_an_administrator_decides_nothing_about_money_or_verdicts(permission: Permission) -> None:
    assert permission not in TABLE[Role.ADMIN]


def test_an_adjudicator_rules_and_takes_part_in_nothing_else() -> None:
    writes = {one for one in TABLE[Role.ADJUDICATOR] if not one.value.endswith(".read")}
    assert writes == {P.CONTEST_RULE}


def test_an_auditor_and_a_viewer_change_nothing() -> None:
    for role in (Role.AUDITOR, Role.VIEWER, Role.CUSTOMER_VIEWER):
        assert all(one.value.endswith((".read", ".export")) for one in TABLE[role])


def test_a_missing_permission_is_refused_by_name() -> None:
    with pytest.raises(Forbidden) as refusal:
        require(Viewer(name="v", role=Role.VIEWER), P.NODE_OPERATE)
    assert refusal.value.details == {"permission": "node.operate"}


@pytest.mark.parametrize("permission", [P.NODE_OPERATE, P.HEALTH_POLICY_WRITE, P.NODE_ENROLL])
def test_whoever_is_bound_to_a_customer_acts_on_nothing_shared(permission: Permission) -> None:
    free = Viewer(name="olga", role=Role.OPERATOR)
    bound = Viewer(name="oscar", role=Role.OPERATOR, customer_id=1)
    assert may(free, permission)
    assert not may(bound, permission)
    with pytest.raises(Forbidden, match="beyond the customer"):
        require(bound, permission)


def test_the_health_policy_is_for_operators_who_are_bound_to_no_cluster() -> None:
    assert {role for role in Role if P.HEALTH_POLICY_WRITE in TABLE[role]} == {Role.OPERATOR}
    bound = Viewer(name="oscar", role=Role.OPERATOR, cluster_id=1)
    assert may(bound, P.NODE_OPERATE)
    with pytest.raises(Forbidden, match="beyond the cluster"):
        require(bound, P.HEALTH_POLICY_WRITE)


@pytest.mark.django_db
def test_the_viewer_of_a_session_carries_role_and_customer() -> None:
    customer = make_customer("acme")
    bob = make_user("bob", Role.CUSTOMER_VIEWER, customer)
    request = RequestFactory().get("/")
    request.user = bob
    assert viewer_of(request) == Viewer("bob", Role.CUSTOMER_VIEWER, customer.pk, None, bob.pk)
    assert viewer_of({"user": bob}) == viewer_of(request)


@pytest.mark.django_db
def test_nobody_and_a_deactivated_user_are_no_viewers() -> None:
    alice = make_user("alice", Role.OPERATOR)
    alice.is_active = False
    for user in (AnonymousUser(), alice, None):
        with pytest.raises(Unauthenticated):
            viewer_of({"user": user})


@pytest.mark.django_db
def test_a_customer_role_without_a_customer_cannot_be_stored() -> None:
    with pytest.raises(IntegrityError), transaction.atomic():
        make_user("bob", Role.CUSTOMER_VIEWER)
    with pytest.raises(IntegrityError), transaction.atomic():
        make_user("robot", Role.SCHEDULER)
    assert User.objects.count() == 0


def test_tokens_are_long_random_and_kept_as_hashes() -> None:
    one, other = new_token("agent"), new_token("agent")
    assert one != other
    assert one.startswith("yoco_agent_")
    assert len(one) > 43
    assert hash_token(one) != hash_token(other)
    assert one not in hash_token(one)
