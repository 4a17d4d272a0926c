"""What a small world does not have by itself and pages must show: rare rows, long words, broken books."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.db import connection, transaction

from jobs.models import Incident, Job, Parking
from jobs.states import JobState, ParkingState, ProtectionState
from nodes.models import Node
from sla.models import Entry

from .scene import Scene, make_job, make_node

INVENTORY: dict[str, Any] = {
    "parallelism": "fsdp1 (2 shards) × ddp (2 replicas)", "redundancy": "buddy",
    "accumulation": "keep: redo was asked for, but the loader cannot be set back",
    "models": ["TransformerLanguageModel"],
    "parts": [
        {"kind": kind, "names": names, "count": len(names) or 148, "size_bytes": size,
         "sources": ["custody", "buddy"], "survives_node": with_node}
        for kind, names, size, with_node in (
            ("parameters", [], 14_483_128_320, ["buddy"]),
            ("optimizer", ["AdamW"], 28_966_256_640, ["buddy"]),
            ("buffers", [], 1_056, ["buddy"]),
            ("schedulers", ["CosineAnnealingWarmRestarts"], 913, []),
            ("data position", ["StatefulDistributedSampler of 1,048,576 samples, seed 17"], 4_210, []),
            ("generators", ["python", "numpy", "torch", "cuda:0"], 7_600, []),
        )
    ],
    "arena_bytes": 43_449_384_960, "small_bytes": 1_056, "private_bytes": 12_723,
    "not_recognised": [
        "ema_shadow_of_the_whole_model (AveragedModel, 14.48 GB) was not handed over",
        "tokenizer_cache_of_the_second_worker_process (dict) holds 3 tensors",
    ],
}  # fmt: skip
COSTS = {
    "prepare_ms": 2.41, "vote_ms": 0.87, "private_bytes": 12_723.0, "shadow_bytes": 43_449_384_960.0,
    "shadow_ms": 61.2, "buddy_bytes": 43_449_397_683.0, "buddy_ms": 88.04, "buddy_wait_ms": 1.75,
    "micro_batch_bytes": 524_288.0, "micro_batch_store_ms": 0.31, "micro_batch_agree_ms": 0.12, "step": 594,
}  # fmt: skip
STACK = "\n".join(
    f'  File "/srv/training/deep/package/of/a/customer/module_{n}.py", line {40 + n}, in forward_{n}\n'
    f"    hidden = self.blocks[{n}](hidden, attention_mask=mask, cache=cache, position_ids=position_ids)"
    for n in range(8)
)
REDONE = (
    "ranks 0, 2 computed 3 micro-batches again; of rank 1 nobody knows how many were computed again"
)
WAITS = "parked at step 186, waiting for 1 node: 2 of 3 places are free"


def add_rare(scene: Scene) -> None:
    """Everything at once, on the job and the incident that a scene has."""
    job = scene.jobs["gpt-small"]
    Job.objects.filter(pk=job.pk).update(inventory=INVENTORY, costs=COSTS)
    parkings(scene, job)
    hung(scene.incidents["gpt-small-1"])
    unbooked(scene, 7)
    bare(scene)
    make_node(scene, "f2", "R006", "retired", "sold", minutes=5, silent_s=331)
    node = make_node(scene, "f1", "R006", "lost", "silent for 31 s", minutes=5, silent_s=331)
    Node.objects.filter(pk=node.pk).update(
        endpoint={"host": "fd00:5a3e:12:7:8c1:24ff:fe00:1a2b", "store_port": 1, "data_port": 2},
        hostname="gpu-node-0412.rack-17.hall-b.frankfurt.example.internal",
    )


def parkings(scene: Scene, job: Job) -> None:
    """One that has ended, one that waits for nodes now, one that was withdrawn before it was written."""
    rows = (
        (40, ParkingState.RESUMED, 186, "back at step 186 on 3 nodes"),
        (9, ParkingState.WITHDRAWN, None, "vit-large found its places without it"),
        (1, ParkingState.PARKED, 512, WAITS),
    )
    for hours, state, step, words in rows:
        at = scene.now - timedelta(hours=hours)
        Parking.objects.create(
            job=job, for_job=scene.jobs["vit-large"], num_slots=1, attempt=1, generation=1, state=state,
            state_since=at, words=words, step=step, wanted_at=at, parked_at=at if step else None,
            reasons=["gpt-small: priority 1, may be parked, frees 3 places", "nobody else frees enough"],
            resumed_at=at + timedelta(hours=2) if state == ParkingState.RESUMED else None,
            ranks={"0": {"folder": "/var/parked/1"}} if step else {},
        )  # fmt: skip


def hung(incident: Incident) -> None:
    """A rank that hung, whose node was lost: its trail was compared at an older step."""
    evidence = incident.evidence
    evidence["stacks"] = [
        {"rank": rank, "node": "b1", "at": incident.occurred_at.isoformat(), "text": STACK} for rank in (1, 2)
    ]  # fmt: skip
    evidence["redone_micro_batches"] = REDONE
    for commit, redone, known in zip(
        evidence["commits"], (3, None, 3), (None, 196, 200), strict=True
    ):
        commit |= {"redone_micro_batches": redone, "known_trail_step": known}
    incident.save()


def unbooked(scene: Scene, number: int) -> None:
    """So many ended failures of the contract's customer that lie in none of its years."""
    incident = scene.incidents["gpt-small-1"]
    for day in range(number):
        copy = Incident.objects.get(pk=incident.pk)
        copy.pk, copy._state.adding = None, True
        copy.occurred_at = incident.occurred_at.replace(year=2000, month=3, day=day + 1)
        copy.save()


def bare(scene: Scene) -> None:
    """A job that has nothing yet, and one whose script never joined."""
    waiting = make_job(scene, "waits", scene.acme, ranks=[], standby=None)
    Job.objects.filter(pk=waiting.pk).update(
        state=JobState.WAITING, waiting_for="waits for 2 nodes of pool cpu: 1 is free", world_size=4,
        protection=ProtectionState.UNPROTECTED, protection_reason="", priority=-3,
    )  # fmt: skip
    name = "a-name-without-any-place-to-break-" + "x" * 40
    alone = make_job(scene, name, scene.acme, ranks=["d1"], standby=None)
    Job.objects.filter(pk=alone.pk).update(
        protection=ProtectionState.NEVER_JOINED, inventory=None,
        protection_reason="the script never called protect()",
    )  # fmt: skip
    scene.jobs |= {"waits": waiting, "never-joined": alone}


@transaction.atomic
def break_ledger() -> Entry:
    """Change an entry as only somebody with the database in hand can: past its triggers."""
    entry = Entry.objects.order_by("pk").first()
    assert entry is not None
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute("SET LOCAL session_replication_role = replica")
        else:
            cursor.execute("DROP TRIGGER IF EXISTS append_only_update_sla_entry")
        cursor.execute("UPDATE sla_entry SET verdict = 'perhaps' WHERE id = %s", [entry.pk])
        assert cursor.rowcount == 1
    return entry
