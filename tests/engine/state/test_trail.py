"""The trail: what it remembers of itself, and that a copy of it goes on as it would have."""

from __future__ import annotations

from agent.training.trail import MARKS_MAX, Trail
from agent.transfer.arena import MARK_EVERY


def walked(steps: int, trail: Trail | None = None) -> tuple[Trail, dict[int, str]]:
    """A trail some steps further, and its head after each of them."""
    trail, heads = trail or Trail(), {}
    for _ in range(steps):
        trail.saw_batch(f"batch {trail.step + 1}")
        trail.commit(trail.step + 1)
        heads[trail.step] = trail.head
    return trail, heads


def test_its_marks_are_its_heads_at_every_sixteenth_step() -> None:
    trail, heads = walked(3 * MARK_EVERY + 5)
    assert trail.marks() == {str(n * MARK_EVERY): heads[n * MARK_EVERY] for n in (1, 2, 3)}


def test_old_marks_are_forgotten() -> None:
    trail, heads = walked((MARKS_MAX + 2) * MARK_EVERY)
    kept = [n * MARK_EVERY for n in range(3, MARKS_MAX + 3)]
    assert trail.marks() == {str(step): heads[step] for step in kept}


def test_a_copy_has_its_marks_and_goes_on_as_the_trail_itself() -> None:
    trail, _heads = walked(2 * MARK_EVERY + 3)
    copy = Trail()
    copy.load_state_dict(trail.state_dict())
    assert copy.marks() == trail.marks()
    assert walked(MARK_EVERY, copy)[1] == walked(MARK_EVERY, trail)[1]
    assert copy.marks() == trail.marks()


def test_a_trail_that_went_another_way_has_other_marks() -> None:
    trail, other = walked(MARK_EVERY)[0], Trail()
    other.saw_batch("another batch")
    other.commit(1)
    assert walked(MARK_EVERY - 1, other)[0].marks() != trail.marks()
