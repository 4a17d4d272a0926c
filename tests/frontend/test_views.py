"""Every page for every role, without a browser."""

from __future__ import annotations

import html
import re

import pytest
from django.test import Client
from django.urls import reverse

from frontend.queries.job import generation_rows, pauses_of, points_of
from jobs.models import Incident
from nodes.models import NodeTransition
from yoco_platform.core import clock
from yoco_platform.core.models import AuditEntry

from .scene import PASSWORD, Scene, make_job, miss

STAFF = ["viewer", "operator", "finance", "auditor", "admin"]
CUSTOMERS = ["customer_viewer", "customer_contester"]


def signed_in(role: str) -> Client:
    client = Client()
    assert client.login(username=role, password=PASSWORD)
    return client


def text(client: Client, address: str) -> str:
    response = client.get(address)
    assert response.status_code == 200, address
    return response.content.decode()


def words(markup: str) -> str:
    """The words of a page in one line."""
    plain = html.unescape(re.sub(r"<[^>]+>", " ", markup))
    return re.sub(r"\s+", " ", plain)


def addresses(scene: Scene) -> list[str]:
    """What a customer and staff may both open."""
    assert scene.contract is not None
    job = scene.jobs["gpt-small"].pk
    done = scene.incidents["gpt-small-1"].pk
    regions = ["state", "charts", "proof", "inventory"]
    return [
        "/", "/regions/state", "/regions/jobs", "/regions/events", "/jobs", "/jobs/regions/list",
        f"/jobs/{job}", *(f"/jobs/{job}/regions/{name}" for name in regions),
        "/incidents", "/incidents/regions/list", f"/incidents/INC-{done}", f"/incidents/{done}",
        *(f"/incidents/INC-{done}/regions/{name}" for name in ("head", "stages", "proof")),
        f"/incidents/INC-{done}/raw", f"/guarantee/{scene.contract.pk}",
        f"/guarantee/{scene.contract.pk}/regions/main", "/search?q=nothing", "/search?q=",
        "/jobs?state=failed", "/jobs?state=nonsense&before=x", "/incidents?verdict=missed&cause=node",
    ]  # fmt: skip


@pytest.mark.parametrize("role", STAFF)
def test_every_page_loads_for_staff(scene: Scene, role: str) -> None:
    client = signed_in(role)
    live = scene.incidents["live"].pk
    node = scene.nodes["e2"].pk
    pages = [
        *addresses(scene), f"/incidents/INC-{live}", "/fleet", "/fleet/regions/main",
        f"/nodes/{node}", f"/nodes/{node}/regions/main", f"/jobs/{scene.jobs['vit-large'].pk}",
    ]  # fmt: skip
    found = {page: client.get(page).status_code for page in pages}
    assert found == dict.fromkeys(pages, 200)


@pytest.mark.parametrize("role", CUSTOMERS)
def test_every_page_of_its_own_loads_for_a_customer(scene: Scene, role: str) -> None:
    client = signed_in(role)
    found = {page: client.get(page).status_code for page in addresses(scene)}
    assert found == dict.fromkeys(addresses(scene), 200)


def test_a_customer_sees_nothing_of_another_customer(scene: Scene) -> None:
    client = signed_in("customer_viewer")
    pages = "".join(text(client, page) for page in addresses(scene))
    assert "gpt-small" in pages
    assert "vit-large" not in pages
    assert f"INC-{scene.incidents['live'].pk}" not in pages
    assert "Other Labs" not in pages


def test_a_customer_sees_no_machines(scene: Scene) -> None:
    client = signed_in("customer_viewer")
    assert client.get("/fleet").status_code == 403
    assert client.get(f"/nodes/{scene.nodes['a1'].pk}").status_code == 403
    page = text(client, f"/jobs/{scene.jobs['gpt-small'].pk}")
    assert "/nodes/" not in page
    assert "Spare pool" not in text(client, "/")


