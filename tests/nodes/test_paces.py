"""The rule slow rank: who is slower than its peers by own work, as a table, and the findings it makes."""

from __future__ import annotations

import math
import random
import statistics

import pytest

from nodes import services
from nodes.models import Finding, Node
from nodes.paces import Pace, pace_words, paces_judged
from nodes.policies import PaceRule, policy_problems
from nodes.policies import Policy as HealthPolicy
from nodes.services import nodes_advance
from yoco_platform.core.models import Cluster

from .machines import make_node

RULE = PaceRule(score_below=0.75, clear_above=0.85, reports=3, peers_min=2, own_ms_min=5.0)
STEADY = (100.0, 101.0, 99.0)

# (what, reports newest first, expected: rank -> verdict)
CASES = [
    ("alike", {0: STEADY, 1: STEADY, 2: STEADY}, {0: "well", 1: "well", 2: "well"}),
    ("one slow", {0: STEADY, 1: (140.0, 150.0, 160.0), 2: STEADY}, {0: "well", 1: "slow", 2: "well"}),
    ("slow in two of three", {0: STEADY, 1: (150.0, 150.0, 104.0), 2: STEADY}, {1: "between"}),
    ("slow once", {0: STEADY, 1: (500.0, 100.0, 100.0), 2: STEADY}, {1: "between"}),
    ("a little slow", {0: STEADY, 1: (125.0, 125.0, 125.0), 2: STEADY}, {1: "between"}),
    ("at the limit", {0: (75.0,) * 3, 1: (100.0,) * 3, 2: (75.0,) * 3}, {1: "between"}),
    ("quicker than all", {0: STEADY, 1: (40.0, 40.0, 40.0), 2: STEADY}, {0: "well", 1: "well"}),
    ("two of four slow", {0: STEADY, 1: (150.0,) * 3, 2: (150.0,) * 3, 3: STEADY}, {1: "slow", 2: "slow"}),
    ("steps too short to tell", {0: (1.0,) * 3, 1: (4.0,) * 3, 2: (1.0,) * 3}, {1: "between"}),
    ("one peer is none", {0: STEADY, 1: (500.0, 500.0, 500.0)}, {}),
    ("too few reports", {0: STEADY, 1: (500.0, 500.0), 2: STEADY}, {}),
    ("old reports do not count", {0: STEADY, 1: (*STEADY, 500.0, 500.0), 2: STEADY}, {1: "well"}),
]  # fmt: skip


@pytest.mark.parametrize(("reports", "expected"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_a_rank_is_slow_beside_its_peers_in_enough_reports(
    reports: dict[int, tuple[float, ...]], expected: dict[int, str]
) -> None:
    judged = {pace.rank: pace.is_ for pace in paces_judged(reports, RULE)}
    assert {rank: judged[rank] for rank in expected} == expected
    assert bool(judged) == bool(expected)


class Told(float):
    """Counts how often two of its kind are compared."""

    compared = 0

    def __lt__(self, other: float) -> bool:
        Told.compared += 1
        return float(self) < float(other)

    def __le__(self, other: float) -> bool:
        Told.compared += 1
        return float(self) <= float(other)


def told(num_ranks: int) -> dict[int, list[Told]]:
    draw = random.Random(num_ranks)
    return {
        rank: [Told(draw.choice((100.0, 100.5, draw.uniform(80.0, 200.0)))) for _ in range(3)]
        for rank in range(num_ranks)
    }


@pytest.mark.parametrize("num_ranks", [3, 4, 5, 8, 33])
def test_peers_are_all_others_one_by_one(num_ranks: int) -> None:
    reports = told(num_ranks)
    peers = {
        rank: statistics.median_high(float(own[0]) for r, own in reports.items() if r != rank)
        for rank in reports
    }
    assert {pace.rank: pace.peers_ms for pace in paces_judged(reports, RULE)} == peers


def test_judging_is_no_more_work_than_sorting() -> None:
    num_ranks, reports = 512, told(512)
    Told.compared = 0
    assert len(paces_judged(reports, RULE)) == num_ranks
    assert 0 < Told.compared < 3 * num_ranks * (math.log2(num_ranks) + 8)


def test_the_figures_are_those_of_the_last_report() -> None:
    judged = paces_judged({0: STEADY, 1: (160.0, 150.0, 140.0), 2: STEADY}, RULE)
    pace = judged[1]
    assert pace == Pace(1, 160.0, 100.0, 0.625, "slow")
    assert pace_words(pace, RULE) == (
        "rank 1 was at work 160.0 ms a step, its peers 100.0 ms in the median, waiting for others left out: "
        "score 0.62, below 0.75 in 3 reports in a row"
    )


@pytest.mark.parametrize(
    "rule", [PaceRule(score_below=0.9), PaceRule(reports=0), PaceRule(peers_min=0), PaceRule(score_below=0)]
)  # fmt: skip
def test_a_rule_that_contradicts_itself_is_refused(rule: PaceRule) -> None:
    assert len(policy_problems(HealthPolicy(pace=rule))) == 1
    assert policy_problems(HealthPolicy()) == []


@pytest.fixture
def node(cluster: Cluster) -> Node:
    return make_node(cluster)


SLOW, WELL = Pace(1, 160.0, 100.0, 0.625, "slow"), Pace(1, 101.0, 100.0, 0.99, "well")
BETWEEN = Pace(1, 130.0, 100.0, 0.77, "between")


@pytest.mark.django_db
def test_a_finding_opens_once_grows_and_clears_and_moves_nothing(node: Node) -> None:
    for pace in (BETWEEN, SLOW, SLOW, BETWEEN):
        services.paces_found(job_id=7, paces=[(node.pk, pace)], rule=RULE)
    nodes_advance()
    finding = Finding.objects.get()
    node.refresh_from_db()

    assert (finding.check_name, finding.entity, finding.action) == (
        "slow_rank", "job 7, rank 1", "observe",
    )  # fmt: skip
    assert (finding.count, finding.cleared_at, node.state) == (2, None, "ready")
    assert finding.evidence[0] == pace_words(SLOW, RULE)
    services.paces_found(job_id=7, paces=[(node.pk, WELL)], rule=RULE)
    finding.refresh_from_db()
    assert finding.cleared_at is not None
    assert finding.evidence[-1] == "score 0.99: as quick as its peers again"


@pytest.mark.django_db
def test_a_finding_of_a_rank_that_moved_or_a_job_that_ended_clears_and_no_other(node: Node) -> None:
    other = make_node(node.cluster)
    for job_id in (7, 8, 71):
        services.paces_found(job_id=job_id, paces=[(node.pk, SLOW)], rule=RULE)
    services.paces_found(job_id=7, paces=[(other.pk, SLOW)], rule=RULE)
    services.paces_forgotten(job_id=8, words="the job is finished")

    still = Finding.objects.filter(cleared_at__isnull=True)
    assert {(f.node_id, f.entity) for f in still} == {
        (other.pk, "job 7, rank 1"), (node.pk, "job 71, rank 1"),
    }  # fmt: skip
    assert Finding.objects.get(entity="job 8, rank 1").evidence[-1] == "the job is finished"
