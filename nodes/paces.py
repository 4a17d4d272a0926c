"""The rule *slow rank*, pure: own time a step of every rank of a job in, who is slower than its peers out.

Own time leaves out what a rank waits for others (``agent.protocol.RankCosts``): whoever waits for a slow rank
takes as long for a step as the slow one, and is not slow.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from .policies import PaceRule

RULE = "slow_rank"


@dataclass(frozen=True)
class Pace:
    """A rank beside its peers, as its last report has it. ``score``: median of the peers over its own time,
    of two in the middle the longer one, so that one quick rank makes nobody slow.

    ``slow``: below the limit in enough reports in a row; ``well``: above the upper one in as many; else
    nothing is said.
    """

    rank: int
    own_ms: float
    peers_ms: float
    score: float
    is_: Literal["slow", "well", "between"]


def paces_judged(reports: Mapping[int, Sequence[float]], rule: PaceRule) -> list[Pace]:
    """``reports``: rank -> own milliseconds a step, newest report first. Ranks with too few are left out."""
    known = {rank: own for rank, own in reports.items() if len(own) >= rule.reports}
    if len(known) <= rule.peers_min:
        return []
    return [_judged(rank, known, rule) for rank in sorted(known)]


def _judged(rank: int, known: Mapping[int, Sequence[float]], rule: PaceRule) -> Pace:
    own = known[rank]
    peers = [
        statistics.median_high(other[at] for peer, other in known.items() if peer != rank)
        for at in range(rule.reports)
    ]
    scores = [peers[at] / max(own[at], 1e-9) for at in range(rule.reports)]
    is_: Literal["slow", "well", "between"] = "between"
    if max(scores) < rule.score_below and min(own[: rule.reports]) >= rule.own_ms_min:
        is_ = "slow"
    elif min(scores) >= rule.clear_above:
        is_ = "well"
    return Pace(rank, own[0], peers[0], scores[0], is_)


def pace_words(pace: Pace, rule: PaceRule) -> str:
    """What the figures say, as a sentence."""
    return (
        f"rank {pace.rank} was at work {pace.own_ms:.1f} ms a step, its peers {pace.peers_ms:.1f} ms in the "
        f"median, waiting for others left out: score {pace.score:.2f}, below {rule.score_below:g} in "
        f"{rule.reports} reports in a row"
    )
