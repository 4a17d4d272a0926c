"""Customers, contracts and ended incidents for tests: plain functions, one a thing."""

from __future__ import annotations

import itertools
from datetime import date, datetime, timedelta
from typing import Any

from jobs.models import Incident, Job
from sla import services
from sla.models import Contract
from sla.terms import TermsFields
from yoco_platform.core import clock
from yoco_platform.core.auth import Role, Viewer
from yoco_platform.core.models import Cluster, Customer

_numbers = itertools.count(1)

FINANCE = Viewer(name="fatima", role=Role.FINANCE)
AUDITOR = Viewer(name="arno", role=Role.AUDITOR)
OPERATOR = Viewer(name="olga", role=Role.OPERATOR)

LEVELS = {
    "transfer_verified": {"holds": True, "words": "2 streams arrived"},
    "continuity_verified": {"holds": True, "words": "step 11 follows step 10"},
    "replicas_agree": {"holds": None, "words": "no shard has a replica"},
}


def make_terms(**fields: Any) -> TermsFields:
    values: dict[str, Any] = {
        "effective_from": date(2026, 1, 1),
        "target_numerator": 90,
        "target_denominator": 100,
        "credit_rate_bp": 2500,
        "credit_base": "next_renewal",
        "credit_cap_minor": "none",
        "credit_expiry_days": 365,
        "order_of_use": "oldest_first",
        "rounding": "half_up",
        "leap_rule": "feb_28",
        "mechanism": "outcome_only",
        "predicted_failures_count": False,
        "grouping_window_minutes": 60,
        "evidence_cutoff_days": 30,
        "grace_days": 14,
        "minimum_measured_bp": 9500,
        "contest_window_days": 30,
        "exclusion_categories": ["customer_cause"],
        "support_matrix_version": "2026-01",
        "minimum_spares": 1,
        **fields,
    }
    return TermsFields(**values)


def make_customer() -> Customer:
    slug = f"customer-{next(_numbers)}"
    return Customer.objects.create(slug=slug, name=slug)


def make_contract(
    customer: Customer | None = None, terms: TermsFields | None = None, **fields: Any
) -> Contract:
    values: dict[str, Any] = {
        "number": f"C-{next(_numbers)}",
        "first_date": date(2026, 1, 1),
        "zone": "UTC",
        "currency": "EUR",
        **fields,
    }
    return services.contract_create(
        viewer=FINANCE,
        customer=customer or make_customer(),
        terms=terms or make_terms(),
        **values,
    )


def make_job(customer: Customer, cluster: Cluster | None = None, **fields: Any) -> Job:
    slug = f"site-{next(_numbers)}"
    values: dict[str, Any] = {
        "name": "llm",
        "state_since": clock.now(),
        "world_size": 2,
        "pool": "train",
        "command": ["python", "train.py"],
        "working_directory": "/srv",
        "run_as": "train",
        "submitted_by": "test",
        **fields,
    }
    cluster = cluster or Cluster.objects.create(slug=slug, name=slug)
    return Job.objects.create(customer=customer, cluster=cluster, **values)


def make_incident(job: Job, occurred: datetime | None = None, **fields: Any) -> Incident:
    """An incident that ended well: nothing lost, every level of evidence holds."""
    at = occurred or clock.now()
    values: dict[str, Any] = {
        "attempt": 1,
        "generation": 1,
        "state": "resolved",
        "state_since": at + timedelta(seconds=1),
        "verdict": "covered",
        "cause_class": "operating_system",
        "summary": "rank 1 was killed",
        "node_names": ["node-b"],
        "step": 10,
        "occurred_at": at,
        "observed_at": at + timedelta(milliseconds=20),
        "resolved_at": at + timedelta(seconds=1),
        "lost_steps": 0,
        "pause_ms": 412.5,
        "evidence": {
            **LEVELS,
            "outcome": "covered",
            "resume_at": 10,
            "migration_id": None,
            "cause": {"row": "signal_from_outside", "words": "ended by SIGKILL"},
            "commits": [{"rank": 0, "step": 11}, {"rank": 1, "step": 11}],
        },
        **fields,
    }
    return Incident.objects.create(job=job, customer=job.customer, cluster=job.cluster, **values)


def missed(job: Job, **fields: Any) -> Incident:
    """An incident that ended at the user's own checkpoint, three steps back."""
    return make_incident(
        job,
        verdict="missed",
        state="failed",
        lost_steps=3,
        evidence={
            "outcome": "missed",
            "cause": {"row": "silent_node"},
            "checkpoint": {"committed_step": 10, "saved_step": 7, "loaded_step": 7},
        },
        **fields,
    )
