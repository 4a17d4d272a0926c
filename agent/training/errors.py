"""What the engine raises into a training script."""

from __future__ import annotations

from collections.abc import Iterable


class GenerationOver(BaseException):
    """This membership of the job is over; ``run.loop`` catches it and enters ``train`` again.

    Not an ``Exception``: a script that catches those around a collective must not swallow it.
    """


class EngineError(RuntimeError):
    """Base of what ends a rank for good. ``code`` is stable."""

    code = "engine_failed"


class RanksDiverged(EngineError):
    """The ranks did not issue the same collectives, or do not stand at the same step."""

    code = "ranks_diverged"


class VerdictImpossible(EngineError):
    """The platform asked for a step that this rank cannot stand at."""

    code = "verdict_impossible"


class WrittenOutside(EngineError):
    """What only an optimizer may write was written outside its step."""

    code = "written_outside_step"

    def __init__(self, names: Iterable[str]) -> None:
        some = ", ".join(sorted(names)[:5])
        super().__init__(
            f"{some} changed outside optimizer.step(), and a failure at that moment could not be healed: "
            "change weights inside the step (optimizer.register_step_post_hook), in a copy that is not "
            "protected (a model of averages, for evaluation), or after run.loop"
        )


class NotReady(EngineError):
    """A call out of order, such as ``loop`` before ``protect``."""

    code = "not_ready"


class NothingHeard(EngineError):
    """No verdict came within ``limits.blocked_s``."""

    code = "nothing_heard"
