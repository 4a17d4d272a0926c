"""What JSON can say and no table can hold: refused in words, and the refusal can be read."""

from __future__ import annotations

import json
from typing import Any

import pytest

from jobs.models import Job

from .test_apis import asked, scheduler
from .world import World

pytestmark = pytest.mark.django_db


def written(**fields: str) -> bytes:
    """A submission as JSON text, with fields written exactly as given."""
    known = json.dumps(asked())[:-1]
    return (
        known + "".join(f', "{name}": {value}' for name, value in fields.items()) + "}"
    ).encode()


@pytest.mark.parametrize(
    ("body", "code"),
    [
        pytest.param(written(environment=r'{"\ud800": "x"}'), "malformed", id="variable"),
        pytest.param(written(environment=r'{"A": "\ud800"}'), "malformed", id="its value"),
        pytest.param(written(limits=r'{"\ud800": 1.0}'), "malformed", id="limit"),
        pytest.param(written(name=r'"\ud800"'), "malformed", id="name"),
        pytest.param(written(pool=r'"\udfff"'), "malformed", id="pool"),
        pytest.param(written(command=r'["python", "\ud800"]'), "malformed", id="word"),
        pytest.param(written(working_directory=r'"/\ud800"'), "malformed", id="folder"),
        pytest.param(written(**{r"\ud800": "1"}), "malformed", id="field"),
        pytest.param(written(environment=r'{"A\u0000": "x"}'), "invalid_field", id="zero"),
        pytest.param(written(limits=r'{"a\u0000": 1.0}'), "invalid_field", id="zero limit"),
        pytest.param(written(limits='{"blocked_s": 1e308}'), "invalid_field", id="for ever"),
        pytest.param(written(limits='{"join_s": 604801}'), "invalid_field", id="over a week"),
        pytest.param(written(limits='{"join_s": NaN}'), "malformed", id="no number"),
        pytest.param(written(limits='{"join_s": Infinity}'), "malformed", id="no end"),
    ],
)
def test_what_cannot_be_stored_is_refused(world: World, body: bytes, code: str) -> None:
    response: Any = scheduler(world).post("/api/v1/jobs", body, content_type="application/json")

    assert (response.status_code, response.json()["code"]) == (
        400 if code == "malformed" else 422,
        code,
    )
    assert not Job.objects.exists()


def test_a_week_is_a_limit(world: World) -> None:
    body = written(limits='{"join_s": 604800}')
    response: Any = scheduler(world).post("/api/v1/jobs", body, content_type="application/json")

    assert response.status_code == 201


@pytest.mark.parametrize(
    "path",
    [
        "incidents?job_id=999999999999999999999999",
        "incidents?before=999999999999999999999999",
        "jobs?before=999999999999999999999999",
        "migrations?job_id=999999999999999999999999",
        "migrations?incident_id=999999999999999999999999",
    ],
)
def test_a_number_that_no_row_can_have_is_refused(world: World, path: str) -> None:
    response = scheduler(world).get(f"/api/v1/{path}")

    assert (response.status_code, response.json()["code"]) == (422, "invalid_field")


@pytest.mark.parametrize(
    "query",
    ["points?after_step=999999999999999999999999", "digests?step=999999999999999999999999"],
)
def test_a_step_that_no_job_can_reach_is_refused(world: World, query: str) -> None:
    job = world.submit()
    response = scheduler(world).get(f"/api/v1/jobs/{job.pk}/{query}")

    assert (response.status_code, response.json()["code"]) == (422, "invalid_field")
