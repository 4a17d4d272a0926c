"""A worker without torch: speaks agent/link.py, holds an arena of one storage, follows its orders.

Its state at step n is a storage filled with byte n, and blobs that name the step. Words on the command line
say what it does after joining: ``fork`` leaves a child behind, ``quiet`` shares nothing, ``stay`` never meets
the others once its memory was restored, ``stuck`` computes for ever, ``raise`` ends by an exception,
``whole`` also keeps another rank's arena as its buddy.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time

import msgspec

from agent import link
from agent.custody import SLOT_NAMES
from agent.protocol import StateInventory, StoreRef
from agent.store_client import StoreClient
from agent.transfer.arena import Header, Phase, Slots
from agent.transfer.manifest import Manifest, StorageEntry, TensorEntry

SIZE = 4096


class Worker:
    """``step`` is applied and fenced; ``serve`` answers the agent until it says quit."""

    def __init__(self, end: socket.socket, start: link.WorkerStart) -> None:
        self.start = start
        self.end = end
        self.header = Header.create()
        self.slots = {name: Slots.create(name, SIZE) for name in SLOT_NAMES}
        self.storage = os.memfd_create("storage")
        os.ftruncate(self.storage, SIZE)
        self.rank = start.rank
        self.generation = start.generation
        self.resume_at = 0
        self.store = start.store
        self.blocked: str = ""
        self.is_rank = start.rank is not None

    def say(self, message: link.LinkMessage, fds: list[int] | None = None) -> None:
        link.send(self.end, message, fds)

    def step(self, n: int) -> None:
        """Commit step n whole: storage, small, prepared, fence, header."""
        rank = self.rank or 0
        os.pwrite(self.storage, bytes([n]) * SIZE, 0)
        self.slots["small"].write(rank, n, b"small %d of %d" % (n, rank))
        self.slots["prepared"].write(rank, n, b"prepared %d of %d" % (n, rank))
        self.slots["fence"].write(rank, n, b"fence %d of %d" % (n, rank))
        for name in ("prepared", "applying", "applied", "fence"):
            self.header.set(name, n)

    def prepare(self, n: int) -> None:
        rank = self.rank or 0
        self.slots["prepared"].write(rank, n, b"prepared %d of %d" % (n, rank))
        self.header.set("prepared", n)

    def keep_for(self, rank: int, n: int) -> None:
        fence, prepared = b"fence %d of %d" % (n - 1, rank), b"prepared %d of %d" % (n, rank)
        self.slots["buddy"].write(rank, n, len(fence).to_bytes(8, "little") + fence + prepared)

    def introduce(self) -> None:
        self.say(link.Hello(pid=os.getpid()))
        fds = [self.header.fd, *(self.slots[name].fd for name in SLOT_NAMES)]
        self.say(link.Layout(), fds)

    def keep_whole(self, rank: int, n: int) -> None:
        """The arena of another rank at step n, byte for byte what ``step`` makes."""
        storage = os.memfd_create("buddy")
        os.write(storage, bytes([n]) * SIZE)
        self.slots["buddy_small"].write(rank, n, b"small %d of %d" % (n, rank))
        self.offer("buddy1" if n % 2 else "buddy0", storage)
        self.header.set(f"buddy_rank_{n % 2}", rank)
        self.header.set(f"buddy_step_{n % 2}", n)

    def share(self, epoch: int = 1) -> None:
        self.header.set("unclean", 1)
        self.offer("live", self.storage, epoch)

    def offer(self, which: link.ArenaName, storage: int, epoch: int = 1) -> None:
        tensor = TensorEntry.of(
            "weight", "parameter", shape=[SIZE], dtype="uint8", strides=[1], storage_id=5
        )
        manifest = Manifest.build([StorageEntry(5, SIZE)], [tensor])
        paper = os.memfd_create("manifest")
        os.write(paper, manifest.encode())
        part = link.ArenaShared(which=which, epoch=epoch, part=0, parts=1, storage_ids=[5])
        self.say(part, [paper, storage])
        os.close(paper)

    def block(self, outcome: str) -> None:
        self.blocked = outcome
        self.header.set("phase", Phase.BLOCKED)
        message = {"type": "blocked", "generation": self.generation, "outcome": outcome}
        self.say(msgspec.convert(message, link.Blocked))

    def serve(self) -> None:
        """Answer the agent; look for the next one when this one goes."""
        while True:
            try:
                heard = link.receive_from_agent(self.end)
            except OSError:
                heard = None
            if heard is None:
                self.reconnect()
            else:
                self.take(*heard)

    def reconnect(self) -> None:
        self.end.close()
        while True:
            try:
                self.end = link.connect(os.environ[link.RECONNECT])
                break
            except OSError:
                time.sleep(0.02)
        self.introduce()
        self.share(epoch=2)
        if self.blocked:
            self.block(self.blocked)

    def take(self, message: link.FromAgent, fds: list[int]) -> None:
        match message:
            case link.ArenaKept(which="live"):
                self.header.set("unclean", 0)
                print("kept", message.epoch, flush=True)
            case link.Pause():
                self.block("paused")
            case link.Interrupt():
                if self.is_rank:
                    self.block("unknown")
            case link.Resume():
                self.blocked = ""
                self.generation, self.resume_at = message.generation, message.resume_at
                print("resume", message.resume_at, flush=True)
                self.meet(message.store)
                self.stand()
            case link.AdoptRank():
                self.rank, self.generation = message.rank, message.generation
                self.resume_at, self.store = message.resume_at, message.store
                self.say(link.AdoptReady(rank=message.rank, epoch=1))
            case link.Restore():
                self.is_rank = True
                self.restored(message, fds)
                if "stay" not in sys.argv:
                    self.meet(self.store)
                    self.stand()
            case link.Quit():
                print("quit", message.reason, flush=True)
                os._exit(0)

    def restored(self, message: link.Restore, fds: list[int]) -> None:
        blobs = {
            name: (step, os.read(fd, SIZE).decode())
            for name, step, fd in zip(message.blobs, message.steps, fds, strict=True)
        }
        storage = os.pread(self.storage, SIZE, 0)
        uniform = storage == storage[:1] * SIZE
        print(
            "restored",
            json.dumps({"storage": storage[0], "uniform": uniform, "blobs": blobs}),
            flush=True,
        )

    def meet(self, ref: StoreRef) -> None:
        """Wait for the other rank of the new generation, as real ranks do."""
        if "meet" not in sys.argv:
            return
        client = StoreClient(ref.host, ref.port, ref.prefix, ref.secret, timeout_s=20.0)
        client.set(f"arrived/{self.rank}", b"1")
        client.wait([f"arrived/{rank}" for rank in range(self.start.world_size)])
        client.close()

    def stand(self) -> None:
        now = time.time()
        assert self.rank is not None
        self.say(
            link.Regrouped(rank=self.rank, generation=self.generation, began_at=now, ended_at=now)
        )
        n = self.resume_at + 1
        self.step(n)
        self.say(
            link.Committed(
                rank=self.rank,
                generation=self.generation,
                step=n,
                previous_step=n - 1,
                pause_ms=1.0,
                trail_head="trail",
                previous_trail_head="before",
                trail_marks={},
                batch_hash="batch",
                redone_batch_hash="",
                replica_digest="",
                at=now,
            )
        )


def stuck_in_its_own_code(worker: Worker) -> None:
    """Shows on its page what a real rank shows, and never moves again."""
    header = worker.header
    slot = header.group_slot(77)
    assert slot is not None
    slot[1], slot[2] = 6, 0
    header.set("generation", worker.generation)
    header.set("phase", Phase.FORWARD)
    print("stuck", flush=True)
    while True:
        time.sleep(0.01)


def start_children() -> None:
    """One in this session and one in its own."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    own = [sys.executable, "-c", "import os, time; os.setsid(); time.sleep(600)"]
    away = subprocess.Popen(own)
    print("children", child.pid, away.pid, flush=True)


