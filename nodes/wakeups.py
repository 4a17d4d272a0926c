"""The names of the bells this app rings. Each has a task of the same name in tasks.py."""

from __future__ import annotations

from yoco_platform.core.bells import ring_on_commit

ADVANCE = "nodes.advance"


def advance_soon() -> None:
    """Wake the pass that leads nodes along once the running transaction is committed."""
    ring_on_commit(ADVANCE)
