"""Pages change while they are watched, look old when they are, and lose nothing in between."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import transaction
from playwright.sync_api import Browser, Page, expect

from jobs.models import Job, Point
from jobs.states import IncidentState, Verdict
from nodes import selectors, services
from tests.frontend.scene import Scene, end_failover, make_incident
from yoco_platform.core import clock
from yoco_platform.core.auth import viewer_of_user
from yoco_platform.core.realtime import publish_on_commit

from .browser import visiting
from .serving import Site

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]
SOON = 8_000
NEXT_ATTEMPT = 40_000
"""A tab that has failed often waits up to 30 s before it tries its socket again."""


def live(page: Page, timeout: float = SOON) -> None:
    expect(page.locator("live-chip")).to_have_attribute("data-state", "live", timeout=timeout)


def mark(page: Page) -> None:
    """A mark that only a reload removes."""
    page.evaluate("() => document.body.setAttribute('data-same-page', 'yes')")


def expect_same(page: Page) -> None:
    expect(page.locator("body")).to_have_attribute("data-same-page", "yes")


@transaction.atomic
def commit_steps(job: Job, number: int) -> None:
    at = clock.now()
    for index in range(1, number + 1):
        Point.objects.create(
            job=job, attempt=1, generation=job.generation, step=job.committed_step + index,
            at=at + timedelta(milliseconds=index), loss=2.0, step_ms=120.0,
        )  # fmt: skip
    job.committed_step += number
    job.save()
    publish_on_commit(f"job:{job.pk}", "points", {"step": job.committed_step})


def test_a_job_page_follows_its_run(browser: Browser, site: Site, scene: Scene) -> None:
    job = scene.jobs["gpt-small"]
    with visiting(browser, site.url) as visit:
        visit.sign_in("viewer")
        page = visit.go(f"/jobs/{job.pk}")
        live(page)
        mark(page)
        commit_steps(job, 23)
        expect(page.locator(".figure .value").first).to_have_text("623", timeout=SOON)
        expect(page.locator(".ribbon .below")).to_contain_text("step 623")
        expect(page.get_by_text("623 points kept")).to_be_visible(timeout=SOON)
        expect_same(page)
        visit.expect_nothing_wrong()


def test_an_incident_page_goes_from_live_to_done_without_a_reload(
    browser: Browser, site: Site, scene: Scene
) -> None:
    incident = scene.incidents["live"]
    with visiting(browser, site.url) as visit:
        visit.sign_in("viewer")
        page = visit.go(f"/incidents/INC-{incident.pk}")
        live(page)
        mark(page)
        expect(page.locator("h1")).to_contain_text("Migrating")
        expect(page.locator("tr.running")).to_contain_text("Transfer")
        expect(page.locator(".levels")).to_contain_text("waiting")
        with transaction.atomic():
            end_failover(incident)
            publish_on_commit(f"incident:{incident.pk}", "state", {"to_state": "resolved"})
        expect(page.locator("h1")).to_contain_text("Covered", timeout=SOON)
        expect(page.locator(".clock .value")).to_contain_text("1.43")
        expect(page.locator("tr.running")).to_have_count(0, timeout=SOON)
        expect(page.locator(".levels li").first).to_contain_text("yes", timeout=SOON)
        expect_same(page)
        visit.expect_nothing_wrong()


def test_a_new_incident_appears_on_the_overview(browser: Browser, site: Site, scene: Scene) -> None:
    with visiting(browser, site.url) as visit:
        visit.sign_in("viewer")
        page = visit.go("/")
        live(page)
        mark(page)
        with transaction.atomic():
            incident = make_incident(
                scene, scene.jobs["gpt-small"], 3, 600, clock.now(), summary="Rank 0 on a1 has gone.",
                state=IncidentState.OPEN, state_since=clock.now(), verdict=Verdict.AWAITING,
            )  # fmt: skip
            publish_on_commit("overview", "incident", {"incident_id": incident.pk})
        expect(page.locator(".feed")).to_contain_text("Rank 0 on a1 has gone.", timeout=SOON)
        figure = page.locator(".figure", has_text="Active incidents").locator(".value")
        expect(figure).to_have_text("2", timeout=SOON)
        expect_same(page)


def test_rows_do_not_move_under_the_pointer(browser: Browser, site: Site, scene: Scene) -> None:
    with visiting(browser, site.url) as visit:
        visit.sign_in("viewer")
        page = visit.go("/")
        live(page)
        # Its middle: what is above it may grow with the news and move its first rows from under the pointer.
        page.locator(".feed").hover()
        with transaction.atomic():
            make_incident(
                scene, scene.jobs["gpt-small"], 3, 600, clock.now(), summary="It happened behind a pill.",
                state=IncidentState.OPEN, state_since=clock.now(),
            )  # fmt: skip
            publish_on_commit("overview", "incident", {})
        pill = page.locator("button[data-new]")
        expect(pill).to_have_text("1 new", timeout=SOON)
        expect(page.locator(".feed")).not_to_contain_text("It happened behind a pill.")
        # A real click may scroll the list away from under the pointer, which reads it again by itself.
        pill.dispatch_event("click")
        expect(page.locator(".feed")).to_contain_text("It happened behind a pill.", timeout=SOON)


def test_a_node_page_shows_what_an_operator_does_to_it(
    browser: Browser, site: Site, scene: Scene
) -> None:
    node = scene.nodes["d2"]
    with visiting(browser, site.url) as visit:
        visit.sign_in("operator")
        page = visit.go(f"/nodes/{node.pk}")
        live(page)
        page.get_by_role("button", name="Drain…").click()
        dialog = page.get_by_role("dialog", name="Drain: d2")
        expect(dialog).to_contain_text("2 GPUs leave service")
        dialog.get_by_label("Reason").fill("fan noise, ticket 12")
        dialog.get_by_role("button", name="Drain d2").click()
        expect(page.locator("h1")).to_contain_text("Draining")
        expect(page.locator(".feed")).to_contain_text("Fan noise, ticket 12")
        visit.expect_nothing_wrong()


def test_a_watched_node_page_changes_when_somebody_else_acts(
    browser: Browser, site: Site, scene: Scene
) -> None:
    node, operator = scene.nodes["d2"], viewer_of_user(scene.users["operator"])
    with visiting(browser, site.url) as visit:
        visit.sign_in("viewer")
        page = visit.go(f"/nodes/{node.pk}")
        live(page)
        mark(page)
        fresh = selectors.node_get(operator, node.pk)
        services.node_cordon(viewer=operator, node=fresh, reason="waiting for a part")
        expect(page.locator("h1")).to_contain_text("Cordoned", timeout=SOON)
        expect(page.locator(".feed")).to_contain_text("Waiting for a part")
        expect_same(page)


def test_without_a_socket_the_page_polls_and_recovers(
    browser: Browser, site: Site, scene: Scene
) -> None:
    job = scene.jobs["gpt-small"]
    with visiting(browser, site.url) as visit:
        visit.sign_in("viewer")
        blocked = {"now": True}

        def through(route: object) -> None:
            if blocked["now"]:
                route.close()  # type: ignore[attr-defined]
            else:
                route.connect_to_server()  # type: ignore[attr-defined]

        visit.page.route_web_socket("**/ws/live", through)
        visit.offline_is_fine = True
        page = visit.go(f"/jobs/{job.pk}")
        mark(page)
        chip = page.locator("live-chip")
        expect(chip).to_contain_text("Polling every 5 s", timeout=20_000)
        commit_steps(job, 5)
        expect(page.locator(".figure .value").first).to_have_text("605", timeout=12_000)
        expect(page.locator(".veil")).to_have_count(0)
        blocked["now"] = False
        expect(chip).to_have_attribute("data-state", "live", timeout=35_000)
        expect_same(page)


def test_a_dead_server_makes_data_look_old_and_its_return_brings_what_was_missed(
    browser: Browser, site: Site, scene: Scene
) -> None:
    job = scene.jobs["gpt-small"]
    with visiting(browser, site.url) as visit:
        visit.sign_in("viewer")
        page = visit.go(f"/jobs/{job.pk}")
        live(page)
        mark(page)
        visit.offline_is_fine = True
        page.wait_for_timeout(2_100)
        site.stop()
        expect(page.locator("#connection")).to_contain_text("Connection lost", timeout=9_000)
        expect(page.locator(".veil").first).to_contain_text("as of", timeout=3_000)
        commit_steps(job, 9)
        site.start()
        live(page, NEXT_ATTEMPT)
        expect(page.locator(".figure .value").first).to_have_text("609", timeout=SOON)
        expect(page.locator(".veil")).to_have_count(0)
        expect(page.locator("#connection")).to_be_hidden()
        expect_same(page)


def test_signing_out_elsewhere_is_said_not_hidden(
    browser: Browser, site: Site, scene: Scene
) -> None:
    from django.contrib.sessions.models import Session

    job = scene.jobs["gpt-small"]
    with visiting(browser, site.url) as visit:
        visit.sign_in("viewer")
        page = visit.go(f"/jobs/{job.pk}")
        live(page)
        visit.offline_is_fine = True
        Session.objects.all().delete()
        commit_steps(job, 1)
        expect(page.locator("live-chip")).to_contain_text("Signed out", timeout=SOON)
        expect(page.locator("#connection")).to_contain_text("You have been signed out")
