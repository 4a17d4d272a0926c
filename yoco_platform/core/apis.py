"""REST of the frame: who am I, and is the platform well."""

from __future__ import annotations

from django.db import connection
from django.db.utils import Error as DatabaseError
from django.http import HttpRequest, JsonResponse
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.permissions import IsAuthenticated
from rest_framework.request import Request
from rest_framework.response import Response

from .api import ApiView
from .auth import Permission, may


def health(request: HttpRequest) -> JsonResponse:
    """200 while the database answers; for load balancers, so it says nothing else."""
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
    except DatabaseError:
        return JsonResponse({"status": "database unavailable"}, status=503)
    return JsonResponse({"status": "ok"})


class MeApi(ApiView):
    """Whoever presents these credentials, and what that role may do."""

    permission_classes = [IsAuthenticated]

    class Output(serializers.Serializer[None]):
        name = serializers.CharField()
        role = serializers.CharField()
        customer_id = serializers.IntegerField(allow_null=True)
        cluster_id = serializers.IntegerField(allow_null=True)
        permissions = serializers.ListField(child=serializers.CharField())

    @extend_schema(responses=Output)
    def get(self, request: Request) -> Response:
        viewer = self.viewer
        return Response(
            {
                "name": viewer.name,
                "role": viewer.role.value,
                "customer_id": viewer.customer_id,
                "cluster_id": viewer.cluster_id,
                "permissions": sorted(one.value for one in Permission if may(viewer, one)),
            }
        )
