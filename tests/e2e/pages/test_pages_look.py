"""Pictures of every page for people to look at; no overflow, nothing for axe, nothing on the console."""

from __future__ import annotations

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser

from tests.frontend.scene import Scene

from .browser import SHOTS, Visit, visiting
from .serving import Site

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]


def pages_of(scene: Scene) -> dict[str, str]:
    job, other = scene.jobs["gpt-small"], scene.jobs["vit-large"]
    assert scene.contract is not None
    done, live = scene.incidents["gpt-small-1"], scene.incidents["live"]
    return {
        "overview": "/",
        "fleet": "/fleet",
        "node": f"/nodes/{scene.nodes['e2'].pk}",
        "jobs": "/jobs",
        "job": f"/jobs/{job.pk}",
        "job-recovering": f"/jobs/{other.pk}",
        "incidents": "/incidents",
        "incident-done": f"/incidents/INC-{done.pk}",
        "incident-live": f"/incidents/INC-{live.pk}",
        "guarantee": f"/guarantee/{scene.contract.pk}?verify=1",
        "search": "/search?q=a",
    }


def overflow(visit: Visit) -> int:
    """CSS pixels by which the page is wider than the window."""
    wide: int = visit.page.evaluate(
        "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
    )
    return wide


def violations(visit: Visit) -> list[str]:
    """What axe-core finds on the page, with the element."""
    found = Axe().run(visit.page).response["violations"]
    return [f"{one['id']}: {node['html'][:160]}" for one in found for node in one["nodes"]]


@pytest.mark.parametrize(("width", "theme"), [(1440, "light"), (1440, "dark"), (390, "light")])
@pytest.mark.timeout(300)
def test_every_page_fits_its_window_is_accessible_and_quiet(
    browser: Browser, site: Site, scene: Scene, width: int, theme: str
) -> None:
    SHOTS.mkdir(parents=True, exist_ok=True)
    wider: dict[str, int] = {}
    wrong: dict[str, list[str]] = {}
    with visiting(browser, site.url, width=width, theme=theme) as visit:
        for name, path in {"login": "/login", **pages_of(scene)}.items():
            if name == "overview":
                visit.sign_in("finance")
            visit.go(path)
            if visit.page.locator("live-region").count():
                visit.page.locator("live-chip[data-state=live]").wait_for()
            visit.page.screenshot(path=SHOTS / f"{name}-{theme}-{width}.png", full_page=True)
            wider[name] = overflow(visit)
            wrong[name] = violations(visit)
        assert wider == dict.fromkeys(wider, 0)
        assert wrong == {name: [] for name in wrong}
        visit.expect_nothing_wrong()
