"""What a stretch of watching came to: in a few lines for people, as plain values for programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from accelmetrics.cli.text import aligned
from accelmetrics.schemas.vitals import MEMORY_PERCENT, MEMORY_TOTAL, MEMORY_USED, POWER, TEMPERATURE, UTILIZATION

if TYPE_CHECKING:
    from collections.abc import Mapping

    from accelmetrics.monitor.window import Window
    from accelmetrics.schemas.snapshot import DeviceSlot, Snapshot
    from accelmetrics.schemas.summary import Energy, Summary

GIB = 2.0**30
MIB = 2.0**20
HEADINGS = ("", "util mean", "max", "memory mean", "max", "power mean", "max", "temp max", "energy")
MEASURED = {
    "utilization_percent": UTILIZATION,
    "memory_percent": MEMORY_PERCENT,
    "memory_bytes": MEMORY_USED,
    "power_watts": POWER,
    "temperature_celsius": TEMPERATURE,
}
PROCESS = {"cpu_percent": ("cpu", 1.0), "memory_bytes": ("proc.memory.rssMB", MIB), "threads": ("proc.cpu.threads", 1.0)}
"""Of the watched process: the key, and what makes its unit ours."""


def of_window(window: Window, latest: Snapshot | None, title: str, seconds: float | None = None, number: int | None = None) -> str:
    """A window's devices, a line each; where there is none, the host.

    Args:
        window: What was measured.
        latest: A reading that has the devices.
        title: What it is about.
        seconds: How long that lasted, where somebody knows better than the window.
        number: How many readings that were, where these are not all that the window was given: short ones had some of their own.
    """
    summary, energy = window.summary, window.energy_joules
    devices = [place.key for place in latest.identities] if latest is not None else []
    number = readings(summary) if number is None else number
    head = f"{title}: {window.duration if seconds is None else seconds:.1f} s, {number} reading{'' if number == 1 else 's'}"
    if not devices:
        return "\n".join((head, *_host(summary))) + "\n"
    rows: list[tuple[str, ...]] = [HEADINGS]
    for device in devices:
        joules = energy.get(device)
        rows.append((device, *_device(summary, device), "-" if joules is None else _energy(joules.joules)))
    return "\n".join((head, *aligned(rows, "  ", numeric=True))) + "\n"


def readings(summary: Mapping[str, Summary]) -> int:
    """How often the source that answered most often was read."""
    return max((held.count for held in summary.values()), default=0)


def of_devices(window: Window, latest: Snapshot | None) -> dict[str, Any]:
    """By device: who it is, and of each measure that it gave ``mean``, ``max`` and ``count``; its energy, its readings."""
    summary, energy = window.summary, window.energy_joules
    places = latest.identities if latest is not None else ()
    return {place.key: _measured(place, summary, energy.get(place.key)) for place in places}


def of_process(window: Window) -> dict[str, Any]:
    """The watched process and its descendants: ``mean``, ``max`` and ``count`` of each measure."""
    summary = window.summary
    return {name: _values(summary[key], factor) for name, (key, factor) in PROCESS.items() if key in summary}


def _measured(place: DeviceSlot, summary: Mapping[str, Summary], energy: Energy | None) -> dict[str, Any]:
    identity = place.identity
    found: dict[str, Any] = {"name": identity.name or identity.vendor, "vendor": identity.vendor}
    if identity.uuid:
        found["uuid"] = identity.uuid
    measures = {name: held for name, keys in MEASURED.items() if (held := _first(summary, place.key, keys)) is not None}
    found["samples"] = max((held.count for held in measures.values()), default=0)
    found.update({name: _values(held) for name, held in measures.items()})
    total = _first(summary, place.key, MEMORY_TOTAL)
    if total is not None or identity.memory_total_bytes:
        found["memory_total_bytes"] = identity.memory_total_bytes if total is None else total.last
    if energy is not None:
        found.update(energy_joules=energy.joules, energy_source=energy.source, energy_seconds=energy.seconds)
    return found


def _values(held: Summary, factor: float = 1.0) -> dict[str, float]:
    return {"mean": held.mean * factor, "max": held.max * factor, "count": held.count}


def _device(summary: Mapping[str, Summary], device: str) -> tuple[str, ...]:
    use, memory, power, heat = (_first(summary, device, names) for names in (UTILIZATION, MEMORY_USED, POWER, TEMPERATURE))
    return (
        *(("-", "-") if use is None else (f"{use.mean:.1f}%", f"{use.max:.1f}%")),
        *(("-", "-") if memory is None else (f"{memory.mean / GIB:.1f} GiB", f"{memory.max / GIB:.1f} GiB")),
        *(("-", "-") if power is None else (f"{power.mean:.1f} W", f"{power.max:.1f} W")),
        "-" if heat is None else f"{heat.max:.0f}°C",
    )


def _first(summary: Mapping[str, Summary], device: str, names: tuple[str, ...]) -> Summary | None:
    return next((summary[f"{device}.{name}"] for name in names if f"{device}.{name}" in summary), None)


def _host(summary: Mapping[str, Summary]) -> list[str]:
    keys = [key for key in ("cpu", "memory_percent", "proc.memory.rssMB") if key in summary]
    rows = [("", "mean", "max"), *((key, f"{summary[key].mean:.1f}", f"{summary[key].max:.1f}") for key in keys)]
    return aligned(rows, "  ", numeric=True)


def _energy(joules: float) -> str:
    return f"{joules:.0f} J" if joules < 100_000 else f"{joules / 3_600_000:.3f} kWh"
