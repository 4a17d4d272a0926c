"""What readers write where a number belongs: only ASCII digits are one, and nothing else fails."""

from __future__ import annotations

import pytest

from frontend.entered import number_of
from frontend.queries.node import _device_of
from yoco_platform.core.webhooks import owner_of

from .scene import Scene
from .test_views import signed_in

NO_NUMBERS = ["", "²", "1²", "٣", "১", "-1", "+1", " 1", "1.0", "1_0", "9" * 18, "9" * 5000]


@pytest.mark.parametrize("text", NO_NUMBERS, ids=lambda text: ascii(text)[:20])
def test_only_ascii_digits_are_a_number(text: str) -> None:
    assert number_of(text) is None


def test_a_number_is_one() -> None:
    assert [number_of(text) for text in ("0", "7", "007", "9" * 17)] == [0, 7, 7, 10**17 - 1]


@pytest.mark.parametrize("text", ["²", "INC-²", "inc-٣", "9" * 30], ids=ascii)
@pytest.mark.parametrize("page", ["/search?q=", "/jobs?before=", "/incidents?before="])
def test_a_page_that_is_asked_for_no_number_loads(scene: Scene, page: str, text: str) -> None:
    assert signed_in("operator").get(page + text).status_code == 200


@pytest.mark.parametrize("text", ["%00", "a%00b", "%ED%A0%80"])
@pytest.mark.parametrize("page", ["/search?q=", "/fleet?pool=", "/fleet?q=", "/jobs?state="])
def test_a_page_that_is_asked_for_what_is_no_text_loads(scene: Scene, page: str, text: str) -> None:
    assert signed_in("operator").get(page + text).status_code == 200


@pytest.mark.parametrize("text", ["²", "٣"], ids=ascii)
def test_a_guarantee_page_that_is_asked_for_no_number_loads(scene: Scene, text: str) -> None:
    assert scene.contract is not None
    page = f"/guarantee/{scene.contract.pk}?year={text}&before={text}"
    assert signed_in("operator").get(page).status_code == 200


def test_a_reading_of_no_device_is_the_nodes_own() -> None:
    assert [_device_of({"entity": name}) for name in ("gpu²", "gpu:3", "disk")] == [None, 3, None]


@pytest.mark.django_db
@pytest.mark.parametrize("topic", ["job:²", "node:٣"], ids=ascii)
def test_a_topic_without_a_number_has_no_owner(topic: str) -> None:
    assert owner_of(topic) == (None, None)


def test_a_reason_is_kept_without_what_is_no_text(scene: Scene) -> None:
    node = scene.nodes["a1"]
    address = f"/nodes/{node.pk}/cordon"
    assert signed_in("operator").post(address, {"reason": "a\0b"}).status_code == 302
    assert node.transitions.latest("at").reason == "ab"
