"""Notices become signed POSTs to whoever may see them, tried until they are taken. Real sockets."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from yoco_platform.core import clock, webhooks
from yoco_platform.core.auth import Role, Viewer
from yoco_platform.core.errors import Forbidden, Invalid
from yoco_platform.core.models import OutboxNotice, WebhookDelivery, WebhookEndpoint
from yoco_platform.core.realtime import publish_on_commit
from yoco_platform.core.retention import prune

from .cast import make_customer

pytestmark = pytest.mark.django_db(transaction=True)
ADMIN = Viewer(name="root", role=Role.ADMIN)


class Receiver:
    """A web server on loopback that answers with the statuses it was given, then with 204."""

    def __init__(self) -> None:
        self.answers: list[int] = []
        self.requests: list[tuple[dict[str, str], str]] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                receiver.requests.append((dict(self.headers), body))
                self.send_response(receiver.answers.pop(0) if receiver.answers else 204)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/hook"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    one = Receiver()
    thread = threading.Thread(target=one.server.serve_forever)
    thread.start()
    yield one
    one.server.shutdown()
    one.server.server_close()
    thread.join()


def _make_due() -> None:
    WebhookDelivery.objects.update(next_attempt_at=clock.now() - timedelta(seconds=1))


def test_a_notice_arrives_signed(receiver: Receiver) -> None:
    endpoint = webhooks.webhook_create(viewer=ADMIN, name="slurm", url=receiver.url)
    notice = publish_on_commit("job:7", "state", {"state": "running"})
    assert webhooks.webhooks_send() == 1
    headers, body = receiver.requests[0]
    assert json.loads(body)["id"] == notice.pk
    assert json.loads(body)["data"] == {"state": "running"}
    timestamp = int(headers["Yoco-Timestamp"])
    assert headers["Yoco-Signature"] == webhooks.signature(endpoint.secret, timestamp, body)
    assert headers["Yoco-Signature"] != webhooks.signature("other", timestamp, body)
    assert webhooks.webhooks_send() == 0
    assert len(receiver.requests) == 1


def test_a_refused_delivery_waits_and_is_tried_again_under_the_same_id(receiver: Receiver) -> None:
    receiver.answers = [500]
    webhooks.webhook_create(viewer=ADMIN, name="slurm", url=receiver.url)
    publish_on_commit("job:7", "state")
    assert webhooks.webhooks_send() == 0
    delivery = WebhookDelivery.objects.get()
    assert (delivery.state, delivery.attempts, delivery.last_status) == ("waiting", 1, 500)
    assert delivery.next_attempt_at > clock.now()
    assert webhooks.webhooks_send() == 0
    assert len(receiver.requests) == 1
    _make_due()
    assert webhooks.webhooks_send() == 1
    ids = [headers["Yoco-Delivery"] for headers, _ in receiver.requests]
    assert ids == [str(delivery.pk)] * 2


def test_an_endpoint_that_never_answers_is_given_up(receiver: Receiver) -> None:
    webhooks.webhook_create(viewer=ADMIN, name="gone", url="http://127.0.0.1:1/")
    publish_on_commit("job:7", "state")
    for _ in range(webhooks.ATTEMPTS_MAX):
        webhooks.webhooks_send()
        _make_due()
    delivery = WebhookDelivery.objects.get()
    assert (delivery.state, delivery.attempts) == ("given_up", webhooks.ATTEMPTS_MAX)
    assert "ConnectError" in delivery.last_error
    webhooks.webhooks_send()
    assert WebhookDelivery.objects.get().attempts == webhooks.ATTEMPTS_MAX


def test_a_dead_endpoint_costs_one_try_a_pass_and_nobody_else_anything(receiver: Receiver) -> None:
    dead = webhooks.webhook_create(viewer=ADMIN, name="dead", url="http://127.0.0.1:1/")
    for number in range(150):
        publish_on_commit(f"job:{number}", "state")
    webhooks.webhooks_fan_out()
    alive = webhooks.webhook_create(viewer=ADMIN, name="alive", url=receiver.url)
    for number in range(3):
        publish_on_commit(f"job:{number}", "state")
    assert webhooks.webhooks_send() == 3
    tried = WebhookDelivery.objects.filter(attempts__gt=0)
    assert tried.filter(endpoint=dead).count() == 1
    assert tried.filter(endpoint=alive).count() == 3


def test_no_endpoint_takes_more_than_its_share_of_a_pass(receiver: Receiver) -> None:
    webhooks.webhook_create(viewer=ADMIN, name="slow", url=receiver.url)
    share = webhooks.DELIVERIES_PER_ENDPOINT_MAX
    for number in range(share + 1):
        publish_on_commit(f"job:{number}", "state")
    assert [webhooks.webhooks_send(), webhooks.webhooks_send()] == [share, 1]


def test_a_customers_endpoint_hears_of_that_customer_alone(receiver: Receiver) -> None:
    mine, theirs = make_customer("mine"), make_customer("theirs")
    webhooks.webhook_create(viewer=ADMIN, name="mine", url=receiver.url, customer=mine)
    for topic in (f"guarantee:{mine.pk}", f"guarantee:{theirs.pk}", "overview", "job:999999"):
        publish_on_commit(topic, "changed")
    assert webhooks.webhooks_send() == 1
    assert json.loads(receiver.requests[0][1])["topic"] == f"guarantee:{mine.pk}"


def test_kinds_and_topics_narrow_what_is_sent_and_chart_points_never_are(
    receiver: Receiver,
) -> None:
    webhooks.webhook_create(
        viewer=ADMIN, name="n", url=receiver.url, kinds=["state"], topics=["job:"]
    )
    for topic, kind in [("job:1", "state"), ("job:1", "step"), ("node:1", "state")]:
        publish_on_commit(topic, kind)
    WebhookEndpoint.objects.update(kinds=["state", "point"])
    publish_on_commit("job:1", "point")
    webhooks.webhooks_send()
    sent = [json.loads(body) for _, body in receiver.requests]
    assert [(one["topic"], one["kind"]) for one in sent] == [("job:1", "state")]
    assert OutboxNotice.objects.filter(fanned_out_at=None).count() == 0


def test_only_an_administrator_makes_one_and_only_of_a_web_address() -> None:
    with pytest.raises(Forbidden):
        webhooks.webhook_create(
            viewer=Viewer(name="v", role=Role.VIEWER), name="n", url="http://127.0.0.1/"
        )
    with pytest.raises(Invalid):
        webhooks.webhook_create(viewer=ADMIN, name="n", url="file:///etc/passwd")
    assert WebhookEndpoint.objects.count() == 0


def test_old_notices_go_once_they_were_fanned_out() -> None:
    publish_on_commit("job:1", "old")
    publish_on_commit("job:1", "new")
    OutboxNotice.objects.filter(kind="old").update(at=clock.now() - timedelta(days=8))
    assert prune() == 0
    webhooks.webhooks_fan_out()
    assert prune() == 1
    assert OutboxNotice.objects.get().kind == "new"
