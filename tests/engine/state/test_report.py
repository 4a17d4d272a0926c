"""The report at start: sizes by kind, sources by redundancy, and what was handed over by nobody."""

from __future__ import annotations

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader

from agent.protocol import StatePart
from agent.training.report import WORDS_MAX, inventory_of, table_of
from agent.training.seen import strangers

from .rig import WIDTH, Run, build
from .test_continuity import adamw


def parts(run: Run, redundancy: str = "replica") -> dict[str, StatePart]:
    return {part.kind: part for part in inventory_of(run.state, redundancy, "redo", []).parts}


def test_sizes_are_those_of_the_tensors() -> None:
    run = build(0, adamw)
    assert "optimizer state" not in parts(run)
    run.step()
    found = parts(run)
    assert found["frozen parameters"].size_bytes == 4 * (WIDTH * WIDTH + WIDTH)
    # Two moments of each trained weight, and a step counter of each tensor.
    trained = [p for p in run.model.parameters() if p.requires_grad]
    moments = sum(2 * 4 * p.numel() + 4 for p in trained)
    assert found["optimizer state"].names == ["AdamW"]
    assert found["optimizer state"].size_bytes == moments
    assert found["parameters"].size_bytes == sum(4 * p.numel() for p in trained)
    assert found["generators"].names[:3] == ["python", "numpy", "torch"]


def test_the_sources_follow_the_redundancy() -> None:
    run = build(0, adamw)
    run.state.world_size = 3
    kept, alone = parts(run, "replica"), parts(run, "shadow")
    assert kept["parameters"].sources == ["custody", "replica"]
    assert kept["parameters"].survives_node == ["replica"]
    assert kept["generators"].survives_node == ["buddy"]
    assert alone["parameters"].sources == ["custody", "shadow"]
    assert alone["parameters"].survives_node == alone["generators"].survives_node == []


def test_a_tensor_that_is_no_buffer_is_named() -> None:
    run = build(0, adamw)
    run.model.loose = torch.ones(3)
    assert (
        "m0.loose is a tensor but no buffer"
        in inventory_of(run.state, "replica", "redo", []).not_recognised
    )


def test_what_the_script_did_not_hand_over_is_named_by_its_variable() -> None:
    run = build(0, adamw)
    ema = nn.Linear(2, 2)
    second = torch.optim.SGD(ema.parameters(), lr=0.1)
    noise = torch.Generator()
    held_out = DataLoader([1, 2])
    words = strangers(run.state, sys._getframe())
    assert "ema (Linear) was not handed over" in words
    assert "second (SGD) was not handed over" in words
    assert "noise (Generator) was not handed over" in words
    assert "held_out (DataLoader) was not handed over" in words
    assert (second, noise, held_out) is not None


def test_what_was_handed_over_and_what_holds_nothing_is_not_named() -> None:
    run = build(0, adamw)
    model, optimizer, activation = run.model, run.optimizer, nn.ReLU()
    words = " ".join(strangers(run.state, sys._getframe()))
    for name in ("model", "optimizer", "activation"):
        assert f"{name} (" not in words
    assert (model, optimizer, activation) is not None


def test_an_optimizer_that_no_name_leads_to_is_seen() -> None:
    run = build(0, adamw)
    hidden = [torch.optim.Rprop([nn.Parameter(torch.ones(2))])]
    assert "an object of class Rprop was not handed over" in strangers(run.state, sys._getframe())
    assert hidden


def test_a_long_report_is_cut_and_says_how_much_was_left_out() -> None:
    run = build(0, adamw)
    for index in range(WORDS_MAX + 5):
        setattr(run.model, f"loose{index}", torch.ones(1))
    words = inventory_of(run.state, "replica", "redo", []).not_recognised
    assert len(words) == WORDS_MAX + 1
    assert words[-1].startswith("and ")


def test_the_table_has_a_line_for_each_part_and_each_doubt() -> None:
    report = inventory_of(build(0, adamw).state, "shadow", "redo", ["x (Y) was not handed over"])
    lines = table_of(report)
    assert len(lines) == 1 + len(report.parts) + len(report.not_recognised)
    assert "node lost: a checkpoint" in lines[1]
