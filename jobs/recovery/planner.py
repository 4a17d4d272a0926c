"""The decision itself: wait, give up in words, or a plan for the next generation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from agent.protocol import Position

from .micro import common_micro, drawn_of, finish_micro
from .positions import commit_rule, reaches
from .sources import Choice, in_custody, source_of
from .suspicion import suspects
from .targets import eligible_standbys, fits, target_for
from .values import GiveUp, Kept, Member, MovePlan, Plan, Situation, Standby, Wait


@dataclass(frozen=True)
class _Moving:
    """A rank with its source. ``must`` False: it lives, and could stay if no standby is left."""

    member: Member
    choice: Choice
    words: tuple[str, ...]
    must: bool


def reachable_positions(situation: Situation) -> list[Position]:
    """Positions that take part in the commit rule."""
    return [
        member.position
        for member in situation.members
        if member.position is not None and (member.condition == "blocked" or in_custody(member))
    ]


def plan(situation: Situation) -> Plan | Wait | GiveUp:
    """Decide. Every member must be blocked, exited or silent, else the answer is Wait."""
    moving = [m.rank for m in situation.members if m.condition == "running"]
    if moving:
        return Wait(code="not_all_stopped", reason=f"{_ranks(moving)} not stopped yet")
    if all(member.condition == "silent" for member in situation.members):
        return Wait(code="unreachable", reason="no rank of the job can be heard")
    step = max(commit_rule(reachable_positions(situation)), situation.resumed_at)
    if step <= situation.began_at and any(m.condition != "blocked" for m in situation.members):
        return GiveUp(
            code="before_first_commit",
            reason="the job had committed no step yet: it starts again and loses none",
            resume_at=situation.began_at,
        )
    return _with_sources(situation, step)


def stands(member: Member, step: int) -> bool:
    """A live rank that is at ``step``, or can bring itself there."""
    position = member.position
    return member.condition == "blocked" and position is not None and reaches(position, step)


def _with_sources(situation: Situation, step: int) -> Plan | Wait | GiveUp:
    stay: dict[int, str] = {}
    stands_at = {member.rank: member.position for member in situation.members}
    chosen: list[_Moving] = []
    passed: dict[int, tuple[str, ...]] = {}
    doubted = suspects(situation, step)
    for member in situation.members:
        standing = stands(member, step) and member.rank not in doubted
        if standing and member.rank not in situation.leaving:
            stay[member.rank] = member.worker_id
            continue
        back = _back_to_live(member, step)
        if back is not None and not eligible_standbys(situation, [member])[0]:
            stay[member.rank] = back.worker_id
            stands_at[member.rank] = back.position
            continue
        choice, words = source_of(member, situation, step)
        if choice is not None:
            chosen.append(_Moving(member, choice, words, must=not standing))
        elif standing:
            stay[member.rank] = member.worker_id
        else:
            passed[member.rank] = words
    if passed:
        return _no_source(situation, step, passed)
    return _with_targets(situation, step, stay, chosen, stands_at)


def _no_source(situation: Situation, step: int, passed: dict[int, tuple[str, ...]]) -> GiveUp:
    alive = {m.rank for m in situation.members if m.condition == "blocked"}
    return GiveUp(
        code="ranks_diverged" if alive & passed.keys() else "no_source",
        reason=f"step {step} was committed last; "
        + "; ".join(f"rank {rank}: " + ", ".join(words) for rank, words in sorted(passed.items())),
        resume_at=step,
        passed_over=passed,
    )


def _back_to_live(member: Member, step: int) -> Kept | None:
    """A paused source of a planned move whose target failed: it can simply go on."""
    if member.condition == "blocked":
        return None
    for kept in member.kept:
        if kept.live and kept.reachable and kept.resume_at == step and reaches(kept.position, step):
            return kept
    return None


def _with_targets(
    situation: Situation,
    step: int,
    stay: dict[int, str],
    chosen: list[_Moving],
    stands_at: dict[int, Position | None],
) -> Plan | Wait:
    eligible, refused = eligible_standbys(situation, [item.member for item in chosen])
    must = [item for item in chosen if item.must]
    may = [item for item in chosen if not item.must]
    unfilled = _unfilled([item.member for item in must], eligible)
    if unfilled:
        reason = f"{len(must)} ranks need a standby and {len(eligible)} are warm"
        if len(eligible) >= len(must):
            reason = f"no warm standby has the numerics of {_names(m.rank for m in unfilled)}"
        return Wait(
            code="no_standby",
            reason="; ".join([reason, *refused]),
            standbys_missing=len(unfilled),
        )
    moves: list[MovePlan] = []
    for item in must + may:
        member, choice = item.member, item.choice
        if not any(fits(standby, member) for standby in eligible):
            # A rank that was only to be moved, while it lives, stays rather than stops the others.
            stay[member.rank] = member.worker_id
            continue
        standby, why = target_for(member, eligible, situation, moves)
        eligible.remove(standby)
        # A lost process cannot tell what it had drawn; its page can, whatever the state is taken from.
        drawn, drawn_hash = drawn_of(stands_at[member.rank] or choice.position, step)
        stands_at[member.rank] = choice.position
        moves.append(
            MovePlan(
                rank=member.rank,
                from_worker=member.worker_id,
                from_place=member.place,
                to_worker=standby.worker_id,
                to_place=standby.place,
                source=choice.source,
                finish=choice.finish,
                streams=choice.streams,
                passed_over=item.words,
                target_reason="; ".join([why, *refused]),
                drawn=drawn,
                drawn_hash=drawn_hash,
                finish_micro=0 if choice.finish == "none" else finish_micro(choice.position, step),
            )
        )
    micro, words = common_micro(stands_at, step)
    reason = "; ".join(filter(None, [_reason(step, stay, moves), words]))
    return Plan(resume_at=step, stay=stay, moves=tuple(moves), reason=reason, resume_micro=micro)


def _unfilled(members: Iterable[Member], eligible: Iterable[Standby]) -> list[Member]:
    """Members for which no standby is left: one whose numerics are theirs, and each takes one rank."""
    left = Counter(standby.fingerprint for standby in eligible)
    unfilled: list[Member] = []
    for member in members:
        if left[member.fingerprint] > 0:
            left[member.fingerprint] -= 1
        else:
            unfilled.append(member)
    return unfilled


def _names(ranks: Iterable[int]) -> str:
    numbers = sorted(ranks)
    names = ", ".join(str(number) for number in numbers)
    return f"rank {names}" if len(numbers) == 1 else f"ranks {names}"


def _ranks(ranks: Iterable[int]) -> str:
    numbers = sorted(ranks)
    return f"{_names(numbers)} {'is' if len(numbers) == 1 else 'are'}"


def _reason(step: int, stay: dict[int, str], moves: list[MovePlan]) -> str:
    if not moves:
        return f"all ranks stay where they are and go on after step {step}"
    parts = [
        f"rank {move.rank} goes from {move.from_place.name} to {move.to_place.name} "
        f"by {move.source} ({move.target_reason})"
        for move in moves
    ]
    return f"{'; '.join(parts)}; {len(stay)} stay; step {step} was committed last"
