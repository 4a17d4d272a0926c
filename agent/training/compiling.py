"""Seeing that torch compiles: that takes minutes in good health, on one rank longer than on another."""

from __future__ import annotations

import sys

from ..transfer.arena import Phase
from .session import Session


def mark_compiling(session: Session) -> None:
    """Show the phase COMPILING while dynamo compiles.

    Only where dynamo is loaded by now, as the first optimizer does: loading it takes seconds.
    """
    module = sys.modules.get("torch._dynamo.callback")
    handler = getattr(module, "callback_handler", None)
    if handler is None:
        return
    before: list[int] = []

    def begins(_args: object) -> None:
        before.append(session.header.get("phase"))
        session.set_phase(Phase.COMPILING)

    def ended(_args: object) -> None:
        if before:
            session.set_phase(before.pop())

    handler.register_start_callback(begins)
    handler.register_end_callback(ended)
