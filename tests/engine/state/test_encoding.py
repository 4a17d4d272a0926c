"""The tagged encoding: everything listed comes back exact, everything else is refused by name."""

from __future__ import annotations

import enum
import math
import random
import struct
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from agent.training.encoding import DEPTH_MAX, decode, encode
from agent.training.encoding_wire import Refused
from agent.training.refusals import DecodeFailed

QUICK = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))

keys = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(), st.binary()
    ),
    lambda inner: st.one_of(
        st.tuples(inner), st.tuples(inner, inner), st.frozensets(inner, max_size=3)
    ),
    max_leaves=4,
)
arrays = hnp.arrays(
    st.sampled_from(["<f4", "<f8", ">i2", "|b1", "<c8", "|u1", "<U3", "|S2", "<M8[ns]"]),
    hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
)
leaves = st.one_of(
    keys,
    st.complex_numbers(),
    st.floats(),
    st.builds(bytearray, st.binary()),
    st.builds(Counter, st.dictionaries(st.integers(), st.integers(), max_size=4)),
    st.builds(range, st.integers(-9, 9), st.integers(-9, 9)),
    st.builds(slice, st.integers() | st.none(), st.none(), st.integers() | st.none()),
    st.sampled_from([torch.float32, torch.bfloat16, torch.int8, torch.device("cpu")]),
    st.builds(torch.Size, st.lists(st.integers(0, 5), max_size=3)),
    arrays,
)
values = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.tuples(inner, inner),
        st.dictionaries(keys, inner, max_size=4),
        st.builds(OrderedDict, st.dictionaries(keys, inner, max_size=3)),
        st.builds(lambda d: defaultdict(list, d), st.dictionaries(keys, inner, max_size=3)),
        st.builds(deque, st.lists(inner, max_size=3), st.none() | st.integers(3, 5)),
        st.sets(keys, max_size=3),
    ),
    max_leaves=12,
)


@QUICK
@given(values)
def test_every_listed_value_comes_back_exact(value: Any) -> None:
    back = decode(encode(value))
    assert same(value, back), (value, back)
    assert encode(back) == encode(value)


def same(a: Any, b: Any) -> bool:
    """Equal values of equal exact types, floats by their bits."""
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return struct.pack("<d", a) == struct.pack("<d", b)
    if isinstance(a, complex):
        return same(a.real, b.real) and same(a.imag, b.imag)
    if isinstance(a, np.ndarray):
        layout = (
            a.dtype == b.dtype,
            a.shape == b.shape,
            a.flags.f_contiguous == b.flags.f_contiguous,
        )
        return all(layout) and a.tobytes() == b.tobytes()
    if isinstance(a, dict):
        pairs = zip(a.items(), b.items(), strict=True)
        return len(a) == len(b) and all(same(k, j) and same(x, y) for (k, x), (j, y) in pairs)
    if isinstance(a, list | tuple | deque):
        limits = getattr(a, "maxlen", None) == getattr(b, "maxlen", None)
        return limits and len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


@QUICK
@given(st.binary(max_size=200))
def test_random_bytes_are_refused_and_never_crash(data: bytes) -> None:
    try:
        value = decode(data)
    except DecodeFailed:
        return
    assert encode(decode(encode(value))) == encode(value)


