"""A run that goes on from its own checkpoint equals one that was never broken, bit for bit."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ..engine.harness import Hatchery, Story, run_twin
from .conftest import SCRIPT, Twin, environment

pytestmark = pytest.mark.timeout(240)
STEPS, SAVED, RANKS = 25, 12, 3
"""the data has ten batches an epoch: the checkpoint lies in the middle of the second one"""
ARGUMENTS = f"{STEPS} checkpoints 4"


def begun_again(
    hatchery: Hatchery, unbroken: Path, folder: Path, arguments: str = ARGUMENTS, **changed: str
) -> Story:
    """The same script started anew, where an unbroken run had got as far as its checkpoint."""
    kept = f"checkpoints/step-{SAVED}"
    shutil.copytree(unbroken / kept, folder / kept)
    its = {**environment("checkpoint", arguments), **changed}
    return run_twin(hatchery, folder, SCRIPT, ranks=RANKS, environment=its)


def rest_of(story: Story) -> Story:
    """What an unbroken run did after the checkpoint."""
    return Story(
        {key: told for key, told in story.digests.items() if key[1] > SAVED},
        {key: told for key, told in story.commits.items() if key[1] > SAVED},
    )


def test_a_run_from_its_checkpoint_equals_the_unbroken_one(
    example_hatchery: Hatchery, twin: Twin, tmp_path: Path
) -> None:
    unbroken = twin(RANKS, "checkpoint", ARGUMENTS)
    again = begun_again(example_hatchery, unbroken.folder, tmp_path)
    # Digest of the whole state, trail, loss and batch of every rank at every step.
    assert len(again.digests) == len(again.commits) == RANKS * (STEPS - SAVED)
    assert again == rest_of(unbroken.story)


@pytest.mark.parametrize("part", ["loaders", "generators", "schedulers"])
def test_without_one_part_it_does_not(
    example_hatchery: Hatchery, twin: Twin, tmp_path: Path, part: str
) -> None:
    unbroken = twin(RANKS, "checkpoint", ARGUMENTS)
    again = begun_again(example_hatchery, unbroken.folder, tmp_path, JOB_FORGETS=part)
    expected = rest_of(unbroken.story)
    assert again.digests.keys() == expected.digests.keys()
    assert all(again.digests[key] != expected.digests[key] for key in expected.digests)
    same_batches = {
        key for key, told in again.commits.items() if told[2] == expected.commits[key][2]
    }
    assert (same_batches == expected.commits.keys()) == (part != "loaders")
