"""``yoco.accelerate``: see docs/ways-in.md."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agent.training.frameworks.accelerate import protect
else:
    protect = importlib.import_module("yoco.training.frameworks.accelerate").protect

__all__ = ["protect"]