def test_what_is_not_mine_and_what_is_not_there_are_the_same_answer(scene: Scene) -> None:
    client = signed_in("customer_viewer")
    theirs = client.get(f"/jobs/{scene.jobs['vit-large'].pk}")
    nobodys = client.get("/jobs/999999")
    assert theirs.status_code == nobodys.status_code == 404
    strip = re.compile(r"\d+|csrf\w+|value=\"[^\"]*\"|Token[^}]*")
    assert strip.sub("", theirs.content.decode()) == strip.sub("", nobodys.content.decode())
    live = scene.incidents["live"].pk
    for address in (f"/incidents/INC-{live}", f"/incidents/INC-{live}/raw"):
        assert client.get(address).status_code == 404


def test_without_signing_in_a_page_leads_to_the_form_and_a_region_says_401(scene: Scene) -> None:
    client = Client()
    page = client.get("/jobs")
    assert (page.status_code, page["Location"]) == (302, "/login?next=/jobs")
    assert client.get("/regions/state").status_code == 401
    assert client.get("/login").status_code == 200


def test_a_region_that_has_not_changed_is_not_sent_again(scene: Scene) -> None:
    client = signed_in("viewer")
    address = f"/jobs/{scene.jobs['gpt-small'].pk}/regions/state"
    first = client.get(address)
    again = client.get(address, headers={"If-None-Match": first["ETag"]})
    assert (again.status_code, again.content) == (304, b"")
    job = scene.jobs["gpt-small"]
    job.committed_step += 1
    job.save()
    changed = client.get(address, headers={"If-None-Match": first["ETag"]})
    assert changed.status_code == 200
    assert changed["ETag"] != first["ETag"]


def test_a_region_that_does_not_exist_is_not_found(scene: Scene) -> None:
    assert signed_in("viewer").get("/regions/nonsense").status_code == 404


def test_demo_simulated_and_root_are_marked_where_they_are_shown(scene: Scene) -> None:
    client = signed_in("viewer")
    assert scene.contract is not None
    job = text(client, f"/jobs/{scene.jobs['gpt-small'].pk}")
    incident = text(client, f"/incidents/INC-{scene.incidents['gpt-small-1'].pk}")
    contract = text(client, f"/guarantee/{scene.contract.pk}")
    for page in (text(client, "/"), job, incident, contract, text(client, "/incidents")):
        assert '<span class="mark">demo</span>' in page
    assert "simulated GPUs" in job
    assert "workers run as root" in job
    fleet = text(client, "/fleet")
    assert "20 of 20 GPUs simulated" in fleet
    assert "Workers run as root on a1, a2, b1, b2, c1, c2" in fleet
    real = text(client, f"/jobs/{scene.jobs['vit-large'].pk}")
    assert '<span class="mark">demo</span>' not in real


def test_the_overview_says_the_worst_thing_first(scene: Scene) -> None:
    page = words(text(signed_in("viewer"), "/"))
    assert "One run is moving to a spare; no committed step has been lost today." in page


def test_the_overview_counts_losses_of_the_day(scene: Scene) -> None:
    miss(scene, scene.jobs["gpt-small"], clock.now())
    page = words(text(signed_in("viewer"), "/"))
    assert "10 committed steps lost today" in page


def test_the_job_page_answers_whether_progress_was_lost(scene: Scene) -> None:
    client, job = signed_in("viewer"), scene.jobs["gpt-small"]
    assert "No. 0 steps lost, 0 computed again" in words(text(client, f"/jobs/{job.pk}"))
    miss(scene, job, clock.now())
    assert "Yes. 10 steps lost." in words(text(client, f"/jobs/{job.pk}"))


def test_a_job_that_is_not_protected_says_why(scene: Scene) -> None:
    job = make_job(scene, "loose", scene.acme, ranks=["a1"], standby=None)
    job.protection, job.protection_reason = "never_joined", "the script ran 300 s without joining"
    job.save()
    page = words(text(signed_in("viewer"), f"/jobs/{job.pk}"))
    assert "not protected: script never joined : the script ran 300 s without joining" in page


