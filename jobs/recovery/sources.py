"""The recovery ladder: where a rank's state can be taken from, in order, and words for the rest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from agent.protocol import Position

from .positions import finish_from, private_finish
from .suspicion import suspects
from .values import TRIES_MAX, Custody, Finish, Holder, Kept, Member, Place, Situation, Stream


@dataclass(frozen=True)
class Choice:
    """``position``: where the private state stands that is taken; None of a buddy's copy."""

    source: Holder
    finish: Finish
    streams: tuple[Stream, ...]
    position: Position | None = None


def source_of(
    member: Member, situation: Situation, step: int
) -> tuple[Choice | None, tuple[str, ...]]:
    """The first complete source and the words for those before it; no choice, all the words."""
    found: list[tuple[int, int, Choice]] = []
    words: list[tuple[int, str]] = []
    rungs = (_live, _custody, _replica, _shadow, _buddy)
    doubt = suspects(situation, step).get(member.rank, "")
    for rung, look in enumerate(rungs):
        answer = look(member, situation, step)
        if doubt and not isinstance(answer, str) and look in (_live, _custody, _shadow):
            answer = f"{answer.source}: {doubt}"
        if isinstance(answer, str):
            words.append((rung, answer))
            continue
        failed = _failed(answer, member, situation)
        if failed >= TRIES_MAX:
            words.append((rung, f"{answer.source}: failed {failed} times in this incident"))
        else:
            found.append((failed, rung, answer))
    if not found:
        return None, tuple(text for _, text in words)
    failed, chosen_rung, choice = min(found, key=lambda item: item[:2])
    words += [
        (rung, f"{other.source}: failed {times} times in this incident")
        for times, rung, other in found
        if times > failed and rung < chosen_rung
    ]
    return choice, tuple(text for rung, text in sorted(words) if rung < chosen_rung)


def _failed(choice: Choice, member: Member, situation: Situation) -> int:
    """How often this was tried in vain: what others refused says nothing about these holders."""
    nodes = {stream.place.node_id for stream in choice.streams}
    return sum(
        1
        for failure in situation.failures
        if (failure.rank, failure.source) == (member.rank, choice.source)
        and (not failure.proven or failure.nodes & nodes)
    )


def _blamed(place: Place, member: Member, situation: Situation) -> int:
    """How many failed moves of this rank this node may be the reason of."""
    return sum(1 for f in situation.failures if f.rank == member.rank and place.node_id in f.nodes)


def in_custody(member: Member) -> bool:
    """The process has ended, and its agent holds its whole state."""
    return member.condition == "exited" and member.custody == "usable"


def _live(member: Member, situation: Situation, step: int) -> Choice | str:
    if member.condition == "blocked" and member.position is not None:
        return _own("live", member.place, member.rank, member.position, step)
    for kept in member.kept:
        if kept.live:
            return _of_kept("live", kept, member.rank, step)
    return "live: the process has ended" if member.condition == "exited" else "live: not heard"


def _custody(member: Member, situation: Situation, step: int) -> Choice | str:
    if member.condition == "silent":
        answer: Choice | str = "custody: its agent is silent"
    elif member.condition == "blocked":
        answer = "custody: the process lives"
    elif member.custody != "usable" or member.position is None:
        answer = f"custody: {_custody_words(member.custody)}"
    else:
        answer = _own("custody", member.place, member.rank, member.position, step)
    if isinstance(answer, str):
        for kept in member.kept:
            if not kept.live:
                older = _of_kept("custody", kept, member.rank, step)
                if not isinstance(older, str):
                    return older
    return answer


def _custody_words(custody: Custody) -> str:
    if custody == "unavailable":
        return "its agent has nothing whole of it, or was restarted"
    return "its agent held no whole arena of it"


def _own(
    holder: Literal["live", "custody"], place: Place, rank: int, position: Position, step: int
) -> Choice | str:
    finish, words = finish_from(position, step)
    if finish is None:
        return f"{holder}: {words}"
    stream = Stream(holder=holder, what="all", place=place, source_rank=rank)
    return Choice(holder, finish, (stream,), position)


def _of_kept(holder: Literal["live", "custody"], kept: Kept, rank: int, step: int) -> Choice | str:
    if not kept.reachable:
        return f"{holder}: the agent of {kept.place.name} is silent"
    if kept.resume_at != step:
        return f"{holder}: kept for step {kept.resume_at}, the job has gone on to {step}"
    return _own(holder, kept.place, rank, kept.position, step)


def _replica(member: Member, situation: Situation, step: int) -> Choice | str:
    if len(member.replica_group) < 2:
        return "replica: no other rank holds its shard"
    holders = [
        other
        for other in situation.members
        if other.rank != member.rank
        and other.rank in member.replica_group
        and other.condition == "blocked"
    ]
    if not holders:
        return "replica: no rank that holds its shard has survived"
    doubted = suspects(situation, step)
    holders = [other for other in holders if other.rank not in doubted]
    if not holders:
        return (
            f"replica: {doubted[member.rank]}"
            if member.rank in doubted
            else "replica: none is trusted"
        )
    private = _private(member, situation, step)
    if isinstance(private, str):
        return f"replica: {private}"
    finish, own, position = private
    # A node that need not serve twice keeps both streams at full speed.
    best = min(
        holders,
        key=lambda o: (
            _blamed(o.place, member, situation),
            bool(o.place.suspect),
            o.place == own.place,
            o.rank,
        ),
    )
    shared = Stream(holder="replica", what="shared", place=best.place, source_rank=best.rank)
    return Choice("replica", finish, (shared, own), position)


