"""The embedded broker wakes its reader, loses nothing, and lets go at once when it is closed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from .processes import ROOT, environment

# A process of its own: Celery's worker threads look their tasks up in the process's one app.
PROGRAM = """
import json, threading, time
import django; django.setup()
from yoco_platform.celery import app
from yoco_platform.embedded import start_celery

SENT, TASKS = {}, 60
seen, all_seen = {}, threading.Event()

@app.task(name="test.note")
def note(number):
    seen[number] = time.monotonic()
    if len(seen) == TASKS:
        all_seen.set()

stop = start_celery()
for number in range(TASKS):
    SENT[number] = time.monotonic()
    app.send_task("test.note", [number])
    threading.Event().wait(0.01)
all_seen.wait(30)
waits = sorted(seen[number] - SENT[number] for number in seen)
began = time.monotonic()
stop()
print(json.dumps({"seen": sorted(seen), "waits": waits, "stop_s": time.monotonic() - began}))
"""


@pytest.mark.e2e
def test_tasks_start_at_once_none_is_lost_and_stopping_takes_no_polling_interval(
    tmp_path: Path,
) -> None:
    told = environment(tmp_path, DJANGO_SETTINGS_MODULE="yoco_platform.settings")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=ROOT,
        env=told,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["seen"] == list(range(60))
    # kombu's own transport sleeps a second between two looks; half of that would mean it is back.
    assert said["waits"][30] < 0.5
    assert said["stop_s"] < 5.0
