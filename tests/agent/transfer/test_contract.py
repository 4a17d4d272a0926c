"""What every carrier must do alike: one set of tests, run over each of them."""

from __future__ import annotations

import gc
import os
import threading
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import replace

import pytest

from agent.transfer import errors
from agent.transfer.digest import bytes_digest, state_digest, storages_digests
from agent.transfer.manifest import ITEM_BYTES
from agent.transfer.memory import Memory
from agent.transfer.plan import CHUNK_BYTES, make_plan, source_plan
from agent.transfer.state import BlobName, SourceState, TargetState

from .arenas import MODEL, Arena, Tensor
from .damage import Damage
from .ways import Stream, Way

Pair = Callable[..., tuple[Arena, Arena]]
Make = Callable[..., Arena]

SHAPES = {
    "every dtype": [Tensor(f"of {name}", (3, 5), name, storage=i) for i, name in enumerate(ITEM_BYTES)],
    "0-dim": [Tensor("step", (), "int64"), Tensor("lr", (), "float64", storage=1)],
    "empty": [Tensor("nothing", (0, 7)), Tensor("something", (3,), storage=1)],
    "strided": [Tensor("transposed", (300, 200), strides=(1, 300))],
    "with gaps": [Tensor("every other", (1000,), strides=(2,))],
    "expanded": [Tensor("one value seen as many", (50, 20), strides=(0, 1))],
    "tied": [Tensor("encoder", (64, 8)), Tensor("decoder", (64, 8))],
    "views of one": [Tensor("left", (9,)), Tensor("right", (9,), offset=20)],
    "10,000 in one storage": [Tensor(f"small {i}", (5,), offset=20 * i) for i in range(10_000)],
    "600 storages": [Tensor(f"own {i}", (i % 40 + 1,), storage=i) for i in range(600)],
    "larger than a chunk": [Tensor("big", (CHUNK_BYTES + 4097,), "uint8")],
    "exactly a chunk": [Tensor("even", (CHUNK_BYTES,), "uint8"), Tensor("odd", (1,), storage=1)],
}  # fmt: skip


@pytest.mark.parametrize("tensors", SHAPES.values(), ids=SHAPES.keys())
def test_every_byte_lands_whatever_the_tensors_look_like(
    way: Way, pair_of: Pair, tensors: list[Tensor]
) -> None:
    source, target = pair_of(tensors)
    report = way.fetch(way.offer(source.source()), target.target())
    assert target.content() == source.content()
    assert report.source_digest == report.target_digest
    assert report.bytes_moved == source.manifest.total_bytes


def test_the_digest_is_that_of_the_state_at_rest_on_either_side(way: Way, pair_of: Pair) -> None:
    source, target = pair_of()
    small = (184, b"moments of the small ones")
    report = way.fetch(way.offer(source.source({"small": small})), target.target())
    blobs = {"small": (184, len(small[1]), bytes_digest(small[1]))}
    plans = source_plan(source.manifest), make_plan(target.manifest, source.manifest)
    schema = source.manifest.schema_hash
    at_source = state_digest(schema, storages_digests(plans[0], source.fds), blobs)
    at_target = state_digest(schema, storages_digests(plans[1], target.fds), blobs)
    assert report.source_digest == at_source == at_target == report.target_digest
    assert (report.proof, report.carrier) == ("digest", way.carrier(None).name)


def test_another_content_has_another_digest(way: Way, pair_of: Pair) -> None:
    source, target = pair_of()
    first = way.fetch(way.offer(source.source()), target.target())
    os.pwrite(source.fds[2], b"\0\1\2", 1_234_567)
    second = way.fetch(way.offer(source.source()), target.target())
    assert first.source_digest != second.source_digest


@pytest.mark.parametrize(
    ("what", "names"),
    [
        ("shared", ("small",)),
        ("private", ("fence", "prepared")),
        ("all", ("small", "fence", "prepared")),
    ],
)
def test_blobs_arrive_with_their_steps(
    way: Way, pair_of: Pair, what: str, names: tuple[BlobName, ...]
) -> None:
    source, target = pair_of(MODEL if what != "private" else ())
    blobs = {name: (180 + i, os.urandom(3_000_000 + i)) for i, name in enumerate(names)}
    report = way.fetch(way.offer(source.source(blobs), what=what), target.target())
    assert report.blobs == blobs
    way.settle()
    assert [(end.code, end.digest) for end in way.ends] == [("", report.target_digest)]


