"""What REST takes, read strictly: an unknown field is refused by name."""

from __future__ import annotations

from rest_framework import serializers

from yoco_platform.core.api import StrictSerializer

from .states import IncidentState, JobState, WhenFull

ID_MAX = STEP_MAX = 2**63 - 1
"""What a column of the database holds."""


class JobCreateInput(StrictSerializer):
    """A job to run. ``customer`` and ``cluster`` may be left out where the token names them."""

    name = serializers.CharField(max_length=120)
    world_size = serializers.IntegerField(min_value=1, max_value=65_536)
    pool = serializers.CharField(max_length=80)
    command = serializers.ListField(
        child=serializers.CharField(max_length=32_768, trim_whitespace=False, allow_blank=True),
        min_length=1,
        max_length=1_000,
    )
    working_directory = serializers.RegexField(r"^/", max_length=500)
    run_as = serializers.RegexField(r"^[a-z_][a-z0-9_-]{0,62}\$?$")
    customer = serializers.SlugField(required=False, default="", allow_blank=True)
    cluster = serializers.SlugField(required=False, default="", allow_blank=True)
    environment = serializers.DictField(
        child=serializers.CharField(allow_blank=True, trim_whitespace=False), required=False
    )
    standbys = serializers.IntegerField(min_value=0, max_value=64, default=1)
    priority = serializers.IntegerField(min_value=-1_000, max_value=1_000, default=0)
    preemptible = serializers.BooleanField(default=False)
    wants_protection = serializers.BooleanField(default=True)
    redundancy = serializers.ChoiceField(["auto", "replica", "shadow", "buddy"], default="auto")
    accumulation = serializers.ChoiceField(["redo", "keep"], default="redo")
    limits = serializers.DictField(child=serializers.FloatField(), required=False)
    when_full = serializers.ChoiceField(WhenFull.choices, default=WhenFull.QUEUE)


class JobListInput(StrictSerializer):
    state = serializers.ChoiceField(JobState.choices, required=False)
    before = serializers.IntegerField(min_value=1, max_value=ID_MAX, required=False)
    limit = serializers.IntegerField(min_value=1, max_value=200, default=50)


class IncidentListInput(StrictSerializer):
    job_id = serializers.IntegerField(min_value=1, max_value=ID_MAX, required=False)
    state = serializers.ChoiceField(IncidentState.choices, required=False)
    before = serializers.IntegerField(min_value=1, max_value=ID_MAX, required=False)
    limit = serializers.IntegerField(min_value=1, max_value=200, default=50)


class MigrationListInput(StrictSerializer):
    job_id = serializers.IntegerField(min_value=1, max_value=ID_MAX, required=False)
    incident_id = serializers.IntegerField(min_value=1, max_value=ID_MAX, required=False)
    limit = serializers.IntegerField(min_value=1, max_value=200, default=50)


class PointsInput(StrictSerializer):
    after_step = serializers.IntegerField(
        min_value=-1, max_value=STEP_MAX, required=False, default=-1
    )


class DigestsInput(StrictSerializer):
    step = serializers.IntegerField(min_value=0, max_value=STEP_MAX, required=False)


class ReasonInput(StrictSerializer):
    reason = serializers.CharField(max_length=500)
