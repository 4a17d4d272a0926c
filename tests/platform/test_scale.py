"""Scale mode: several real processes over PostgreSQL and Redis are one platform."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Any

import httpx
import psycopg
import pytest
from django.conf import settings
from websockets.sync.client import ClientConnection, connect

from .processes import ROOT, Running, environment, listening, yoco

pytestmark = [pytest.mark.e2e, pytest.mark.postgres, pytest.mark.redis]

PUBLISH = """
import django; django.setup()
from yoco_platform.core.courier import courier
from yoco_platform.core.realtime import publish_on_commit
publish_on_commit("overview", "scale_test", {"words": "from another process"})
courier.flush()
"""


def _server_url(name: str) -> str:
    options = settings.DATABASES["default"]
    host, port = options["HOST"], options["PORT"] or 5432
    password = f":{options['PASSWORD']}" if options["PASSWORD"] else ""
    return f"postgres://{options['USER']}{password}@{host}:{port}/{name}"


@pytest.fixture(scope="module")
def env(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A database of its own, brought to this version by ``yoco migrate``."""
    name = f"yoco_scale_{os.getpid()}"
    with psycopg.connect(_server_url("postgres"), autocommit=True) as server:
        server.execute(f'CREATE DATABASE "{name}"')
    bare = environment(
        tmp_path_factory.mktemp("scale"),
        DATABASE_URL=_server_url(name),
        REDIS_URL=settings.REDIS_URL,
        YOCO_REDIS_PREFIX=f"{settings.REDIS_PREFIX}-scale",
        YOCO_SECRET_KEY="only for this test " + "x" * 40,
        YOCO_DATABASE_POOL_MAX="3",
    )
    made = yoco("migrate", env=bare)
    assert made.returncode == 0, made.stderr
    made = yoco(
        "admin-create", "ann", "--password-stdin", env=bare, stdin="correct horse battery\n"
    )
    assert made.returncode == 0, made.stderr
    yield bare
    with psycopg.connect(_server_url("postgres"), autocommit=True) as server:
        server.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


def _web(env: dict[str, str]) -> tuple[Running, str]:
    listener = listening()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    running = Running("web", "--fd", str(listener.fileno()), env=env, fds=(listener.fileno(),))
    listener.close()
    running.wait_until_served(url)
    return running, url


def _session(url: str) -> str:
    with httpx.Client(base_url=url, headers={"Referer": url}) as client:
        page = client.get("/login").text
        token = page.split('name="csrfmiddlewaretoken" value="')[1].split('"')[0]
        form = {"username": "ann", "password": "correct horse battery"}
        answer = client.post("/login", data={**form, "csrfmiddlewaretoken": token})
        assert answer.status_code == 302
        return str(client.cookies["sessionid"])


def _listen(stack: ExitStack, url: str, session: str) -> ClientConnection:
    where = url.replace("http", "ws") + "/ws/live"
    headers = {"Cookie": f"sessionid={session}"}
    socket = stack.enter_context(connect(where, origin=url, additional_headers=headers))
    socket.send(json.dumps({"sub": ["overview"]}))
    assert "hello" in json.loads(socket.recv(10))
    return socket


def _next_notice(socket: ClientConnection) -> dict[str, Any]:
    while True:
        message: dict[str, Any] = json.loads(socket.recv(10))
        if message.get("k") == "scale_test":
            return message


def test_a_session_and_a_notice_reach_every_web_process(env: dict[str, str]) -> None:
    webs = [_web(env), _web(env)]
    with ExitStack() as stack:
        for running, _ in webs:
            stack.callback(running.stop)
        session = _session(webs[0][1])
        sockets = [_listen(stack, url, session) for _, url in webs]
        program = [sys.executable, "-c", PUBLISH]
        told = {**env, "DJANGO_SETTINGS_MODULE": "yoco_platform.settings"}
        subprocess.run(program, cwd=ROOT, env=told, check=True)
        heard = [_next_notice(socket) for socket in sockets]
        assert [one["d"] for one in heard] == [{"words": "from another process"}] * 2
        assert heard[0]["n"] == heard[1]["n"]
    assert [running.process.returncode for running, _ in webs] == [0, 0]


class _Hook(BaseHTTPRequestHandler):
    arrived = Event()
    bodies: list[str] = []

    def do_POST(self) -> None:
        self.bodies.append(self.rfile.read(int(self.headers["Content-Length"])).decode())
        self.send_response(204)
        self.end_headers()
        if "scale_test" in self.bodies[-1]:
            self.arrived.set()

    def log_message(self, *_: object) -> None:
        pass


def test_beat_and_worker_carry_a_notice_to_a_webhook(env: dict[str, str]) -> None:
    hook = HTTPServer(("127.0.0.1", 0), _Hook)
    thread = Thread(target=hook.serve_forever)
    thread.start()
    add = f"""
import django; django.setup()
from yoco_platform.core.models import WebhookEndpoint
WebhookEndpoint.objects.create(name="h", secret="s", url="http://127.0.0.1:{hook.server_port}/")
"""
    told = {**env, "DJANGO_SETTINGS_MODULE": "yoco_platform.settings"}
    subprocess.run([sys.executable, "-c", add + PUBLISH], cwd=ROOT, env=told, check=True)
    running = [Running("worker", env=env), Running("beat", env=env)]
    try:
        assert _Hook.arrived.wait(60), [one.output for one in running]
    finally:
        for one in running:
            one.stop(signal.SIGTERM)
        hook.shutdown()
        hook.server_close()
        thread.join()
    sent = [json.loads(body) for body in _Hook.bodies]
    assert [one["data"] for one in sent if one["kind"] == "scale_test"][-1] == {
        "words": "from another process"
    }


def test_the_data_folder_of_scale_mode_holds_no_secret(env: dict[str, str]) -> None:
    assert not (Path(env["YOCO_DATA_DIR"]) / "secret_key").exists()