def test_the_proof_names_its_levels(scene: Scene) -> None:
    client = signed_in("viewer")
    done = words(text(client, f"/incidents/INC-{scene.incidents['gpt-small-1'].pk}"))
    for name in ("Transfer verified", "Continuity verified", "Replicas agree"):
        assert f"{name} yes" in done
    assert "Twin verified" not in done
    live = words(text(client, f"/incidents/INC-{scene.incidents['live'].pk}"))
    assert "Transfer verified waiting" in live
    assert "covered" not in live.lower().split("verdict")[1][:40]


def test_a_trail_that_was_not_compared_never_reads_as_verified(scene: Scene) -> None:
    incident = scene.incidents["gpt-small-1"]
    incident.evidence["continuity_verified"] = {
        "holds": None,
        "words": "step 185 follows step 184; the trail of rank 1 was not compared",
    }
    incident.save()
    page = words(text(signed_in("viewer"), f"/incidents/INC-{incident.pk}"))

    assert "Continuity verified not compared step 185 follows step 184" in page
    assert "Continuity verified yes" not in page


def test_identical_is_said_only_with_a_twin(scene: Scene) -> None:
    incident = scene.incidents["gpt-small-1"]
    client = signed_in("viewer")
    assert "identical" not in text(client, f"/incidents/INC-{incident.pk}").lower()
    incident.evidence["twin_verified"] = {
        "holds": True,
        "words": "bit-identical with an unbroken run",
    }
    incident.save()
    page = words(text(client, f"/incidents/INC-{incident.pk}"))
    assert "Twin verified yes bit-identical with an unbroken run" in page


def test_unequal_digests_are_shown_as_unequal(scene: Scene) -> None:
    incident = scene.incidents["gpt-small-1"]
    move = incident.migrations.get().moves.get()
    page = text(signed_in("viewer"), f"/incidents/INC-{incident.pk}")
    assert "≠" not in page
    move.transfers[0]["target_digest"] = "f" * 64
    move.save()
    assert "≠ ffff…ffff" in text(signed_in("viewer"), f"/incidents/INC-{incident.pk}")


def test_figures_of_the_guarantee_agree_with_each_other(scene: Scene) -> None:
    assert scene.contract is not None
    miss(scene, scene.jobs["gpt-small"], clock.now())
    client = signed_in("finance")
    page = words(text(client, f"/guarantee/{scene.contract.pk}"))
    assert "1 of 2 qualifying failures were resolved with no lost progress: 50.00 %" in page
    assert "3 = 2 + 1 averted + 0 excluded + 0 merged + 0 unsupported + 0 awaiting" in page
    assert "1 × 100 = 100 < 180 = 90 × 2" in page
    overview = words(text(client, "/"))
    assert "50.00 %, target 90" in overview
    assert "Below target" in overview


def test_every_number_of_the_guarantee_leads_to_exactly_those_entries(scene: Scene) -> None:
    assert scene.contract is not None
    miss(scene, scene.jobs["gpt-small"], clock.now())
    client = signed_in("finance")
    page = text(client, f"/guarantee/{scene.contract.pk}")
    links = re.findall(r'href="(\?year=1&amp;verdict=(\w+))#ledger">(\d+)</a>', page)
    assert {verdict: int(number) for _, verdict, number in links} == {
        "covered": 1, "missed": 1, "averted": 1, "excluded": 0, "merged": 0, "unsupported": 0,
        "awaiting": 0,
    }  # fmt: skip
    for query, _, number in links:
        filtered = text(client, f"/guarantee/{scene.contract.pk}" + query.replace("&amp;", "&"))
        assert len(re.findall(r'id="entry-\d+"', filtered)) == int(number)


def test_the_guarantee_uses_the_contracts_zone_whatever_the_reader_chose(scene: Scene) -> None:
    assert scene.contract is not None
    pages = []
    for zone in ("Asia/Tokyo", "America/New_York"):
        client = signed_in("finance")
        client.cookies["yoco_zone"] = zone
        page = text(client, f"/guarantee/{scene.contract.pk}/regions/main")
        pages.append(re.sub(r"As of <time.*?</time>", "", page))
    assert pages[0] == pages[1]
    assert "CET" in pages[0]


