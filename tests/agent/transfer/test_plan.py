from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agent.transfer.manifest import Manifest, StorageEntry, TensorEntry
from agent.transfer.plan import CHUNK_BYTES, make_plan, source_plan


def manifest_of(sizes: list[int], *, numbering: int = 0) -> Manifest:
    return Manifest.build(
        [StorageEntry(i + numbering, size) for i, size in enumerate(sizes)],
        [
            TensorEntry.of(
                f"t{i}", "parameter",
                shape=(size,), dtype="uint8", strides=(1,), storage_id=i + numbering,
            )
            for i, size in enumerate(sizes)
        ],
    )  # fmt: skip


sizes = st.lists(st.one_of(st.integers(0, 100), st.integers(0, 5 * CHUNK_BYTES)), max_size=8)


@given(sizes)
def test_a_plan_covers_every_byte_once_in_order_and_no_chunk_is_too_large(
    sizes: list[int],
) -> None:
    plan = make_plan(manifest_of(sizes), manifest_of(sizes, numbering=50))
    seen = [0] * len(sizes)
    for index, chunk in enumerate(plan.chunks):
        assert chunk.index == index
        assert 0 < chunk.bytes == sum(piece.bytes for piece in chunk.pieces) <= CHUNK_BYTES
        for piece in chunk.pieces:
            assert piece.target_id == piece.source_id + 50
            assert piece.offset == seen[piece.source_id]
            seen[piece.source_id] += piece.bytes
    assert seen == sizes
    assert plan.bytes == sum(sizes)


@given(sizes, st.integers(1, 6))
def test_connections_share_the_chunks_without_rest(sizes: list[int], streams: int) -> None:
    plan = make_plan(manifest_of(sizes), manifest_of(sizes))
    shares = [plan.of_stream(stream, streams) for stream in range(streams)]
    assert sorted(chunk.index for share in shares for chunk in share) == [
        chunk.index for chunk in plan.chunks
    ]


@given(sizes)
def test_both_sides_make_the_same_chunks(sizes: list[int]) -> None:
    ours = make_plan(manifest_of(sizes), manifest_of(sizes, numbering=9)).chunks
    theirs = source_plan(manifest_of(sizes)).chunks
    assert [
        [(piece.source_id, piece.offset, piece.bytes) for piece in chunk.pieces] for chunk in ours
    ] == [
        [(piece.source_id, piece.offset, piece.bytes) for piece in chunk.pieces] for chunk in theirs
    ]
