"""Agents without machines: they speak the real protocol over the real routes, and tell what they are told.

Nothing of the platform is replaced: rows, routes, locks and passes are the real ones.
"""

from __future__ import annotations

import itertools
import uuid
from dataclasses import dataclass, field
from typing import Any

import msgspec
from django.test import RequestFactory
from django.urls import resolve

from agent import protocol
from agent.protocol import Position
from jobs import services
from jobs.models import Incident, Job, Migration, Worker
from jobs.reconcile import reconcile_all
from nodes import services as node_services
from nodes.models import Node
from nodes.states import NodeState
from yoco_platform.core import clock
from yoco_platform.core.auth import Role, Viewer
from yoco_platform.core.models import Cluster, Customer

from .situations import FINGERPRINT
from .state_report import node_inventory, state_inventory

_numbers = itertools.count(1)
OPERATOR = Viewer(name="olga", role=Role.OPERATOR)

Body = Any  # one of protocol.OrderBody, narrowed by each test


@dataclass
class Agent:
    """One node's agent. ``orders`` are those it has been handed and has not looked at yet."""

    node: Node
    token: str
    boot_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    sequence: int = 0
    beats: int = 0
    orders: list[protocol.Order] = field(default_factory=list)
    statuses: list[protocol.WorkerStatus] = field(default_factory=list)
    late_s: float = 0.0
    """how long what it reports is under way"""

    def post(self, path: str, message: msgspec.Struct) -> Any:
        """The raw response of one route of the agents."""
        request = RequestFactory().post(
            f"/agent/v1/{path}",
            data=msgspec.json.encode(message),
            content_type="application/json",
            headers={"Authorization": f"Bearer {self.token}"},
        )
        view, arguments, named = resolve(request.path, "yoco_platform.agent_urls")
        return view(request, *arguments, **named)

    def beat(self, **changed: Any) -> protocol.HeartbeatReply:
        self.beats += 1
        fields = {
            "boot_id": self.boot_id,
            "sequence": self.beats,
            "inventory_hash": "h",
            "workers": self.statuses,
        }
        response = self.post("heartbeat", protocol.HeartbeatRequest(**{**fields, **changed}))
        assert response.status_code == 200, response.content
        reply = msgspec.json.decode(response.content, type=protocol.HeartbeatReply)
        self.orders += reply.orders
        return reply

    def events(self, *bodies: protocol.EventBody) -> protocol.EventBatch:
        batch = []
        for body in bodies:
            self.sequence += 1
            batch.append(
                protocol.Event(
                    sequence=self.sequence, occurred_at=seconds() - self.late_s, body=body
                )
            )
        return protocol.EventBatch(boot_id=self.boot_id, events=batch)

    def report(self, *bodies: protocol.EventBody) -> protocol.EventsReply:
        return self.send(self.events(*bodies))

    def send(self, batch: protocol.EventBatch) -> protocol.EventsReply:
        response = self.post("events", batch)
        assert response.status_code == 200, response.content
        reply = msgspec.json.decode(response.content, type=protocol.EventsReply)
        self.orders += reply.orders
        return reply

    def take(self, kind: type[Body]) -> list[Body]:
        """The orders of one kind it holds now, answered as done."""
        self.beat()
        mine = [order for order in self.orders if isinstance(order.body, kind)]
        self.orders = [order for order in self.orders if not isinstance(order.body, kind)]
        for order in mine:
            self.answer(order, ok=True)
        return [order.body for order in mine]

    def answer(self, order: protocol.Order, *, ok: bool, code: str = "", message: str = "") -> Any:
        result = protocol.OrderResult(order_id=order.order_id, ok=ok, code=code, message=message)
        return self.post(f"orders/{order.order_id}/result", result)


