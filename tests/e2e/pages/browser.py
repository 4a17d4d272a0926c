"""A real Chromium with everything that must not happen on a page written down."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from playwright.sync_api import Browser, Page, Request, sync_playwright

from tests.frontend.scene import PASSWORD

FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip
SHOTS = Path(__file__).resolve().parents[3] / "var" / "shots"


@contextmanager
def chromium() -> Iterator[Browser]:
    """Debian's Chromium, or the one that YOCO_CHROMIUM names."""
    path = os.environ.get("YOCO_CHROMIUM", "/usr/bin/chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Visit:
    """A tab with its complaints. ``offline_is_fine`` while a test takes the server away."""

    page: Page
    url: str
    complaints: list[str] = field(default_factory=list)
    offline_is_fine: bool = False

    def go(self, path: str) -> Page:
        self.page.goto(self.url + path)
        return self.page

    def sign_in(self, name: str) -> None:
        self.go("/login")
        self.page.fill("#id_username", name)
        self.page.fill("#id_password", PASSWORD)
        self.page.click("button.primary")
        self.page.wait_for_url(lambda address: "/login" not in address)

    def expect_nothing_wrong(self) -> None:
        assert self.complaints == []


@contextmanager
def visiting(
    browser: Browser, url: str, *, width: int = 1440, theme: str = "light"
) -> Iterator[Visit]:
    """A fresh profile. Console errors, refused content and foreign requests become complaints."""
    context = browser.new_context(
        viewport={"width": width, "height": 900},
        color_scheme="dark" if theme == "dark" else "light",
        reduced_motion="reduce",
    )
    page = context.new_page()
    visit = Visit(page, url)

    def heard(kind: str, words: str) -> None:
        if kind in ("error", "warning") and not visit.offline_is_fine:
            visit.complaints.append(f"{kind}: {words}")

    def asked(request: Request) -> None:
        own = (url, url.replace("http", "ws"), "data:", "blob:")
        if not request.url.startswith(own):
            visit.complaints.append(f"foreign request: {request.url}")

    page.on("console", lambda message: heard(message.type, message.text))
    page.on("pageerror", lambda error: visit.complaints.append(f"uncaught: {error}"))
    page.on("request", asked)
    try:
        yield visit
    finally:
        context.close()
