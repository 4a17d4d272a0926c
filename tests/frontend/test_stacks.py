"""Where a rank hung, on its incident's page."""

from __future__ import annotations

import pytest

from .scene import Scene
from .test_views import signed_in, text

pytestmark = pytest.mark.django_db


def test_the_stacks_of_a_rank_that_hung_are_on_the_page_as_text(scene: Scene) -> None:
    incident = scene.incidents["gpt-small-1"]
    client = signed_in("viewer")
    assert "Where it hung" not in text(client, f"/incidents/INC-{incident.pk}")

    stack = {
        "rank": 2,
        "node": "node-b",
        "at": "",
        "text": "train (train.py:7)\n<script>x</script>",
    }
    incident.evidence["stacks"] = [stack]
    incident.save()
    page = text(client, f"/incidents/INC-{incident.pk}")

    assert "Rank 2 on node-b" in page
    assert "train (train.py:7)\n&lt;script&gt;x&lt;/script&gt;" in page
