"""The one webhook sender: notices of the outbox become deliveries, deliveries are tried until taken.

Each POST carries ``Yoco-Delivery`` (its id, the same at every try), ``Yoco-Timestamp`` (unix seconds) and
``Yoco-Signature: v1=<hex>``, the HMAC-SHA256 of ``<timestamp>.<body>`` under the endpoint's secret.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Iterable
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import httpx
from django.apps import apps
from django.conf import settings
from django.db import transaction
from django.db.models import QuerySet

from . import clock
from .audit import audit
from .auth import Permission, Viewer, new_token, require
from .errors import Invalid
from .locks import advisory_lock
from .models import Cluster, Customer, OutboxNotice, WebhookDelivery, WebhookEndpoint

ATTEMPTS_MAX = 8
BACKOFF_S = (2, 10, 60, 300, 1800, 7200, 21600)
"""Wait after the first, second ... failed attempt; about nine hours in all."""
NOTICES_PER_PASS_MAX = 500
DELIVERIES_PER_ENDPOINT_MAX = 25
"""In one pass: others wait for it, since a pass is one thread under one lock."""
ANSWER_S = 5.0
CHART_KINDS = frozenset({"point", "points"})
"""Numbers for charts: nobody's webhook."""


@transaction.atomic
def webhook_create(
    *,
    viewer: Viewer,
    name: str,
    url: str,
    customer: Customer | None = None,
    cluster: Cluster | None = None,
    kinds: Iterable[str] = (),
    topics: Iterable[str] = (),
) -> WebhookEndpoint:
    """Raises ``Forbidden``, or ``Invalid`` when the address is no http(s) one."""
    require(viewer, Permission.WEBHOOK_MANAGE)
    if urlsplit(url).scheme not in {"http", "https"} or not urlsplit(url).hostname:
        raise Invalid("A webhook needs an http or https address.", url=url)
    endpoint = WebhookEndpoint.objects.create(
        name=name,
        url=url,
        secret=new_token("webhook"),
        customer=customer,
        cluster=cluster,
        kinds=sorted(kinds),
        topics=sorted(topics),
    )
    audit(viewer, "webhook.create", f"webhook:{endpoint.pk}", {"name": name, "url": url})
    return endpoint


def webhooks_send() -> int:
    """One pass: fan out new notices, try what is due. Returns how many were taken.

    An endpoint that fails is let alone for the rest of the pass, and none takes more than its share: one
    that is dead or slow must not keep the others waiting.
    """
    with advisory_lock("core.webhooks_send") as mine:
        if not mine:
            return 0
        webhooks_fan_out()
        waiting = WebhookDelivery.objects.filter(
            state=WebhookDelivery.State.WAITING, next_attempt_at__lte=clock.now()
        )
        endpoint_ids = list(
            waiting.order_by("endpoint").values_list("endpoint", flat=True).distinct()
        )
        if not endpoint_ids:
            return 0
        with httpx.Client(timeout=ANSWER_S, follow_redirects=False) as client:
            return sum(_try_endpoint(client, waiting.filter(endpoint=pk)) for pk in endpoint_ids)


@transaction.atomic
def webhooks_fan_out() -> int:
    """Make deliveries of notices that have none yet. Returns how many notices it took.

    A flag on the notice, not a cursor over ids: transactions commit out of the order of their ids.
    """
    notices = list(
        OutboxNotice.objects.select_for_update(skip_locked=settings.SQLITE is False)
        .filter(fanned_out_at=None)
        .order_by("id")[:NOTICES_PER_PASS_MAX]
    )
    if not notices:
        return 0
    endpoints = list(WebhookEndpoint.objects.filter(is_active=True))
    now = clock.now()
    WebhookDelivery.objects.bulk_create(
        WebhookDelivery(
            endpoint=endpoint, notice_id=notice.pk, body=_body(notice), next_attempt_at=now
        )
        for notice in notices
        if endpoints and notice.kind not in CHART_KINDS
        for endpoint in endpoints
        if _wants(endpoint, notice)
    )
    OutboxNotice.objects.filter(pk__in=[notice.pk for notice in notices]).update(fanned_out_at=now)
    return len(notices)


def _wants(endpoint: WebhookEndpoint, notice: OutboxNotice) -> bool:
    if endpoint.kinds and notice.kind not in endpoint.kinds:
        return False
    if endpoint.topics and not notice.topic.startswith(tuple(endpoint.topics)):
        return False
    if endpoint.customer_id is None and endpoint.cluster_id is None:
        return True
    customer_id, cluster_id = owner_of(notice.topic)
    return (endpoint.customer_id is None or endpoint.customer_id == customer_id) and (
        endpoint.cluster_id is None or endpoint.cluster_id == cluster_id
    )


def owner_of(topic: str) -> tuple[int | None, int | None]:
    """Customer and cluster of what a topic is about; (None, None) when it has no owner."""
    prefix, _, number = topic.partition(":")
    table = settings.TOPIC_TABLES.get(prefix)
    if table is None or not (number.isascii() and number.isdigit()):
        return None, None
    row: Any = apps.get_model(table).objects.filter(pk=int(number)).first()
    if isinstance(row, Customer):
        return row.pk, None
    return getattr(row, "customer_id", None), getattr(row, "cluster_id", None)


def _body(notice: OutboxNotice) -> str:
    return json.dumps(
        {
            "id": notice.pk,
            "topic": notice.topic,
            "kind": notice.kind,
            "at": notice.at.isoformat().replace("+00:00", "Z"),
            "data": notice.data,
        },
        separators=(",", ":"),
        sort_keys=True,
    )


def signature(secret: str, timestamp: int, body: str) -> str:
    """What ``Yoco-Signature`` must be; a receiver compares it in constant time."""
    mac = hmac.new(secret.encode(), f"{timestamp}.{body}".encode(), hashlib.sha256)
    return f"v1={mac.hexdigest()}"


def _try_endpoint(client: httpx.Client, due: QuerySet[WebhookDelivery]) -> int:
    """Deliveries of one endpoint, oldest first, until one is not taken. Returns how many were."""
    taken = 0
    for delivery in due.select_related("endpoint")[:DELIVERIES_PER_ENDPOINT_MAX]:
        if not _try_once(client, delivery):
            break
        taken += 1
    return taken


def _try_once(client: httpx.Client, delivery: WebhookDelivery) -> bool:
    endpoint = delivery.endpoint
    timestamp = int(clock.now().timestamp())
    delivery.attempts += 1
    try:
        answer = client.post(
            endpoint.url,
            content=delivery.body,
            headers={
                "Content-Type": "application/json",
                "Yoco-Delivery": str(delivery.pk),
                "Yoco-Timestamp": str(timestamp),
                "Yoco-Signature": signature(endpoint.secret, timestamp, delivery.body),
            },
        )
        delivery.last_status, delivery.last_error = answer.status_code, ""
        taken = answer.is_success
    except httpx.HTTPError as error:
        delivery.last_status, delivery.last_error = None, f"{type(error).__name__}: {error}"
        taken = False
    _settle(delivery, taken)
    return taken


def _settle(delivery: WebhookDelivery, taken: bool) -> None:
    now = clock.now()
    if taken:
        delivery.state, delivery.ended_at = WebhookDelivery.State.DELIVERED, now
    elif delivery.attempts >= ATTEMPTS_MAX:
        delivery.state, delivery.ended_at = WebhookDelivery.State.GIVEN_UP, now
    else:
        wait_s = BACKOFF_S[min(delivery.attempts, len(BACKOFF_S)) - 1]
        delivery.next_attempt_at = now + timedelta(seconds=wait_s)
    delivery.save()