def test_an_empty_blob_is_not_a_missing_one(way: Way) -> None:
    source = SourceState(blobs={"fence": (0, b"")})
    report = way.fetch(way.offer(source, what="private"), TargetState())
    assert report.blobs == {"fence": (0, b"")}


def test_short_reads_change_nothing(way: Way, pair_of: Pair) -> None:
    source, target = pair_of([Tensor("few", (5_000,))])
    stream = way.offer(source.source({"small": (1, b"0123456789")}))
    report = way.fetch(stream, target.target(), Damage(piece=7))
    assert target.content() == source.content()
    assert report.blobs == {"small": (1, b"0123456789")}


@pytest.mark.parametrize("streams", [1, 2, 5])
def test_any_number_of_connections_carries_the_same_state(
    way: Way, pair_of: Pair, streams: int
) -> None:
    source, target = pair_of()
    report = way.fetch(way.offer(source.source()), target.target(), streams=streams)
    assert target.content() == source.content()
    assert report.source_digest == report.target_digest


def test_a_target_mapped_ahead_is_used_as_it_is(way: Way, pair_of: Pair) -> None:
    source, target = pair_of()
    mapped = target.target()
    mapped.prepare()
    way.fetch(way.offer(source.source()), mapped)
    source.fill(seed=2)
    way.fetch(way.offer(source.source()), mapped)
    mapped.close()
    assert target.content() == source.content()


def test_a_source_mapped_ahead_sends_the_same_state(way: Way, pair_of: Pair) -> None:
    source, target = pair_of([*MODEL, Tensor("empty", (0,), storage=9)])
    plain = way.fetch(way.offer(source.source()), target.target())
    memory = Memory(source.manifest, source.fds, writable=False)
    mapped = replace(source.source(), memory=memory)
    report = way.fetch(way.offer(mapped), target.target())
    way.settle()
    memory.close()
    assert target.content() == source.content()
    assert report.source_digest == plain.source_digest


def test_the_target_holds_no_more_than_a_chunk_per_connection_beyond_its_memory(
    way: Way, arena_of: Make
) -> None:
    big = [Tensor("big", (48 * CHUNK_BYTES,), "uint8")]
    source, target = arena_of(big).fill(), arena_of(big, numbering=100)
    stream = way.offer(source.source())
    tracemalloc.start()
    way.fetch(stream, target.target(), streams=4)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # Both sides run in this process: one buffer per connection at the source, as much at the target.
    assert peak < 8 * CHUNK_BYTES + 2_000_000


# --- what goes wrong on the way ---


def test_one_flipped_bit_is_found_and_named(way: Way, pair_of: Pair) -> None:
    source, target = pair_of()
    stream = way.offer(source.source())
    with pytest.raises(errors.TransferError) as caught:
        way.fetch(stream, target.target(), Damage(flip_at=1_500_000))
    assert caught.value.code == ("tls_failed" if way.kind == "tls" else "digest_mismatch")
    way.settle()
    assert way.ends[0].code != ""
    assert way.released == 1


def test_the_source_gone_half_way_is_an_error_at_once(way: Way, pair_of: Pair) -> None:
    source, target = pair_of()
    cut = 500 if way.kind == "same_host" else 1_500_000
    began = time.monotonic()
    with pytest.raises(errors.PeerLost):
        way.fetch(way.offer(source.source()), target.target(), Damage(cut_at=cut))
    assert time.monotonic() - began < 1.5
    way.settle()
    assert way.released == 1


def test_memory_can_be_let_go_of_while_the_error_is_in_hand(way: Way, pair_of: Pair) -> None:
    source, target = pair_of()
    mapped = target.target()
    with pytest.raises(errors.TransferError) as caught:
        way.fetch(way.offer(source.source()), mapped, Damage(flip_at=1_500_000))
    mapped.close()
    assert caught.value.code in ("digest_mismatch", "tls_failed")


