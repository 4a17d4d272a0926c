"""Who gets through the REST door."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rest_framework.permissions import BasePermission
from rest_framework.request import Request

from .auth import may, require_person, viewer_of

if TYPE_CHECKING:  # DRF reads this module while it defines APIView
    from rest_framework.views import APIView


class Closed(BasePermission):
    """Lets in only a viewer with the permission that the view declares; none declared: nobody.

    Raises PersonNeeded where the view asks for a person and a token comes.
    """

    def has_permission(self, request: Request, view: APIView) -> bool:
        viewer = viewer_of(request)
        wanted = getattr(view, "permissions", {}).get(request.method or "")
        wanted = wanted or getattr(view, "permission", None)
        allowed = wanted is not None and may(viewer, wanted)
        if allowed and getattr(view, "needs_person", False):
            require_person(viewer)
        return allowed
