"""Tags of the templates: badges, times, numbers, icons, the bundle. All words go through here once."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from django import template
from django.conf import settings
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString, mark_safe
from django_vite.core.asset_loader import DjangoViteAssetLoader
from django_vite.core.exceptions import DjangoViteAssetNotFoundError

from jobs.states import Source
from yoco_platform.core import clock

from .. import formatting, svg
from ..preferences import theme_of
from ..words import (
    CAUSE_WORDS,
    SOURCE_WORDS,
    Look,
    incident_look,
    node_look,
    severity_look,
    worker_look,
)

if TYPE_CHECKING:
    from jobs.models import Incident

    from ..queries.fleet import Fleet, NodeRow
    from ..queries.incident import StreamRow

register = template.Library()

for _function in (
    formatting.count,
    formatting.seconds,
    formatting.age,
    formatting.size,
    formatting.digest,
    formatting.ranges,
):
    register.filter(_function.__name__, _function)
register.filter("sparkline", svg.sparkline)


@register.filter
def node_cells(row: NodeRow, pitch: int) -> SafeString:
    """The GPUs of a node as cells of the given pitch."""
    return svg.cells(row.cell_states, pitch=pitch)


@register.filter
def rack_in_trouble(fleet: Fleet, rack: str) -> bool:
    return any(row.node.rack == rack for row in fleet.trouble)


@register.filter
def tick_words(value: float) -> str:
    """A round number of seconds on an axis."""
    return f"{value * 1000:g}{formatting.NBSP}ms" if value < 0.1 else f"{value:g}{formatting.NBSP}s"


@register.filter
def milliseconds(value: float | None) -> str:
    """Milliseconds as a span in the best unit."""
    return formatting.seconds(None if value is None else value / 1000)


@register.filter
def cause(value: str | None) -> str:
    return CAUSE_WORDS.get(value or "", "not known yet")


@register.filter
def plural(number: int, words: str) -> str:
    """``{{ n|plural:"node" }}`` or ``{{ n|plural:"loss,losses" }}``."""
    one, _, many = words.partition(",")
    return formatting.plural(number, one, many)


@register.filter
def epoch_ms(at: datetime) -> int:
    return int(at.timestamp() * 1000)


@register.filter
def iso(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


@register.simple_tag
def shape(name: str, css: str = "") -> SafeString:
    """The icon of a state: decoration, the word beside it says the same."""
    return format_html(
        '<svg class="shape {} {}" viewBox="0 0 12 12" aria-hidden="true"><use href="#shape-{}"/></svg>',
        name,
        css,
        name,
    )


@register.simple_tag
def badge(look: Look, css: str = "quiet", word: str = "") -> SafeString:
    """Shape and word; ``css`` is quiet (no tint), large, or empty for the tinted one."""
    return format_html(
        '<span class="badge {} {}">{}{}</span>',
        look.shape,
        css,
        shape(look.shape),
        word or look.word,
    )


@register.simple_tag
def icon(name: str) -> SafeString:
    return format_html('<svg class="icon" aria-hidden="true"><use href="#icon-{}"/></svg>', name)


@register.simple_tag
def swatch(state: str) -> SafeString:
    """The little square of a legend; the same marks as in the map."""
    extra = ""
    if state == "spare":
        extra = '<rect class="outline-spare" x="0.5" y="0.5" width="9" height="9"/>'
    if state == "unknown":
        extra = '<path class="outline-unknown" d="M1 9 9 1"/>'
    return format_html(
        '<svg class="swatch" viewBox="0 0 10 10" aria-hidden="true">'
        '<rect class="fill-{}" width="10" height="10"/>{}</svg>',
        state,
        mark_safe(extra),  # noqa: S308  two constants of this function
    )


FORMS = {
    "clock": "%H:%M:%S",
    "day": "%-d %b %Y",
    "short": "%-d %b %H:%M:%S",
    "minute": "%-d %b %H:%M",
}
DATED = ("short", "minute")
"""Forms with a day and no year: of another year than this one they say which."""


@register.simple_tag
def moment(at: datetime | None, form: str = "short") -> SafeString | str:
    """A ``<time>`` in the reader's zone, with the whole instant and its zone in the title.

    ``lately`` is a clock time today and has its day on every other day.
    """
    if at is None:
        return formatting.DASH
    local, today = timezone.localtime(at), timezone.localtime(clock.now())
    if form == "lately":
        form = "clock" if local.date() == today.date() else "short"
    if form == "millis":
        words = f"{local:%H:%M:%S}.{local.microsecond // 1000:03d}"
    elif form == "full":
        words = f"{local:%Y-%m-%d %H:%M:%S} {local:%Z}"
    else:
        words = local.strftime(FORMS[form])
        if form in DATED and local.year != today.year:
            words = words.replace(f"{local:%b}", f"{local:%b %Y}", 1)
    title = f"{local:%Y-%m-%d %H:%M:%S}.{local.microsecond // 1000:03d} {local:%Z}"
    return format_html('<time datetime="{}" title="{}">{}</time>', iso(at), title, words)


@register.simple_tag
def ago(at: datetime | None) -> SafeString | str:
    """How long ago, kept current by the page; the instant is in the title."""
    if at is None:
        return formatting.DASH
    # Without the script it is a clock time; the words of an age would change every fragment's ETag.
    return format_html(
        '<time-ago datetime="{}" title="{} UTC">{}</time-ago>',
        iso(at),
        f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S}",
        timezone.localtime(at).strftime(FORMS["minute"]),
    )


@register.simple_tag
def bundle() -> SafeString:
    """Style sheet and script of the built front end; nothing when it has not been built."""
    if not bundle_built():
        return mark_safe("")
    try:
        tags = DjangoViteAssetLoader.instance().generate_vite_asset("src/main.ts")
    except DjangoViteAssetNotFoundError:
        # Built after this process started: read the manifest again.
        DjangoViteAssetLoader._instance = None
        tags = DjangoViteAssetLoader.instance().generate_vite_asset("src/main.ts")
    return mark_safe(str(tags))  # noqa: S308  made by django-vite from our own manifest


@register.simple_tag
def bundle_missing() -> bool:
    return not bundle_built()


def bundle_built() -> bool:
    config: dict[str, Any] = settings.DJANGO_VITE["default"]
    return bool(config["dev_mode"]) or Path(config["manifest_path"]).is_file()


@register.simple_tag
def htmx_settings() -> str:
    """Settings of htmx for the strict policy: nothing inline, no eval, only our own origin.

    304 keeps what is shown, 422 is a form with its errors; finance pages never go to storage.
    """
    return json.dumps(
        {
            "includeIndicatorStyles": False,
            "allowEval": False,
            "allowScriptTags": False,
            "selfRequestsOnly": True,
            "historyCacheSize": 0,
            "timeout": 10_000,
            "responseHandling": [
                {"code": "204", "swap": False},
                {"code": "304", "swap": False},
                {"code": "[23]..", "swap": True},
                {"code": "422", "swap": True},
                {"code": "[45]..", "swap": False, "error": True},
            ],
        }
    )


@register.simple_tag(takes_context=True)
def theme_of_request(context: template.Context) -> str:
    """For pages outside the frame (sign-in): the theme from the cookie."""
    return theme_of(context["request"])


@register.simple_tag
def sign_in_picture() -> SafeString:
    return svg.sign_in_picture()


@register.filter
def at(rows: Sequence[object], index: int) -> object:
    return rows[index]


@register.simple_tag
def incident_badge(incident: Incident) -> SafeString:
    """State while it is open, verdict afterwards; only trouble and verdicts have a tint."""
    return badge(incident_look(incident.state, incident.verdict), "")


@register.simple_tag
def worker_badge(state: str) -> SafeString:
    return badge(worker_look(state))


@register.simple_tag
def severity_badge(severity: str) -> SafeString:
    return badge(severity_look(severity))


@register.simple_tag
def node_shape(state: str) -> SafeString:
    look = node_look(state)
    return shape(look.shape, look.shape)


@register.simple_tag
def stream_rate(stream: StreamRow) -> str:
    return formatting.rate(stream.bytes_moved, stream.ended_s - stream.began_s)


@register.simple_tag
def source_words(source: str) -> str:
    return SOURCE_WORDS[Source(source)]


@register.simple_tag
def offset(value: float) -> str:
    """Seconds since the onset with a sign: +3.318, 0.000."""
    return f"{value:+.3f}" if round(value, 3) else "0.000"


@register.filter
def of(mapping: Mapping[int, object], key: int) -> object:
    return mapping.get(key)


@register.filter
def total(numbers: Iterable[int]) -> int:
    return sum(numbers)


@register.simple_tag
def times(left: int, right: int) -> str:
    return formatting.count(left * right)
