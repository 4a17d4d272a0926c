"""Health policy as data: what the rules look for and how much they may take at once."""

from __future__ import annotations

from typing import Literal

import msgspec

Mode = Literal["off", "observe", "act"]


class HeatRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sustained heat: fires at ``heartbeats`` readings in a row over ``seconds``, clears lower.

    ``at_least`` and ``clear_below`` are in degrees Celsius; between them nothing changes.
    """

    mode: Mode = "act"
    check: str = "gpu_temperature"
    at_least: float = 90.0
    clear_below: float = 80.0
    heartbeats: int = 3
    seconds: float = 3.0
    clear_heartbeats: int = 3


class PaceRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Slow rank: its score, own time a step of its peers (median) over its own, is below ``score_below`` in
    ``reports`` reports in a row. Clears at ``clear_above``.

    With fewer than ``peers_min`` peers, or below ``own_ms_min`` milliseconds a step, nobody is slow.
    """

    mode: Literal["off", "observe"] = "observe"
    score_below: float = 0.75
    clear_above: float = 0.85
    reports: int = 3
    peers_min: int = 2
    own_ms_min: float = 5.0


class Breakers(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """At most max(1, floor(share * nodes)) of a pool and of a rack under one rule at once."""

    pool_share: float = 0.25
    rack_share: float = 0.25
    ready_floor: int = 1
    """A rule never takes a pool below this many ready nodes."""


class Liveness(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How often agents of a large fleet speak, in seconds; others by the setting YOCO_HEARTBEAT_S."""

    large_fleet_nodes: int = 256
    large_fleet_heartbeat_s: float = 10.0


class Policy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One version of the health policy. Version 0 is the one built in."""

    heat: HeatRule = HeatRule()
    pace: PaceRule = PaceRule()
    breakers: Breakers = Breakers()
    liveness: Liveness = Liveness()
    probation_s: float = 20.0
    """A node that was under suspicion may take work again, but is watched this long."""


BUILT_IN = Policy()


def policy_read(data: object) -> Policy:
    """Decode stored data. Raises ValueError in words when it does not fit or contradicts itself."""
    try:
        policy = msgspec.convert(data, Policy)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from error
    problems = policy_problems(policy)
    if problems:
        raise ValueError("; ".join(problems))
    return policy


def policy_data(policy: Policy) -> dict[str, object]:
    """The policy as plain JSON data."""
    data: dict[str, object] = msgspec.to_builtins(policy)
    return data


def policy_problems(policy: Policy) -> list[str]:
    """Everything that is wrong with the figures of a policy, in words."""
    heat, breakers, liveness = policy.heat, policy.breakers, policy.liveness
    pace = policy.pace
    checks = [
        (heat.clear_below < heat.at_least, "heat.clear_below must be below heat.at_least"),
        (heat.heartbeats >= 1, "heat.heartbeats must be at least 1"),
        (heat.clear_heartbeats >= 1, "heat.clear_heartbeats must be at least 1"),
        (heat.seconds >= 0, "heat.seconds must not be negative"),
        (
            0 < pace.score_below < pace.clear_above,
            "pace.score_below must be above 0 and below pace.clear_above",
        ),
        (pace.reports >= 1, "pace.reports must be at least 1"),
        (pace.peers_min >= 1, "pace.peers_min must be at least 1"),
        (0 < breakers.pool_share <= 1, "breakers.pool_share must be above 0 and at most 1"),
        (0 < breakers.rack_share <= 1, "breakers.rack_share must be above 0 and at most 1"),
        (breakers.ready_floor >= 0, "breakers.ready_floor must not be negative"),
        (
            0.1 <= liveness.large_fleet_heartbeat_s <= 60,
            "liveness.large_fleet_heartbeat_s must be from 0.1 to 60",
        ),
        (policy.probation_s >= 0, "probation_s must not be negative"),
    ]
    return [words for holds, words in checks if not holds]


def heartbeat_s(policy: Policy, num_nodes: int, base_s: float) -> float:
    """The cadence of a fleet of that size, in seconds; ``base_s`` is that of a small one."""
    if num_nodes > policy.liveness.large_fleet_nodes:
        return max(base_s, policy.liveness.large_fleet_heartbeat_s)
    return base_s
