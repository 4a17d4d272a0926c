"""The settings of a test run: real PostgreSQL and Redis where they are, else the embedded defaults.

DATABASE_URL and REDIS_URL from the environment win; otherwise PostgreSQL and Redis on loopback are
taken if something listens there; ``YOCO_TEST_EMBEDDED=1`` forces SQLite, memory broker and layer.
"""

from __future__ import annotations

import os
import socket
import tempfile


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(0.5)
        return probe.connect_ex(("127.0.0.1", port)) == 0


_directory = os.environ.get("YOCO_TEST_DATA_DIR")
if not _directory:
    _directory = tempfile.mkdtemp(prefix="yoco-test-")
    os.environ["YOCO_TEST_DATA_DIR_IS_OURS"] = str(os.getpid())
os.environ["YOCO_TEST_DATA_DIR"] = _directory
# Tests that run side by side (pytest -n) share the folder that is removed in the end, and nothing in it.
os.environ["YOCO_DATA_DIR"] = os.path.join(_directory, os.environ.get("PYTEST_XDIST_WORKER", "one"))
os.makedirs(os.environ["YOCO_DATA_DIR"], exist_ok=True)
if os.environ.get("YOCO_TEST_EMBEDDED") == "1":
    os.environ["DATABASE_URL"] = os.environ["REDIS_URL"] = ""
else:
    if not os.environ.get("DATABASE_URL") and _listens(5432):
        os.environ["DATABASE_URL"] = "postgres://postgres@127.0.0.1:5432/test"
    if not os.environ.get("REDIS_URL") and os.environ.get("DATABASE_URL") and _listens(6379):
        os.environ["REDIS_URL"] = "redis://127.0.0.1:6379/0"
os.environ.setdefault("YOCO_SECRET_KEY", "only-for-tests-" + "x" * 40)
os.environ["YOCO_REDIS_PREFIX"] = f"yoco-test-{os.getpid()}"
os.environ.setdefault("YOCO_LOG_LEVEL", "WARNING")

from yoco_platform.settings import *  # noqa: E402, F403
from yoco_platform.settings import DATABASES, SQLITE  # noqa: E402

if SQLITE:
    # Threads of one test process share the file; a memory database would be each thread's own.
    DATABASES["default"]["TEST"] = {
        "NAME": os.path.join(os.environ["YOCO_DATA_DIR"], "test.sqlite3")
    }
else:
    DATABASES["default"]["OPTIONS"]["pool"]["min_size"] = 1
    # Several test runs may share one server.
    DATABASES["default"]["TEST"] = {"NAME": f"test_yoco_{os.getpid()}"}

PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
SESSION_ENGINE = "django.contrib.sessions.backends.db"
