"""REST of the guarantee: doors only."""

from __future__ import annotations

from typing import Any

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers, status
from rest_framework.request import Request
from rest_framework.response import Response

from yoco_platform.core.api import ApiView, StrictSerializer, idempotent
from yoco_platform.core.auth import Permission

from . import selectors, services
from .errors import TermsRefused
from .models import Terms
from .outputs import (
    ContractOutput,
    EntryOutput,
    EntryPageOutput,
    TermsOutput,
    UnbookedOutput,
    UnbookedPageOutput,
    VerificationOutput,
    YearOutput,
    year_output,
)
from .terms import TermsFields, terms_empty, terms_read


def _terms(data: object) -> TermsFields:
    try:
        return terms_read(data)
    except ValueError as error:
        raise TermsRefused(str(error)) from error


def _terms_output(terms: Terms) -> dict[str, Any]:
    values = selectors.terms_values(terms)
    shown = {name: value for name, value in values.items() if name != "effective_from"}
    data: dict[str, Any] = TermsOutput(
        {
            "version": terms.version,
            "effective_from": terms.effective_from,
            "rules": shown,
            "empty": terms_empty(values),
        }
    ).data
    return data


class ContractListApi(ApiView):
    """Contracts; a POST makes one with its first terms."""

    permissions = {"GET": Permission.COVERAGE_READ, "POST": Permission.CONTRACT_WRITE}

    class Input(StrictSerializer):
        customer = serializers.SlugField(max_length=60)
        number = serializers.CharField(max_length=60)
        first_date = serializers.DateField()
        zone = serializers.CharField(max_length=60)
        currency = serializers.CharField(max_length=3)
        scope = serializers.ListField(child=serializers.SlugField(), default=list)
        is_demo = serializers.BooleanField(default=False)
        terms = serializers.DictField()

    @extend_schema(operation_id="contract_list", responses=ContractOutput(many=True))
    def get(self, request: Request) -> Response:
        return Response(ContractOutput(selectors.contracts_list(self.viewer), many=True).data)

    @extend_schema(operation_id="contract_create", request=Input, responses={201: ContractOutput})
    @idempotent
    def post(self, request: Request) -> Response:
        fields = self.Input(data=request.data).values
        customer = selectors.customer_by_slug(fields.pop("customer"))
        terms = _terms(fields.pop("terms"))
        contract = services.contract_create(
            viewer=self.viewer, customer=customer, terms=terms, **fields
        )
        return Response(ContractOutput(contract).data, status=status.HTTP_201_CREATED)


class ContractDetailApi(ApiView):
    """One contract."""

    permission = Permission.COVERAGE_READ

    @extend_schema(operation_id="contract_get", responses=ContractOutput)
    def get(self, request: Request, contract_id: int) -> Response:
        return Response(ContractOutput(selectors.contract_get(self.viewer, contract_id)).data)


class TermsApi(ApiView):
    """Versions of a contract's terms, newest first; a POST adds the next."""

    permissions = {"GET": Permission.CONTRACT_READ, "POST": Permission.CONTRACT_WRITE}

    @extend_schema(operation_id="terms_list", responses=TermsOutput(many=True))
    def get(self, request: Request, contract_id: int) -> Response:
        contract = selectors.contract_get(self.viewer, contract_id)
        return Response([_terms_output(t) for t in selectors.terms_of(self.viewer, contract)])

    @extend_schema(
        operation_id="terms_add", request=OpenApiTypes.OBJECT, responses={201: TermsOutput}
    )
    @idempotent
    def post(self, request: Request, contract_id: int) -> Response:
        contract = selectors.contract_get(self.viewer, contract_id)
        row = services.terms_add(viewer=self.viewer, contract=contract, terms=_terms(request.data))
        return Response(_terms_output(row), status=status.HTTP_201_CREATED)


class YearListApi(ApiView):
    """The contract years that have begun, oldest first, as they stand now."""

    permission = Permission.COVERAGE_READ

    @extend_schema(operation_id="year_list", responses=YearOutput(many=True))
    def get(self, request: Request, contract_id: int) -> Response:
        contract = selectors.contract_get(self.viewer, contract_id)
        ordinals = sorted(year.ordinal for year in selectors.years_of(self.viewer, contract))
        return Response(
            [year_output(selectors.year_summary(self.viewer, contract, n)) for n in ordinals]
        )


class EntryListApi(ApiView):
    """A page of the ledger, newest first; ``next`` is the ``before`` of the next page."""

    permission = Permission.COVERAGE_READ

    class Input(StrictSerializer):
        year = serializers.IntegerField(min_value=1, required=False)
        verdict = serializers.CharField(required=False)
        before = serializers.IntegerField(min_value=1, required=False)
        limit = serializers.IntegerField(min_value=1, max_value=500, default=100)

    @extend_schema(
        operation_id="entry_list",
        parameters=[
            OpenApiParameter("year", int),
            OpenApiParameter("verdict", str),
            OpenApiParameter("before", int, description="sequence where the last page ended"),
            OpenApiParameter("limit", int),
        ],
        responses=EntryPageOutput,
    )
    def get(self, request: Request, contract_id: int) -> Response:
        asked = self.Input(data=request.query_params.dict()).values
        contract = selectors.contract_get(self.viewer, contract_id)
        rows = selectors.entries(self.viewer, contract, **asked)
        full = len(rows) == asked["limit"]
        following = rows[-1].sequence if full and rows[-1].sequence > 1 else None
        with selectors.ledger_told(contract):
            results = EntryOutput(rows, many=True).data
        return Response({"results": results, "next": following})


class UnbookedApi(ApiView):
    """Ended incidents of customers with a contract that are in no ledger, newest first, and why."""

    permission = Permission.COVERAGE_READ

    class Input(StrictSerializer):
        before = serializers.IntegerField(min_value=1, required=False)
        limit = serializers.IntegerField(min_value=1, max_value=500, default=100)

    @extend_schema(
        operation_id="unbooked_list",
        parameters=[
            OpenApiParameter("before", int, description="incident where the last page ended"),
            OpenApiParameter("limit", int),
        ],
        responses=UnbookedPageOutput,
    )
    def get(self, request: Request) -> Response:
        asked = self.Input(data=request.query_params.dict()).values
        rows = selectors.incidents_unbooked(self.viewer, **asked)
        following = rows[-1].incident.pk if len(rows) == asked["limit"] else None
        return Response({"results": UnbookedOutput(rows, many=True).data, "next": following})


class VerificationApi(ApiView):
    """Walks the whole ledger of a contract and says whether it holds."""

    permission = Permission.LEDGER_EXPORT

    @extend_schema(operation_id="ledger_verify", responses=VerificationOutput)
    def get(self, request: Request, contract_id: int) -> Response:
        contract = selectors.contract_get(self.viewer, contract_id)
        return Response(VerificationOutput(selectors.verify_chain(self.viewer, contract)).data)