def joined_as(rank: int) -> link.Joined:
    return link.Joined(
        rank=rank,
        fingerprint="same",
        parallelism="ddp",
        redundancy="replica",
        replica_group=[0, 1],
        inventory=StateInventory(
            parallelism="ddp",
            redundancy="replica",
            accumulation="redo",
            models=[],
            parts=[],
            arena_bytes=0,
            small_bytes=0,
            private_bytes=0,
            not_recognised=[],
        ),
    )


def afterwards(worker: Worker, words: list[str]) -> None:
    """What it was told to do once it has joined."""
    if "stuck" in words:
        heard = link.receive_from_agent(worker.end)
        assert heard is not None
        worker.take(*heard)  # the agent holds its arena
        stuck_in_its_own_code(worker)
    if "raise" in words:
        worker.say(link.Raised(exception="ValueError: bad batch"))
        raise ValueError("bad batch")
    if "finish" in words:
        worker.say(link.Finished(step=7, trail_head="trail"))
        print("done", flush=True)
        os._exit(0)


def main() -> None:
    start = msgspec.json.decode(os.environ[link.WORKER], type=link.WorkerStart)
    end = socket.socket(fileno=int(os.environ[link.LINK_FD]))
    worker = Worker(end, start)
    words = sys.argv[1:]
    if "fork" in words:
        start_children()
    worker.introduce()
    if "quiet" not in words:
        at = next((int(word.removeprefix("at=")) for word in words if word.startswith("at=")), 7)
        if worker.rank is not None:
            worker.step(at)
            worker.keep_for(1 - worker.rank if worker.rank < 2 else 0, at + 1)
        if "whole" in words:
            worker.keep_whole(1 - (worker.rank or 0), at)
        if "torn" in words:
            worker.prepare(at + 1)
            worker.header.set("applying", at + 1)
        if "tail" in words:
            worker.header.set("fence", at - 1)
            worker.slots["fence"].write(worker.rank or 0, at - 1, b"fence before")
        worker.share()
    if worker.rank is None:
        worker.say(link.Warm(provisional_rank=start.provisional_rank, fingerprint="same"))
    else:
        worker.say(joined_as(worker.rank))
    afterwards(worker, words)
    worker.serve()


if __name__ == "__main__":
    main()