def test_a_source_that_falls_silent_is_given_up(way: Way, pair_of: Pair) -> None:
    source, target = pair_of()
    cut = 500 if way.kind == "same_host" else 1_500_000
    with pytest.raises(errors.TransferTimeout):
        way.fetch(way.offer(source.source()), target.target(), Damage(stall_at=cut), stall_s=0.3)


def test_a_state_that_cannot_be_brought_to_rest_is_refused_in_words(way: Way) -> None:
    def restless() -> SourceState:
        raise errors.SourceUnavailable("rank 3 stands at 183, 184 was asked for")

    with pytest.raises(errors.SourceUnavailable, match="rank 3 stands at 183"):
        way.fetch(way.offer(restless), TargetState())
    way.settle()
    assert [end.code for end in way.ends] == ["source_unavailable"]


def test_a_storage_that_shrank_is_not_served(way: Way, pair_of: Pair) -> None:
    source, target = pair_of()
    os.ftruncate(source.fds[2], 1000)
    with pytest.raises(errors.SourceUnavailable, match="storage 2"):
        way.fetch(way.offer(source.source()), target.target())


# --- who may have it ---


def test_a_wrong_secret_is_refused_and_costs_the_right_target_nothing(
    way: Way, pair_of: Pair
) -> None:
    source, target = pair_of()
    stream = way.offer(source.source())
    guess = Stream(stream.stream_id, "0" * 64, stream.identity)
    with pytest.raises(errors.SecretRefused):
        way.fetch(guess, target.target())
    assert target.content() == [bytes(each.bytes) for each in target.manifest.storages]
    way.fetch(stream, target.target())
    assert target.content() == source.content()


def test_the_secret_for_another_rank_is_refused(way: Way, pair_of: Pair) -> None:
    source, target = pair_of()
    mine, other = way.offer(source.source()), way.offer(source.source(), rank=2)
    with pytest.raises(errors.SecretRefused):
        way.fetch(Stream(mine.stream_id, other.secret, mine.identity), target.target())


@pytest.mark.parametrize(
    "claim",
    [
        {"rank": 2}, {"step": 185}, {"what": "private"}, {"source_node": "c"},
        {"target_node": "d"}, {"job_id": "other"},
    ],
    ids=lambda claim: next(iter(claim)),
)  # fmt: skip
def test_the_right_secret_opens_nothing_but_its_own_stream(
    way: Way, pair_of: Pair, claim: dict[str, object]
) -> None:
    source, target = pair_of()
    stream = way.offer(source.source())
    claimed = Stream(stream.stream_id, stream.secret, way.stream(**claim).identity)
    with pytest.raises(errors.IdentityMismatch, match=next(iter(claim))):
        way.fetch(claimed, target.target())


@pytest.mark.parametrize("claim", [{"generation": 5}, {"generation": 7}, {"attempt": 2}])
def test_two_sides_of_different_generations_do_not_meet(
    way: Way, pair_of: Pair, claim: dict[str, int]
) -> None:
    source, target = pair_of()
    stream = way.offer(source.source())
    claimed = Stream(stream.stream_id, stream.secret, way.stream(**claim).identity)
    with pytest.raises(errors.OldGeneration) as caught:
        way.fetch(claimed, target.target())
    assert caught.value.code == "old_generation"


def test_a_generation_that_is_over_is_neither_offered_nor_served(way: Way, pair_of: Pair) -> None:
    source, target = pair_of()
    before = way.offer(source.source(), generation=6)
    way.server.end_generations("llm", 1, 7)
    with pytest.raises(errors.OldGeneration):
        way.fetch(before, target.target())
    with pytest.raises(errors.OldGeneration):
        way.offer(source.source(), generation=6)
    way.fetch(way.offer(source.source(), generation=7), target.target())
    assert target.content() == source.content()


def test_a_secret_opens_one_stream_once(way: Way, pair_of: Pair) -> None:
    source, target = pair_of()
    stream = way.offer(source.source())
    way.fetch(stream, target.target())
    with pytest.raises(errors.SecretSpent):
        way.fetch(stream, target.target())
    way.settle()
    assert way.released == 1


