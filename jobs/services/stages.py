"""The six stages of a migration, with real times."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from yoco_platform.core import clock

from ..models import Migration, Stage
from ..states import StageName
from .steps import migration_tell


def stage_begin(
    *, migration: Migration, name: StageName, at: datetime | None = None, **detail: Any
) -> Stage:
    """Open a stage once; a second call finds it."""
    stage, created = Stage.objects.get_or_create(
        migration=migration,
        name=name,
        defaults={"began_at": at or clock.now(), "detail": detail},
    )
    if created:
        _tell(migration, stage)
    return stage


def stages_decided(
    *, migration: Migration, began_at: datetime, observed_at: datetime, now: datetime, reason: str
) -> None:
    """detect and decide as they were, reserve begun: what is known when a plan is written."""
    Stage.objects.bulk_create(
        [
            Stage(
                migration=migration,
                name=StageName.DETECT,
                began_at=min(began_at, observed_at),
                ended_at=observed_at,
            ),
            Stage(
                migration=migration,
                name=StageName.DECIDE,
                began_at=observed_at,
                ended_at=now,
                detail={"reason": reason},
            ),
            Stage(migration=migration, name=StageName.RESERVE, began_at=now),
        ]
    )


def stage_end(
    *, migration: Migration, name: StageName, at: datetime | None = None, **detail: Any
) -> None:
    """Close a stage, never before it began; a later end of the same stage moves it on."""
    stage = stage_begin(migration=migration, name=name, at=at)
    ended = max(at or clock.now(), stage.began_at)
    stage.ended_at = ended if stage.ended_at is None else max(stage.ended_at, ended)
    stage.detail = {**stage.detail, **detail}
    stage.save(update_fields=["ended_at", "detail"])
    _tell(migration, stage)


def _tell(migration: Migration, stage: Stage) -> None:
    data = {
        "migration_id": migration.pk,
        "name": stage.name,
        "began_at": stage.began_at.isoformat(),
        "ended_at": None if stage.ended_at is None else stage.ended_at.isoformat(),
    }
    migration_tell(migration, "stage", data)
