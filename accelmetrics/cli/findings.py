"""A diagnosis for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from accelmetrics.cli.layout import wrapped
from accelmetrics.cli.units import seconds

if TYPE_CHECKING:
    from accelmetrics.visibility.doctor import BackendFinding, DeviceFinding, Diagnosis, Gap

INDENT = "  "


def render(found: Diagnosis, machine: Mapping[str, str], width: int) -> str:
    """All findings, a part for each backend."""
    head = f"accelmetrics {machine['version']} on {found.hostname}: Python {machine['python']}, {machine['platform']}"
    parts = ["\n".join(wrapped(head, width, "")), *("\n".join(_backend(backend, width)) for backend in found.backends), verdict(found)]
    return "\n\n".join(parts) + "\n"


def verdict(found: Diagnosis) -> str:
    """The last line."""
    devices = [device for backend in found.backends for device in backend.devices]
    readable = sum(device.readable for device in devices)
    bad = found.unreadable
    if not devices and not bad:
        return "No device was found."
    return f"{_count(readable, 'device')} can be read, {bad or 'none'} cannot." if bad else f"{_count(readable, 'device')} can be read."


def _backend(backend: BackendFinding, width: int) -> list[str]:
    lines = [f"{backend.name}: {_state(backend)}"]
    lines += _fact("evidence", backend.evidence, width)
    if backend.problem:
        lines += _fact("problem", f"{backend.reason}: {backend.problem}", width)
    lines += _fact("what to do", backend.advice, width)
    if backend.open_seconds is not None:
        lines += _fact("time", _times(backend), width)
    for device in backend.devices:
        lines += _device(device, width)
    if backend.metrics or backend.gaps:
        lines += _fact("metrics", f"{backend.metrics} given{', some are not:' if backend.gaps else ''}", width)
        lines += _gaps(backend.gaps, width)
    return lines


def _state(backend: BackendFinding) -> str:
    if backend.status == "absent":
        return "not present"
    words = {"ok": "works", "degraded": "works in part", "failed": "does not work", "timed_out": "does not answer"}[backend.status]
    return f"{words}, read from {backend.source}" if backend.source else words


def _times(backend: BackendFinding) -> str:
    opening = f"opening took {seconds(backend.open_seconds)}"
    return opening if backend.read_seconds is None else f"{opening}, a reading {seconds(backend.read_seconds)}"


def _device(device: DeviceFinding, width: int) -> list[str]:
    identity = ", ".join(filter(None, (device.name, device.uuid, device.pci_bus_id, device.fabric)))
    if not device.readable:
        lines = _fact(device.key, f"{identity or 'device'}: cannot be read", width)
        return [*lines, *_deeper("problem", device.problem, width), *_deeper("what to do", device.advice, width)]
    lines = _fact(device.key, f"{identity}: {_count(device.metrics, 'metric')} given{', some are not:' if device.gaps else ''}", width)
    return [*lines, *_gaps(device.gaps, width)]


def _gaps(gaps: Sequence[Gap], width: int) -> list[str]:
    lines: list[str] = []
    for gap in gaps:
        why = f"{gap.reason} ({gap.detail})" if gap.detail else gap.reason
        lines += wrapped(f"{why}: {', '.join(gap.names)}", width, INDENT * 2)
        lines += wrapped(f"what to do: {gap.advice}" if gap.advice else "", width, INDENT * 3)
    return lines


def _fact(label: str, text: str, width: int) -> list[str]:
    return wrapped(f"{label}: {text}", width, INDENT) if text else []


def _deeper(label: str, text: str, width: int) -> list[str]:
    return wrapped(f"{label}: {text}", width, INDENT * 2) if text else []


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
