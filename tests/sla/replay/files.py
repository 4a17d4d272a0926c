"""Files to evaluate: one that fits, and its parts with what a test changes."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import rfc8785

from sla import replay

Json = dict[str, Any]


def terms(**changed: Any) -> Json:
    return {
        "version": 1,
        "effective_from": "2026-01-01",
        "target": {"numerator": 90, "denominator": 100},
        "operator": ">=",
        "credit_rate_bp": 2500,
        "credit_base": "fees_of_failed_year",
        "credit_cap_minor": "none",
        "credit_expiry_days": "none",
        "order_of_use": "oldest_first",
        "rounding": "half_up",
        "leap_rule": "feb_28",
        "mechanism": "live_migration",
        "predicted_failures_count": False,
        "grouping_window_minutes": 30,
        "evidence_cutoff_days": 30,
        "grace_days": 30,
        "minimum_measured_bp": 0,
        "contest_window_days": 30,
        "exclusion_categories": ["customer_cause", "drill"],
        "support_matrix_version": "m1",
        "minimum_spares": 0,
        **changed,
    }


def resumed(**changed: Any) -> Json:
    return {
        "last_committed_step": 10,
        "next_committed_step": 11,
        "recomputed_committed_steps": 0,
        "checkpoint_read": False,
        "source": "custody",
        "mechanism": "live_migration",
        "digests_equal": True,
        "recorded": "2026-03-01T12:01:00Z",
        **changed,
    }


LOST: Json = {"recomputed_committed_steps": 3}


def failure(name: str, occurred: str = "2026-03-01T12:00:00Z", **changed: Any) -> Json:
    """Covered, alone on its own job, steady the moment it happened."""
    return {
        "id": name,
        "job": f"job of {name}",
        "root_cause": f"cause of {name}",
        "cause_class": "node",
        "occurred": occurred,
        "observed": occurred,
        "recorded": occurred,
        "clock_uncertainty_ms": 0,
        "protected": True,
        "predicted": False,
        "drill": False,
        "resumed": resumed(recorded=occurred),
        "steady_at": occurred,
        **changed,
    }


def missed(name: str, occurred: str = "2026-03-01T12:00:00Z", **changed: Any) -> Json:
    return failure(name, occurred, resumed=resumed(recorded=occurred, **LOST), **changed)


def sha256(subject: Json) -> str:
    return hashlib.sha256(rfc8785.dumps(subject)).hexdigest()


def decision(name: str, subject: Json, **changed: Any) -> Json:
    return {
        "id": name,
        "failure": subject["id"],
        "kind": "exclude",
        "category": "customer_cause",
        "maker": "ann",
        "checker": "bea",
        "decided": "2026-04-01T00:00:00Z",
        "reason": "seen",
        "evidence": ["ticket 1"],
        "subject_sha256": sha256(subject),
        **changed,
    }


def order(name: str, **changed: Any) -> Json:
    return {
        "id": name,
        "kind": "subscription",
        "signed": "2025-12-01T00:00:00Z",
        "amount_minor": 100_000,
        "currency": "USD",
        "year": 1,
        **changed,
    }


def file(*failures: Json, **changed: Any) -> Json:
    """Year 1, 2026 in UTC, long over, measured throughout, its fees on file."""
    contract = {"start": "2026-01-01", "zone": "UTC", "currency": "USD"}
    return {
        "contract": contract | changed.pop("contract", {}),
        "terms": terms(),
        "year": 1,
        "as_of": "2027-06-01T00:00:00Z",
        "measured_spans": [{"start": "2020-01-01T00:00:00Z", "end": "2040-01-01T00:00:00Z"}],
        "failures": list(failures),
        "decisions": [],
        "orders": [order("fees", year=changed.get("year", 1))],
        **changed,
    }


def evaluated(data: Json) -> Json:
    """The answer to a file."""
    return replay.answer_data(replay.year_evaluated(replay.file_read(json.dumps(data).encode())))


def answer(*failures: Json, **changed: Any) -> Json:
    return evaluated(file(*failures, **changed))


def verdicts(found: Json) -> dict[str, str]:
    return {line["failure"]: line["verdict"] for line in found["lines"]}


def counts(found: Json) -> dict[str, Any]:
    """The buckets that are not empty."""
    names = ("covered", "missed", "averted", "excluded", "unsupported", "merged", "awaiting")
    return {name: found[name] for name in names if found[name]}


def refused(data: Json | bytes) -> tuple[str, str]:
    """The code and the path of a file that is refused."""
    try:
        raw = data if isinstance(data, bytes) else json.dumps(data).encode()
        replay.year_evaluated(replay.file_read(raw))
    except replay.FileRefused as error:
        return error.code, error.path
    raise AssertionError("it was evaluated")
