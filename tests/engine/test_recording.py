"""Recordings of set-up outlive the process that made them: whoever played one back carries it on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from agent.store_client import StoreClient, StoreError
from agent.training import recording
from agent.training.recording import Recording
from tests.agent.test_store import Running


@pytest.fixture
def client() -> Iterator[StoreClient]:
    running = Running()
    running.call(running.server.open_prefix, "g/1", "secret")
    client = running.client("g/1", "secret")
    yield client
    client.close()
    running.stop()


def heard(rank: int, **answers: bytes) -> Recording:
    made = Recording(rank)
    made._heard = dict(answers)
    return made


def test_a_standby_gets_the_recording_of_the_rank_it_was_launched_as(client: StoreClient) -> None:
    heard(0, a=b"zero").publish(client)
    heard(1, a=b"one", b=b"more").publish(client)

    fetched = Recording.fetch(client, 0, 1.0)

    assert (fetched.rank, fetched._heard) == (0, {"a": b"zero"})


def test_it_takes_anothers_when_nobody_carries_that_one_any_more(
    client: StoreClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "OWN_RECORDING_S", 0.05)
    heard(2, a=b"two").publish(client)

    fetched = Recording.fetch(client, 0, 1.0)

    assert (fetched.rank, fetched._heard) == (2, {"a": b"two"})


def test_what_was_fetched_can_be_published_again_in_the_next_generation(
    client: StoreClient,
) -> None:
    heard(1, a=b"one").publish(client)
    carried = Recording.fetch(client, 1, 1.0)
    client.delete_key("setup/1/whole")
    client.delete_key("setup/1/a")

    carried.publish(client)

    assert Recording.fetch(client, 1, 1.0)._heard == {"a": b"one"}


def test_a_standby_does_not_wait_for_ever_where_nobody_published(client: StoreClient) -> None:
    with pytest.raises(StoreError):
        Recording.fetch(client, 0, 0.05)
