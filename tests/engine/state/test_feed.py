"""Batches come exactly once and in the unbroken order, whatever the loader and wherever it is stopped."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
    WeightedRandomSampler,
)
from torchdata.stateful_dataloader import StatefulDataLoader

from agent.training.encoding import decode, encode
from agent.training.feed import Feed, batch_hash
from agent.training.generators import GeneratorBank
from agent.training.refusals import RestoreFailed, Unprotectable

ROWS, BATCH = 24, 4
PER_EPOCH = ROWS // BATCH


class Numbers(Dataset[int]):
    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> int:
        return index


class Noisy(Numbers):
    """Augments: loading a sample draws from the global generators."""

    def __getitem__(self, index: int) -> float:  # type: ignore[override]
        return index + torch.rand(()).item() + random.random() + float(np.random.rand())


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(ROWS))


class ShuffledBatches:
    """A home-made loader: draws its order from Python's generator at each start."""

    def __iter__(self) -> Iterator[list[int]]:
        order = random.sample(range(ROWS), ROWS)
        return iter([order[i : i + BATCH] for i in range(0, ROWS, BATCH)])


class KeepsPosition:
    """A home-made loader with state_dict and load_state_dict."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> KeepsPosition:
        if self.at >= PER_EPOCH:
            self.at = 0
        return self

    def __next__(self) -> int:
        if self.at >= PER_EPOCH:
            raise StopIteration
        self.at += 1
        return self.at

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


def plain(**options: Any) -> Callable[[], Any]:
    return lambda: DataLoader(Numbers(), batch_size=BATCH, **options)


def sampled(make: Callable[[], Any], **options: Any) -> Callable[[], Any]:
    return lambda: DataLoader(Numbers(), batch_size=BATCH, sampler=make(), **options)


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(9)


def distributed() -> DistributedSampler[int]:
    return DistributedSampler(Numbers(), num_replicas=2, rank=1, shuffle=True, seed=3)


LOADERS: dict[str, Callable[[], Any]] = {
    "in order": plain(),
    "shuffled by the global generator": plain(shuffle=True),
    "shuffled by a generator of its own": lambda: DataLoader(
        Numbers(), batch_size=BATCH, shuffle=True, generator=seeded()
    ),
    "RandomSampler with replacement": sampled(
        lambda: RandomSampler(Numbers(), replacement=True, generator=seeded())
    ),
    "WeightedRandomSampler": sampled(lambda: WeightedRandomSampler([1.0] * ROWS, ROWS)),
    "SequentialSampler": sampled(lambda: SequentialSampler(Numbers())),
    "DistributedSampler": sampled(distributed),
    "a batch sampler": lambda: DataLoader(
        Numbers(), batch_sampler=BatchSampler(RandomSampler(Numbers()), BATCH, drop_last=True)
    ),
    "without batches": lambda: DataLoader(Numbers(), batch_size=None, shuffle=True),
    "augmenting": lambda: DataLoader(Noisy(), batch_size=BATCH, shuffle=True),
    "an iterable dataset": lambda: DataLoader(Stream(), batch_size=BATCH),
    "a list of batches": lambda: [[i, i + 1] for i in range(PER_EPOCH)],
    "home-made, shuffled by Python": ShuffledBatches,
    "home-made, with state_dict": KeepsPosition,
    "StatefulDataLoader": lambda: StatefulDataLoader(Numbers(), batch_size=BATCH, shuffle=True),
    "StatefulDataLoader, DistributedSampler": lambda: StatefulDataLoader(
        Numbers(), batch_size=BATCH, sampler=distributed()
    ),
}
WITH_WORKERS: dict[str, Callable[[], Any]] = {
    "two workers": plain(shuffle=True, num_workers=2),
    "two persistent workers": plain(shuffle=True, num_workers=2, persistent_workers=True),
    "two workers, DistributedSampler": sampled(distributed, num_workers=2),
    "StatefulDataLoader, two workers": lambda: StatefulDataLoader(
        Numbers(), batch_size=BATCH, shuffle=True, num_workers=2
    ),
}


def take(feed: Feed, count: int) -> list[Any]:
    """``count`` answers: batches, and "end" at the end of an epoch. Training draws in between."""
    found: list[Any] = []
    while len(found) < count:
        try:
            batch = feed.next()
        except StopIteration:
            found.append("end")
        else:
            found.append(batch.tolist() if isinstance(batch, torch.Tensor) else batch)
        torch.rand(3), random.random(), np.random.rand()
    return found


def seed(value: int) -> None:
    torch.manual_seed(value)
    random.seed(value)
    np.random.seed(value)


def save(feed: Feed) -> bytes:
    return encode([feed.state_dict(), GeneratorBank().capture()])


def load(feed: Feed, blob: bytes) -> None:
    position, generators = decode(blob)
    feed.load_state_dict(position)
    GeneratorBank().restore(generators)


def same_order_after_take_over(make: Callable[[], Any], stops: list[int]) -> None:
    seed(5)
    unbroken = Feed(make())
    saved, answers = {}, []
    for position in range(max(stops) + 1):
        saved[position] = save(unbroken)
        answers += take(unbroken, 1)
    answers += take(unbroken, 2 * PER_EPOCH + 4)
    for stop in stops:
        seed(77)
        newcomer = Feed(make())
        take(newcomer, 2)
        load(newcomer, saved[stop])
        rest = len(answers) - stop
        assert take(newcomer, rest) == answers[stop:], f"stopped after {stop}"


@pytest.mark.parametrize("name", LOADERS)
def test_a_newcomer_goes_on_in_the_unbroken_order(name: str) -> None:
    same_order_after_take_over(LOADERS[name], [1, 2, 5, 6, 7, 8, 9, 13])


@pytest.mark.parametrize("name", WITH_WORKERS)
def test_what_workers_prefetched_counts_as_not_consumed(name: str) -> None:
    same_order_after_take_over(WITH_WORKERS[name], [3, 8])


@pytest.mark.parametrize("name", LOADERS)
def test_a_survivor_gets_the_torn_steps_batches_again(name: str) -> None:
    seed(5)
    unbroken = Feed(LOADERS[name]())
    expected = take(unbroken, 3 * PER_EPOCH)
    seed(5)
    survivor = Feed(LOADERS[name]())
    found: list[Any] = []
    while len(found) < len(expected):
        fence = save(survivor)
        torn = take(survivor, 2)
        load(survivor, fence)
        assert take(survivor, 1) == torn[:1]
        load(survivor, fence)
        found += take(survivor, 1)
    assert found == expected


def test_going_back_to_the_last_fence_leaves_workers_alone() -> None:
    feed = Feed(WITH_WORKERS["two workers"]())
    take(feed, 2)
    fence = save(feed)
    before = feed._iterator
    torn = take(feed, 2)
    load(feed, fence)
    assert feed._iterator is before
    assert take(feed, 2) == torn


def test_a_newcomer_keeps_the_workers_of_its_warm_up() -> None:
    seed(5)
    unbroken = Feed(WITH_WORKERS["two workers"]())
    take(unbroken, 3)
    blob, expected = save(unbroken), take(unbroken, PER_EPOCH + 2)
    newcomer = Feed(WITH_WORKERS["two workers"]())
    take(newcomer, 2)
    workers = [worker.pid for worker in newcomer._iterator._workers]  # type: ignore[union-attr]
    load(newcomer, blob)
    assert [worker.pid for worker in newcomer._iterator._workers] == workers  # type: ignore[union-attr]
    assert take(newcomer, PER_EPOCH + 2) == expected


def test_every_sample_is_given_exactly_once_over_a_take_over() -> None:
    seed(1)
    first = Feed(LOADERS["shuffled by the global generator"]())
    begun = take(first, 2)
    blob = save(first)
    take(first, 1)
    seed(2)
    second = Feed(LOADERS["shuffled by the global generator"]())
    load(second, blob)
    given = [number for batch in begun + take(second, PER_EPOCH - 2) for number in batch]
    assert sorted(given) == list(range(ROWS))


def test_a_batch_changed_by_the_script_is_loaded_anew_not_given_again() -> None:
    data = TensorDataset(torch.arange(float(ROWS)))
    feed = Feed(DataLoader(data, batch_size=BATCH, shuffle=True))
    take(feed, 1)
    fence = save(feed)
    (x,) = feed.next()
    before = x.clone()
    x.mul_(0)
    load(feed, fence)
    assert torch.equal(feed.next()[0], before)


def test_epochs_are_counted_and_told_to_the_sampler() -> None:
    sampler = distributed()
    feed = Feed(DataLoader(Numbers(), batch_size=BATCH, sampler=sampler))
    answers = take(feed, 8)
    assert (feed.epoch, feed.consumed, sampler.epoch) == (2, 0, 1)
    assert answers[3] == answers[7] == "end"
    assert answers[:3] != answers[4:7]


def test_the_data_shifted_by_one_is_not_the_unbroken_order() -> None:
    seed(5)
    unbroken = Feed(LOADERS["shuffled by the global generator"]())
    take(unbroken, 3)
    position, generators = decode(save(unbroken))
    expected = take(unbroken, 3)
    newcomer = Feed(LOADERS["shuffled by the global generator"]())
    position["consumed"] += 1
    newcomer.load_state_dict(position)
    GeneratorBank().restore(generators)
    shifted = take(newcomer, 3)
    assert shifted != expected
    assert shifted[:2] == expected[1:]


def test_a_position_of_another_kind_of_loader_is_refused() -> None:
    blob = save(Feed(LOADERS["in order"]()))
    with pytest.raises(RestoreFailed) as refusal:
        load(Feed(LOADERS["home-made, with state_dict"]()), blob)
    assert refusal.value.code == "loader_differs"


def test_a_one_shot_iterator_is_refused_before_training() -> None:
    with pytest.raises(Unprotectable, match="one-shot iterator") as refusal:
        Feed(iter([1, 2, 3]))
    assert refusal.value.code == "loader_one_shot"
    with pytest.raises(Unprotectable, match="not iterable"):
        Feed(5)


def test_a_batchs_hash_sees_values_shapes_types_and_leaves() -> None:
    base = {"x": torch.zeros(2, 3), "y": [1, "a"]}
    variants: list[Any] = [
        {"x": torch.zeros(3, 2), "y": [1, "a"]},
        {"x": torch.zeros(2, 3, dtype=torch.float64), "y": [1, "a"]},
        {"x": torch.full((2, 3), -0.0), "y": [1, "a"]},
        {"x": torch.zeros(2, 3), "y": [1, "b"]},
        {"z": torch.zeros(2, 3), "y": [1, "a"]},
    ]
    hashes = {batch_hash(base), *map(batch_hash, variants)}
    assert len(hashes) == len(variants) + 1
    assert batch_hash({"x": torch.zeros(3, 2).t(), "y": [1, "a"]}) == batch_hash(base)


@pytest.mark.parametrize("elsewhere", [False, True], ids=["in place", "by a newcomer"])
def test_a_position_within_a_step_is_gone_back_to_and_so_is_the_fence_before_it(
    elsewhere: bool,
) -> None:
    def feed() -> Feed:
        generator = torch.Generator().manual_seed(5)
        return Feed(DataLoader(Numbers(), BATCH, shuffle=True, generator=generator))

    first = feed()
    first.next()
    fence = encode(first.state_dict())
    drawn = [first.next().tolist() for _ in range(2)]
    within = encode(first.state_within())
    drawn += [first.next().tolist() for _ in range(2)]
    second = feed() if elsewhere else first

    second.load_state_dict(decode(within))
    assert [second.next().tolist() for _ in range(2)] == drawn[2:]
    second.load_state_dict(decode(within))
    assert second.next().tolist() == drawn[2]
    second.load_state_dict(decode(fence))
    assert [second.next().tolist() for _ in range(4)] == drawn
