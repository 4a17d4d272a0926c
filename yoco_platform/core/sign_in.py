"""Who signs in is recorded, and how often a password may be guessed is limited: the same for every form."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import wraps
from typing import Any

import structlog
from django.core.cache import cache
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.shortcuts import render
from redis.exceptions import RedisError

from .audit import audit
from .auth import viewer_of

log = structlog.get_logger(__name__)

WINDOW_S = 15 * 60
FAILURES_MAX = 10
"""Failed sign-ins of one name from one address in a window."""
FAILURES_OF_NAME_MAX = 100
"""The same from everywhere: an address can be changed, or made up before a proxy."""
MESSAGE = (
    "Too many failed sign-ins with this name. "
    "Try again in 15 minutes; until then no password is looked at."
)

View = Callable[..., HttpResponseBase]


def guarded(view: View) -> View:
    """A sign-in view that answers 429 instead of looking at one more password.

    An attempt counts before the password is looked at, so that many at once cannot slip through; one
    that succeeds is forgotten.
    """

    @wraps(view)
    def once(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        if request.method != "POST":
            return view(request, *args, **kwargs)
        limits = _limits(request)
        if any(_attempts(key) > most for key, most in limits.items()):
            log.warning("sign_in_refused", address=request.META.get("REMOTE_ADDR"))
            shown = {"refused": MESSAGE, "next": request.POST.get("next", "")}
            refused = render(request, "login.html", shown, status=429)
            refused["Retry-After"] = str(WINDOW_S)
            return refused
        response = view(request, *args, **kwargs)
        if request.user.is_authenticated:
            _forget(limits)
            where = {"address": request.META.get("REMOTE_ADDR", "")}
            audit(viewer_of(request), "user.sign_in", f"user:{request.user.pk}", where)
        return response

    return once


def _limits(request: HttpRequest) -> dict[str, int]:
    name = request.POST.get("username", "").strip().casefold()
    address = request.META.get("REMOTE_ADDR", "")
    return {_key(name, address): FAILURES_MAX, _key(name): FAILURES_OF_NAME_MAX}


def _key(*parts: str) -> str:
    return "sign-in:" + hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _attempts(key: str) -> int:
    """How many there were in this window, this one included. A cache that is away limits nobody: people
    must get in to mend it."""
    try:
        cache.add(key, 0, timeout=WINDOW_S)
        return cache.incr(key)
    except ValueError:  # the window ended between both
        return 1
    except RedisError:
        log.exception("sign_in_not_counted")
        return 0


def _forget(keys: dict[str, int]) -> None:
    try:
        cache.delete_many(keys)
    except RedisError:
        log.exception("sign_in_not_counted")
