"""What the guarantee page shows. Every figure comes from one evaluation, so that all of them agree."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

from django.utils.safestring import SafeString

from sla import selectors
from sla.errors import LedgerBroken, YearUnknown
from sla.evaluation import Evaluation, Target, allowed_misses
from sla.states import QUALIFYING, Verdict
from yoco_platform.core.auth import Permission, Viewer, may

from .. import svg
from ..formatting import spelled
from ..words import CAUSE_WORDS, Look, standing_look, verdict_look

if TYPE_CHECKING:
    from jobs.models import Incident
    from sla.models import Contract, ContractYear, Entry, Terms

ENTRIES_SHOWN = 50
ENTRIES_DRAWN_MAX = 20_000
TO_BOOK_SHOWN = 20


@dataclass(frozen=True)
class Standing:
    """One running contract year in a tile. ``allowed`` None: the terms have no target.

    ``broken``: somebody changed its ledger, so that no figure is shown.
    """

    contract_id: int
    name: str
    year_label: str
    is_demo: bool
    look: Look
    percent: str
    target: str
    covered: int | None
    qualifying: int | None
    missed: int | None
    averted: int | None
    allowed: int | None
    misses_left: int
    bar: SafeString
    broken: bool = False


@dataclass(frozen=True)
class Bucket:
    """A line of "where every failure went". ``verdict`` "" is a sum, drawn as one."""

    verdict: str
    look: Look
    words: str
    number: int


@dataclass(frozen=True)
class Row:
    """A line of a table of counts."""

    name: str
    qualifying: int
    covered: int
    missed: int


@dataclass(frozen=True)
class Failed:
    """One failure of the year with the verdict that the evaluation counts it by."""

    onset: datetime
    verdict: str
    cause_class: str


@dataclass(frozen=True)
class GuaranteePage:
    contract: Contract
    year: ContractYear
    years: list[ContractYear]
    terms: Terms | None
    evaluation: Evaluation
    look: Look
    sentence: str
    as_of: datetime
    buckets: list[Bucket]
    bar: SafeString
    months: list[Row]
    causes: list[Row]
    chart: SafeString | None
    chart_narrow: SafeString | None
    num_entries: int
    num_to_book: int
    to_book: list[Incident]
    grace_over: bool
    reads_contract: bool
    may_verify: bool
    lost_steps: int

    @property
    def target(self) -> str:
        return target_words(self.terms)


@dataclass(frozen=True)
class EntryLink:
    """The ledger entry of an incident, as the incident page names it."""

    contract_id: int
    contract_name: str
    number: int
    label: str
    hash: str
    rule: str
    terms_version: int


def entry_label(sequence: int) -> str:
    return f"E-{sequence:04d}"


def target_words(terms: Terms | None) -> str:
    """90 for 90/100; the fraction where it is no whole per cent; a dash without one."""
    if terms is None or not terms.target_numerator or not terms.target_denominator:
        return "\u2013"
    whole, rest = divmod(terms.target_numerator * 100, terms.target_denominator)
    return str(whole) if rest == 0 else f"{terms.target_numerator}/{terms.target_denominator}"


def standings(viewer: Viewer) -> list[Standing]:
    """The running year of every contract the viewer may see; nothing for those who see none."""
    if not may(viewer, Permission.COVERAGE_READ):
        return []
    found: list[Standing] = []
    for contract in selectors.contracts_list(viewer)[:20]:
        try:
            summary = selectors.year_summary(viewer, contract)
        except YearUnknown:
            continue
        except LedgerBroken:
            found.append(broken_standing(contract))
            continue
        evaluation = summary.evaluation
        counts = evaluation.counts
        found.append(
            Standing(
                contract_id=contract.pk,
                name=contract.number,
                year_label=year_label(summary.year, contract),
                is_demo=contract.is_demo,
                look=standing_look(str(evaluation.standing)),
                percent=evaluation.coverage_truncated or "\u2013",
                target=target_words(summary.terms),
                covered=counts.covered,
                qualifying=counts.qualifying,
                missed=counts.missed,
                averted=counts.averted,
                allowed=evaluation.allowed_misses,
                misses_left=evaluation.misses_left or 0,
                bar=bucket_bar(evaluation),
            )
        )
    return found


def broken_standing(contract: Contract) -> Standing:
    """No figure of a ledger that somebody changed; the contract's page says which entry does not hold."""
    return Standing(
        contract_id=contract.pk, name=contract.number, year_label="", is_demo=contract.is_demo,
        look=Look("fail", "Ledger broken"), percent="\u2013", target="", covered=None, qualifying=None,
        missed=None, averted=None, allowed=None, misses_left=0, bar=SafeString(""), broken=True,
    )  # fmt: skip