_Private = tuple[Finish, Stream, Position | None]


def _private(member: Member, situation: Situation, step: int) -> _Private | str:
    """Private state of a lost rank: from its own agent, else from its buddy.

    A holder that has failed comes after every one that has not.
    """
    doubted = member.rank in suspects(situation, step)
    found: list[_Private] = [*_private_of_buddies(member, situation, step)]
    if not doubted:
        found = [*_private_of_its_own(member, step), *found]
    if not found:
        return f"its private state of step {step} is neither in custody nor with a buddy"
    return min(found, key=lambda item: _blamed(item[1].place, member, situation))


def _private_of_its_own(member: Member, step: int) -> Iterator[_Private]:
    position = member.position
    if position is not None and (member.condition == "blocked" or in_custody(member)):
        finish = private_finish(position, step)
        if finish is not None:
            holder: Holder = "live" if member.condition == "blocked" else "custody"
            yield finish, _private_stream(holder, member.place, member.rank), position
    for kept in member.kept:
        finish = private_finish(kept.position, step)
        if kept.reachable and kept.resume_at == step and finish:
            kept_by: Holder = "live" if kept.live else "custody"
            yield finish, _private_stream(kept_by, kept.place, member.rank), kept.position


def _private_of_buddies(member: Member, situation: Situation, step: int) -> Iterator[_Private]:
    key = str(member.rank)
    wanted: tuple[tuple[int, Finish], ...] = ((step + 1, "none"), (step, "tail"))
    for prepared, finish in wanted:
        for other in situation.members:
            readable = other.condition == "blocked" or in_custody(other)
            if other.rank == member.rank or not readable or other.position is None:
                continue
            if prepared in other.position.holds.get(key, []):
                yield finish, _private_stream("buddy", other.place, other.rank), None


def _private_stream(holder: Holder, place: Place, source_rank: int) -> Stream:
    return Stream(holder=holder, what="private", place=place, source_rank=source_rank)


def _shadow(member: Member, situation: Situation, step: int) -> Choice | str:
    answer = _own_shadow(member, step)
    for kept in member.kept:
        if isinstance(answer, str) and kept.reachable and kept.resume_at == step:
            older = _shadow_of(kept.place, member.rank, kept.position, step)
            answer = answer if isinstance(older, str) else older
    return answer


def _own_shadow(member: Member, step: int) -> Choice | str:
    position = member.position
    if position is None or not (member.condition == "blocked" or in_custody(member)):
        return "shadow: its agent cannot be asked or holds none"
    return _shadow_of(member.place, member.rank, position, step)


def _shadow_of(place: Place, rank: int, position: Position, step: int) -> Choice | str:
    if position.shadow < 0:
        return "shadow: none was kept"
    stream = Stream(holder="shadow", what="all", place=place, source_rank=rank)
    if position.shadow == step and position.fence == step:
        return Choice("shadow", "none", (stream,), position)
    if position.shadow != step - 1 or position.fence != step - 1:
        return f"shadow: it is of step {position.shadow}, fence {position.fence}, the job at {step}"
    if position.prepared != step or not position.has_gradients:
        return f"shadow: without the gradients of step {step} it cannot be brought forward"
    return Choice("shadow", "apply", (stream,), position)


def _buddy(member: Member, situation: Situation, step: int) -> Choice | str:
    """Everything of a lost rank from the rank that keeps it under redundancy ``buddy``."""
    key = str(member.rank)
    found: list[tuple[Finish, Member]] = []
    kept: set[int] = set()
    for other in situation.members:
        readable = other.condition == "blocked" or in_custody(other)
        if other.rank == member.rank or not readable or other.position is None:
            continue
        shards = other.position.shards.get(key, [])
        kept |= set(shards)
        finish = _finish_of_copy(shards, other.position.holds.get(key, []), step)
        if finish is not None:
            found.append((finish, other))
    if not found:
        if not kept:
            return "buddy: no other node keeps a copy of its shard"
        steps = ", ".join(map(str, sorted(kept)))
        return f"buddy: the copy of its shard is of step {steps} and cannot be brought to {step}"
    finish, best = min(
        found,
        key=lambda item: (
            _blamed(item[1].place, member, situation),
            bool(item[1].place.suspect),
            item[1].rank,
        ),
    )
    stream = Stream(holder="buddy", what="all", place=best.place, source_rank=best.rank)
    return Choice("buddy", finish, (stream,))


def _finish_of_copy(shards: list[int], copies: list[int], step: int) -> Finish | None:
    """What is left of ``step`` for whoever takes what one buddy keeps; its agent chooses alike."""
    if step in shards:
        return "none" if step + 1 in copies else "tail" if step in copies else None
    return "apply" if step - 1 in shards and step in copies else None
