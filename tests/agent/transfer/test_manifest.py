"""A manifest comes from a peer: whatever its bytes are, it is refused in words or it is sound."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.transfer.errors import ManifestInvalid
from agent.transfer.manifest import (
    ITEM_BYTES,
    MANIFEST_BYTES_MAX,
    Manifest,
    StorageEntry,
    TensorEntry,
    schema_hash_of,
    span_bytes,
)

SOUND: dict[str, Any] = {
    "schema_hash": "s",
    "storages": [{"id": 0, "bytes": 96}, {"id": 7, "bytes": 4}],
    "tensors": [
        {
            "name": "w", "role": "parameter", "shape": [4, 3], "dtype": "float32",
            "strides": [3, 1], "storage_id": 0, "offset_bytes": 48, "bytes": 48,
        },
        {
            "name": "b", "role": "parameter", "shape": [], "dtype": "int32",
            "strides": [], "storage_id": 7, "offset_bytes": 0, "bytes": 4,
        },
    ],
}  # fmt: skip


def changed(part: str, index: int, **fields: Any) -> bytes:
    copy = json.loads(json.dumps(SOUND))
    copy[part][index].update(fields)
    return json.dumps(copy).encode()


def test_a_sound_manifest_survives_the_journey() -> None:
    manifest = Manifest.decode(json.dumps(SOUND).encode())
    assert Manifest.decode(manifest.encode()) == manifest
    assert manifest.total_bytes == 100


@pytest.mark.parametrize(
    ("part", "index", "fields", "words"),
    [
        ("tensors", 0, {"offset_bytes": 52}, "beyond its storage"),
        ("tensors", 0, {"offset_bytes": -4}, "negative"),
        ("tensors", 0, {"strides": [3, -1]}, "negative"),
        ("tensors", 0, {"shape": [4, -3]}, "negative"),
        ("tensors", 0, {"bytes": 44}, "spans 48"),
        ("tensors", 0, {"strides": [1000, 1]}, "spans"),
        ("tensors", 0, {"strides": [3]}, "strides"),
        ("tensors", 0, {"storage_id": 3}, "does not exist"),
        ("tensors", 0, {"dtype": "float31"}, "unknown dtype"),
        ("tensors", 0, {"dtype": "object"}, "unknown dtype"),
        ("tensors", 0, {"name": "b"}, "twice"),
        ("tensors", 0, {"name": "x" * 5000}, "too long"),
        ("tensors", 0, {"role": "x" * 65}, "too long"),
        ("tensors", 0, {"shape": [1] * 65, "strides": [1] * 65}, "65 sizes"),
        ("tensors", 0, {"shape": [2**40, 2**40], "strides": [0, 0]}, "more elements"),
        ("tensors", 0, {"offset_bytes": 2**63}, "beyond its storage"),
        ("tensors", 0, {"shape": [2**70, 1]}, "more elements|not a manifest"),
        ("tensors", 0, {"shape": "4"}, "not a manifest"),
        ("tensors", 0, {"extra": 1}, "not a manifest"),
        ("tensors", 1, {"storage_id": 0}, "no tensor lies in storage 7"),
        ("storages", 1, {"id": 0}, "twice"),
        ("storages", 1, {"id": -1}, "negative"),
        ("storages", 1, {"bytes": -1}, "bytes"),
        ("storages", 1, {"bytes": 2**47}, "bytes"),
        ("storages", 1, {"bytes": 3}, "beyond its storage"),
    ],
)
def test_what_cannot_be_memory_is_refused(
    part: str, index: int, fields: dict[str, Any], words: str
) -> None:
    with pytest.raises(ManifestInvalid, match=words):
        Manifest.decode(changed(part, index, **fields))


@pytest.mark.parametrize(
    "data",
    [b"", b"null", b"[]", b"{", b"\xff\xfe", b"[" * 100_000, b'{"schema_hash": 3}'],
    ids=["empty", "null", "list", "cut off", "not text", "deep", "number"],
)
def test_what_is_no_manifest_is_refused(data: bytes) -> None:
    with pytest.raises(ManifestInvalid):
        Manifest.decode(data)


def test_a_huge_one_is_refused_unread() -> None:
    with pytest.raises(ManifestInvalid, match="bytes"):
        Manifest.decode(bytes(MANIFEST_BYTES_MAX + 1))


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_in_words_or_sound(data: bytes) -> None:
    try:
        manifest = Manifest.decode(data)
    except ManifestInvalid:
        return
    manifest.check()


shapes = st.lists(st.integers(0, 6), max_size=4)


@given(shapes, st.data(), st.sampled_from(sorted(ITEM_BYTES)))
def test_a_span_ends_at_the_last_element(shape: list[int], data: st.DataObject, dtype: str) -> None:
    strides = data.draw(st.lists(st.integers(0, 9), min_size=len(shape), max_size=len(shape)))
    offsets = [0]
    for size, stride in zip(shape, strides, strict=True):
        offsets = [base + i * stride for base in offsets for i in range(size)]
    expected = (max(offsets) + 1) * ITEM_BYTES[dtype] if offsets else 0
    assert span_bytes(shape, strides, dtype) == expected


def entry(name: str = "w", storage: int = 0, **fields: Any) -> TensorEntry:
    plain: dict[str, Any] = {"shape": (4,), "dtype": "float32", "strides": (1,)}
    return TensorEntry.of(name, "parameter", **{**plain, **fields}, storage_id=storage)


def test_the_schema_hash_ignores_how_storages_are_numbered_and_nothing_else() -> None:
    base = schema_hash_of([entry("a", 0), entry("b", 1), entry("c", 0)])
    assert schema_hash_of([entry("a", 9), entry("b", 4), entry("c", 9)]) == base
    others = [
        schema_hash_of([entry("a", 0), entry("b", 0), entry("c", 0)]),
        schema_hash_of([entry("a", 0), entry("b", 1), entry("d", 0)]),
        schema_hash_of([entry("a", 0), entry("b", 1), entry("c", 0, offset_bytes=4)]),
        schema_hash_of([entry("a", 0), entry("b", 1), entry("c", 0, dtype="int32")]),
        schema_hash_of([entry("a", 0), entry("b", 1)]),
        schema_hash_of([entry("a", 0), entry("b", 1), entry("c", 0)], extra="AdamW"),
    ]
    assert len({base, *others}) == 7


def test_build_refuses_what_decode_would() -> None:
    with pytest.raises(ManifestInvalid):
        Manifest.build([StorageEntry(0, 15)], [entry()])
