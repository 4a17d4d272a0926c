"""The frame: composes the apps and decides nothing."""

from yoco_platform.celery import app as celery_app

__all__ = ["celery_app"]
