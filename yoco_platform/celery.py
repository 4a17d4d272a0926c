"""The Celery application: the same tasks on memory (embedded) and on Redis (scale)."""

from __future__ import annotations

import os

from celery import Celery, signals

from yoco_platform import waking_transport

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "yoco_platform.settings")
waking_transport.register()

app = Celery("yoco")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()


@signals.setup_logging.connect
def _keep_our_logging(**_: object) -> None:
    """Django has configured logging already; Celery must not do it again."""
