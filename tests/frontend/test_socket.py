"""The socket: who may hear what, what is replayed, what happens to one that misbehaves."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from channels.testing import WebsocketCommunicator
from django.conf import settings
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
from django.contrib.sessions.backends.db import SessionStore
from django.db import transaction

from frontend import consumers, notices
from frontend.topics import topics_allowed
from yoco_platform.asgi import application
from yoco_platform.core.auth import viewer_of_user
from yoco_platform.core.models import OutboxNotice, User
from yoco_platform.core.realtime import publish_on_commit

from .scene import Scene, make_scene

pytestmark = pytest.mark.django_db(transaction=True)
HOST = b"http://127.0.0.1:8000"


@pytest.fixture
def scene(transactional_db: None) -> Scene:
    return make_scene()


def cookie_of(user: User) -> bytes:
    session = SessionStore()
    session[SESSION_KEY] = str(user.pk)
    session[BACKEND_SESSION_KEY] = "django.contrib.auth.backends.ModelBackend"
    session[HASH_SESSION_KEY] = user.get_session_auth_hash()
    session.save()
    return f"{settings.SESSION_COOKIE_NAME}={session.session_key}".encode()


async def tab(user: User | None, origin: bytes | None = HOST) -> WebsocketCommunicator:
    headers = [(b"host", b"127.0.0.1:8000")]
    if origin is not None:
        headers.append((b"origin", origin))
    if user is not None:
        headers.append((b"cookie", await sync_to_async(cookie_of)(user)))
    return WebsocketCommunicator(application, "/ws/live", headers=headers, subprotocols=["v1"])


async def opened(user: User) -> WebsocketCommunicator:
    one = await tab(user)
    connected, subprotocol = await one.connect(timeout=10)
    assert (connected, subprotocol) == (True, "v1")
    return one


async def hear(one: WebsocketCommunicator) -> dict[str, Any]:
    """The next message that is not a beat."""
    while True:
        message: dict[str, Any] = json.loads(await one.receive_from(timeout=10))
        if "beat" not in message:
            return message


async def subscribed(user: User, topics: list[str], since: int | None = None) -> tuple[Any, Any]:
    one = await opened(user)
    request: dict[str, Any] = {"sub": topics}
    if since is not None:
        request["since"] = since
    await one.send_to(json.dumps(request))
    return one, (await hear(one))["hello"]


@transaction.atomic
def publish(topic: str, kind: str = "step", **data: Any) -> int:
    return publish_on_commit(topic, kind, data).pk


async def test_news_of_a_topic_arrives_with_its_number(scene: Scene) -> None:
    topic = f"job:{scene.jobs['gpt-small'].pk}"
    one, hello = await subscribed(scene.users["viewer"], [topic])
    assert hello["topics"] == [topic]
    number = await sync_to_async(publish)(topic, "step", step=7)
    notice = await hear(one)
    assert {key: notice[key] for key in "ntkd"} == {
        "n": number,
        "t": topic,
        "k": "step",
        "d": {"step": 7},
    }
    await one.disconnect()


async def test_news_of_another_topic_does_not_arrive(scene: Scene) -> None:
    mine, other = (f"job:{scene.jobs[name].pk}" for name in ("gpt-small", "vit-large"))
    one, _ = await subscribed(scene.users["viewer"], [mine])
    await sync_to_async(publish)(other)
    await sync_to_async(publish)(mine, "last")
    assert (await hear(one))["k"] == "last"
    await one.disconnect()


async def test_a_customer_hears_only_what_is_its_own(scene: Scene) -> None:
    mine, other = (f"job:{scene.jobs[name].pk}" for name in ("gpt-small", "vit-large"))
    own = scene.incidents["gpt-small-1"].pk
    wanted = [
        mine, other, f"incident:{own}", f"incident:{scene.incidents['live'].pk}", "overview", "fleet",
        f"node:{scene.nodes['a1'].pk}", f"guarantee:{scene.acme.pk}", f"guarantee:{scene.stranger.pk}",
        "job:999999", "job:", "nonsense", "job:1 or 1=1", f"{mine} ",
    ]  # fmt: skip
    one, hello = await subscribed(scene.users["customer_viewer"], wanted)
    assert hello["topics"] == [mine, f"incident:{own}", f"guarantee:{scene.acme.pk}"]
    await sync_to_async(publish)(other)
    await sync_to_async(publish)("overview")
    await sync_to_async(publish)(mine, "last")
    assert (await hear(one))["k"] == "last"
    await one.disconnect()


@pytest.mark.parametrize("role", ["viewer", "operator", "finance", "auditor", "admin"])
def test_staff_may_hear_the_fleet(scene: Scene, role: str) -> None:
    viewer = viewer_of_user(scene.users[role])
    topics = ["overview", "fleet", f"node:{scene.nodes['a1'].pk}"]
    assert topics_allowed(viewer, topics) == topics


def test_an_adjudicator_hears_no_machines(scene: Scene) -> None:
    viewer = viewer_of_user(scene.users["adjudicator"])
    assert topics_allowed(viewer, ["overview", "fleet", f"node:{scene.nodes['a1'].pk}"]) == []


async def test_what_was_missed_is_replayed_in_order(scene: Scene) -> None:
    topic = f"job:{scene.jobs['gpt-small'].pk}"
    since = await sync_to_async(notices.sequence_now)()
    numbers = [await sync_to_async(publish)(topic, f"k{index}") for index in range(3)]
    one, hello = await subscribed(scene.users["viewer"], [topic], since)
    assert hello["seq"] == numbers[-1]
    heard = [(await hear(one))["n"]]
    while heard[-1] < numbers[-1]:
        heard.append((await hear(one))["n"])
    assert heard == sorted(heard)
    assert [number for number in heard if number > since] == numbers
    await one.disconnect()


async def test_more_than_can_be_replayed_is_a_gap(scene: Scene) -> None:
    topic = f"job:{scene.jobs['gpt-small'].pk}"
    since = await sync_to_async(notices.sequence_now)()

    def many() -> None:
        at = scene.now
        rows = [OutboxNotice(topic=topic, kind="k", at=at) for _ in range(notices.REPLAY_MAX + 1)]
        OutboxNotice.objects.bulk_create(rows)

    await sync_to_async(many)()
    one, _ = await subscribed(scene.users["viewer"], [topic], since)
    assert await hear(one) == {"gap": True, "t": topic}
    await one.disconnect()


def test_numbers_that_were_pruned_or_never_given_are_a_gap(scene: Scene) -> None:
    first = publish("overview")
    for _ in range(5):
        publish("overview")
    OutboxNotice.objects.filter(pk__lte=first + 2).delete()
    assert notices.notices_missed(["overview"], first).gaps == ["overview"]
    assert notices.notices_missed(["overview"], first + 10_000).gaps == ["overview"]
    assert notices.notices_missed(["overview"], first + 2).gaps == []


def test_a_number_that_committed_late_is_replayed_too(scene: Scene) -> None:
    late, early = publish("overview", "late"), publish("overview", "early")
    missed = notices.notices_missed(["overview"], early)
    assert late in [notice["n"] for notice in missed.notices]


async def test_a_tab_that_does_not_read_is_told_of_the_gap_and_memory_stays_bounded() -> None:
    consumer = consumers.LiveConsumer()
    consumer.topics, consumer.queue, consumer.gaps = ["job:1"], consumers.deque(), {}
    consumer.awake = asyncio.Event()
    for number in range(1000):
        message = {"topic": "job:1", "id": number, "kind": "k", "at": "…", "data": {}}
        await consumer.notice(message)
        assert len(consumer.queue) <= consumers.QUEUE_MAX
    assert list(consumer.gaps) == ["job:1"]


async def test_a_stranger_is_not_let_in(scene: Scene) -> None:
    one = await tab(None)
    connected, _ = await one.connect(timeout=10)
    assert connected is False


@pytest.mark.parametrize("origin", [b"https://evil.example", None])
async def test_a_foreign_or_missing_origin_is_refused(scene: Scene, origin: bytes | None) -> None:
    one = await tab(scene.users["viewer"], origin)
    connected, _ = await one.connect(timeout=10)
    assert connected is False


@pytest.mark.parametrize(
    "message",
    [
        " ", "{", "[]", '{"sub": "job:1"}', '{"sub": [1]}', '{"sub": [], "since": -1}',
        '{"sub": [], "since": "1"}', '{"sub": [], "since": true}', '{"drain": 1}',
        json.dumps({"sub": ["job:1"] * 65}), json.dumps({"sub": ["j" * 81]}), '{"sub":[]}' + " " * 20_000,
    ],
)  # fmt: skip
async def test_what_is_no_subscription_closes_the_socket(scene: Scene, message: str) -> None:
    one = await opened(scene.users["viewer"])
    await one.send_to(message)
    output = await one.receive_output(timeout=10)
    assert (output["type"], output["code"]) == ("websocket.close", 4400)


async def test_too_many_messages_close_the_socket(scene: Scene) -> None:
    one = await opened(scene.users["viewer"])
    for _ in range(consumers.INBOUND_PER_S_MAX + 5):
        await one.send_to('{"sub": []}')
    codes = []
    while not codes:
        output = await one.receive_output(timeout=10)
        codes = [output["code"]] if output["type"] == "websocket.close" else []
    assert codes == [4408]


async def test_a_person_has_at_most_eight_sockets(scene: Scene) -> None:
    user = scene.users["viewer"]
    tabs = [await opened(user) for _ in range(consumers.SOCKETS_PER_USER_MAX)]
    ninth = await opened(user)
    assert (await ninth.receive_output(timeout=10))["code"] == 4429
    await tabs.pop().disconnect()
    again, hello = await subscribed(user, [])
    assert hello["topics"] == []
    for one in [*tabs, again]:
        await one.disconnect()


@pytest.mark.parametrize("change", ["signs out", "is locked", "gets another role"])
async def test_who_signs_out_or_changes_role_hears_nothing_more(
    scene: Scene, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumers, "RECHECK_S", 0.2)
    user = scene.users["viewer"]
    one, _ = await subscribed(user, ["overview"])

    def changes() -> None:
        if change == "signs out":
            SessionStore.get_model_class().objects.all().delete()
        else:
            fields = {"is_active": False} if change == "is locked" else {"role": "admin"}
            User.objects.filter(pk=user.pk).update(**fields)

    await sync_to_async(changes)()
    while (output := await one.receive_output(timeout=10))["type"] != "websocket.close":
        pass
    assert output["code"] == 4401
