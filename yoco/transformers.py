"""``yoco.transformers``: see docs/ways-in.md."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agent.training.frameworks.transformers import protect
else:
    protect = importlib.import_module("yoco.training.frameworks.transformers").protect

__all__ = ["protect"]
