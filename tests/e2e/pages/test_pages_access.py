"""Roles, the content security policy, the keyboard, themes, and life without scripts."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, expect

from tests.frontend.scene import Scene

from .browser import visiting
from .serving import Site

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]


def test_the_policy_is_sent_and_stops_what_it_must(
    browser: Browser, site: Site, scene: Scene
) -> None:
    with visiting(browser, site.url) as visit:
        visit.sign_in("viewer")
        answer = visit.page.goto(site.url + "/")
        assert answer is not None
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        visit.expect_nothing_wrong()
        visit.page.evaluate(
            "() => { const s = document.createElement('script'); s.textContent = 'window.bad = 1';"
            " document.head.append(s); }"
        )
        assert visit.page.evaluate("() => window.bad === undefined")
        assert [words for words in visit.complaints if "Content Security Policy" in words]


@pytest.mark.parametrize("role", ["customer_viewer", "finance", "viewer", "admin", "auditor"])
def test_pages_load_cleanly_for_each_role(
    browser: Browser, site: Site, scene: Scene, role: str
) -> None:
    customer = role.startswith("customer")
    with visiting(browser, site.url) as visit:
        visit.sign_in(role)
        links = visit.page.locator(".menu a").all_inner_texts()
        assert ("Fleet" in links) is not customer
        paths = ["/", "/jobs", f"/jobs/{scene.jobs['gpt-small'].pk}", "/incidents"]
        paths += [f"/incidents/INC-{scene.incidents['gpt-small-1'].pk}", "/guarantee"]
        for path in paths if customer else [*paths, "/fleet"]:
            page = visit.go(path)
            expect(page.locator("live-chip")).to_have_attribute("data-state", "live")
            if customer:
                expect(page.locator("body")).not_to_contain_text("vit-large")
        visit.expect_nothing_wrong()


def test_the_keyboard_gets_around_and_can_be_switched_off(
    browser: Browser, site: Site, scene: Scene
) -> None:
    with visiting(browser, site.url) as visit:
        visit.sign_in("viewer")
        page = visit.go("/")
        page.keyboard.press("Tab")
        expect(page.locator(".skip")).to_be_focused()
        page.keyboard.press("g")
        page.keyboard.press("j")
        page.wait_for_url("**/jobs")
        page.keyboard.press("j")
        expect(page.locator(".jobs-table tbody a.name").first).to_be_focused()
        page.keyboard.press("/")
        expect(page.locator("#search")).to_be_focused()
        page.keyboard.press("Escape")
        page.locator("h1").click()
        page.keyboard.press("?")
        expect(page.get_by_role("dialog", name="Keyboard")).to_be_visible()
        page.get_by_role("button", name="Switch shortcuts off").click()
        expect(page.locator("body")).to_have_attribute("data-keys", "off")
        page.keyboard.press("?")
        expect(page.get_by_role("dialog", name="Keyboard")).not_to_be_visible()


def test_the_theme_is_kept_and_rendered_by_the_server(
    browser: Browser, site: Site, scene: Scene
) -> None:
    with visiting(browser, site.url) as visit:
        visit.sign_in("viewer")
        page = visit.go("/")
        expect(page.locator("html")).to_have_attribute("data-theme", "system")
        page.locator("[data-theme-button]").click()
        expect(page.locator("html")).to_have_attribute("data-theme", "dark")
        ground = "() => getComputedStyle(document.documentElement).backgroundColor"
        assert page.evaluate(ground) == "rgb(18, 22, 28)"
        visit.go("/jobs")
        expect(page.locator("html")).to_have_attribute("data-theme", "dark")


def test_tables_and_forms_work_without_any_script(
    browser: Browser, site: Site, scene: Scene
) -> None:
    context = browser.new_context(java_script_enabled=False)
    try:
        page = context.new_page()
        page.goto(site.url + "/login")
        page.fill("#id_username", "viewer")
        page.fill("#id_password", "correct horse battery staple")
        page.click("button.primary")
        page.goto(site.url + f"/incidents/INC-{scene.incidents['gpt-small-1'].pk}")
        expect(page.locator(".stages")).to_contain_text("Transfer")
        page.goto(site.url + "/search?q=gpt-small")
        expect(page.locator("h1")).to_contain_text("gpt-small")
    finally:
        context.close()


def test_a_wrong_password_is_said_in_words(browser: Browser, site: Site, scene: Scene) -> None:
    with visiting(browser, site.url) as visit:
        page = visit.go("/login?next=/jobs")
        page.fill("#id_username", "viewer")
        page.fill("#id_password", "wrong")
        page.click("button.primary")
        expect(page.get_by_role("alert")).to_contain_text("do not belong together")
        page.fill("#id_password", "correct horse battery staple")
        page.click("button.primary")
        page.wait_for_url("**/jobs")
