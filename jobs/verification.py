"""Evidence that nothing was lost, in the levels of docs/jobs.md. Pure.

*transfer verified*: every stream arrived with the digest it left with. *continuity verified*: every
rank's first commit is the next step after the last committed one, its batch follows, and each moved
rank's trail goes on from the head that was known of it before the move. *replicas agree*: all that
hold one shard have the same digest after that commit. ``covered`` needs the first two, and the third
where a replica exists; a head that nobody knew (its node is lost) leaves the second level open, in
words, and the other two prove the copy: docs/jobs.md says why that is enough.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from .states import Verdict


@dataclass(frozen=True, kw_only=True)
class Transfer:
    """One stream that arrived."""

    rank: int
    holder: str
    source_digest: str
    target_digest: str


@dataclass(frozen=True, kw_only=True)
class Commit:
    """First commit of a rank in the new generation (agent.protocol.RankCommitted)."""

    rank: int
    step: int
    previous_step: int
    heads: Mapping[int, str]
    """step -> head its trail had there: at the step before, and a newcomer's marks"""
    batch_hash: str
    redone_batch_hash: str
    replica_digest: str
    pause_ms: float | None
    redrawn_batch_hash: str = ""
    redone_micro_batches: int | None = None

    @property
    def batch_hash_again(self) -> str:
        """To be equal to ``redone_batch_hash``: a torn step may have drawn only some of its batches."""
        return self.redrawn_batch_hash or self.batch_hash


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What is to be proved.

    ``committed``: the last step known to be committed before the failure; ``resume_at``: the step
    the new generation started from. ``streams``: rank -> number of streams its move consists of.
    ``trails``: rank -> (step, trail head) known of it from before.
    """

    world_size: int
    committed: int
    resume_at: int
    streams: Mapping[int, int]
    transfers: Sequence[Transfer]
    commits: Mapping[int, Commit]
    replica_groups: Iterable[frozenset[int]] = ()
    trails: Mapping[int, tuple[int, str]] = field(default_factory=dict)

    def compared(self, rank: int) -> bool:
        """Whether a head of this rank was known and its first commit named its own at that step."""
        commit, known = self.commits.get(rank), self.trails.get(rank)
        return bool(known and commit is not None and commit.heads.get(known[0]))


@dataclass(frozen=True)
class Level:
    """``holds`` None: does not apply or could not be compared here, and the words say why."""

    holds: bool | None
    words: str


@dataclass(frozen=True, kw_only=True)
class Proof:
    transfer: Level
    continuity: Level
    replicas: Level
    verdict: Verdict
    reason: str
    lost_steps: int
    pause_ms: float | None

    @property
    def doubt(self) -> str:
        """What speaks against the state the job goes on with, in words; "" when nothing does."""
        levels = (self.transfer, self.continuity, self.replicas)
        return "; ".join(level.words for level in levels if level.holds is False)


def prove(claim: Claim) -> Proof:
    """Check every level. The claim must carry the first commit of every rank."""
    transfer, continuity, replicas = _transfer(claim), _continuity(claim), _replicas(claim)
    lost = max(0, claim.committed - claim.resume_at)
    broken = [
        f"{name}: {level.words}"
        for name, level in (
            ("transfer", transfer), ("continuity", continuity), ("replicas", replicas),
        )
        if level.holds is False
    ]  # fmt: skip
    if lost:
        broken.append(f"{lost} committed steps were computed again")
    pauses = [commit.pause_ms for commit in claim.commits.values() if commit.pause_ms is not None]
    return Proof(
        transfer=transfer,
        continuity=continuity,
        replicas=replicas,
        verdict=Verdict.MISSED if broken else Verdict.COVERED,
        reason="; ".join(broken) or _covered(claim),
        lost_steps=lost,
        pause_ms=max(pauses, default=None),
    )


def _covered(claim: Claim) -> str:
    words = [
        f"step {claim.resume_at + 1} followed step {claim.resume_at} on every rank",
        "nothing was computed again",
        *_uncompared(claim),
    ]
    return "; ".join(words)


def _transfer(claim: Claim) -> Level:
    if not claim.streams:
        return Level(True, "no rank moved, so no state was transferred")
    problems: list[str] = []
    for rank, expected in sorted(claim.streams.items()):
        arrived = [transfer for transfer in claim.transfers if transfer.rank == rank]
        # A stream that is fetched again is reported again: what counts is from whom everything came.
        reported = len({transfer.holder for transfer in arrived})
        if reported < expected:
            problems.append(f"rank {rank}: {reported} of {expected} streams reported")
        for transfer in arrived:
            if not transfer.source_digest or transfer.source_digest != transfer.target_digest:
                problems.append(
                    f"rank {rank}: {transfer.holder} left with {transfer.source_digest or 'none'} "
                    f"and arrived with {transfer.target_digest or 'none'}"
                )
    if problems:
        return Level(False, "; ".join(problems))
    count = len(claim.transfers)
    words = (
        "1 stream arrived with the digest it"
        if count == 1
        else f"{count} streams arrived with the digest they"
    )
    return Level(True, f"{words} left with")


def _continuity(claim: Claim) -> Level:
    problems: list[str] = []
    for rank in range(claim.world_size):
        commit = claim.commits.get(rank)
        if commit is None:
            problems.append(f"rank {rank} has not committed")
            continue
        problems += _continues(commit, claim)
    if problems:
        return Level(False, "; ".join(problems))
    redone = sum(1 for commit in claim.commits.values() if commit.redone_batch_hash)
    words = (
        f"step {claim.resume_at + 1} follows step {claim.resume_at} on {claim.world_size} ranks, "
        f"{redone} of them with the batch of the torn step, "
        f"{_compared(claim)} with a trail head known before"
    )
    open_ = _uncompared(claim)
    return Level(None, "; ".join([words, *open_])) if open_ else Level(True, words)


def _compared(claim: Claim) -> str:
    """How many ranks, and where the head that was known is an older one, at which step."""
    ranks = [rank for rank in range(claim.world_size) if claim.compared(rank)]
    older = sorted((rank, claim.trails[rank][0]) for rank in ranks)
    words = [f"rank {rank} at step {step}" for rank, step in older if step != claim.resume_at]
    return f"{len(ranks)} of them" + (f" ({', '.join(words)})" if words else "")


def redone_words(commits: Iterable[Commit]) -> str:
    """How many batches each rank computed again because of the failure, in words."""
    ranks: dict[int | None, list[int]] = {}
    for commit in commits:
        ranks.setdefault(commit.redone_micro_batches, []).append(commit.rank)
    words = [
        f"{_named(of)} computed {count} micro-batch{'' if count == 1 else 'es'} again"
        for count, of in sorted((c, of) for c, of in ranks.items() if c is not None)
    ]
    if None in ranks:
        words.append(f"of {_named(ranks[None])} nobody knows how many were computed again")
    return "; ".join(words)


def _named(ranks: list[int]) -> str:
    return f"rank{'' if len(ranks) == 1 else 's'} {', '.join(map(str, sorted(ranks)))}"


def _uncompared(claim: Claim) -> list[str]:
    """Words for moved ranks whose trail could not be compared. A rank that stayed has its own."""
    ranks = [str(rank) for rank in sorted(claim.streams) if not claim.compared(rank)]
    if not ranks:
        return []
    return [
        f"the trail of rank {', '.join(ranks)} was not compared: no head of it was known before the move"
    ]


def _continues(commit: Commit, claim: Claim) -> list[str]:
    problems: list[str] = []
    if commit.step != claim.resume_at + 1 or commit.previous_step != claim.resume_at:
        problems.append(
            f"rank {commit.rank} committed step {commit.step} after {commit.previous_step}, "
            f"expected {claim.resume_at + 1} after {claim.resume_at}"
        )
    both = commit.redone_batch_hash and commit.batch_hash_again
    if both and commit.redone_batch_hash != commit.batch_hash_again:
        problems.append(f"rank {commit.rank} drew another batch than in the torn step")
    if claim.compared(commit.rank):
        step, head = claim.trails[commit.rank]
        if commit.heads[step] != head:
            problems.append(
                f"rank {commit.rank}'s trail is not the one known before at step {step}"
            )
    return problems


def _replicas(claim: Claim) -> Level:
    groups = sorted({tuple(sorted(group)) for group in claim.replica_groups if len(group) > 1})
    if not groups:
        return Level(None, "no shard has a replica")
    for group in groups:
        digests = {
            rank: claim.commits[rank].replica_digest for rank in group if rank in claim.commits
        }
        if len(digests) < len(group) or not all(digests.values()):
            return Level(False, f"ranks {list(group)}: not every replica reported a digest")
        if len(set(digests.values())) > 1:
            return Level(False, f"ranks {list(group)} hold different digests")
    words = (
        "1 group of replicas agrees"
        if len(groups) == 1
        else f"{len(groups)} groups of replicas agree"
    )
    return Level(True, f"{words} after the first new commit")
