"""The REST client: what a scheduler or a notebook uses to talk to the platform.

from yoco.client import Client
client = Client("http://127.0.0.1:8000", token="yoco_...")
job = client.post("/jobs", {"name": "llm", "world_size": 3, ...})
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from typing import Any

import httpx

Json = Any  # REST bodies are open-ended JSON; their shapes are in the OpenAPI schema


class Refused(Exception):
    """The platform said no. ``code`` is stable, ``message`` is for people, ``status`` is HTTP's."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.status, self.code, self.message = status, code, message


class TimedOut(Exception):
    """``wait_for`` saw no acceptable answer in time; the message carries the last one."""


class Client:
    """One connection pool to one platform. Paths are relative to ``/api/v1``.

    Raises Refused for an answer with a problem body, httpx.HTTPError when nobody answers.
    """

    def __init__(self, platform: str, *, token: str, timeout_s: float = 10.0) -> None:
        self._http = httpx.Client(
            base_url=platform.rstrip("/") + "/api/v1",
            headers={"Authorization": f"Bearer {token}"},
            timeout=timeout_s,
        )

    def get(self, path: str, **query: str | int) -> Json:
        return self._answer(self._http.get(path, params=query))

    def post(self, path: str, body: Json | None = None, *, key: str | None = None) -> Json:
        """``key`` is the Idempotency-Key: the same key with the same body is done once."""
        headers = {"Idempotency-Key": key or str(uuid.uuid4())}
        return self._answer(self._http.post(path, json=body or {}, headers=headers))

    def wait_for(
        self, path: str, accept: Callable[[Json], bool], *, timeout_s: float, every_s: float = 0.25
    ) -> Json:
        """Ask until ``accept`` says yes. Raises TimedOut."""
        deadline = time.monotonic() + timeout_s
        while True:
            answer = self.get(path)
            if accept(answer):
                return answer
            if time.monotonic() > deadline:
                raise TimedOut(f"{path} after {timeout_s:.0f} s: {answer}")
            time.sleep(every_s)

    def close(self) -> None:
        self._http.close()

    @staticmethod
    def _answer(response: httpx.Response) -> Json:
        if response.is_success:
            return response.json() if response.content else {}
        try:
            problem = response.json()
        except ValueError:
            problem = {}
        raise Refused(
            response.status_code,
            str(problem.get("code", f"http_{response.status_code}")),
            str(problem.get("detail", response.text[:200])),
        )
