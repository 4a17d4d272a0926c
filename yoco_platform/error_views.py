"""What is answered when no view could: problem+json to machines, a page to people."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.views import defaults

from yoco_platform.core.errors import DomainError, NotFound
from yoco_platform.core.problems import problem

MACHINE_PREFIXES = ("/api/", "/agent/")


class Internal(DomainError):
    code = "internal"
    status = 500


def no_route(request: HttpRequest, exception: Exception) -> HttpResponse:
    if request.path.startswith(MACHINE_PREFIXES):
        return problem(NotFound("There is no such route.", path=request.path))
    return defaults.page_not_found(request, exception)


def failed(request: HttpRequest) -> HttpResponse:
    if request.path.startswith(MACHINE_PREFIXES):
        return problem(Internal("Something failed on our side; it has been logged."))
    return defaults.server_error(request)
