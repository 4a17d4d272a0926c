"""A bell rings after the commit, once for all who rang, and never for what was rolled back."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import transaction

from yoco_platform.core import bells
from yoco_platform.core.courier import courier


@pytest.fixture
def rung(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    names: list[str] = []
    monkeypatch.setattr(bells, "ring", names.append)
    return names


@pytest.mark.django_db(transaction=True)
def test_repeats_in_one_transaction_ring_once_and_only_after_the_commit(rung: list[str]) -> None:
    with transaction.atomic():
        for _ in range(5):
            bells.ring_on_commit("jobs.reconcile")
        bells.ring_on_commit("core.prune")
        assert rung == []
    assert rung == ["jobs.reconcile", "core.prune"]


@pytest.mark.django_db(transaction=True)
def test_a_rolled_back_transaction_rings_nothing(rung: list[str]) -> None:
    with pytest.raises(RuntimeError), transaction.atomic():
        bells.ring_on_commit("jobs.reconcile")
        raise RuntimeError
    assert rung == []


@pytest.mark.django_db(transaction=True)
def test_a_ring_after_a_rolled_back_savepoint_is_not_lost(rung: list[str]) -> None:
    with transaction.atomic():
        with pytest.raises(RuntimeError), transaction.atomic():
            bells.ring_on_commit("jobs.reconcile")
            raise RuntimeError
        bells.ring_on_commit("jobs.reconcile")
    assert rung == ["jobs.reconcile"]


@pytest.mark.django_db(transaction=True)
def test_outside_a_transaction_a_bell_rings_at_once(rung: list[str]) -> None:
    bells.ring_on_commit("jobs.reconcile")
    assert rung == ["jobs.reconcile"]


def test_a_broker_that_refuses_does_not_reach_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise ConnectionRefusedError

    monkeypatch.setattr(courier, "_quiet_s", 0.0)
    monkeypatch.setattr("celery.app.base.Celery.send_task", refuse)
    before = courier.dropped
    bells.ring("jobs.reconcile")
    assert courier.flush()
    assert courier.dropped == before + 1
