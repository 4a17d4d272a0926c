"""The node page offers to retire a node that a drain has emptied; a retired one keeps its page."""

from __future__ import annotations

import pytest

from nodes.models import NodeTransition
from nodes.states import NodeState

from .scene import Scene, make_node
from .test_views import signed_in, text, words

pytestmark = pytest.mark.django_db


def drained(scene: Scene, *, by_drain: bool = True) -> int:
    node = make_node(scene, "f9", "R009", NodeState.CORDONED, "held")
    if by_drain:
        NodeTransition.objects.create(
            node=node, from_state=NodeState.DRAINING, to_state=NodeState.CORDONED,
            reason="drained: nothing of any job is left on it", actor="drain", at=scene.now,
        )  # fmt: skip
    return node.pk


@pytest.mark.parametrize(
    ("role", "by_drain", "offered"),
    [("operator", True, True), ("operator", False, False), ("viewer", True, False)],
)
def test_retire_is_offered_after_a_drain_to_who_may(
    scene: Scene, role: str, by_drain: bool, offered: bool
) -> None:
    page = text(signed_in(role), f"/nodes/{drained(scene, by_drain=by_drain)}")
    assert ("Retire…" in page) == offered


def test_a_retired_node_keeps_its_page_and_leaves_the_fleet(scene: Scene) -> None:
    client, pk = signed_in("operator"), drained(scene)
    assert "f9" in text(client, "/fleet")
    answer = client.post(f"/nodes/{pk}/retire", {"reason": "sold"}, SERVER_NAME="127.0.0.1")
    assert answer.status_code == 302
    page = words(text(client, f"/nodes/{pk}"))
    assert "f9 Retired" in page
    assert "Passed its tests" in page
    assert "…" not in page.partition("Conditions")[0].partition("f9 Retired")[2]
    assert "f9" not in text(client, "/fleet")
