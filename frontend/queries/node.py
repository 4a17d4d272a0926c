"""What the node page shows: devices, conditions over a day, readings, findings, steps, incidents."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from jobs import selectors as job_reads
from nodes import selectors as node_reads
from nodes.states import STEPS, NodeState
from yoco_platform.core.auth import Permission, Viewer, may

from ..entered import number_of
from ..words import Look, node_look, severity_look
from .visible import jobs_live

if TYPE_CHECKING:
    from jobs.models import Incident, Worker
    from nodes.models import Finding, Gpu, Node, NodeTransition

WINDOW = timedelta(hours=24)


@dataclass(frozen=True)
class GpuCard:
    gpu: Gpu
    look: Look
    worker: Worker | None
    readings: list[tuple[str, str]]
    finding: Finding | None


@dataclass(frozen=True)
class Lane:
    """A condition over the window: (from, to, fill class) as fractions, and what it is now."""

    name: str
    spans: list[tuple[float, float, str]]
    look: Look


@dataclass(frozen=True)
class Action:
    """What a person may do to the node now. ``effect`` says what happens to jobs."""

    name: str
    words: str
    effect: str
    danger: bool


@dataclass(frozen=True)
class NodePage:
    node: Node
    look: Look
    gpus: list[GpuCard]
    other_readings: list[tuple[str, str]]
    lanes: list[Lane]
    window: tuple[datetime, datetime]
    findings: list[Finding]
    steps: list[NodeTransition]
    incidents: list[Incident]
    workers: list[Worker]
    actions: list[Action]

    @property
    def simulated(self) -> bool:
        return any(card.gpu.simulated for card in self.gpus)


def node_page(viewer: Viewer, node_id: int, now: datetime) -> NodePage:
    """The whole page. Raises NodeUnknown, Forbidden."""
    node = node_reads.node_get(viewer, node_id)
    steps = node_reads.transitions(viewer, node_id, limit=50)
    findings = node_reads.findings_of(viewer, node_id, limit=50)
    workers = _workers(viewer, node.pk)
    look = node_look(
        node.state, spare=node.is_spare and not any(w.rank is not None for w in workers)
    )
    start = now - WINDOW
    return NodePage(
        node=node,
        look=look,
        gpus=_gpus(node, look, workers, findings),
        other_readings=_readings(node, None),
        lanes=[_state_lane(node, steps, start, now), *_finding_lanes(findings, start, now)],
        window=(start, now),
        findings=findings,
        steps=steps,
        incidents=_incidents(viewer, node.name),
        workers=workers,
        actions=actions_of(viewer, node, workers),
    )


def _workers(viewer: Viewer, node_id: int) -> list[Worker]:
    found: list[Worker] = []
    if may(viewer, Permission.JOB_READ):
        for job in jobs_live(viewer).filter(workers__node_id=node_id).distinct():
            found += job.workers.filter(node_id=node_id).exclude(state__in=["exited", "lost"])
    return found


def _incidents(viewer: Viewer, name: str) -> list[Incident]:
    """The node's last incidents: names are kept on the incident, as nodes come and go."""
    recent = job_reads.incidents_visible(viewer)[:500]
    return [incident for incident in recent if name in incident.node_names][:20]


def _readings(node: Node, index: int | None) -> list[tuple[str, str]]:
    """(name, value with unit) of one device, or of what is no device. Absent is never zero."""
    rows: list[tuple[str, str]] = []
    for reading in node.readings:
        if _device_of(reading) == index:
            rows.append((str(reading.get("check", "")).replace("_", " "), reading_words(reading)))
    return rows


def _device_of(reading: dict[str, Any]) -> int | None:
    """The device index of a reading of ``gpu:3`` or ``gpu3``; None for the node's own."""
    entity = str(reading.get("entity", ""))
    digits = entity.removeprefix("gpu").lstrip(":-")
    return number_of(digits) if entity.startswith("gpu") else None


UNITS = {"celsius": "\u00b0C", "c": "\u00b0C", "watts": "W", "percent": "%"}


def reading_words(reading: dict[str, Any]) -> str:
    """Any: a reading as stored, agent.protocol.Reading."""
    if reading.get("outcome") != "ok" or reading.get("value") is None:
        return str(reading.get("outcome", "unsupported")).replace("_", " ")
    unit = str(reading.get("unit", ""))
    words = f"{float(reading['value']):g}"
    return f"{words}\u00a0{UNITS.get(unit.lower(), unit)}" if unit else words


