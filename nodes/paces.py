"""The rule *slow rank*, pure: own time a step of every rank of a job in, who is slower than its peers out.

Own time leaves out what a rank waits for others (``agent.protocol.RankCosts``): whoever waits for a slow rank
takes as long for a step as the slow one, and is not slow.
"""

from __future__ import annotations

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
    known = {
        rank: own[: rule.reports]
        for rank, own in sorted(reports.items())
        if len(own) >= rule.reports
    }
    if len(known) <= rule.peers_min:
        return []
    peers = zip(*map(_medians_of_others, zip(*known.values(), strict=True)), strict=True)
    return [
        _judged(rank, own, others, rule)
        for (rank, own), others in zip(known.items(), peers, strict=True)
    ]


def _medians_of_others(times: Sequence[float]) -> list[float]:
    """For each of two or more the median of all others, of two in the middle the longer one."""
    ordered = sorted(times)
    middle = (len(ordered) - 1) // 2
    # One sort serves all: without one of the lower half, the next longer one is in the middle.
    return [ordered[middle + 1] if own <= ordered[middle] else ordered[middle] for own in times]


def _judged(rank: int, own: Sequence[float], peers: Sequence[float], rule: PaceRule) -> Pace:
    scores = [of_peers / max(of_own, 1e-9) for of_own, of_peers in zip(own, peers, strict=True)]
    is_: Literal["slow", "well", "between"] = "between"
    if max(scores) < rule.score_below and min(own) >= rule.own_ms_min:
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
