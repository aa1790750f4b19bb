"""How nodes stand by the series of a Prometheus, in one query: those of ``accelmetrics serve``, our recording rules and our alerts."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from urllib.parse import quote

from accelmetrics.schemas.errors import DocumentError
from accelmetrics.views.device_view import STATES, State
from accelmetrics.views.node_summary import DeviceSummary, NodeAnswer, NodeSummary

INTERVAL = 5.0
"""Seconds between two queries at least: a Prometheus scrapes every 15 s or so."""
PATIENCE = 10.0
LARGEST_ANSWER = 64 * 1024 * 1024
"""Bytes: 8 devices of each of 4096 nodes are about 30 MiB."""
NODES, POWER, LIMIT, BUSY = (
    "instance:accel_devices_expected:max1d",
    "instance:accel_power_watts:sum",
    "instance:accel_power_limit_watts:sum",
    "accelerator:accel_utilization:ratio",
)
"""Series of deploy/prometheus/recording.yml. The first is of all nodes of the last day, those that are away too."""
NODE_UP, DEVICE_UP, SOURCE_UP, ALERTS = "accelmetrics_up", "accel_up", "accelmetrics_collect_success", "ALERTS"
NAMES = "|".join((NODES, POWER, LIMIT, BUSY, NODE_UP, DEVICE_UP, SOURCE_UP, ALERTS))
QUERY = "/api/v1/query?query=" + quote(f'{{__name__=~"{NAMES}",alertstate!="pending"}}')
SEVERITIES: dict[str, State] = {"critical": "bad", "warning": "warn"}
HEAT = ("AccelHot", "AccelOverheating", "AccelNearSlowdown")


@dataclass
class _Device:
    up: float = 1.0
    busy: list[float] = field(default_factory=list)  # a Trainium has a series for each core
    alerts: dict[str, State] = field(default_factory=dict)


@dataclass
class _Node:
    seconds: float
    values: dict[str, float] = field(default_factory=dict)
    devices: defaultdict[str, _Device] = field(default_factory=lambda: defaultdict(_Device))
    findings: Counter[str] = field(default_factory=Counter)
    silent: list[str] = field(default_factory=list)


def read_nodes(text: str) -> list[NodeAnswer]:
    """Return how each node stands, by the answer to :data:`QUERY`; one that says what is missing where there are no nodes.

    Raises:
        DocumentError: It is no answer to an instant query.
    """
    nodes: dict[tuple[str, str], _Node] = {}
    seen = set()
    for labels, seconds, value in _series(text):
        name = labels.get("__name__", "")
        seen.add(name)
        node = nodes.setdefault((labels.get("job", ""), labels.get("instance", "")), _Node(seconds))
        _take(node, name, labels, value)
    found = {key: node for key, node in sorted(nodes.items()) if NODES in node.values}
    if not found:
        if seen - {ALERTS} and not any(":" in name for name in seen):
            why = "it has series of accelmetrics and none of its recording rules: load deploy/prometheus/recording.yml under rule_files"
        else:
            why = "it has no series of accelmetrics serve: see its targets, and docs/alerts.md for the rules that it needs"
        return [NodeAnswer("", failure=why)]
    named = Counter(instance for _, instance in found)
    return [_answer(instance if named[instance] == 1 else f"{instance} ({job})", node) for (job, instance), node in found.items()]


def _series(text: str) -> Iterable[tuple[Mapping[str, str], float, float]]:
    """Yield labels, time and value of each series."""
    try:
        for one in json.loads(text)["data"]["result"]:
            yield one["metric"], float(one["value"][0]), float(one["value"][1])
    except (ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
        raise DocumentError(f"this is no answer of a Prometheus: {type(error).__name__}: {error}") from error


def _take(node: _Node, name: str, labels: Mapping[str, str], value: float) -> None:
    accelerator = labels.get("accelerator", "")
    # Partitions, such as gpu.0.mig.1, stand below their devices.
    device = node.devices[accelerator] if accelerator.count(".") == 1 else None
    if name == ALERTS:
        severity = labels.get("severity", "")
        node.findings[severity] += 1
        if device is not None:
            device.alerts[labels.get("alertname", "")] = SEVERITIES.get(severity, "ok")
    elif name == SOURCE_UP:
        node.silent += [] if value else [f"{labels.get('source', '')} cannot be read"]
    elif name == DEVICE_UP and device is not None:
        device.up = value
    elif name == BUSY and device is not None:
        device.busy.append(100.0 * value)
    else:
        node.values[name] = value


def _answer(name: str, node: _Node) -> NodeAnswer:
    if not node.values.get(NODE_UP):
        away = "accelmetrics serve reads nothing there" if NODE_UP in node.values else "no answer: Prometheus gets nothing from it"
        return NodeAnswer(name, failure=away)
    devices = tuple(_summary(key, node.devices[key]) for key in sorted(node.devices, key=_order))
    busy = [device.utilization for device in devices if device.utilization is not None]
    summary = NodeSummary(
        hostname=name,
        time_ns=int(node.seconds * 1e9),
        interval=INTERVAL,
        version="",
        devices=devices,
        kinds=dict(Counter(device.key.partition(".")[0] for device in devices)),
        power_watts=node.values.get(POWER),
        power_limit_watts=node.values.get(LIMIT) if POWER in node.values else None,
        utilization=sum(busy) / len(busy) if busy else None,
        lost=sum(not device.up for device in node.devices.values()),
        hot=sum(any(alert in HEAT for alert in device.alerts) for device in node.devices.values()),
        failed=len(node.silent),
        findings=dict(node.findings),
        silent=tuple(node.silent),
    )
    return NodeAnswer(name, summary)


def _order(key: str) -> tuple[str, int]:
    kind, _, number = key.partition(".")
    return kind, int(number) if number.isascii() and number.isdigit() else 0


def _summary(key: str, device: _Device) -> DeviceSummary:
    """Return a device with its gravest alert; of one that is lost, no numbers."""
    if not device.up:
        return DeviceSummary(key, "bad", note="LOST")
    worst = min(device.alerts, key=lambda alert: STATES.index(device.alerts[alert]), default="")
    busy = sum(device.busy) / len(device.busy) if device.busy else None
    return DeviceSummary(key, device.alerts.get(worst, "ok"), busy, worst)