def test_the_chain_is_walked_on_request_by_those_who_may(scene: Scene) -> None:
    assert scene.contract is not None
    address = f"/guarantee/{scene.contract.pk}?verify=1"
    assert "The chain holds: 2 entries walked" in words(text(signed_in("finance"), address))
    assert "The chain holds" not in text(signed_in("viewer"), address)


def test_times_are_shown_in_the_readers_zone(scene: Scene) -> None:
    client = signed_in("viewer")
    incident = scene.incidents["gpt-small-1"]
    client.post("/preferences", {"zone": "Asia/Tokyo", "next": "/jobs"})
    page = text(client, f"/incidents/INC-{incident.pk}")
    assert "All times Asia/Tokyo" in page
    assert "JST" in page
    assert f'datetime="{incident.occurred_at:%Y-%m-%dT%H:%M:%S}' in page


@pytest.mark.parametrize(
    "target", ["https://evil.example/", "//evil.example", "javascript:alert(1)"]
)
def test_a_preference_never_leads_away(scene: Scene, target: str) -> None:
    response = signed_in("viewer").post("/preferences", {"theme": "dark", "next": target})
    assert (response.status_code, response["Location"]) == (302, "/")
    assert response.cookies["yoco_theme"].value == "dark"


def test_an_operator_drains_a_node_with_a_reason(scene: Scene) -> None:
    node, client = scene.nodes["a1"], signed_in("operator")
    address = reverse("node-action", args=[node.pk, "drain"])
    assert client.post(address, {"reason": "PCIe replays, ticket 8841"}).status_code == 302
    step = NodeTransition.objects.filter(node=node).latest("at")
    assert (step.to_state, step.reason, step.actor) == (
        "draining",
        "PCIe replays, ticket 8841",
        "operator",
    )
    assert AuditEntry.objects.filter(action="node_draining", subject=f"node:{node.pk}").exists()


def test_without_a_reason_nothing_happens_and_the_page_says_so(scene: Scene) -> None:
    node, client = scene.nodes["a1"], signed_in("operator")
    before = NodeTransition.objects.filter(node=node).count()
    page = client.post(
        reverse("node-action", args=[node.pk, "drain"]), {"reason": " "}, follow=True
    )
    assert NodeTransition.objects.filter(node=node).count() == before
    assert b'role="alert"' in page.content


@pytest.mark.parametrize("role", ["viewer", "finance", "auditor", *CUSTOMERS])
def test_others_neither_see_nor_may_do_actions(scene: Scene, role: str) -> None:
    node, client = scene.nodes["a1"], signed_in(role)
    answer = client.post(reverse("node-action", args=[node.pk, "drain"]), {"reason": "because"})
    assert answer.status_code == 403
    assert NodeTransition.objects.filter(node=node, to_state="draining").count() == 0
    assert "data-dialog" not in client.get(f"/nodes/{node.pk}").content.decode()


def test_a_form_from_elsewhere_is_refused(scene: Scene) -> None:
    client = Client(enforce_csrf_checks=True)
    assert client.login(username="operator", password=PASSWORD)
    answer = client.post(
        reverse("node-action", args=[scene.nodes["a1"].pk, "drain"]), {"reason": "x"}
    )
    assert answer.status_code == 403


def test_search_goes_straight_to_the_only_match(scene: Scene) -> None:
    client = signed_in("viewer")
    job = scene.jobs["gpt-small"]
    assert client.get("/search?q=gpt-sm")["Location"] == f"/jobs/{job.pk}"
    incident = scene.incidents["gpt-small-1"]
    assert client.get(f"/search?q=inc-{incident.pk}")["Location"] == f"/incidents/INC-{incident.pk}"
    customer = signed_in("customer_viewer")
    assert "No node, job or incident of yours" in text(customer, "/search?q=vit-large")


