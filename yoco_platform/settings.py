"""Every setting of the platform, read from the environment once. Defaults: embedded mode."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import dj_database_url
import django_stubs_ext

from yoco_platform import env
from yoco_platform.core.logging import configure_logging, logging_config

# Lets classes such as ModelAdmin take type arguments at run time as they do for mypy.
django_stubs_ext.monkeypatch()

BASE_DIR = Path(__file__).resolve().parent.parent
DATA_DIR = Path(env.text("YOCO_DATA_DIR", "var"))
if not DATA_DIR.is_absolute():
    DATA_DIR = (BASE_DIR if (BASE_DIR / "manage.py").exists() else Path.cwd()) / DATA_DIR

DATABASE_URL = env.text("DATABASE_URL")
REDIS_URL = env.text("REDIS_URL")
REDIS_PREFIX = env.text("YOCO_REDIS_PREFIX", "yoco")
EMBEDDED = not REDIS_URL
"""One process: memory broker, in-memory channel layer. core.checks refuses half of it."""

DEBUG = env.flag("YOCO_DEBUG")
PUBLIC_URL = env.text("YOCO_PUBLIC_URL", "http://127.0.0.1:8000").rstrip("/")
TRUST_PROXY = env.flag("YOCO_TRUST_PROXY")
BEHIND_TLS = urlsplit(PUBLIC_URL).scheme == "https"


def _secret_key() -> str:
    """The key from the environment, else one made once and kept beside the embedded database."""
    given = env.text("YOCO_SECRET_KEY")
    if given or not EMBEDDED:
        return given
    path = DATA_DIR / "secret_key"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_name(f"secret_key.{secrets.token_hex(4)}")
        new.touch(mode=0o600)
        new.write_text(secrets.token_urlsafe(50), encoding="utf-8")
        try:
            path.hardlink_to(new)
        except FileExistsError:
            pass
        new.unlink()
    return path.read_text(encoding="utf-8").strip()


UNSAFE_SECRET_KEY = "missing: set YOCO_SECRET_KEY"  # noqa: S105
SECRET_KEY = _secret_key() or UNSAFE_SECRET_KEY

ALLOWED_HOSTS = env.words("YOCO_ALLOWED_HOSTS", "127.0.0.1,localhost,[::1]")
_public_host = urlsplit(PUBLIC_URL).hostname
if _public_host and _public_host not in ALLOWED_HOSTS:
    ALLOWED_HOSTS.append(_public_host)
CSRF_TRUSTED_ORIGINS = [PUBLIC_URL]

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "channels",
    "django_htmx",
    "django_vite",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "rest_framework",
    "yoco_platform.core",
    "nodes",
    "jobs",
    "sla",
    "frontend",
]
AUTH_USER_MODEL = "core.User"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

MIDDLEWARE = [
    "yoco_platform.core.security.SecurityHeaders",
    "django.middleware.security.SecurityMiddleware",
    "servestatic.middleware.ServeStaticMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
]
ROOT_URLCONF = "yoco_platform.urls"
AGENT_URLCONF = "yoco_platform.agent_urls"
ASGI_APPLICATION = "yoco_platform.asgi.application"

TEMPLATES: list[dict[str, Any]] = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "frontend" / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]

# --- Database ---------------------------------------------------------------------------------------

DATABASES: dict[str, Any] = {
    "default": dj_database_url.parse(DATABASE_URL or f"sqlite:///{DATA_DIR / 'yoco.sqlite3'}")
}
SQLITE = DATABASES["default"]["ENGINE"].endswith("sqlite3")
if SQLITE:
    if not DATABASE_URL:
        DATA_DIR.mkdir(parents=True, exist_ok=True)
    # IMMEDIATE takes the write lock at BEGIN: a read that upgrades to a write would otherwise fail
    # with "database is locked" at once, whatever the timeout.
    DATABASES["default"]["OPTIONS"] = {
        "transaction_mode": "IMMEDIATE",
        "timeout": 20,
        "init_command": "PRAGMA journal_mode=WAL;PRAGMA synchronous=NORMAL;",
    }
else:
    # Under ASGI each request has a thread of its own, so kept connections would keep nothing.
    DATABASES["default"].setdefault("OPTIONS", {})["pool"] = {
        "min_size": 2,
        "max_size": env.integer("YOCO_DATABASE_POOL_MAX", 8, least=2),
        "timeout": 5,
    }
    DATABASES["default"]["CONN_MAX_AGE"] = 0

# --- Redis, channel layer, cache, Celery ------------------------------------------------------------

REDIS_OPTIONS: dict[str, Any] = {
    "socket_timeout": 1.0,
    "socket_connect_timeout": 1.0,
    "health_check_interval": 10,
}
if EMBEDDED:
    CHANNEL_LAYERS: dict[str, Any] = {
        "default": {"BACKEND": "channels.layers.InMemoryChannelLayer"}
    }
    CACHES: dict[str, Any] = {
        "default": {
            "BACKEND": "django.core.cache.backends.locmem.LocMemCache",
            "OPTIONS": {
                "MAX_ENTRIES": 20_000
            },  # counts of failed sign-ins must not push each other out
        }
    }
    CELERY_BROKER_URL = "yoco-memory://localhost//"
else:
    CHANNEL_LAYERS = {
        "default": {
            "BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer",
            "CONFIG": {"hosts": [REDIS_URL], "prefix": REDIS_PREFIX},
        }
    }
    CACHES = {
        "default": {
            "BACKEND": "django.core.cache.backends.redis.RedisCache",
            "LOCATION": REDIS_URL,
            "KEY_PREFIX": f"{REDIS_PREFIX}:cache",
        }
    }
    CELERY_BROKER_URL = REDIS_URL
    CELERY_BROKER_TRANSPORT_OPTIONS = {
        **REDIS_OPTIONS,
        "max_retries": 1,
        "interval_start": 0,
        "interval_step": 0.1,
        "interval_max": 0.1,
        "global_keyprefix": f"{REDIS_PREFIX}:celery:",
    }

CELERY_TASK_IGNORE_RESULT = True
CELERY_TASK_PUBLISH_RETRY = False
CELERY_TASK_DEFAULT_QUEUE = "yoco"
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_WORKER_SEND_TASK_EVENTS = False
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_TASK_SERIALIZER = "json"
CELERY_ACCEPT_CONTENT = ["json"]
CELERY_TIMEZONE = "UTC"
CELERY_BEAT_SCHEDULE: dict[str, Any] = {
    "webhooks": {"task": "core.webhooks_send", "schedule": 2.0},
    "prune": {"task": "core.prune", "schedule": 3600.0},
}

CLOCK_S = env.seconds("YOCO_CLOCK_S", 2.0, least=0.05)
CLOCK_PASSES = [
    "nodes.services.find_lost",
    "nodes.services.nodes_advance",
    "jobs.reconcile.reconcile_all",
    "sla.services.entries_catch_up",
]
"""Dotted paths that the clock thread calls every CLOCK_S, each under its advisory lock."""

TOPIC_TABLES = {
    "job": "jobs.Job",
    "incident": "jobs.Incident",
    "node": "nodes.Node",
    "guarantee": "core.Customer",
}
"""Topic prefix -> table of the id behind it: whose customer and cluster a notice is of."""

SILENCED_SYSTEM_CHECKS = ["django_vite.W001"]  # pages say themselves when nothing is built

HEARTBEAT_S = env.seconds("YOCO_HEARTBEAT_S", 2.0, least=0.1)
PARKED_PER_DAY_MAX = env.integer("YOCO_PARKED_PER_DAY_MAX", 3, least=0)

# --- People -----------------------------------------------------------------------------------------

AUTH_PASSWORD_VALIDATORS = [
    {
        "NAME": "django.contrib.auth.password_validation.MinimumLengthValidator",
        "OPTIONS": {"min_length": 12},
    },
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]
PASSWORD_HASHERS = [
    "django.contrib.auth.hashers.Argon2PasswordHasher",
    "django.contrib.auth.hashers.PBKDF2PasswordHasher",
]
LOGIN_URL = "login"
LOGIN_REDIRECT_URL = "/"
LOGOUT_REDIRECT_URL = "login"
SESSION_COOKIE_AGE = 8 * 3600
SESSION_SAVE_EVERY_REQUEST = False
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Lax"
SESSION_COOKIE_SECURE = BEHIND_TLS
SESSION_COOKIE_NAME = "__Host-sessionid" if BEHIND_TLS else "sessionid"
CSRF_COOKIE_HTTPONLY = True
CSRF_COOKIE_SECURE = BEHIND_TLS
CSRF_COOKIE_NAME = "__Host-csrftoken" if BEHIND_TLS else "csrftoken"

# --- HTTP -------------------------------------------------------------------------------------------

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "font-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'; manifest-src 'self'"
)
SECURE_CONTENT_TYPE_NOSNIFF = True
SECURE_REFERRER_POLICY = "same-origin"
SECURE_CROSS_ORIGIN_OPENER_POLICY = "same-origin"
SECURE_HSTS_SECONDS = 31_536_000 if BEHIND_TLS else 0
X_FRAME_OPTIONS = "DENY"
if TRUST_PROXY:
    SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
BODY_BYTES_MAX = 1024 * 1024
DATA_UPLOAD_MAX_MEMORY_SIZE = BODY_BYTES_MAX

STATIC_URL = "/static/"
STATIC_ROOT = DATA_DIR / "static"
STATICFILES_DIRS = [path for path in [BASE_DIR / "frontend" / "dist"] if path.exists()]
SERVESTATIC_USE_FINDERS = True
SERVESTATIC_AUTOREFRESH = DEBUG
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"},
}
DJANGO_VITE = {
    "default": {
        "dev_mode": env.flag("YOCO_VITE_DEV"),
        "manifest_path": BASE_DIR / "frontend" / "dist" / "manifest.json",
    }
}

REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "yoco_platform.core.tokens.TokenAuthentication",
        "rest_framework.authentication.SessionAuthentication",
    ],
    "DEFAULT_PERMISSION_CLASSES": ["yoco_platform.core.permissions.Closed"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": ["yoco_platform.core.parsing.JsonParser"],
    "DEFAULT_SCHEMA_CLASS": "yoco_platform.core.schema.Schema",
    "EXCEPTION_HANDLER": "yoco_platform.core.api.exception_handler",
    "UNAUTHENTICATED_USER": "django.contrib.auth.models.AnonymousUser",
}
SPECTACULAR_SETTINGS = {
    "TITLE": "Yoco",
    "VERSION": "1",
    "SERVE_INCLUDE_SCHEMA": False,
    "SERVE_PUBLIC": True,
    "SERVE_PERMISSIONS": ["rest_framework.permissions.IsAuthenticated"],
    "SERVE_AUTHENTICATION": ["rest_framework.authentication.SessionAuthentication"],
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
    "SCHEMA_PATH_PREFIX": "/api/v1",
    "COMPONENT_SPLIT_REQUEST": True,
}

# --- Words, time, logs ------------------------------------------------------------------------------

LANGUAGE_CODE = "en-gb"
USE_I18N = False
USE_TZ = True
TIME_ZONE = "UTC"

LOG_LEVEL = env.text("YOCO_LOG_LEVEL", "INFO").upper()
LOG_FORMAT = env.text("YOCO_LOG_FORMAT", "json")
LOGGING = logging_config(LOG_LEVEL, LOG_FORMAT)
configure_logging()