@QUICK
@given(values, st.data())
def test_damaged_values_are_refused_or_read_as_another_value(value: Any, data: Any) -> None:
    good = encode(value)
    at = data.draw(st.integers(0, len(good) - 1))
    bad = bytearray(good)
    bad[at] ^= data.draw(st.integers(1, 255))
    cut = data.draw(st.integers(0, len(good)))
    for blob in (bytes(bad), good[:cut] if cut < len(good) else good + b"N"):
        try:
            read = decode(blob)
        except DecodeFailed:
            continue
        assert encode(read) != good


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(3, 4),
        torch.randn(3, 4).t(),
        torch.randn(10)[2:9:3],
        torch.ones(1).expand(4, 5),
        torch.randn(2, 3, 4, 4).contiguous(memory_format=torch.channels_last),
        torch.tensor(2.5),
        torch.empty(0, 3),
        torch.randn(4, dtype=torch.complex64).conj(),
        torch.randn(4, dtype=torch.complex64).conj().imag,
        torch.randn(5).to(torch.bfloat16),
        torch.randn(5).to(torch.float8_e4m3fn),
        torch.tensor([1, 2, 65535], dtype=torch.uint16),
        torch.tensor([True, False]),
        torch.tensor([math.nan, -0.0, math.inf]),
        torch.randn(2, requires_grad=True),
        torch.nn.Parameter(torch.randn(2), requires_grad=False),
    ],
    ids=lambda t: f"{str(t.dtype)[6:]}{tuple(t.shape)}{t.stride()}",
)
def test_a_tensor_comes_back_with_its_bits_strides_and_flags(tensor: torch.Tensor) -> None:
    back = decode(encode(tensor))
    assert (back.dtype, back.shape, back.stride()) == (tensor.dtype, tensor.shape, tensor.stride())
    assert (back.is_conj(), back.is_neg()) == (tensor.is_conj(), tensor.is_neg())
    assert (type(back), back.requires_grad) == (type(tensor), tensor.requires_grad)
    assert bits(back) == bits(tensor)


def bits(tensor: torch.Tensor) -> bytes:
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
    return plain.view(torch.uint8).numpy().tobytes()


class Colour(enum.IntEnum):
    RED = 1


Point = namedtuple("Point", "x y")


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (object(), "builtins.object"),
        (Colour.RED, "Colour"),
        (Point(1, 2), "Point"),
        (len, "builtin_function_or_method"),
        (defaultdict(lambda: 1), "defaultdict made by"),
        (torch.eye(2).to_sparse(), "sparse"),
        (torch.empty(2, device="meta"), "meta device"),
        (np.array([object()]), "type object"),
    ],
    ids=lambda v: type(v).__name__,
)
def test_what_is_not_listed_is_refused_by_its_path_and_type(value: Any, words: str) -> None:
    with pytest.raises(Refused) as refusal:
        encode({"here": [0, value]}, "extras")
    assert "extras['here'][1]" in str(refusal.value)
    assert words in str(refusal.value)


def test_a_value_that_contains_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(Refused, match="nested deeper"):
        encode(loop)


def test_a_blob_nested_too_deep_is_refused() -> None:
    one = b"[" + struct.pack("<Q", 1)
    with pytest.raises(DecodeFailed, match="nested deeper"):
        decode(one * (DEPTH_MAX + 2) + b"N")


@pytest.mark.parametrize(
    "blob",
    [
        b"[" + struct.pack("<Q", 1 << 60),
        b"b" + struct.pack("<Q", 1 << 40) + b"x",
        b"{" + struct.pack("<Q", 1) + b"[" + struct.pack("<Q", 0) + b"N",
        b"",
        b"?",
    ],
    ids=[
        "a list of 2^60",
        "a string of 2^40 bytes",
        "a key that cannot be one",
        "nothing",
        "a tag",
    ],
)
def test_lies_in_a_blob_are_refused_before_anything_is_allocated(blob: bytes) -> None:
    with pytest.raises(DecodeFailed):
        decode(blob)


def test_a_tensor_whose_strides_reach_beyond_its_bytes_is_refused() -> None:
    good = encode(torch.zeros(4))
    at = good.index(struct.pack("<QQQ", 1, 4, 1))
    bad = good[:at] + struct.pack("<QQQ", 1, 4, 1 << 40) + good[at + 24 :]
    with pytest.raises(DecodeFailed, match="do not make"):
        decode(bad)


def test_the_states_that_break_json_come_back() -> None:
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 2, 5]).state_dict()
    back = decode(encode(schedule))
    assert back == schedule and type(back["milestones"]) is Counter
    state = random.getstate()
    assert decode(encode(state)) == state


def test_equal_sets_encode_alike_whatever_order_they_were_made_in() -> None:
    assert encode({1, 9, 17, "a"}) == encode({"a", 17, 9, 1})
