"""Who hangs: a table of where all ranks stand, and what is judged of it."""

from __future__ import annotations

from typing import Any

import pytest

from agent.protocol import GroupStanding, Limits, Standing
from jobs.hanging import Judgement, Network, Nobody, Patience, Suspect, judge

LIMITS = Limits(stall_s=3.0, compute_s=3.5, frozen_s=3.0, data_s=30.0, network_s=20.0)
ALL, SIDE, LEFT, RIGHT = 1, 2, 3, 4
"""keys of groups"""


def at(
    *groups: tuple[int, int, int], phase: str = "forward", still_s: float = 4.0, **changed: Any
) -> Standing:
    """A rank that stands in these groups, each (key, issued, pending)."""
    fields: dict[str, Any] = {"step": 12, "beat_s": 0.4, "usual_s": 0.1}
    marks = [GroupStanding(key=k, issued=i, pending=p) for k, i, p in groups]
    return Standing(groups=marks, phase=phase, still_s=still_s, **{**fields, **changed})


WAITS = at((ALL, 7, 7))
BEHIND = at((ALL, 6, 0))
FROZEN = {"beat_s": 4.0}


def of(judgement: Judgement) -> tuple[type, int | None]:
    return type(judgement), getattr(judgement, "rank", None)


@pytest.mark.parametrize(
    ("standings", "judged"),
    [
        pytest.param([WAITS, BEHIND, WAITS], (Suspect, 1), id="one computes for ever"),
        pytest.param(
            [WAITS, at((ALL, 6, 0), still_s=3.2), WAITS], (Patience, 1), id="it computes, in time"
        ),
        pytest.param(
            [WAITS, at((ALL, 6, 0), still_s=3.2, **FROZEN), WAITS],
            (Suspect, 1),
            id="it does not run, in the same time",
        ),
        pytest.param([WAITS, None, WAITS], (Nobody, None), id="slow but moving"),
        pytest.param([None, None, None], (Nobody, None), id="all move"),
        pytest.param([at(), at(), at()], (Nobody, None), id="long step, nobody waits"),
        pytest.param([WAITS, WAITS, WAITS], (Nobody, None), id="a long collective"),
        pytest.param(
            [at((ALL, 7, 7), still_s=21.0)] * 3, (Network, None), id="all inside the same one"
        ),
        pytest.param(
            [WAITS, at((ALL, 7, 7), **FROZEN), WAITS], (Suspect, 1), id="stopped inside of it"
        ),
        pytest.param(
            [WAITS, at((ALL, 6, 6), **FROZEN), WAITS], (Suspect, 1), id="stopped, finished since"
        ),
        pytest.param(
            [WAITS, at((ALL, 6, 6)), WAITS], (Nobody, None), id="it seems to be inside: too early"
        ),
        pytest.param(
            [WAITS, at((ALL, 6, 0), phase="data"), WAITS], (Patience, 1), id="data, within limits"
        ),
        pytest.param(
            [at((ALL, 7, 7), still_s=31.0), at((ALL, 6, 0), phase="data", still_s=31.0)],
            (Suspect, 1),
            id="data, beyond its limit",
        ),
        pytest.param([WAITS, at((ALL, 6, 0), phase="saving"), WAITS], (Patience, 1), id="it saves"),
        pytest.param(
            [WAITS, at((ALL, 6, 0), phase="compiling"), WAITS], (Patience, 1), id="it compiles"
        ),
        pytest.param(
            [WAITS, at((ALL, 6, 0), phase="evaluating", **FROZEN), WAITS],
            (Patience, 1),
            id="it evaluates with the GIL held",
        ),
        pytest.param(
            [WAITS, at((ALL, 6, 0), phase="setup"), WAITS], (Nobody, None), id="it sets up"
        ),
        pytest.param(
            [WAITS, at((ALL, 6, 0), step=0), WAITS], (Patience, 1), id="its very first step"
        ),
        pytest.param(
            [at((ALL, 7, 7)), at((ALL, 6, 0), step=12), at((ALL, 5, 0), step=12)],
            (Suspect, 2),
            id="of two the lowest",
        ),
        pytest.param(
            [at((LEFT, 3, 3)), at((LEFT, 2, 0), (RIGHT, 5, 5)), at((RIGHT, 4, 0))],
            (Suspect, 2),
            id="through a chain of groups",
        ),
        pytest.param(
            [
                at((LEFT, 3, 3), (RIGHT, 4, 0), still_s=21.0),
                at((LEFT, 2, 0), (RIGHT, 5, 5), still_s=21.0),
            ],
            (Network, None),
            id="in a circle",
        ),
        pytest.param(
            [at((ALL, 7, 0), (SIDE, 2, 2)), at((ALL, 7, 0), (SIDE, 1, 0), phase="tail")],
            (Patience, 1),
            id="the vote waits for one in its tail",
        ),
        pytest.param(
            [at((ALL, 7, -1)), at((ALL, 7, 0))], (Nobody, None), id="a receive names nobody"
        ),
    ],
)
def test_who_hangs(standings: list[Standing | None], judged: tuple[type, int | None]) -> None:
    assert of(judge(dict(enumerate(standings)), LIMITS)) == judged


def test_the_words_say_who_waits_and_what_for() -> None:
    found = judge({0: WAITS, 1: at((ALL, 6, 0), **FROZEN), 2: WAITS}, LIMITS)

    assert isinstance(found, Suspect)
    assert found.words == (
        "rank 1 has not moved for 4.0 s in forward after step 12, its process does not run; "
        "waiting in a collective: 0, 2"
    )
