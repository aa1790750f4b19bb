"""What a stretch of watching came to, in a few lines: for people, at the end of a command."""

from __future__ import annotations

from typing import TYPE_CHECKING

from accelmetrics.cli.layout import aligned
from accelmetrics.schemas.vitals import MEMORY_USED, POWER, TEMPERATURE, UTILIZATION

if TYPE_CHECKING:
    from collections.abc import Mapping

    from accelmetrics.sampling.summary import Summary
    from accelmetrics.sampling.window import Window
    from accelmetrics.schemas.snapshot import Snapshot

GIB = 2.0**30
HEADINGS = ("", "util mean", "max", "memory mean", "max", "power mean", "max", "temp max", "energy")


def of_window(window: Window, latest: Snapshot | None, title: str) -> str:
    """A window's devices, a line each; where there is none, the host."""
    summary, energy = window.summary, window.energy_joules
    devices = [place.key for place in latest.identities] if latest is not None else []
    head = f"{title}: {window.duration:.1f} s, {max((held.count for held in summary.values()), default=0)} readings"
    if not devices:
        return "\n".join((head, *_host(summary))) + "\n"
    rows: list[tuple[str, ...]] = [HEADINGS]
    for device in devices:
        joules = energy.get(device)
        rows.append((device, *_device(summary, device), "-" if joules is None else _energy(joules.joules)))
    return "\n".join((head, *aligned(rows, "  ", numeric=True))) + "\n"


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
