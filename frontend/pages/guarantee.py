"""The guarantee: what was promised, how the year stands, and the ledger behind every figure."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse

from sla import selectors
from sla.states import Verdict
from yoco_platform.core.auth import Permission, Viewer, require

from ..entered import number_of
from ..queries.guarantee import ENTRIES_SHOWN, entry_label, standings
from ..queries.guarantee import guarantee_page as gather
from ..shell import Page, page_view, region_view
from ..words import verdict_look

UNBOOKED_SHOWN = 5


def main(viewer: Viewer, contract_id: int, query: dict[str, str]) -> dict[str, Any]:
    """The year named by ``year``, its ledger filtered by ``verdict`` and paged by ``before``."""
    year = number_of(query.get("year", ""))
    with selectors.ledger_told(selectors.contract_get(viewer, contract_id)):
        data = gather(viewer, contract_id, year)
    verdict = query.get("verdict", "")
    verdict = verdict if verdict in Verdict.values else ""
    entries = selectors.entries(
        viewer,
        data.contract,
        year=data.year.ordinal,
        verdict=verdict,
        before=number_of(query.get("before", "")),
        limit=ENTRIES_SHOWN + 1,
    )
    shown = entries[:ENTRIES_SHOWN]
    unbooked, num_unbooked = selectors.unbooked_of(viewer, data.contract, UNBOOKED_SHOWN)
    checked = query.get("verify") == "1" and data.may_verify
    return {
        "data": data,
        "counts": data.evaluation.counts,
        "entries": [
            (entry, entry_label(entry.sequence), verdict_look(entry.verdict)) for entry in shown
        ],
        "unbooked": unbooked,
        "num_unbooked": num_unbooked,
        "next": shown[-1].sequence if len(entries) > ENTRIES_SHOWN else None,
        "verdict": verdict,
        "verification": selectors.verify_chain(viewer, data.contract) if checked else None,
        "lost_shown": sum(e.incident.lost_steps or 0 for e in shown if e.incident),
    }


@page_view
def guarantees_page(request: HttpRequest, viewer: Viewer) -> Page | HttpResponse:
    """The contracts; straight to the page when there is exactly one."""
    require(viewer, Permission.COVERAGE_READ)
    contracts = list(selectors.contracts_list(viewer)[:200])
    if len(contracts) == 1:
        return redirect("guarantee", contract_id=contracts[0].pk)
    context = {"contracts": contracts, "standings": {s.contract_id: s for s in standings(viewer)}}
    demo = any(contract.is_demo for contract in contracts)
    return Page("Guarantee", "guarantees", "guarantee/list.html", context, [], is_demo=demo)


@page_view
def guarantee_page(request: HttpRequest, viewer: Viewer, contract_id: int) -> Page:
    context = main(viewer, contract_id, request.GET.dict())
    contract = context["data"].contract
    return Page(
        f"Guarantee {contract.number}",
        "guarantees",
        "guarantee/page.html",
        context,
        [f"guarantee:{contract.customer_id}"],
        [(contract.customer.name, reverse("guarantees"))],
        is_demo=contract.is_demo,
        zone=contract.zone,
    )


@region_view
def guarantee_region(
    request: HttpRequest, viewer: Viewer, contract_id: int
) -> tuple[str, dict[str, Any]]:
    return "guarantee/_main.html", main(viewer, contract_id, request.GET.dict())
