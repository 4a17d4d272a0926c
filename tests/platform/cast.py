"""Alice operates, Bob is a customer's viewer, Charlie is another customer's: the cast of these tests."""

from __future__ import annotations

from yoco_platform.core.auth import Role
from yoco_platform.core.models import Cluster, Customer, User

PASSWORD = "a long enough password"


def make_user(name: str, role: Role, customer: Customer | None = None) -> User:
    return User.objects.create_user(name, password=PASSWORD, role=role, customer=customer)


def make_customer(slug: str) -> Customer:
    return Customer.objects.create(slug=slug, name=slug.title())


def make_cluster(slug: str = "here") -> Cluster:
    return Cluster.objects.create(slug=slug, name=slug.title())
