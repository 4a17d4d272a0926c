"""``yoco up``: one real process that is the whole platform."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from .processes import Running, environment, listening, yoco

pytestmark = pytest.mark.e2e


class Site:
    def __init__(self, folder: Path) -> None:
        self.env = environment(folder)
        self.folder = folder
        self.sockets = [listening(), listening()]
        self.urls = [f"http://127.0.0.1:{one.getsockname()[1]}" for one in self.sockets]
        descriptors = [one.fileno() for one in self.sockets]
        arguments = [word for number in descriptors for word in ("--fd", str(number))]
        self.running = Running("up", *arguments, env=self.env, fds=tuple(descriptors))
        self.running.wait_until_served(self.urls[0])

    def signed_in(self) -> httpx.Client:
        password = re.search(r"First run: .*\n\s+(\S+)", self.running.output)
        assert password is not None, self.running.output
        client = httpx.Client(base_url=self.urls[0], headers={"Referer": self.urls[0]})
        client.get("/login")
        token = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', client.get("/login").text)
        assert token is not None
        form = {"username": "admin", "password": password[1], "csrfmiddlewaretoken": token[1]}
        assert client.post("/login", data=form).status_code == 302
        return client


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    one = Site(tmp_path_factory.mktemp("up"))
    yield one
    if one.running.process.poll() is None:
        one.running.stop()
    for listener in one.sockets:
        listener.close()


def test_it_serves_on_every_socket_it_was_given(site: Site) -> None:
    for url in site.urls:
        assert httpx.get(f"{url}/healthz").json() == {"status": "ok"}


def test_the_first_administrator_signs_in_with_the_printed_password(site: Site) -> None:
    me = site.signed_in().get("/api/v1/me").json()
    assert (me["name"], me["role"]) == ("admin", "admin")


def test_pages_want_a_login_and_carry_the_security_headers(site: Site) -> None:
    answer = httpx.get(site.urls[0] + "/")
    assert (answer.status_code, answer.headers["location"]) == (302, "/login?next=/")
    page = httpx.get(site.urls[0] + "/login")
    assert page.status_code == 200
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    wanted = {
        "x-content-type-options": "nosniff",
        "referrer-policy": "same-origin",
        "cross-origin-opener-policy": "same-origin",
        "x-frame-options": "DENY",
    }
    assert {name: page.headers[name] for name in wanted} == wanted
    assert "no-store" in page.headers["cache-control"]
    assert "server" not in page.headers


def test_the_api_docs_and_the_schema_are_for_people_who_signed_in(site: Site) -> None:
    assert httpx.get(site.urls[0] + "/api/docs").status_code in {401, 403}
    client = site.signed_in()
    assert client.get("/api/docs").status_code == 200
    assert (
        client.get("/api/docs?script=").headers["content-type"].startswith("application/javascript")
    )
    assert "/api/v1/me" in client.get("/api/schema", params={"format": "json"}).json()["paths"]


def test_a_body_of_two_mebibytes_is_refused_and_the_platform_goes_on(site: Site) -> None:
    body = b"x" * (2 * 1024 * 1024)
    for path in ("/agent/v1/heartbeat", "/api/v1/jobs", "/login"):
        answer = httpx.post(site.urls[0] + path, content=body)
        assert (answer.status_code, answer.json()["code"]) == (413, "too_large")
    assert httpx.get(site.urls[0] + "/healthz").status_code == 200


def test_a_page_socket_needs_a_session_and_our_own_origin(site: Site) -> None:
    client = site.signed_in()
    cookie = {"Cookie": f"sessionid={client.cookies['sessionid']}"}
    where = site.urls[0].replace("http", "ws") + "/ws/live"
    with connect(where, origin=site.urls[0], additional_headers=cookie) as socket:
        socket.send(json.dumps({"sub": ["overview"]}))
        assert "hello" in json.loads(socket.recv(5))
    for origin, headers in [
        ("http://elsewhere.example", cookie),
        (None, cookie),
        (site.urls[0], {}),
    ]:
        with pytest.raises(InvalidStatus) as refused:
            connect(where, origin=origin, additional_headers=headers).close()
        assert refused.value.response.status_code == 403


def test_a_doorbell_needs_a_node_token_and_an_unknown_socket_is_refused(site: Site) -> None:
    base = site.urls[0].replace("http", "ws")
    for path in ("/agent/v1/doorbell", "/nowhere"):
        with pytest.raises(InvalidStatus) as refused:
            connect(base + path, additional_headers={"Authorization": "Bearer x"}).close()
        assert refused.value.response.status_code == 403


def test_a_second_process_is_refused_while_the_first_runs(site: Site) -> None:
    second = yoco("up", "--port", "0", env=site.env)
    assert second.returncode == 1
    assert second.stderr.startswith("already_running")
    assert str(site.running.process.pid) in second.stderr


def test_tokens_are_made_beside_a_running_platform_and_work_there(site: Site) -> None:
    made = yoco("token-create", "slurm", "--quiet", env=site.env)
    assert made.returncode == 0, made.stderr
    headers = {"Authorization": f"Bearer {made.stdout.strip()}"}
    me = httpx.get(site.urls[0] + "/api/v1/me", headers=headers).json()
    assert me["role"] == "scheduler"
    enroll = yoco("enroll-token", "--quiet", env=site.env)
    assert enroll.stdout.startswith("yoco_")


def test_it_ends_cleanly_and_comes_back_with_everything_it_had(site: Site) -> None:
    session = site.signed_in().cookies["sessionid"]
    assert site.running.stop(signal.SIGTERM) == 0
    listener = listening()
    again = Running("up", "--fd", str(listener.fileno()), env=site.env, fds=(listener.fileno(),))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    again.wait_until_served(url)
    me = httpx.get(url + "/api/v1/me", cookies={"sessionid": session})
    assert me.json()["name"] == "admin"
    assert "First run" not in again.output
    assert again.stop(signal.SIGINT) == 0
    listener.close()
