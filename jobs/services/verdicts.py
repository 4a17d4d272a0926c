"""The verdict under a contract, written back so that every page says one word for one incident."""

from __future__ import annotations

from django.db import transaction

from ..models import Incident
from ..states import INCIDENT_FINAL, Verdict
from .steps import incident_tell


@transaction.atomic
def incident_verdict_set(*, incident_id: int, verdict: str, reason: str) -> bool:
    """Store the verdict of the ledger on an ended incident; False when it says the same already.

    What the evidence alone said stays in ``evidence["outcome"]``.
    """
    incident = Incident.objects.select_for_update().get(pk=incident_id)
    if incident.verdict == verdict or incident.state not in INCIDENT_FINAL:
        return False
    incident.verdict, incident.verdict_reason = Verdict(verdict), reason
    incident.save(update_fields=["verdict", "verdict_reason"])
    incident_tell(incident, "verdict", verdict=verdict, reason=reason)
    return True
