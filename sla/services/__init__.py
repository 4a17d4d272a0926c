"""The only writers of the guarantee's tables. Doors, tasks and commands call these names."""

from __future__ import annotations

from .contracts import contract_create, terms_add, years_open
from .entries import entries_catch_up, entry_add_for_incident

__all__ = [
    "contract_create",
    "entries_catch_up",
    "entry_add_for_incident",
    "terms_add",
    "years_open",
]
