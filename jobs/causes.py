"""What broke, decided from evidence alone by one documented table. Pure.

| row | evidence | cause |
|---|---|---|
| same_end | the same exception, code or signal at the same step, on two nodes or thrice | user_code |
| finding | a health finding was open on the node when its rank was moved | that of the component |
| silent_node | another rank was blocked and the rung agent did not answer | node |
| hung | its agent ended it: waited for or asked to stop, it did not move | none yet: a person decides |
| out_of_memory | killed, and the worker's last words name memory | none yet: a person decides |
| unknown_exit | nobody saw how it ended: its agent was away | none yet: a person decides |
| own_exit | the process ended with a code of its own | user_code |
| own_fault | SIGSEGV, SIGABRT, SIGBUS, SIGFPE, SIGILL: its own doing | none yet: a person decides |
| signal_from_outside | ended by another signal, and no finding says why | operating_system |
| nobody_lost | every rank is there and their group broke | fabric |

The row that fired is stored with the incident, so that anyone can see why.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass

from .states import CauseClass

SAME_END = "same_end"
"""The row that needs more than one end, and overrules what the first of them said."""

_FAULTS = frozenset({signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL})
_COMPONENTS = {
    "gpu": CauseClass.DEVICE,
    "device": CauseClass.DEVICE,
    "memory": CauseClass.DEVICE,
    "nvlink": CauseClass.FABRIC,
    "network": CauseClass.FABRIC,
    "fabric": CauseClass.FABRIC,
    "driver": CauseClass.DRIVER,
    "os": CauseClass.OPERATING_SYSTEM,
    "disk": CauseClass.NODE,
    "node": CauseClass.NODE,
}
_HUNG_WORDS = "hung: "
"""What an agent says of a rank that it killed itself begins so."""
_MEMORY_WORDS = ("out of memory", "oom", "memoryerror", "cannot allocate memory")


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What is known when the cause is asked for. ``component``: that of an open finding."""

    component: str = ""
    silent: bool = False
    exited: bool = False
    exit_code: int | None = None
    signal: int | None = None
    detail: str = ""


@dataclass(frozen=True)
class Cause:
    cause_class: CauseClass | None
    row: str
    words: str


def cause_of(evidence: Evidence) -> Cause:
    """The first row of the table that fits."""
    if evidence.component:
        cause = _COMPONENTS.get(evidence.component, CauseClass.NODE)
        return Cause(cause, "finding", f"a finding on {evidence.component} was open")
    if evidence.silent:
        return Cause(CauseClass.NODE, "silent_node", "its agent was rung and did not answer")
    if not evidence.exited:
        return Cause(CauseClass.FABRIC, "nobody_lost", "every rank is there; their group broke")
    if evidence.signal is None and evidence.exit_code is None:
        return Cause(None, "unknown_exit", "nobody saw how the process ended: its agent was away")
    if evidence.signal is None:
        words = f"the process ended by itself with exit code {evidence.exit_code}"
        return Cause(CauseClass.USER_CODE, "own_exit", words)
    return _of_signal(evidence.signal, evidence.detail)


def _of_signal(number: int, detail: str) -> Cause:
    name = signal_name(number)
    if killed_as_hung(number, detail):
        return Cause(None, "hung", f"its own agent ended it by {name}: {detail}")
    if any(word in detail.lower() for word in _MEMORY_WORDS):
        return Cause(None, "out_of_memory", f"ended by {name} after words about memory")
    if number in _FAULTS:
        return Cause(None, "own_fault", f"ended by {name}, raised by what it did")
    return Cause(
        CauseClass.OPERATING_SYSTEM, "signal_from_outside", f"ended by {name} from outside"
    )


def killed_as_hung(number: int | None, detail: str) -> bool:
    """Whether its own agent killed it because it did not move: see jobs/hanging.py."""
    return number == signal.SIGKILL and detail.startswith(_HUNG_WORDS)


def signal_name(number: int) -> str:
    """SIGKILL for 9; the number in words for one that has no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