def year_label(year: ContractYear, contract: Contract) -> str:
    """2026 for a year within one calendar year, 2026/27 otherwise; in the contract's zone."""
    zone = ZoneInfo(contract.zone)
    start, end = year.starts_at.astimezone(zone), year.ends_at.astimezone(zone)
    if (start.month, start.day) == (1, 1):
        return str(start.year)
    return f"{start.year}/{end.year % 100:02d}"


def entry_of_incident(viewer: Viewer, incident: Incident) -> EntryLink | None:
    entry = selectors.entry_of_incident(viewer, incident.pk)
    if entry is None:
        return None
    return EntryLink(
        contract_id=entry.contract_id,
        contract_name=entry.contract.number,
        number=entry.sequence,
        label=entry_label(entry.sequence),
        hash=entry.hash,
        rule=entry.rule,
        terms_version=entry.terms.version,
    )


def guarantee_page(viewer: Viewer, contract_id: int, ordinal: int | None) -> GuaranteePage:
    """One contract year. Raises ContractUnknown, YearUnknown."""
    contract = selectors.contract_get(viewer, contract_id)
    summary = selectors.year_summary(viewer, contract, ordinal)
    evaluation = summary.evaluation
    lines = selectors.entries(viewer, contract, year=summary.year.ordinal, limit=ENTRIES_DRAWN_MAX)[
        ::-1
    ]
    failures = _failures(summary, lines)
    wide, narrow = _chart(summary, failures) if failures else (None, None)
    look = standing_look(str(evaluation.standing))
    return GuaranteePage(
        contract=contract,
        year=summary.year,
        years=selectors.years_of(viewer, contract),
        terms=summary.terms,
        evaluation=evaluation,
        look=look,
        sentence=sentence(evaluation, target_words(summary.terms)),
        as_of=summary.as_of,
        buckets=buckets_of(evaluation),
        bar=bucket_bar(evaluation),
        months=_months(failures, ZoneInfo(contract.zone)),
        causes=_causes(failures),
        chart=wide,
        chart_narrow=narrow,
        num_entries=evaluation.counts.recorded - len(summary.to_book),
        num_to_book=len(summary.to_book),
        to_book=summary.to_book[:TO_BOOK_SHOWN],
        grace_over=summary.grace_over,
        reads_contract=may(viewer, Permission.CONTRACT_READ),
        may_verify=may(viewer, Permission.LEDGER_EXPORT),
        lost_steps=sum(_lost(line) for line in lines if line.verdict == Verdict.MISSED),
    )


def _failures(summary: selectors.YearSummary, lines: list[Entry]) -> list[Failed]:
    """What is in the ledger, and what is to come into it; late evidence is missed, as it is evaluated."""
    booked = [Failed(line.onset, line.verdict, line.cause_class or "") for line in lines]
    to_book = [
        Failed(incident.occurred_at, Verdict.AWAITING, incident.cause_class or "")
        for incident in summary.to_book
    ]
    return [
        replace(failed, verdict=Verdict.MISSED)
        if summary.grace_over and failed.verdict == Verdict.AWAITING
        else failed
        for failed in [*booked, *to_book]
    ]


def _lost(entry: Entry) -> int:
    return (entry.incident.lost_steps or 0) if entry.incident else 0


def sentence(evaluation: Evaluation, target: str) -> str:
    """The year in words, after its standing: counts, per cent, and what is still possible."""
    counts = evaluation.counts
    if evaluation.blocked_by:
        return f"It cannot be judged yet: {'; '.join(evaluation.blocked_by)}."
    if counts.qualifying == 0:
        return "No failure of this year qualifies, so there is no per cent to show."
    words = (
        f"{counts.covered:,} of {counts.qualifying:,} qualifying failures were resolved with no lost "
        f"progress: {evaluation.coverage_truncated} %, promised at least {target} %."
    )
    left = evaluation.misses_left or 0
    if evaluation.short_by:
        return f"{words} {evaluation.short_by:,} more would have had to be covered."
    if left == 0:
        return f"{words} No further miss is possible."
    more = "more miss is" if left == 1 else "more misses are"
    return f"{words} {spelled(left)} {more} possible."


