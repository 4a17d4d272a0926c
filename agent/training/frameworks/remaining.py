"""What a framework iterates instead of its loader: the rest of the epoch, from where the job stands."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..errors import EngineError
from ..run import Run


class NotSupported(EngineError):
    """A framework was asked for something that could not be carried over a failure."""

    code = "framework_unsupported"


class Remaining:
    """Looks like ``loader`` and draws from ``run.batches()``.

    A framework that knows a loader's length stops before its end is reached: that end is passed here, when it
    asks for the next epoch.
    """

    def __init__(self, run: Run, loader: Any) -> None:
        self._run = run
        self.loader = loader
        self.dataset = loader.dataset
        self.batch_size = getattr(loader, "batch_size", None)

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        """Raises NotSupported for a loader without a batch."""
        for _attempt in range(2):
            given = False
            for batch in self._run.batches():
                given = True
                yield batch
            if given:
                return
        raise NotSupported("the training loader gives no batch")
