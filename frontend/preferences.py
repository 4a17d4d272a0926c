"""What a reader chose for himself, kept in cookies: time zone, theme, keyboard shortcuts."""

from __future__ import annotations

from zoneinfo import ZoneInfo

from django.http import HttpRequest

ZONES = (
    "UTC",
    "America/Los_Angeles",
    "America/New_York",
    "Europe/London",
    "Europe/Berlin",
    "Asia/Kolkata",
    "Asia/Singapore",
    "Asia/Tokyo",
)
THEMES = ("system", "light", "dark")
KEYS = ("on", "off")
ZONE_COOKIE, THEME_COOKIE, KEYS_COOKIE = "yoco_zone", "yoco_theme", "yoco_keys"


def _chosen(request: HttpRequest, cookie: str, among: tuple[str, ...]) -> str:
    value = request.COOKIES.get(cookie, among[0])
    return value if value in among else among[0]


def zone_of(request: HttpRequest) -> ZoneInfo:
    """The zone the reader has chosen; UTC when none, or one we do not offer."""
    return ZoneInfo(_chosen(request, ZONE_COOKIE, ZONES))


def theme_of(request: HttpRequest) -> str:
    return _chosen(request, THEME_COOKIE, THEMES)


def keys_of(request: HttpRequest) -> str:
    return _chosen(request, KEYS_COOKIE, KEYS)