def _gpus(node: Node, look: Look, workers: list[Worker], findings: list[Finding]) -> list[GpuCard]:
    cards: list[GpuCard] = []
    for gpu in node.gpus.all():
        names = {f"gpu:{gpu.index}", f"gpu{gpu.index}", f"gpu-{gpu.index}", gpu.uuid}
        own = [f for f in findings if f.entity in names]
        open_now = next((f for f in own if f.cleared_at is None), None)
        cards.append(
            GpuCard(
                gpu=gpu,
                look=severity_look(open_now.severity) if open_now else look,
                worker=next((w for w in workers if w.gpu_index == gpu.index), None),
                readings=_readings(node, gpu.index),
                finding=open_now or (own[0] if own else None),
            )
        )
    return cards


def _state_lane(node: Node, steps: list[NodeTransition], start: datetime, now: datetime) -> Lane:
    """The node's state over the window, from its transition rows."""
    spans: list[tuple[float, float, str]] = []
    end = now
    for step in steps:
        begin = max(step.at, start)
        if end > begin:
            spans.append(_span(begin, end, start, now, node_look(step.to_state)))
        end = step.at
        if step.at <= start:
            break
    return Lane("State", spans[::-1], node_look(node.state))


def _finding_lanes(findings: list[Finding], start: datetime, now: datetime) -> list[Lane]:
    """One lane a component that ever had a finding, quiet where it had none."""
    lanes: list[Lane] = []
    for component in sorted({finding.component for finding in findings}):
        own = [finding for finding in findings if finding.component == component]
        spans = [(0.0, 1.0, "fill-ok-tint")]
        for finding in reversed(own):
            end = finding.cleared_at or now
            if end > start:
                look = severity_look(finding.severity)
                spans.append(_span(max(finding.first_seen_at, start), end, start, now, look))
        open_now = next((f for f in own if f.cleared_at is None), None)
        look = severity_look(open_now.severity) if open_now else Look("ok", "Healthy")
        lanes.append(Lane(_component_words(component), spans, look))
    return lanes


def _component_words(component: str) -> str:
    words = component.replace("_", " ")
    return words.upper() if words in ("gpu", "nic", "pcie", "cpu") else words.capitalize()


def _span(
    begin: datetime, end: datetime, start: datetime, now: datetime, look: Look
) -> tuple[float, float, str]:
    window = (now - start).total_seconds()
    css = "fill-ok-tint" if look.shape in ("ok", "spare") else f"fill-{look.shape}"
    return (begin - start).total_seconds() / window, (end - start).total_seconds() / window, css


def actions_of(viewer: Viewer, node: Node, workers: list[Worker]) -> list[Action]:
    """The actions that this viewer may take and the node's state allows."""
    if not may(viewer, Permission.NODE_OPERATE):
        return []
    ranks = sum(worker.rank is not None for worker in workers)
    gpus = node.gpus.count()
    moves = (
        f"{ranks} rank{'s' if ranks != 1 else ''} move away first"
        if ranks
        else "nothing runs on it"
    )
    after = STEPS[NodeState(node.state)]
    offered = (
        (
            NodeState.DRAINING,
            Action("drain", "Drain", f"{gpus} GPUs leave service; {moves}.", True),
        ),
        (
            NodeState.CORDONED,
            Action("cordon", "Cordon", "It takes no more work; what runs stays.", False),
        ),
        (
            NodeState.QUARANTINED,
            Action("quarantine", "Quarantine", f"It is not trusted until repaired; {moves}.", True),
        ),
    )
    actions = [action for state, action in offered if state in after]
    if node.state not in (NodeState.READY, NodeState.LOST, NodeState.RETIRED, NodeState.JOINING):
        words = "It takes work again at once; open findings no longer act on it."
        actions.insert(0, Action("release", "Return to service", words, False))
    if not workers and node_reads.node_retirable(node):
        words = (
            f"{gpus} GPUs leave the inventory for good: its token is revoked and its name stays taken. "
            "What happened on it is kept."
        )
        actions.append(Action("retire", "Retire", words, True))
    return actions
