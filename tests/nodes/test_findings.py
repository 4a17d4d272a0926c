from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from nodes import selectors, services
from nodes.errors import BreakerUnknown
from nodes.models import BreakerTrip, Finding, ListeningSpan, Node
from nodes.states import NodeState
from yoco_platform.core import clock
from yoco_platform.core.errors import Forbidden
from yoco_platform.core.models import Cluster

from .machines import OPERATOR, VIEWER, ago, beat, heat, make_node


class Oven:
    """Feeds one node heartbeats two seconds apart by the platform's clock."""

    def __init__(self, node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
        self.node = node
        self.sequence = 0
        self.monkeypatch = monkeypatch

    def feed(self, *temperatures: float) -> None:
        for value in temperatures:
            self.sequence += 1
            at = clock.now() + timedelta(seconds=2)
            self.monkeypatch.setattr(clock, "now", lambda at=at: at)
            ListeningSpan.objects.update(last_at=at)
            services.node_heard(node=self.node, request=beat(self.sequence, heat(value)))
            services.nodes_advance()

    @property
    def state(self) -> str:
        return Node.objects.get(pk=self.node.pk).state


@pytest.fixture
def fleet(cluster: Cluster) -> list[Node]:
    """Eight nodes of one pool, each in its rack: a quarter is two."""
    ListeningSpan.objects.create(pk=1, began_at=ago(3600), last_at=ago(1))
    return [make_node(cluster) for _ in range(8)]


@pytest.fixture
def oven(fleet: list[Node], monkeypatch: pytest.MonkeyPatch) -> Oven:
    return Oven(fleet[0], monkeypatch)


def test_sustained_heat_opens_a_finding_and_makes_the_node_suspect(oven: Oven) -> None:
    oven.feed(60, 91, 95)
    assert (oven.state, Finding.objects.count()) == ("ready", 0)
    oven.feed(93)
    finding = Finding.objects.get()
    assert oven.state == "suspect"
    assert (finding.check_name, finding.entity, finding.action) == (
        "sustained_heat",
        "gpu-0",
        "migrate",
    )
    assert (finding.simulated, finding.injected, finding.count) == (True, False, 3)
    reason = oven.node.transitions.get().reason
    assert reason == (
        "gpu-0 at 93 °C (simulated): at or above 90 °C in 3 readings over 4.0 s, highest 95 °C"
    )
    assert oven.node.transitions.get().actor == "rule sustained_heat"
    view = selectors.nodes_by_id([oven.node.pk])[oven.node.pk]
    assert (view.suspect, view.silent, view.takes_work) == (True, False, False)


def test_heat_that_does_not_last_changes_nothing(oven: Oven) -> None:
    oven.feed(95, 95, 89, 95, 95, 60)
    assert (oven.state, Finding.objects.count()) == ("ready", 0)
    assert Node.objects.get(pk=oven.node.pk).watch == {}


def test_a_finding_is_one_row_that_grows(oven: Oven) -> None:
    oven.feed(95, 95, 95, 96, 97)
    finding = Finding.objects.get()
    assert finding.count == 5
    assert finding.evidence == [
        "gpu-0 at 95 °C (simulated): at or above 90 °C in 3 readings over 4.0 s, highest 95 °C",
        "gpu-0 at 97 °C (simulated): at or above 90 °C in 5 readings over 8.0 s, highest 97 °C",
    ]


def test_it_cools_passes_its_tests_and_is_ready_after_probation(oven: Oven) -> None:
    oven.feed(95, 95, 95, 85, 85, 79, 79)
    assert oven.state == "suspect"
    oven.feed(78)
    assert oven.state == "testing"
    assert Finding.objects.get().evidence[-1] == (
        "below 80 °C in 3 readings in a row, now at 78 °C"
    )
    oven.feed(70)
    assert oven.state == "probation"
    oven.feed(*[60] * 9)
    assert oven.state == "probation"
    oven.feed(60)
    assert oven.state == "ready"
    steps = [step.to_state for step in oven.node.transitions.all()]
    assert steps == ["suspect", "testing", "probation", "ready"]
    assert Node.objects.get(pk=oven.node.pk).suspect_rule == ""


def test_heat_during_probation_makes_it_suspect_again(oven: Oven) -> None:
    oven.feed(95, 95, 95, 70, 70, 70, 70)
    assert oven.state == "probation"
    oven.feed(95, 95, 95)
    assert oven.state == "suspect"
    assert Finding.objects.count() == 2


def test_a_persons_release_wins_over_the_rule(oven: Oven) -> None:
    oven.feed(95, 95, 95)
    services.node_release(viewer=OPERATOR, node=oven.node, reason="the sensor is broken")
    oven.feed(96, 97, 98)
    assert oven.state == "ready"
    assert Finding.objects.get().overruled_by == "olga"


def test_after_a_release_and_a_cooling_new_heat_counts_again(oven: Oven) -> None:
    oven.feed(95, 95, 95)
    services.node_release(viewer=OPERATOR, node=oven.node, reason="the sensor is broken")
    oven.feed(70, 70, 70, 95, 95, 95)
    assert oven.state == "suspect"


def test_a_missing_reading_is_not_a_cool_one(oven: Oven) -> None:
    oven.feed(95, 95, 95)
    for _ in range(5):
        oven.sequence += 1
        services.node_heard(node=oven.node, request=beat(oven.sequence))
        services.nodes_advance()
    assert oven.state == "suspect"


def test_the_rule_takes_a_quarter_of_the_pool_and_no_more(
    fleet: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    ovens = [Oven(node, monkeypatch) for node in fleet[:4]]
    for oven in ovens:
        oven.feed(95, 95, 95)
    assert [oven.state for oven in ovens] == ["suspect", "suspect", "ready", "ready"]
    trip = BreakerTrip.objects.get()
    assert (trip.scope, trip.scope_name, trip.node) == ("pool", "train", fleet[2])
    held = Finding.objects.get(node=fleet[3])
    assert held.held_reason.startswith("breaker pool train is tripped")


def test_a_tripped_breaker_waits_for_a_person(
    fleet: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    ovens = [Oven(node, monkeypatch) for node in fleet[:3]]
    for oven in ovens:
        oven.feed(95, 95, 95)
    for oven in ovens[:2]:
        oven.feed(70, 70, 70, 70)
    ovens[2].feed(95)
    assert ovens[2].state == "ready"
    trip = BreakerTrip.objects.get()
    with pytest.raises(Forbidden):
        services.breaker_reset(viewer=VIEWER, trip_id=trip.pk, reason="looked at it")
    services.breaker_reset(viewer=OPERATOR, trip_id=trip.pk, reason="looked at it")
    ovens[2].feed(95)
    assert ovens[2].state == "suspect"
    with pytest.raises(BreakerUnknown):
        services.breaker_reset(viewer=OPERATOR, trip_id=trip.pk, reason="again")


def new_policy(**heat_fields: Any) -> None:
    services.policy_create(viewer=OPERATOR, data={"heat": heat_fields}, note="for the test")
    selectors.forget_remembered()


def test_a_rule_that_only_observes_moves_nothing_and_says_so(oven: Oven) -> None:
    new_policy(mode="observe")
    oven.feed(95, 95, 95)
    assert oven.state == "ready"
    assert Finding.objects.get().held_reason == "the rule only observes under policy version 1"


def test_a_rule_that_is_off_finds_nothing(oven: Oven) -> None:
    new_policy(mode="off")
    oven.feed(95, 95, 95)
    assert (oven.state, Finding.objects.count()) == ("ready", 0)


def test_another_version_of_the_policy_has_other_limits(oven: Oven) -> None:
    new_policy(at_least=70, clear_below=60, heartbeats=1, seconds=0)
    oven.feed(71)
    assert oven.state == "suspect"


def test_a_node_that_a_person_holds_is_left_alone_by_the_rule(oven: Oven) -> None:
    services.node_cordon(viewer=OPERATOR, node=oven.node, reason="mine")
    oven.feed(95, 95, 95)
    assert (oven.state, Finding.objects.count()) == ("cordoned", 1)


def test_open_findings_are_those_of_the_viewers_cluster(oven: Oven) -> None:
    oven.feed(95, 95, 95)
    assert [f.node for f in selectors.open_findings(VIEWER)] == [oven.node]
    assert NodeState(oven.state) == NodeState.SUSPECT
