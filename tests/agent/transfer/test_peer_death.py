"""Real processes, killed by SIGKILL in the middle of a transfer."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest

from agent.protocol import Endpoint
from agent.transfer import errors
from agent.transfer.fetch import fetch
from agent.transfer.secrets import new_secret

from .arenas import Arena
from .peer import TENSORS
from .ways import IDENTITY, Stream, Way

PEER = [sys.executable, "-m", "tests.agent.transfer.peer"]


@pytest.mark.parametrize("carrier", ["tcp", "same_host"])
def test_a_killed_source_is_known_at_once(
    carrier: Literal["tcp", "same_host"], arena_of: Callable[..., Arena], tmp_path: Path
) -> None:
    secret, path = new_secret(), str(tmp_path / "data.sock")
    process = subprocess.Popen([*PEER, "source", path, secret], stdout=subprocess.PIPE, text=True)
    with process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        endpoint = Endpoint(host="127.0.0.1", store_port=0, data_port=port, unix_path=path)
        target = arena_of(TENSORS)
        began = time.monotonic()
        with pytest.raises(errors.PeerLost):
            fetch(endpoint, "dying", secret, IDENTITY, target.target(), carrier)
        assert time.monotonic() - began < 2.0
    assert process.returncode == -signal.SIGKILL


def test_a_killed_target_frees_the_source(tcp: Way, arena_of: Callable[..., Arena]) -> None:
    source = arena_of(TENSORS).fill()
    stream = Stream("dying", new_secret(), IDENTITY)
    tcp.offer_as(stream, source.source())
    process = subprocess.run(
        [*PEER, "target", str(tcp.server.port), stream.secret], timeout=30, check=False
    )
    assert process.returncode == -signal.SIGKILL
    tcp.settle()
    assert [(end.code, end.digest) for end in tcp.ends] == [("peer_lost", "")]
    assert tcp.released == 1
    target = arena_of(TENSORS, numbering=100)
    tcp.fetch(tcp.offer(source.source()), target.target())
    assert target.content() == source.content()
