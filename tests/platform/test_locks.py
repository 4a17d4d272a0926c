"""One pass at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from django.db import connection, transaction

from yoco_platform.core.locks import advisory_lock


def _in_another_thread(function: Callable[[], object]) -> object:
    """Run on a thread of its own, hence on a database connection of its own."""
    result: list[object] = []

    def run() -> None:
        try:
            result.append(function())
        finally:
            connection.close()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(10)
    return result[0]


def _try(name: str) -> bool:
    with advisory_lock(name) as taken:
        return taken


pytestmark = pytest.mark.django_db(transaction=True)


def test_a_second_connection_is_refused_while_the_first_holds_the_lock() -> None:
    with advisory_lock("pass") as first:
        assert first is True
        assert _in_another_thread(lambda: _try("pass")) is False


def test_another_name_is_another_lock() -> None:
    with advisory_lock("pass"):
        assert _in_another_thread(lambda: _try("other")) is True


def test_the_lock_is_free_again_after_the_pass() -> None:
    with advisory_lock("pass"):
        pass
    assert _in_another_thread(lambda: _try("pass")) is True


def test_the_lock_is_free_again_after_a_pass_that_raised() -> None:
    with pytest.raises(ZeroDivisionError), advisory_lock("pass"):
        1 / 0  # noqa: B018
    assert _in_another_thread(lambda: _try("pass")) is True


def test_the_lock_is_free_again_after_a_pass_that_closed_its_connection() -> None:
    with advisory_lock("pass"):
        connection.close()
    assert _in_another_thread(lambda: _try("pass")) is True


def test_the_lock_outlives_a_transaction_that_fails_inside_it() -> None:
    with advisory_lock("pass") as taken:
        with pytest.raises(RuntimeError), transaction.atomic():
            raise RuntimeError
        assert taken is True
        assert _in_another_thread(lambda: _try("pass")) is False
    assert _in_another_thread(lambda: _try("pass")) is True
