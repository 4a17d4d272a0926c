"""New versions of the health policy."""

from __future__ import annotations

from django.db import transaction

from yoco_platform.core import clock
from yoco_platform.core.audit import audit
from yoco_platform.core.auth import Permission, Viewer, require

from .. import policies, selectors
from ..errors import PolicyRefused, ReasonMissing
from ..models import HealthPolicy


@transaction.atomic
def policy_create(*, viewer: Viewer, data: object, note: str) -> HealthPolicy:
    """The next version, in force at once. Raises Forbidden, ReasonMissing, PolicyRefused."""
    require(viewer, Permission.HEALTH_POLICY_WRITE)
    if not note.strip():
        raise ReasonMissing("say why the policy changes", field="note")
    try:
        policy = policies.policy_read(data)
    except ValueError as error:
        raise PolicyRefused(str(error)) from error
    last = HealthPolicy.objects.select_for_update().order_by("-version").first()
    row = HealthPolicy.objects.create(
        version=1 if last is None else last.version + 1,
        data=policies.policy_data(policy),
        note=note,
        created_by=viewer.name,
        created_at=clock.now(),
    )
    audit(viewer, "policy_create", f"policy:{row.version}", {"note": note})
    transaction.on_commit(selectors.forget_remembered, robust=True)
    return row
