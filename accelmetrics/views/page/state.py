"""What the page shows of a node, as JSON: a :class:`~accelmetrics.views.node_view.NodeView` in plain containers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from accelmetrics._version import __version__
from accelmetrics.schemas.finding import Finding
from accelmetrics.schemas.snapshot import rfc3339
from accelmetrics.views.device_view import DeviceView
from accelmetrics.views.node_view import NodeView, ProcessRow
from accelmetrics.views.page.history import DRAWN


def state_document(view: NodeView, sequence: int, *, commands: bool = False) -> dict[str, Any]:
    """Return a node at one moment in new plain containers, ready for ``json``.

    Args:
        view: The node.
        sequence: The number of the reading.
        commands: Whether the command lines of processes are told.
    """
    summary = view.summary
    places = {finding: place for place, finding in enumerate(view.findings.current)}
    return {
        "sequence": sequence,
        "timestamp": rfc3339(view.time_ns),
        "interval": view.interval,
        "hostname": view.hostname,
        "version": __version__,
        "head": {
            "kinds": summary.kinds,
            "devices": len(summary.devices),
            "power_watts": summary.power_watts,
            "power_limit_watts": summary.power_limit_watts,
            "utilization": summary.utilization,
            "states": dict(Counter(device.state for device in summary.devices)),
            "lost": summary.lost,
            "hot": summary.hot,
            "failed": summary.failed,
            "findings": summary.findings,
        },
        "metrics": {
            name: {"label": row.label, "unit": row.unit, "top": row.top}
            for name, row in DRAWN.items()
            if any(name in device.values or name in device.last for device in view.devices)
        },
        "devices": [_device(device, places) for device in view.devices],
        "processes": [_process(row, key, commands) for key in _keys(view) for row in view.processes if key in row.uses],
        "unlisted": dict(view.unlisted),
        "findings": [finding.to_dict() for finding in view.findings.current],
        "ended": [finding.to_dict() for finding in view.findings.ended],
        "cannot_tell": [one.to_dict() for one in view.findings.cannot_tell],
        "not_judged": [{"rules": [*rules], "words": words} for rules, words in view.not_judged],
        "not_logged": view.not_logged,
        "sources": [
            {
                "name": source.name,
                "status": source.status,
                "source": source.source,
                "detail": source.detail,
                "age_seconds": source.age_seconds,
                "state": source.state,
                "mark": source.mark,
                "advice": source.advice,
                "silent": source.silent,
            }
            for source in view.sources
        ],
        "host": dict(view.host),
    }


def _keys(view: NodeView) -> list[str]:
    """Return the devices that processes are on, in their order."""
    used = {key for row in view.processes for key in row.uses}
    known = [device.key for device in view.devices if device.key in used]
    return [*known, *sorted(used.difference(known))]


def _device(device: DeviceView, places: Mapping[Finding, int]) -> dict[str, Any]:
    identity = device.identity

    return {
        "key": device.key,
        "label": device.label,
        "name": device.name,
        "vendor": identity.vendor,
        "kind": identity.kind,
        "uuid": identity.uuid,
        "pci_bus_id": identity.pci_bus_id,
        "parent": device.parent,
        "state": device.state,
        "mark": device.mark,
        "note": device.note,
        "notes": list(device.notes),
        "advice": list(device.advice),
        "values": dict(device.values),
        "missing": {name: why._asdict() for name, why in device.missing.items()},
        "levels": dict(device.levels),
        "throttled": list(device.throttled),
        "errors": list(device.errors),
        "links": list(device.links),
        "holders": list(device.holders),
        "findings": [places[finding] for finding in device.findings],
        "silent": None if device.silent is None else device.silent._asdict(),
        "silent_since": None if device.silent_since_ns is None else rfc3339(device.silent_since_ns),
        "last": dict(device.last),
        "aged": device.aged,
    }


def _process(row: ProcessRow, key: str, commands: bool) -> dict[str, Any]:
    """Return a process on one device; the system's part is the same on each."""
    use = row.uses[key]
    told = {
        "device": key,
        "devices": list(row.devices),
        "pid": row.pid,
        "type": use.type,
        "user": row.user,
        "program": row.program,
        "memory_bytes": use.memory_bytes,
        "utilization": use.utilization,
        "seconds": row.seconds,
        "holder": row.holder,
        "why": row.why,
        "aged": row.aged,
    }
    return {**told, "command": row.command} if commands else told
