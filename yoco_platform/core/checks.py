"""System checks: bad configuration is named at the start, with an id and what to do about it."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.core.checks import CheckMessage, Error, Tags, Warning, register
from django.utils.module_loading import import_string


@register(Tags.security)
def secret_key_is_ours(**_: Any) -> list[CheckMessage]:
    if settings.SECRET_KEY == settings.UNSAFE_SECRET_KEY:
        return [
            Error(
                "There is no secret key; sessions and tokens could be forged.",
                hint="Set YOCO_SECRET_KEY (or YOCO_SECRET_KEY_FILE) to 50 random characters.",
                id="yoco.E001",
            )
        ]
    if len(settings.SECRET_KEY) < 32:
        return [
            Warning(
                "The secret key is shorter than 32 characters.",
                hint="python -c 'import secrets; print(secrets.token_urlsafe(50))'",
                id="yoco.W001",
            )
        ]
    return []


@register()
def modes_are_not_mixed(**_: Any) -> list[CheckMessage]:
    found: list[CheckMessage] = []
    if settings.SQLITE and not settings.EMBEDDED:
        found.append(
            Error(
                "REDIS_URL is set but the database is SQLite, which several processes must not share.",
                hint="Set DATABASE_URL to PostgreSQL, or unset REDIS_URL for the one-process mode.",
                id="yoco.E002",
            )
        )
    if not settings.SQLITE and settings.EMBEDDED:
        found.append(
            Warning(
                "PostgreSQL without Redis: one process only, its broker and channel layer in memory.",
                hint="Set REDIS_URL before starting a second process.",
                id="yoco.W002",
            )
        )
    return found


@register()
def addresses_can_be_read(**_: Any) -> list[CheckMessage]:
    found: list[CheckMessage] = []
    public = urlsplit(settings.PUBLIC_URL)
    if public.scheme not in {"http", "https"} or not public.hostname:
        found.append(
            Error(
                f"YOCO_PUBLIC_URL={settings.PUBLIC_URL} is no address of a site.",
                hint="Write it as people type it: https://yoco.example.com",
                id="yoco.E003",
            )
        )
    redis_scheme = urlsplit(settings.REDIS_URL).scheme
    if settings.REDIS_URL and redis_scheme not in {"redis", "rediss", "unix"}:
        found.append(
            Error(
                f"REDIS_URL starts with {redis_scheme or 'nothing'}://, which is not Redis.",
                hint="Write it as redis://host:6379/0",
                id="yoco.E004",
            )
        )
    if "*" in settings.ALLOWED_HOSTS:
        found.append(
            Error(
                "YOCO_ALLOWED_HOSTS=* would also switch off the check of websocket origins.",
                hint="Name the hosts.",
                id="yoco.E005",
            )
        )
    return found


@register(Tags.security)
def debug_is_off_in_scale_mode(**_: Any) -> list[CheckMessage]:
    if settings.DEBUG and not settings.EMBEDDED:
        return [
            Error(
                "YOCO_DEBUG=1 in scale mode shows settings and source code to whoever makes an error.",
                hint="Unset YOCO_DEBUG.",
                id="yoco.E006",
            )
        ]
    return []


@register()
def log_settings_are_known(**_: Any) -> list[CheckMessage]:
    found: list[CheckMessage] = []
    if settings.LOG_FORMAT not in {"json", "console"}:
        found.append(
            Error(
                f"YOCO_LOG_FORMAT={settings.LOG_FORMAT} is not known.",
                hint="Write json or console.",
                id="yoco.E007",
            )
        )
    return found


@register()
def clock_passes_exist(**_: Any) -> list[CheckMessage]:
    found: list[CheckMessage] = []
    for path in settings.CLOCK_PASSES:
        try:
            import_string(path)
        except ImportError as error:
            found.append(
                Error(f"CLOCK_PASSES names {path}: {error}", hint="Correct it.", id="yoco.E008")
            )
    return found
