"""How long an agent keeps the store of a generation: standbys read there what ranks published."""

from __future__ import annotations

from agent.protocol import RegroupOrder, ReleaseOrder, StopOrder, StoreRef
from agent.store_client import StoreClient, StoreRefused

from .control_plane import ControlPlane
from .running import SECRET, RunningAgent

KEPT = 16


class Stores:
    """Generations of one job, all met in the store of node-a."""

    def __init__(self, plane: ControlPlane, job_id: str) -> None:
        self.plane = plane
        self.job_id = job_id

    def ref(self, generation: int, attempt: int = 1) -> StoreRef:
        port = self.plane.endpoints["node-a"].store_port
        prefix = f"{self.job_id}/{attempt}/{generation}"
        return StoreRef(host="127.0.0.1", port=port, prefix=prefix, secret=SECRET)

    def begin(self, *generations: int, attempt: int = 1) -> None:
        for generation in generations:
            order = RegroupOrder(
                job_id=self.job_id, attempt=attempt, from_generation=generation - 1,
                generation=generation, migration_id="m", resume_at=7,
                store=self.ref(generation, attempt), buddies={}, roles=[],
            )  # fmt: skip
            assert self.plane.wait_result(self.plane.order(order)).ok

    def stands(self, generation: int, attempt: int = 1) -> None:
        order = ReleaseOrder(job_id=self.job_id, attempt=attempt, generation=generation, ranks=[])
        assert self.plane.wait_result(self.plane.order(order)).ok

    def kept(self, *generations: int, attempt: int = 1) -> list[int]:
        return [each for each in generations if self._open(self.ref(each, attempt))]

    @staticmethod
    def _open(ref: StoreRef) -> bool:
        try:
            client = StoreClient(ref.host, ref.port, ref.prefix, ref.secret, connect_timeout_s=0.05)
        except StoreRefused:
            return False
        client.close()
        return True


def test_the_store_of_the_last_generation_that_stood_outlives_those_that_failed(
    shared_plane: ControlPlane, shared_agent: RunningAgent
) -> None:
    stores = Stores(shared_plane, "job-failing")
    stores.begin(2)
    stores.stands(2)
    stores.begin(3, 4, 5)
    assert stores.kept(2, 3, 4, 5) == [2, 3, 4, 5]
    stores.stands(5)
    assert stores.kept(2, 5) == [2, 5]  # a standby may be reading from it still
    stores.stands(5)
    assert stores.kept(2, 5) == [2, 5]
    stores.begin(6)
    stores.stands(6)
    assert stores.kept(2, 3, 4, 5, 6) == [5, 6]


def test_stores_of_a_job_end_with_it_and_with_its_attempt(
    shared_plane: ControlPlane, shared_agent: RunningAgent
) -> None:
    stores = Stores(shared_plane, "job-ending")
    stores.begin(2, 3)
    stores.begin(4, attempt=2)
    assert stores.kept(2, 3) == []
    assert stores.kept(4, attempt=2) == [4]
    stop = StopOrder(job_id="job-ending", attempt=2, worker_ids=[], reason="done")
    assert shared_plane.wait_result(shared_plane.order(stop)).ok
    assert stores.kept(4, attempt=2) == []


def test_only_so_many_stores_of_a_job_are_kept_whatever_is_said_of_it(
    shared_plane: ControlPlane, shared_agent: RunningAgent
) -> None:
    stores = Stores(shared_plane, "job-long")
    stores.begin(*range(1, KEPT + 3))
    assert stores.kept(1, 2, 3, KEPT + 2) == [3, KEPT + 2]
