"""Rules about the front end's own files."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import pytest
from django.contrib.staticfiles import finders

FRONTEND = Path(__file__).resolve().parents[2] / "frontend"
TEMPLATES = sorted((FRONTEND / "templates").rglob("*.html"))


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_a_template_has_nothing_inline(path: Path) -> None:
    markup = path.read_text()
    assert not re.search(r"\sstyle\s*=", markup)
    assert not re.search(r"\son[a-z]+\s*=", markup)
    assert not re.search(r"<script\b", markup)
    assert not re.search(r"<style\b", markup)


def test_the_lock_names_no_registry() -> None:
    lock = json.loads((FRONTEND / "package-lock.json").read_text())
    assert [name for name, entry in lock["packages"].items() if "resolved" in entry] == []
    assert not re.search(
        r"https?://(?!opencollective|github|tidelift|paulmillr|dotenvx)\S*registry",
        json.dumps(lock),
    )


def test_every_declared_package_is_pinned() -> None:
    package = json.loads((FRONTEND / "package.json").read_text())
    versions = {**package.get("dependencies", {}), **package.get("devDependencies", {})}
    assert versions
    assert [
        name for name, version in versions.items() if not re.fullmatch(r"[\d.]+", version)
    ] == []


def test_every_shape_and_icon_that_is_used_exists_in_the_sprite() -> None:
    sprite = (FRONTEND / "templates" / "parts" / "sprite.html").read_text()
    drawn = set(re.findall(r'<symbol id="([\w-]+)"', sprite))
    from frontend.shell import MENU
    from frontend.words import SHAPES

    used = {f"shape-{shape}" for shape in SHAPES} | {f"icon-{item.icon}" for item in MENU}
    for path in TEMPLATES:
        used |= {f"icon-{name}" for name in re.findall(r'{% icon "([\w-]+)"', path.read_text())}
        used |= set(re.findall(r'href="#((?:icon|shape)-[\w-]+)"', path.read_text()))
    assert used <= drawn


def test_a_page_stays_within_its_budget_of_bytes() -> None:
    manifest = FRONTEND / "dist" / "manifest.json"
    assert manifest.is_file(), "build the front end first: npm ci && npm run build"
    entry = json.loads(manifest.read_text())["src/main.ts"]
    htmx = finders.find("django_htmx/htmx-2.min.js")
    scripts = [FRONTEND / "dist" / entry["file"], Path(str(htmx))]
    styles = [FRONTEND / "dist" / name for name in entry["css"]]
    assert sum(len(gzip.compress(path.read_bytes())) for path in scripts) <= 35_000
    assert sum(len(gzip.compress(path.read_bytes())) for path in styles) <= 14_000


def test_without_a_bundle_a_page_works_and_says_so(
    db: None, client: object, settings: object
) -> None:
    from django.test import Client

    from frontend.templatetags import yoco

    patch = pytest.MonkeyPatch()
    patch.setattr(yoco, "bundle_built", lambda: False)
    try:
        page = Client().get("/login").content.decode()
    finally:
        patch.undo()
    assert "The front end is not built" in page
    assert 'name="username"' in page
    assert "/static/app/" not in page
