from __future__ import annotations

import signal

import pytest

from jobs import causes
from jobs.causes import Evidence, cause_of
from jobs.states import CauseClass


@pytest.mark.parametrize(
    ("evidence", "row", "cause"),
    [
        (Evidence(component="gpu"), "finding", CauseClass.DEVICE),
        (Evidence(component="unheard-of"), "finding", CauseClass.NODE),
        (Evidence(silent=True), "silent_node", CauseClass.NODE),
        (Evidence(exited=True), "unknown_exit", None),
        (Evidence(exited=True, exit_code=1), "own_exit", CauseClass.USER_CODE),
        (Evidence(exited=True, exit_code=0), "own_exit", CauseClass.USER_CODE),
        (
            Evidence(exited=True, signal=signal.SIGKILL),
            "signal_from_outside",
            CauseClass.OPERATING_SYSTEM,
        ),
        (
            Evidence(exited=True, signal=signal.SIGKILL, detail="Out of memory"),
            "out_of_memory",
            None,
        ),
        (Evidence(exited=True, signal=signal.SIGSEGV), "own_fault", None),
        (
            Evidence(
                exited=True,
                signal=signal.SIGKILL,
                detail="hung: it did not stop within 60 s of being interrupted",
            ),
            "hung",
            None,
        ),
        (
            Evidence(
                exited=True, signal=signal.SIGTERM, detail="hung: it did not stop within 60 s"
            ),
            "signal_from_outside",
            CauseClass.OPERATING_SYSTEM,
        ),
        (
            Evidence(exited=True, signal=signal.SIGKILL, detail="hung up on a lock"),
            "signal_from_outside",
            CauseClass.OPERATING_SYSTEM,
        ),
        (Evidence(), "nobody_lost", CauseClass.FABRIC),
    ],
)
def test_the_first_row_that_fits_decides(
    evidence: Evidence, row: str, cause: CauseClass | None
) -> None:
    found = cause_of(evidence)

    assert (found.row, found.cause_class) == (row, cause)
    assert found.words


def test_every_row_is_in_the_documented_table() -> None:
    table = causes.__doc__ or ""
    rows = {"finding", "silent_node", "out_of_memory", "unknown_exit", "own_exit", "own_fault"}
    for row in rows | {"same_end", "hung", "signal_from_outside", "nobody_lost"}:
        assert f"| {row} |" in table


def test_a_signal_without_a_name_keeps_its_number() -> None:
    assert causes.signal_name(64 + 63) == "signal 127"
