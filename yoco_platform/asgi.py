"""The ASGI application: pages and REST behind Django's middleware, agents behind none, two sockets."""

from __future__ import annotations

import os

from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "yoco_platform.settings")
django_application = get_asgi_application()

from yoco_platform.passes import start_clock  # noqa: E402  (needs the apps)
from yoco_platform.routing import compose  # noqa: E402

application = compose(django_application, start_clock)