def test_every_filter_shows_its_count_and_can_be_cleared(scene: Scene) -> None:
    client = signed_in("viewer")
    page = text(client, "/incidents")
    chips = re.findall(r'href="/incidents\?verdict=(\w+)".*?<b>(\d+)</b>', page)
    for verdict, number in chips:
        shown = text(client, f"/incidents?verdict={verdict}")
        assert len(re.findall(r'<tr data-row><td><a class="name" href="/incidents/', shown)) == int(
            number
        )
    empty = text(client, "/incidents?verdict=merged")
    assert "Nothing matches these filters" in empty
    assert "Clear filters" in empty


def test_an_empty_platform_says_what_it_waits_for(db: None, django_user_model: object) -> None:
    from yoco_platform.core.models import User

    User.objects.create_user("viewer", password=PASSWORD, role="viewer")
    client = signed_in("viewer")
    assert "No nodes yet" in words(text(client, "/fleet"))
    assert "No jobs yet" in words(text(client, "/jobs"))
    assert "No incidents yet" in words(text(client, "/incidents"))
    assert "No contract yet" in words(text(client, "/guarantee"))


def test_raw_events_are_the_agents_own_words(scene: Scene) -> None:
    incident = Incident.objects.get(pk=scene.incidents["gpt-small-1"].pk)
    body = signed_in("viewer").get(f"/incidents/INC-{incident.pk}/raw").json()
    assert body["incident"] == incident.number
    assert body["evidence"] == incident.evidence


def test_the_step_before_a_failure_is_the_one_that_the_plan_found(scene: Scene) -> None:
    incident = scene.incidents["gpt-small-2"]
    planned = incident.migrations.get().resume_at
    assert planned is not None
    # What the charts had said when it was opened may be some steps behind.
    Incident.objects.filter(pk=incident.pk).update(step=planned - 7)
    client = signed_in("operator")
    page = words(text(client, f"/incidents/INC-{incident.pk}"))
    assert f"Committed step {planned:,} {planned + 1:,}" in page
    proof = words(text(client, f"/jobs/{incident.job_id}/regions/proof"))
    assert f"{planned:,} Next committed step" in proof
    assert f"{planned - 7:,}" not in page + proof


def test_streams_name_their_nodes_and_a_running_rank_its_step(scene: Scene) -> None:
    incident = scene.incidents["gpt-small-1"]
    move = incident.migrations.get().moves.get()
    source = scene.nodes["a1"]
    move.source_node_ids = [source.pk]
    move.transfers = [{**stream, "source_node": str(source.pk)} for stream in move.transfers]
    move.save()
    page = words(text(signed_in("operator"), f"/incidents/INC-{incident.pk}/regions/stages"))
    assert f"{move.transfers[0]['holder']}, a1" in page
    job = scene.jobs["gpt-small"]
    state = words(text(signed_in("operator"), f"/jobs/{job.pk}/regions/state"))
    assert f"0 {job.committed_step:,} " in state


def test_a_demonstration_is_marked_on_the_fleet_and_on_its_nodes(scene: Scene) -> None:
    client = signed_in("operator")
    banner = "belong to a demonstration"
    node = f"/nodes/{scene.nodes['a2'].pk}"
    stranger = scene.jobs["vit-large"]
    type(stranger).objects.update(is_demo=False)
    Incident.objects.update(is_demo=False)
    assert banner not in text(client, "/fleet") + text(client, node)
    type(stranger).objects.filter(pk=stranger.pk).update(is_demo=True)
    assert banner in text(client, "/fleet")
    assert banner in text(client, node)


def test_a_point_that_was_told_after_a_failure_stays_before_it(scene: Scene) -> None:
    job = scene.jobs["gpt-small"]
    second = job.generations.get(number=2)
    assert job.points.filter(step=second.resume_at).update(generation=2) == 1
    pause = pauses_of(points_of(job), generation_rows(job))[0]
    assert (pause.last_step, pause.next_step) == (second.resume_at, second.resume_at + 1)