class World:
    """A cluster with its agents, a customer, and one way to make a job train."""

    def __init__(self, *, num_nodes: int, gpus: int = 1) -> None:
        number = next(_numbers)
        self.customer = Customer.objects.create(slug=f"acme-{number}", name="Acme")
        self.cluster = Cluster.objects.create(slug=f"site-{number}", name="Site")
        self.agents = [self.add(index, gpus=gpus) for index in range(num_nodes)]
        self.by_node = {agent.node.pk: agent for agent in self.agents}

    def add(self, index: int, *, gpus: int = 1) -> Agent:
        """A node that has enrolled, passed its tests and is ready."""
        admin = Viewer(name="anna", role=Role.ADMIN)
        _, token = node_services.enrollment_token_create(viewer=admin, cluster=self.cluster)
        name, boot = f"node-{index}", uuid.uuid4().hex
        request = protocol.EnrollRequest(
            node=name, boot_id=boot, inventory=node_inventory(name, index, gpus)
        )
        reply = node_services.node_enroll(token=token, request=request)
        node = Node.objects.get(pk=int(reply.node_id))
        agent = Agent(node=node, token=reply.token, boot_id=boot)
        Node.objects.filter(pk=node.pk).update(state=NodeState.READY, inventory_hash="h")
        node.refresh_from_db()
        return agent

    def submit(self, **changed: Any) -> Job:
        fields: dict[str, Any] = {
            "viewer": OPERATOR,
            "customer": self.customer,
            "cluster": self.cluster,
            "name": "llm",
            "command": ["python", "train.py"],
            "world_size": 3,
            "pool": "train",
            "working_directory": "/srv",
            "run_as": "train",
        }
        return services.job_submit(**{**fields, **changed})

    def trained(
        self,
        *,
        step: int = 184,
        group: list[int] | None = None,
        joined: dict[str, Any] | None = None,
        **changed: Any,
    ) -> Job:
        """A job in generation 1 that has committed ``step``, with its standby warm.

        ``joined``: what its ranks report otherwise when they join.
        """
        job = self.submit(**changed)
        reconcile_all()
        self.launch(job, group, **(joined or {}))
        for worker in self.ranks(job):
            assert worker.rank is not None
            self.agent_of(worker).report(
                *self.first_commit(job, worker, 1, 0), points(worker, step)
            )
        job.refresh_from_db()
        return job

    def launch(self, job: Job, group: list[int] | None = None, **joined: Any) -> None:
        """Every agent starts what its launch orders name; ranks join, standbys get warm."""
        for agent in self.agents:
            for body in agent.take(protocol.LaunchOrder):
                for spec in body.workers:
                    self.start(agent, body, spec, group, **joined)

    def start(
        self,
        agent: Agent,
        body: protocol.LaunchOrder,
        spec: protocol.WorkerSpec,
        group: list[int] | None = None,
        **joined: Any,
    ) -> None:
        who = {
            "job_id": body.job_id,
            "attempt": body.attempt,
            "generation": body.generation,
            "worker_id": spec.worker_id,
        }
        agent.report(protocol.WorkerStarted(**who, rank=spec.rank, pid=100))
        state = "standby" if spec.rank is None else "running"
        agent.statuses.append(protocol.WorkerStatus(**who_is(who), rank=spec.rank, state=state))
        if spec.rank is None:
            agent.report(
                protocol.StandbyWarm(
                    **who, provisional_rank=spec.provisional_rank, fingerprint=FINGERPRINT
                )
            )
            return
        fields: dict[str, Any] = {
            "rank": spec.rank,
            "fingerprint": FINGERPRINT,
            "parallelism": "ddp",
            "redundancy": "replica",
            "replica_group": group if group is not None else list(range(body.world_size)),
        }
        fields["inventory"] = state_inventory(**{**fields, **joined})
        agent.report(protocol.RankJoined(**who, **{**fields, **joined}))

    # --- Who is where ---------------------------------------------------------------------------

    def ranks(self, job: Job) -> list[Worker]:
        job.refresh_from_db()
        return list(
            Worker.objects.select_related("node")
            .filter(job=job, attempt=job.attempt, generation=job.generation, rank__isnull=False)
            .order_by("rank")
        )

    def rank(self, job: Job, rank: int) -> Worker:
        return self.ranks(job)[rank]

    def agent_of(self, worker: Worker) -> Agent:
        return self.by_node[worker.node_id]

    # --- What happens to ranks ------------------------------------------------------------------

    def kill(self, job: Job, rank: int, position: Position | None, **changed: Any) -> Worker:
        worker = self.rank(job, rank)
        agent = self.agent_of(worker)
        agent.statuses = [s for s in agent.statuses if s.worker_id != str(worker.pk)]
        agent.report(exited(worker, position, **changed))
        return worker

    def block(self, job: Job, rank: int, position: Position, outcome: str = "unknown") -> None:
        worker = self.rank(job, rank)
        self.agent_of(worker).report(
            protocol.RankBlocked(
                **who(worker),
                rank=rank,
                outcome=outcome,
                position=position,  # type: ignore[arg-type]
            )
        )

    def first_commit(
        self, job: Job, worker: Worker, step: int, previous: int, **changed: Any
    ) -> list[protocol.EventBody]:
        fields: dict[str, Any] = {
            "rank": worker.rank,
            "migration_id": "",
            "step": step,
            "previous_step": previous,
            "pause_ms": 80.0,
            "trail_head": f"t{step}",
            "previous_trail_head": f"t{previous}",
            "batch_hash": f"b{step}",
            "redone_batch_hash": f"b{step}",
            "replica_digest": f"r{step}",
            "at": seconds(),
        }
        return [protocol.RankCommitted(**who(worker), **{**fields, **changed})]

    def regroup(self, job: Job) -> dict[int, protocol.RegroupOrder]:
        """The regroup order in each agent's hands, by node id."""
        found: dict[int, protocol.RegroupOrder] = {}
        for agent in self.agents:
            for body in agent.take(protocol.RegroupOrder):
                found[agent.node.pk] = body
        return found

    def transfer(self, job: Job, orders: dict[int, protocol.RegroupOrder], **changed: Any) -> None:
        """Every target fetches what it was told to, and reports it."""
        for node_id, order in orders.items():
            for role in order.roles:
                if isinstance(role, protocol.Adopt):
                    worker = Worker.objects.get(pk=role.worker_id)
                    bodies = [
                        transferred(worker, role.rank, order.migration_id, fetch, **changed)
                        for fetch in role.fetches
                    ]
                    self.by_node[node_id].report(*bodies)

    def rejoin_and_commit(
        self, job: Job, replicas: dict[int, str] | None = None, **changed: Any
    ) -> None:
        """Every rank meets in the new generation and commits its first step there.

        ``replicas``: rank -> digest that it reports instead of the one all share.
        """
        self.rejoin(job)
        self.commit_first(job, replicas, **changed)

    def rejoin(self, job: Job) -> None:
        migration = Migration.objects.filter(job=job).latest("pk")
        now = seconds()
        for worker in self.ranks(job):
            assert worker.rank is not None
            self.agent_of(worker).report(
                protocol.Rejoined(
                    **who(worker),
                    rank=worker.rank,
                    migration_id=str(migration.pk),
                    began_at=now,
                    ended_at=now + 0.01,
                )
            )

    def commit_first(
        self, job: Job, replicas: dict[int, str] | None = None, **changed: Any
    ) -> None:
        migration = Migration.objects.filter(job=job).latest("pk")
        step = migration.resume_at or 0
        for worker in self.ranks(job):
            assert worker.rank is not None
            shared = (replicas or {}).get(worker.rank)
            own = changed if shared is None else {**changed, "replica_digest": shared}
            self.agent_of(worker).report(
                *self.first_commit(
                    job, worker, step + 1, step, migration_id=str(migration.pk), **own
                )
            )

    def heal(self, job: Job) -> Incident:
        """Carry the running migration through and return the incident as it ended."""
        self.transfer(job, self.regroup(job))
        self.rejoin_and_commit(job)
        job.refresh_from_db()
        return Incident.objects.filter(job=job).latest("pk")

    def beat_all(self, *but: Agent) -> None:
        for agent in self.agents:
            if agent not in but:
                agent.beat()


