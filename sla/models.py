"""Tables of the guarantee: contracts, their terms and years, and the ledger that nobody can edit."""

from __future__ import annotations

import json
from typing import Any

from django.db import models

from jobs.models import Incident
from yoco_platform.core.models import Customer

from .states import CreditBase, EntryKind, LeapRule, Mechanism, Rounding, Verdict

GENESIS = "0" * 64
"""What the first entry of a ledger follows."""


class Contract(models.Model):
    """The agreement with one customer. ``scope``: slugs of the clusters it covers, empty for all."""

    customer = models.ForeignKey(Customer, on_delete=models.PROTECT, related_name="contracts")
    number = models.CharField(max_length=60, unique=True)
    first_date = models.DateField(
        help_text="in the contract's own zone; every year is anchored to it"
    )
    zone = models.CharField(max_length=60, help_text="IANA name")
    currency = models.CharField(max_length=3, help_text="ISO 4217")
    scope = models.JSONField(default=list)
    is_demo = models.BooleanField(default=False)
    terminated_at = models.DateTimeField(null=True)
    created_by = models.CharField(max_length=150)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["number"]

    def __str__(self) -> str:
        return self.number


class Terms(models.Model):
    """One version of a contract's rules. Inserted, never edited. Null or "" means left empty:
    that blocks the close and is named there. 0 and false are values."""

    contract = models.ForeignKey(Contract, on_delete=models.PROTECT, related_name="terms")
    version = models.PositiveIntegerField()
    effective_from = models.DateField(help_text="first instant of that day in the contract's zone")
    target_numerator = models.PositiveIntegerField(null=True)
    target_denominator = models.PositiveIntegerField(null=True)
    operator = models.CharField(max_length=2, default=">=", blank=True)
    credit_rate_bp = models.PositiveIntegerField(null=True, help_text="2500 is 25 %")
    credit_base = models.CharField(max_length=32, choices=CreditBase.choices, blank=True)
    credit_cap_minor = models.BigIntegerField(null=True)
    credit_uncapped = models.BooleanField(default=False)
    credit_expiry_days = models.PositiveIntegerField(null=True)
    credit_never_expires = models.BooleanField(default=False)
    order_of_use = models.CharField(max_length=40, blank=True)
    rounding = models.CharField(max_length=8, choices=Rounding.choices, blank=True)
    leap_rule = models.CharField(max_length=6, choices=LeapRule.choices, blank=True)
    mechanism = models.CharField(max_length=16, choices=Mechanism.choices, blank=True)
    predicted_failures_count = models.BooleanField(null=True)
    grouping_window_minutes = models.PositiveIntegerField(null=True)
    evidence_cutoff_days = models.PositiveIntegerField(null=True)
    grace_days = models.PositiveIntegerField(null=True)
    minimum_measured_bp = models.PositiveIntegerField(null=True)
    contest_window_days = models.PositiveIntegerField(null=True)
    exclusion_categories = models.JSONField(null=True)
    support_matrix_version = models.CharField(max_length=40, blank=True)
    minimum_spares = models.PositiveIntegerField(null=True)
    created_by = models.CharField(max_length=150)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["contract", "version"]
        verbose_name_plural = "terms"
        constraints = [
            models.UniqueConstraint(fields=["contract", "version"], name="terms_version_once"),
            models.UniqueConstraint(fields=["contract", "effective_from"], name="terms_start_once"),
        ]


class ContractYear(models.Model):
    """Year ``ordinal`` (from 1) of a contract: [starts_at, ends_at) in UTC, computed once."""

    contract = models.ForeignKey(Contract, on_delete=models.PROTECT, related_name="years")
    ordinal = models.PositiveIntegerField()
    starts_at = models.DateTimeField()
    ends_at = models.DateTimeField()

    class Meta:
        ordering = ["contract", "ordinal"]
        constraints = [
            models.UniqueConstraint(fields=["contract", "ordinal"], name="contract_year_once"),
            models.CheckConstraint(
                condition=models.Q(starts_at__lt=models.F("ends_at")), name="contract_year_runs_on"
            ),
        ]


class Chain(models.Model):
    """Head of a contract's ledger: the row that is locked while an entry is appended. It also shows
    when entries at the end are gone."""

    contract = models.OneToOneField(Contract, on_delete=models.PROTECT, related_name="chain")
    length = models.PositiveBigIntegerField(default=0)
    head = models.CharField(max_length=64, default=GENESIS)


class Entry(models.Model):
    """One line of the ledger. ``body`` and ``proof`` are canonical bytes (RFC 8785); ``hash`` is over
    ``body``, which names the entry before and the hash of ``proof``. The other columns repeat what the
    body says, for queries; triggers refuse every change."""

    contract = models.ForeignKey(Contract, on_delete=models.PROTECT, related_name="entries")
    sequence = models.PositiveBigIntegerField(help_text="from 1, without a gap")
    kind = models.CharField(max_length=12, choices=EntryKind.choices, default=EntryKind.FAILURE)
    year = models.ForeignKey(ContractYear, on_delete=models.PROTECT, related_name="entries")
    terms = models.ForeignKey(Terms, on_delete=models.PROTECT, related_name="+")
    incident = models.ForeignKey(
        Incident, null=True, on_delete=models.PROTECT, related_name="ledger_entries"
    )
    verdict = models.CharField(max_length=12, choices=Verdict.choices)
    category = models.CharField(max_length=40, default="", blank=True)
    rule = models.CharField(max_length=40, help_text="the rule of sla/classification.py that fired")
    why = models.TextField()
    cause_class = models.CharField(max_length=20, null=True)
    onset = models.DateTimeField()
    recorded_at = models.DateTimeField()
    previous_hash = models.CharField(max_length=64)
    hash = models.CharField(max_length=64, unique=True)
    body = models.BinaryField()
    proof = models.BinaryField()

    class Meta:
        ordering = ["contract", "sequence"]
        verbose_name_plural = "entries"
        constraints = [
            models.UniqueConstraint(fields=["contract", "sequence"], name="entry_sequence_once"),
            models.UniqueConstraint(
                fields=["contract", "previous_hash"], name="entry_chain_no_fork"
            ),
            models.UniqueConstraint(
                fields=["incident"],
                condition=models.Q(kind=EntryKind.FAILURE),
                name="entry_failure_once",
            ),
        ]
        indexes = [models.Index(fields=["year", "verdict"], name="entry_by_year_verdict")]

    @property
    def record(self) -> dict[str, Any]:  # Any: JSON
        """What the hash is over, decoded."""
        data: dict[str, Any] = json.loads(bytes(self.body))
        return data

    @property
    def evidence(self) -> dict[str, Any]:  # Any: JSON
        """What proves the verdict, decoded."""
        data: dict[str, Any] = json.loads(bytes(self.proof))
        return data
