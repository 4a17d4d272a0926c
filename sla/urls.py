"""REST routes of the guarantee, under /api/v1/."""

from __future__ import annotations

from django.urls import path

from . import apis

urlpatterns = [
    path("contracts", apis.ContractListApi.as_view(), name="contract-list"),
    path("contracts/<int:contract_id>", apis.ContractDetailApi.as_view(), name="contract-detail"),
    path("contracts/<int:contract_id>/terms", apis.TermsApi.as_view(), name="contract-terms"),
    path("contracts/<int:contract_id>/years", apis.YearListApi.as_view(), name="year-list"),
    path("contracts/<int:contract_id>/entries", apis.EntryListApi.as_view(), name="entry-list"),
    path("incidents-unbooked", apis.UnbookedApi.as_view(), name="unbooked-list"),
    path(
        "contracts/<int:contract_id>/verification",
        apis.VerificationApi.as_view(),
        name="ledger-verification",
    ),
]