def seconds() -> float:
    """What agents and platform call now: one clock, which a test may move."""
    return clock.now().timestamp()


def who(worker: Worker) -> dict[str, Any]:
    return {
        "job_id": str(worker.job_id),
        "attempt": worker.attempt,
        "generation": worker.generation,
        "worker_id": str(worker.pk),
    }


def who_is(fields: dict[str, Any]) -> dict[str, Any]:
    names = ("worker_id", "job_id", "attempt", "generation")
    return {name: fields[name] for name in names}


def exited(worker: Worker, position: Position | None, **changed: Any) -> protocol.RankExited:
    fields: dict[str, Any] = {
        "rank": worker.rank,
        "exit_code": None,
        "signal": 9,
        "position": position,
        "custody": "usable" if position is not None else "none",
    }
    return protocol.RankExited(**who(worker), **{**fields, **changed})


def points(worker: Worker, step: int, first: int = 0) -> protocol.Points:
    made = [(step - back, seconds(), 2.0, 40.0) for back in range(step - (first or step), -1, -1)]
    assert worker.rank is not None
    return protocol.Points(**who(worker), rank=worker.rank, points=made)


def transferred(
    worker: Worker, rank: int, migration_id: str, fetch: protocol.Fetch, **changed: Any
) -> protocol.Transferred:
    now = seconds()
    fields: dict[str, Any] = {
        "rank": rank,
        "migration_id": migration_id,
        "source_node": fetch.node,
        "holder": fetch.holder,
        "carrier": "tcp",
        "bytes_moved": 1024,
        "source_digest": "d",
        "target_digest": "d",
        "began_at": now - 0.02,
        "ended_at": now,
    }
    return protocol.Transferred(**who(worker), **{**fields, **changed})
