"""Which ranks' bits are not to be believed: replicas that disagree at the fence they stand at. Pure.

Equal digests prove a copy, not its source. Where a majority of those that hold one shard agree, the others
are wrong; where none does, nobody says who is, and none of them is believed.
"""

from __future__ import annotations

from collections import Counter

from .values import Member, Situation


def suspects(situation: Situation, step: int) -> dict[int, str]:
    """Rank -> why neither its memory nor a copy of it may be gone on from."""
    found: dict[int, str] = {}
    for group in {member.replica_group for member in situation.members}:
        said = {
            member.rank: digest
            for member in situation.members
            if member.rank in group and (digest := _said(member, step))
        }
        found |= _outvoted(said, step)
    return found


def _outvoted(said: dict[int, str], step: int) -> dict[int, str]:
    if len(set(said.values())) < 2:
        return {}
    digest, votes = Counter(said.values()).most_common(1)[0]
    if 2 * votes <= len(said):
        ranks = ", ".join(str(rank) for rank in sorted(said))
        words = (
            f"at step {step} ranks {ranks} hold different bits of one shard, and no majority agrees"
        )
        return dict.fromkeys(said, words)
    agreed = ", ".join(str(rank) for rank in sorted(said) if said[rank] == digest)
    return {
        rank: f"its bits at step {step} are not those that ranks {agreed} agree on"
        for rank, own in said.items()
        if own != digest
    }


def _said(member: Member, step: int) -> str:
    """The digest of the shared state that this rank reported at the fence of ``step``, "" for none."""
    if member.condition == "blocked":
        positions = [] if member.position is None else [member.position]
    else:
        positions = [kept.position for kept in member.kept if kept.resume_at == step]
    return next((p.replica_digest for p in positions if p.fence == step and p.replica_digest), "")
