"""Pictures of every page for people to look at; no overflow, nothing for axe, nothing on the console."""

from __future__ import annotations

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser

from tests.frontend.rare import add_rare, break_ledger
from tests.frontend.scene import Scene
from yoco_platform.core import sign_in

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


def rare_pages_of(scene: Scene) -> dict[str, str]:
    assert scene.contract is not None
    return {
        "job-rare": f"/jobs/{scene.jobs['gpt-small'].pk}",
        "job-waits": f"/jobs/{scene.jobs['waits'].pk}",
        "job-never-joined": f"/jobs/{scene.jobs['never-joined'].pk}",
        "incident-rare": f"/incidents/INC-{scene.incidents['gpt-small-1'].pk}",
        "guarantee-unbooked": f"/guarantee/{scene.contract.pk}",
        "node-lost": f"/nodes/{scene.nodes['f1'].pk}",
        "node-retired": f"/nodes/{scene.nodes['f2'].pk}",
        "node-bare": f"/nodes/{scene.nodes['d1'].pk}",
    }


def refused_pages_of(scene: Scene) -> dict[str, str]:
    """Once somebody has changed the ledger."""
    assert scene.contract is not None
    return {
        "ledger-broken": f"/guarantee/{scene.contract.pk}",
        "overview-ledger-broken": "/",
        "not-found": "/jobs/999999",
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


LOOKS = [(1440, "light"), (1440, "dark"), (390, "light"), (390, "dark")]


def looked_at(visit: Visit, name: str, theme: str, width: int) -> tuple[int, list[str]]:
    """Keep a picture of what is shown, with everything unfolded; (pixels too wide, what axe finds)."""
    SHOTS.mkdir(parents=True, exist_ok=True)
    visit.page.evaluate(
        "() => document.querySelectorAll('main details').forEach(d => d.open = true)"
    )
    visit.page.screenshot(path=SHOTS / f"{name}-{theme}-{width}.png", full_page=True)
    return overflow(visit), violations(visit)


@pytest.mark.parametrize(("width", "theme"), LOOKS)
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


@pytest.mark.parametrize(("width", "theme"), LOOKS)
@pytest.mark.timeout(300)
def test_what_is_rare_fits_too(
    browser: Browser, site: Site, scene: Scene, width: int, theme: str
) -> None:
    add_rare(scene)
    seen: dict[str, tuple[int, list[str]]] = {}
    with visiting(browser, site.url, width=width, theme=theme) as visit:
        visit.sign_in("operator")
        for name, path in rare_pages_of(scene).items():
            visit.go(path)
            visit.page.locator("live-chip[data-state=live]").wait_for()
            seen[name] = looked_at(visit, name, theme, width)
        visit.expect_nothing_wrong()
    assert seen == dict.fromkeys(seen, (0, []))


@pytest.mark.parametrize(("width", "theme"), LOOKS)
def test_a_refusal_is_a_page_like_any_other(
    browser: Browser,
    site: Site,
    scene: Scene,
    width: int,
    theme: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: dict[str, tuple[int, list[str]]] = {}
    with visiting(browser, site.url, width=width, theme=theme) as visit:
        visit.sign_in("finance")
        break_ledger()
        # A refused page is an error for the console of the browser.
        visit.offline_is_fine = True
        for name, path in refused_pages_of(scene).items():
            visit.go(path)
            seen[name] = looked_at(visit, name, theme, width)
    monkeypatch.setattr(sign_in, "FAILURES_MAX", 0)
    with visiting(browser, site.url, width=width, theme=theme) as visit:
        visit.offline_is_fine = True
        visit.go("/login")
        visit.page.fill("#id_username", f"nobody-{theme}-{width}")
        visit.page.fill("#id_password", "wrong")
        visit.page.click("button.primary")
        visit.page.get_by_text("Too many failed sign-ins").wait_for()
        seen["too-many-sign-ins"] = looked_at(visit, "too-many-sign-ins", theme, width)
    assert seen == dict.fromkeys(seen, (0, []))
