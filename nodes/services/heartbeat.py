"""A node speaks: one statement, which can never write back an old state."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec
from django.db import connection, transaction

from agent.protocol import HeartbeatRequest
from yoco_platform.core import clock

from .. import health, selectors
from ..errors import InventoryRefused, TokenRefused
from ..models import Node
from ..policies import HeatRule
from ..states import NodeState
from ..wakeups import advance_soon
from .inventory import inventory_checked, inventory_columns, inventory_write
from .step import node_step

_WAITS_FOR_A_HEARTBEAT = frozenset(
    {NodeState.JOINING, NodeState.TESTING, NodeState.SUSPECT, NodeState.LOST}
)
"""States that a heartbeat may end: the pass is woken instead of waiting for its clock."""

# A boot that was already followed by another one changes nothing: its heartbeats are merely late.
_HEARD = """
UPDATE nodes_node SET
    last_heard_at = %s,
    heartbeat_sequence = %s,
    readings = %s,
    heartbeat_s = %s,
    previous_boot_id = CASE WHEN boot_id <> %s THEN boot_id ELSE previous_boot_id END,
    event_sequence = CASE WHEN boot_id <> %s THEN 0 ELSE event_sequence END,
    boot_id = %s
WHERE id = %s AND token_hash = %s AND state <> %s
    AND ((boot_id = %s AND heartbeat_sequence < %s) OR (boot_id <> %s AND previous_boot_id <> %s))
RETURNING state, inventory_hash, watch
"""


@dataclass(frozen=True)
class _Stored:
    """What the row held besides what the heartbeat wrote."""

    state: NodeState
    inventory_hash: str
    watch: health.Watch


def node_heard(*, node: Node, request: HeartbeatRequest) -> bool:
    """Take one heartbeat of ``node`` (as remembered by its token); True when its inventory is wanted.

    A repeat, or one that was overtaken, counts as a sign of life and changes nothing else. Raises
    TokenRefused when the token was revoked meanwhile, InventoryRefused.
    """
    if not 1 <= len(request.boot_id) <= 64 or not 0 <= request.sequence < 2**63:
        raise InventoryRefused("boot_id or sequence does not fit", field="boot_id")
    now = clock.now()
    stored = _stored(node, request, now)
    if stored is None:
        _sign_of_life(node, now)
        return False
    _weigh(node, request, stored, now)
    wanted = stored.inventory_hash != request.inventory_hash
    if wanted and request.inventory is not None:
        _inventory_changed(node, request)
        wanted = False
    if stored.state in _WAITS_FOR_A_HEARTBEAT:
        advance_soon()
    return wanted


def node_touched(*, node: Node) -> None:
    """Any other request is a sign of life too. Raises TokenRefused when the token was revoked."""
    _sign_of_life(node, clock.now())


def _sign_of_life(node: Node, now: datetime) -> None:
    alive = (
        Node.objects.filter(pk=node.pk, token_hash=node.token_hash)
        .exclude(state=NodeState.RETIRED)
        .update(last_heard_at=now)
    )
    if not alive:
        selectors.forget_remembered()
        raise TokenRefused("this token was revoked; enrol the agent again")


def _stored(node: Node, request: HeartbeatRequest, now: datetime) -> _Stored | None:
    boot, sequence = request.boot_id, request.sequence
    readings = msgspec.to_builtins(request.readings)
    values: list[Any] = [  # Any: adapted to the database by each field
        _adapted("last_heard_at", now),
        sequence,
        _adapted("readings", readings),
        selectors.heartbeat_s(),
        *(boot, boot, boot),
        *(node.pk, node.token_hash, str(NodeState.RETIRED)),
        *(boot, sequence, boot, boot),
    ]
    with connection.cursor() as cursor:
        cursor.execute(_HEARD, values)
        row = cursor.fetchone()
    if row is None:
        return None
    watch = row[2] if not isinstance(row[2], str) else msgspec.json.decode(row[2])
    return _Stored(state=NodeState(row[0]), inventory_hash=row[1], watch=health.watch_read(watch))


def _adapted(field: str, value: object) -> Any:  # Any: a type of the database driver
    return Node._meta.get_field(field).get_db_prep_save(value, connection)  # type: ignore[union-attr]


def _weigh(node: Node, request: HeartbeatRequest, stored: _Stored, now: datetime) -> None:
    """Write the streaks back when this heartbeat changed them: never, on a cool node."""
    rule = selectors.policy_current()[1].heat
    after = health.heat_weighed(stored.watch, request.readings, rule, now.timestamp())
    if after == stored.watch:
        return
    Node.objects.filter(
        pk=node.pk, boot_id=request.boot_id, heartbeat_sequence=request.sequence
    ).update(watch=health.watch_data(after))
    if _fired(stored.watch, rule) != _fired(after, rule):
        advance_soon()


def _fired(watch: health.Watch, rule: HeatRule) -> set[str]:
    return {entity for entity, streak in watch.items() if health.fired(streak, rule)}


@transaction.atomic
def _inventory_changed(node: Node, request: HeartbeatRequest) -> None:
    inventory = request.inventory
    assert inventory is not None
    if not 1 <= len(request.inventory_hash) <= 64:
        raise InventoryRefused("inventory_hash has 1 to 64 characters", field="inventory_hash")
    inventory_checked(inventory)
    row = Node.objects.select_for_update().get(pk=node.pk)
    other_devices = inventory_write(row, inventory)
    Node.objects.filter(pk=node.pk).update(
        inventory_hash=request.inventory_hash, **inventory_columns(inventory)
    )
    if other_devices and row.state == NodeState.READY:
        reason = f"its devices changed: it now reports {len(inventory.gpus)}"
        node_step(node=row, to=NodeState.TESTING, reason=reason, actor="inventory")
