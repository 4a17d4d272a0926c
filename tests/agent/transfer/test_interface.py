"""The data path goes through the interface that was chosen, and the report says which that was."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent.transfer.channel import Channel
from agent.transfer.tcp_carrier import TcpCarrier

from .arenas import Arena
from .ways import Way

Pair = Callable[..., tuple[Arena, Arena]]
CHOSEN = "127.0.0.2"
"""every address of 127.0.0.0/8 is ours on Linux, and each is an interface as good as another here"""


class Noting(TcpCarrier):
    """Keeps the local address of every connection it makes."""

    def __init__(self, way: Way, bind_host: str = "") -> None:
        super().__init__(way.endpoint, bind_host=bind_host)
        self.used: list[str] = []

    def connect(self, stall_s: float) -> Channel:
        channel = super().connect(stall_s)
        self.used.append(channel.interface)
        return channel


@pytest.fixture(params=["tcp", "tls"])
def network(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Way]:
    made = Way(request.param, tmp_path)
    yield made
    made.close()


def test_every_connection_of_a_stream_uses_the_interface_that_was_chosen(
    network: Way, pair_of: Pair
) -> None:
    source, target = pair_of()
    carrier = Noting(network, CHOSEN)
    report = network.fetch(
        network.offer(source.source()), target.target(), carrier=carrier, streams=3
    )
    assert carrier.used == [CHOSEN] * 4  # the control connection and three streams
    assert report.interface == CHOSEN
    assert target.content() == source.content()


def test_without_a_choice_the_report_says_what_the_system_chose(
    network: Way, pair_of: Pair
) -> None:
    source, target = pair_of()
    report = network.fetch(network.offer(source.source()), target.target())
    assert report.interface == "127.0.0.1"


def test_on_the_same_host_no_interface_is_claimed(same_host: Way, pair_of: Pair) -> None:
    source, target = pair_of()
    assert same_host.fetch(same_host.offer(source.source()), target.target()).interface == ""


def test_an_address_that_is_not_ours_is_no_interface(network: Way, pair_of: Pair) -> None:
    from agent.transfer import errors

    source, target = pair_of()
    carrier = Noting(network, "192.0.2.1")
    with pytest.raises(errors.PeerUnreachable):
        network.fetch(network.offer(source.source()), target.target(), carrier=carrier)
