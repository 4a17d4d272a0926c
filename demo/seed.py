"""``python -m demo.seed [NODES]``: a demo customer, its contract, people, and tokens to act with.

Prints one line of JSON, the only time these secrets are seen. Safe to run once per database.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
from typing import Any

import django

PEOPLE = ("operator", "finance", "auditor", "customer_viewer")
CUSTOMER = "demo"
TERMS = {
    "target_numerator": 90,
    "target_denominator": 100,
    "credit_rate_bp": 2500,
    "credit_base": "first_of_renewal_or_expansion",
    "credit_cap_minor": "none",
    "credit_expiry_days": 365,
    "order_of_use": "oldest_first",
    "rounding": "half_up",
    "leap_rule": "feb_28",
    "mechanism": "live_migration",
    # The offer counts what failed; this contract counts what was moved before it could fail as well.
    "predicted_failures_count": True,
    "grouping_window_minutes": 10,
    "evidence_cutoff_days": 30,
    "grace_days": 14,
    "minimum_measured_bp": 0,
    "contest_window_days": 30,
    "exclusion_categories": [
        "customer_cause",
        "planned_maintenance",
        "force_majeure",
        "no_spare_held",
        "drill",
    ],
    "support_matrix_version": "1",
    "minimum_spares": 1,
}


def seed(num_nodes: int) -> dict[str, Any]:
    """Make everything through the services of each app; returns what demo.world.Seeded holds."""
    from nodes.services import enrollment_token_create
    from sla import services as sla_services
    from sla.terms import terms_read
    from yoco_platform.core import accounts, clock, tokens
    from yoco_platform.core.auth import Role, Viewer
    from yoco_platform.core.models import Customer, User

    viewer = Viewer(name="demo seed", role=Role.ADMIN)
    cluster = accounts.default_cluster_ensure()
    customer = Customer.objects.create(slug=CUSTOMER, name="Demo customer", is_demo=True)
    admin = accounts.first_admin_ensure()
    passwords = {} if admin is None else {admin[0].get_username(): admin[1]}
    for role in PEOPLE:
        passwords[role] = secrets.token_urlsafe(12)
        owner = customer if role == Role.CUSTOMER_VIEWER else None
        User.objects.create_user(role, password=passwords[role], role=role, customer=owner)
    first = clock.now().date().replace(month=1, day=1)
    contract = sla_services.contract_create(
        viewer=Viewer(name="demo seed", role=Role.FINANCE),
        customer=customer,
        number="DEMO-1",
        first_date=first,
        zone="UTC",
        currency="USD",
        terms=terms_read({**TERMS, "effective_from": first.isoformat()}),
        is_demo=True,
    )
    _, token = tokens.token_create(
        viewer=viewer, name="demo", role=Role.SCHEDULER, cluster=cluster, customer=customer
    )
    return {
        "token": token,
        "passwords": passwords,
        "customer": customer.slug,
        "cluster": cluster.slug,
        "contract_id": contract.pk,
        "enrollment_tokens": [
            enrollment_token_create(viewer=viewer, cluster=cluster)[1] for _ in range(num_nodes)
        ],
    }


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "yoco_platform.settings")
    django.setup()
    print(json.dumps(seed(int(sys.argv[1]) if len(sys.argv) > 1 else 0)))


if __name__ == "__main__":
    main()
