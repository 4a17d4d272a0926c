"""Which standby takes a rank, and words for each that may not."""

from __future__ import annotations

from collections.abc import Iterable

from .values import Member, MovePlan, Situation, Standby


def eligible_standbys(
    situation: Situation, members: Iterable[Member]
) -> tuple[list[Standby], list[str]]:
    """Standbys that may take one of these ranks, and words for each that may take none."""
    numerics = numerics_of(member.fingerprint for member in members)
    eligible: list[Standby] = []
    refused: list[str] = []
    for standby in situation.standbys:
        words = standby_refused(standby, numerics)
        if words:
            refused.append(f"standby on {standby.place.name}: {words}")
        else:
            eligible.append(standby)
    return eligible, refused


def numerics_of(fingerprints: Iterable[str]) -> frozenset[str]:
    """The numerics that are known of these ranks: more than one when they were mixed."""
    return frozenset(fingerprints) - {""}


def standby_refused(standby: Standby, numerics: frozenset[str]) -> str:
    """Why this standby may take no rank with these numerics, in words; "" when it may take one."""
    if not standby.reachable:
        return "its agent is silent"
    if standby.place.suspect:
        return standby.place.suspect
    if not standby.warm:
        return "still warming"
    if not numerics:
        return "the numerics it would have to go on with are not known"
    if standby.fingerprint not in numerics:
        return "its numerics differ from the ranks', so the bits would"
    return ""


def fits(standby: Standby, member: Member) -> bool:
    """Whether it would go on bit by bit where this very rank stopped: ranks may differ among themselves."""
    return bool(member.fingerprint) and standby.fingerprint == member.fingerprint


def target_for(
    member: Member, eligible: list[Standby], situation: Situation, moves: list[MovePlan]
) -> tuple[Standby, str]:
    """The best of the standbys that fit this rank; one must.

    A failure domain is taken twice only where no other fits.
    """
    taken = {move.to_place.failure_domain for move in moves}
    going = {m.rank for m in situation.members if m.condition != "blocked"} | situation.leaving
    staying = [m.place for m in situation.members if m.rank not in going]
    domains = {place.failure_domain for place in staying}
    nodes = {place.node_id for place in staying}

    def rank_of(standby: Standby) -> tuple[bool, bool, bool, bool, str]:
        place = standby.place
        return (
            place.failure_domain in taken,
            place.node_id in nodes,
            place.failure_domain in domains,
            standby.provisional_rank != member.rank,
            place.name,
        )

    best = min((standby for standby in eligible if fits(standby, member)), key=rank_of)
    why = f"warm standby on {best.place.name}"
    if best.place.failure_domain in taken:
        why += f", although {best.place.failure_domain} takes another rank: no other fits"
    elif best.place.failure_domain not in domains:
        why += f", in {best.place.failure_domain}, where no other rank is"
    return best, why
