"""How the guarantee is shown over REST."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from .selectors import YearSummary


class ContractOutput(serializers.Serializer[Any]):
    id = serializers.IntegerField()
    number = serializers.CharField()
    customer = serializers.CharField(source="customer.slug")
    first_date = serializers.DateField()
    zone = serializers.CharField()
    currency = serializers.CharField()
    scope = serializers.ListField(child=serializers.CharField())
    is_demo = serializers.BooleanField()
    terminated_at = serializers.DateTimeField(allow_null=True)


class TermsOutput(serializers.Serializer[Any]):
    version = serializers.IntegerField()
    effective_from = serializers.DateField()
    rules = serializers.DictField(help_text="every field of the guarantee's terms")
    empty = serializers.ListField(
        child=serializers.CharField(), help_text="fields that block the close"
    )


class CountsOutput(serializers.Serializer[Any]):
    recorded = serializers.IntegerField()
    qualifying = serializers.IntegerField()
    covered = serializers.IntegerField()
    missed = serializers.IntegerField()
    averted = serializers.IntegerField()
    excluded = serializers.DictField(child=serializers.IntegerField())
    unsupported = serializers.IntegerField()
    merged = serializers.IntegerField()
    awaiting = serializers.IntegerField()


class YearOutput(serializers.Serializer[Any]):
    ordinal = serializers.IntegerField()
    starts_at = serializers.DateTimeField()
    ends_at = serializers.DateTimeField()
    terms_version = serializers.IntegerField(allow_null=True)
    as_of = serializers.DateTimeField()
    counts = CountsOutput()
    standing = serializers.CharField()
    blocked_by = serializers.ListField(child=serializers.CharField())
    coverage_truncated = serializers.CharField(allow_null=True)
    allowed_misses = serializers.IntegerField(allow_null=True)
    misses_left = serializers.IntegerField(allow_null=True)
    short_by = serializers.IntegerField(allow_null=True)
    credit_eligible = serializers.BooleanField()
    credit_reason = serializers.CharField()


def year_output(summary: YearSummary) -> dict[str, Any]:
    """A summary as flat JSON."""
    evaluation = summary.evaluation
    data: dict[str, Any] = YearOutput(
        {
            "ordinal": summary.year.ordinal,
            "starts_at": summary.year.starts_at,
            "ends_at": summary.year.ends_at,
            "terms_version": None if summary.terms is None else summary.terms.version,
            "as_of": summary.as_of,
            "counts": evaluation.counts,
            "standing": str(evaluation.standing),
            "blocked_by": list(evaluation.blocked_by),
            "coverage_truncated": evaluation.coverage_truncated,
            "allowed_misses": evaluation.allowed_misses,
            "misses_left": evaluation.misses_left,
            "short_by": evaluation.short_by,
            "credit_eligible": evaluation.credit_eligible,
            "credit_reason": evaluation.credit_reason,
        }
    ).data
    return data


class EntryOutput(serializers.Serializer[Any]):
    id = serializers.IntegerField()
    sequence = serializers.IntegerField()
    kind = serializers.CharField()
    year = serializers.IntegerField(source="year.ordinal")
    terms_version = serializers.IntegerField(source="terms.version")
    incident_id = serializers.IntegerField(allow_null=True)
    verdict = serializers.CharField()
    category = serializers.CharField()
    rule = serializers.CharField()
    why = serializers.CharField()
    cause_class = serializers.CharField(allow_null=True)
    onset = serializers.DateTimeField()
    recorded_at = serializers.DateTimeField()
    previous_hash = serializers.CharField()
    hash = serializers.CharField()
    record = serializers.DictField(help_text="what the hash is over, as canonical JSON")
    evidence = serializers.DictField()


class EntryPageOutput(serializers.Serializer[Any]):
    """``next`` is the ``before`` of the next page, null at the end."""

    results = EntryOutput(many=True)
    next = serializers.IntegerField(allow_null=True)


class UnbookedOutput(serializers.Serializer[Any]):
    incident_id = serializers.IntegerField(source="incident.pk")
    number = serializers.CharField(source="incident.number")
    customer = serializers.CharField(source="incident.customer.slug")
    occurred_at = serializers.DateTimeField(source="incident.occurred_at")
    observed_at = serializers.DateTimeField(source="incident.observed_at")
    why = serializers.CharField()


class UnbookedPageOutput(serializers.Serializer[Any]):
    """``next`` is the ``before`` of the next page, null at the end."""

    results = UnbookedOutput(many=True)
    next = serializers.IntegerField(allow_null=True)


class VerificationOutput(serializers.Serializer[Any]):
    holds = serializers.BooleanField()
    checked = serializers.IntegerField()
    head = serializers.CharField()
    problem = serializers.CharField()
