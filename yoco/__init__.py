"""What a training script imports: ``import yoco; run = yoco.join()``.

``__path__`` leads into the node agent's folder, so that in a user's process the engine is ``yoco.training``,
``yoco.transfer``, ``yoco.protocol``: nothing of ours is imported by a name that a folder beside the user's
script could carry (agent, jobs, nodes, tests).
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agent.training.run import Run

_HERE = os.path.dirname(os.path.abspath(__file__))
__path__ = [_HERE, os.path.join(os.path.dirname(_HERE), "agent")]
__all__ = ["join"]


def join() -> Run:
    """Join the job this process was started for and return its ``Run``.

    Started by a node agent: a protected rank or a standby. Started by hand or by torchrun: a plain gloo
    group from RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, not protected, which is said once on stderr.
    Raises ConnectionError when the generation cannot be met within ``limits.join_s``.
    """
    start: Run = importlib.import_module("yoco.training.run").join()
    return start