def test_two_targets_at_once_get_it_once(way: Way, pair_of: Pair, arena_of: Make) -> None:
    source, target = pair_of()
    other = arena_of(MODEL, numbering=200)
    stream, outcomes = way.offer(source.source()), []

    def try_it(arena: Arena) -> None:
        try:
            way.fetch(stream, arena.target())
            outcomes.append("served")
        except errors.TransferError as error:
            outcomes.append(error.code)

    threads = [threading.Thread(target=try_it, args=(arena,)) for arena in (target, other)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["secret_spent", "served"]


def test_a_secret_past_its_lifetime_opens_nothing(way: Way, pair_of: Pair) -> None:
    source, target = pair_of()
    with pytest.raises(errors.StreamExpired):
        way.fetch(way.offer(source.source(), lifetime_s=0.0), target.target())


def test_a_withdrawn_stream_is_unknown(way: Way, pair_of: Pair) -> None:
    source, target = pair_of()
    stream = way.offer(source.source())
    way.server.withdraw(stream.stream_id)
    with pytest.raises(errors.StreamUnknown):
        way.fetch(stream, target.target(), patience_s=0.05)


def test_a_target_whose_order_came_first_waits_for_the_source(way: Way, pair_of: Pair) -> None:
    source, target = pair_of()
    stream = way.stream()
    timer = threading.Timer(0.2, way.offer_as, (stream, source.source()))
    timer.start()
    way.fetch(stream, target.target(), patience_s=5.0)
    timer.join()
    assert target.content() == source.content()


# --- whose tensors differ ---

DIFFERENT = {
    "name": [Tensor("other", (8, 4))],
    "shape": [Tensor("weight", (4, 8))],
    "dtype": [Tensor("weight", (8, 4), "int32")],
    "strides": [Tensor("weight", (8, 4), strides=(1, 8))],
    "offset": [Tensor("weight", (8, 4), offset=4)],
    "number": [Tensor("weight", (8, 4)), Tensor("more", storage=1)],
    "sharing": [Tensor("weight", (8, 4)), Tensor("tied", (8, 4))],
}


@pytest.mark.parametrize("tensors", DIFFERENT.values(), ids=DIFFERENT.keys())
def test_a_target_of_another_schema_is_refused_untouched(
    way: Way, arena_of: Make, tensors: list[Tensor]
) -> None:
    plain = [Tensor("weight", (8, 4))]
    if len(tensors) == 2 and tensors[1].name == "tied":
        plain.append(Tensor("tied", (8, 4), storage=1))
    source, target = arena_of(plain).fill(), arena_of(tensors)
    with pytest.raises(errors.SchemaMismatch):
        way.fetch(way.offer(source.source()), target.target())
    assert target.content() == [bytes(each.bytes) for each in target.manifest.storages]
    way.settle()
    assert [end.code for end in way.ends] == ["schema_mismatch"]


def test_storages_of_different_size_are_refused(way: Way, arena_of: Make) -> None:
    source, target = arena_of().fill(), arena_of(slack=8)
    with pytest.raises(errors.SchemaMismatch, match="bytes"):
        way.fetch(way.offer(source.source()), target.target())


# --- what is left afterwards ---


def test_nothing_is_left_behind_after_many_transfers_good_and_bad(way: Way, pair_of: Pair) -> None:
    source, target = pair_of()

    def both() -> None:
        mapped = target.target()
        way.fetch(way.offer(source.source()), mapped)
        with pytest.raises(errors.TransferError):
            way.fetch(way.offer(source.source(), rank=1), mapped, Damage(cut_at=400))
        mapped.close()

    both()
    way.settle()
    before = _held()
    for _ in range(10):
        both()
    way.settle()
    after = _held()
    # Fewer is possible: an earlier test's descriptors are closed whenever their owner is collected.
    assert (after[0] <= before[0], after[1] <= before[1]) == (True, True), (before, after)


def _held() -> tuple[int, int]:
    """Descriptors and threads of this process."""
    gc.collect()
    return len(os.listdir("/proc/self/fd")), threading.active_count()