def buckets_of(evaluation: Evaluation) -> list[Bucket]:
    """Where every failure went. The lines add up to the two sums among them."""
    counts = evaluation.counts
    excluded = ", ".join(f"{name.replace('_', ' ')} {n}" for name, n in counts.excluded.items())
    plain = (
        (Verdict.AVERTED, "predicted, moved away without loss", counts.averted),
        (Verdict.EXCLUDED, excluded or "none", sum(counts.excluded.values())),
        (Verdict.MERGED, "same root cause as an earlier one", counts.merged),
        (Verdict.UNSUPPORTED, "the run was not protected at onset", counts.unsupported),
        (Verdict.AWAITING, "what broke or how it ended is not known yet", counts.awaiting),
    )
    rows = [
        Bucket(
            "covered", verdict_look("covered"), "next step, nothing computed again", counts.covered
        ),
        Bucket("missed", verdict_look("missed"), "progress lost, or not proven", counts.missed),
        Bucket("", Look("ok", "Qualifying"), "= covered + missed", counts.qualifying),
    ]
    rows += [Bucket(verdict.value, verdict_look(verdict), words, n) for verdict, words, n in plain]
    rows.append(Bucket("", Look("ok", "Recorded"), "every failure of the year", counts.recorded))
    return rows


def bucket_bar(evaluation: Evaluation) -> SafeString:
    counts = evaluation.counts
    return svg.stacked(
        [
            ("fill-ok", counts.covered),
            ("fill-fail", counts.missed),
            ("fill-spare", counts.averted),
            ("fill-drain", sum(counts.excluded.values())),
            ("fill-unknown", counts.merged + counts.unsupported),
            ("fill-warn", counts.awaiting),
        ]
    )


def _row(name: str, lines: list[Failed]) -> Row:
    verdicts = Counter(line.verdict for line in lines)
    covered, missed = verdicts[Verdict.COVERED], verdicts[Verdict.MISSED]
    return Row(name, covered + missed, covered, missed)


def _months(lines: list[Failed], zone: ZoneInfo) -> list[Row]:
    groups: dict[str, list[Failed]] = {}
    for line in sorted(lines, key=lambda line: line.onset):
        groups.setdefault(line.onset.astimezone(zone).strftime("%b %Y"), []).append(line)
    return [_row(name, group) for name, group in groups.items()]


def _causes(lines: list[Failed]) -> list[Row]:
    groups: dict[str, list[Failed]] = {}
    for line in lines:
        groups.setdefault(CAUSE_WORDS.get(line.cause_class, "Not known yet"), []).append(line)
    rows = [_row(name, group) for name, group in groups.items()]
    return sorted(rows, key=lambda row: -row.qualifying)


def _chart(summary: selectors.YearSummary, lines: list[Failed]) -> tuple[SafeString, SafeString]:
    """Misses against allowed misses: two counts that only ever rise, up to now."""
    terms, year = summary.terms, summary.year
    target = None
    if terms is not None and terms.target_numerator and terms.target_denominator:
        target = Target(terms.target_numerator, terms.target_denominator)
    x0, x1 = year.starts_at.timestamp(), year.ends_at.timestamp()
    now = min(summary.as_of.timestamp(), x1)
    missed, allowed, qualifying = [(x0, 0.0)], [(x0, 0.0)], 0
    for line in sorted(lines, key=lambda line: line.onset):
        if line.verdict not in QUALIFYING:
            continue
        qualifying += 1
        at = line.onset.timestamp()
        missed.append((at, missed[-1][1] + (line.verdict == Verdict.MISSED)))
        if target is not None:
            allowed.append((at, float(allowed_misses(qualifying, target))))
    missed.append((now, missed[-1][1]))
    allowed.append((now, allowed[-1][1]))
    top = max(missed[-1][1], allowed[-1][1], 2.0)
    drawn = [svg.Line([svg.step_path(missed)], "series-2 solid", f"{missed[-1][1]:.0f} missed")]
    if target is not None:
        words = f"{allowed[-1][1]:.0f} allowed"
        drawn.insert(0, svg.Line([svg.step_path(allowed)], "series-1", words))
    chart = svg.Chart(
        title="Misses against allowed misses",
        description=f"{missed[-1][1]:.0f} missed, {allowed[-1][1]:.0f} allowed so far",
        x=(x0, x1),
        y=(0, top * 1.15),
        lines=drawn,
        x_ticks=_month_ticks(year, ZoneInfo(summary.contract.zone)),
        y_ticks=[svg.Tick(v, f"{v:.0f}") for v in svg.nice_ticks(0, top, 4) if v == int(v)],
        now=now if now < x1 else None,
    )
    return (
        svg.line_chart(chart, width=784, height=220, css="only-wide", right=90),
        svg.line_chart(chart, width=340, height=200, css="only-narrow", left=28, right=80),
    )


def _month_ticks(year: ContractYear, zone: ZoneInfo) -> list[svg.Tick]:
    """The beginning of every third month of the year."""
    start = year.starts_at.astimezone(zone)
    ticks: list[svg.Tick] = []
    for index in range(0, 12, 3):
        month = start.month - 1 + index
        at = start.replace(year=start.year + month // 12, month=month % 12 + 1, day=1)
        if at >= start:
            ticks.append(svg.Tick(at.timestamp(), at.strftime("%b")))
    return ticks
