"""What a stretch of watching, or a recording, came to: as text and Markdown for people, as plain values and JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from accelmetrics.cli.text import aligned
from accelmetrics.schemas.snapshot import DeviceSlot, Snapshot, rfc3339
from accelmetrics.schemas.summary import Energy, Summary
from accelmetrics.schemas.vitals import MEMORY_PERCENT, MEMORY_TOTAL, MEMORY_USED, POWER, TEMPERATURE, UTILIZATION

if TYPE_CHECKING:
    from accelmetrics.cli.report import DeviceReport, Gap, Report, Work
    from accelmetrics.monitor.window import Window

GIB, MIB = 2.0**30, 2.0**20
NONE = "-"
MEASURES = {
    "utilization_percent": UTILIZATION,
    "memory_percent": MEMORY_PERCENT,
    "memory_bytes": MEMORY_USED,
    "power_watts": POWER,
    "temperature_celsius": TEMPERATURE,
}
"""What devices are judged by: our name for it, and those that it has in snapshots."""
COLUMNS = (
    ("util", "utilization_percent", "%", 1.0),
    ("memory", "memory_bytes", " GiB", GIB),
    ("power", "power_watts", " W", 1.0),
    ("temp", "temperature_celsius", "°C", 1.0),
)
"""Of tables: the heading, the measure, its unit, and what is one of that."""
PROCESS = {"cpu_percent": ("cpu", 1.0), "memory_bytes": ("proc.memory.rssMB", MIB), "threads": ("proc.cpu.threads", 1.0)}
"""Of the watched process: the key, and what makes its unit ours."""
HOST = ("cpu", "memory_percent", "proc.memory.rssMB")
WHOLE_J = 100_000
"""Joules from where on energy is told in kWh."""


def first(summary: Mapping[str, Summary], device: str, names: Sequence[str]) -> Summary | None:
    """Return a device's statistics under the first of these names that it has."""
    return next((summary[key] for name in names if (key := f"{device}.{name}") in summary), None)


def measured(summary: Mapping[str, Summary], device: str) -> dict[str, Summary]:
    """Return a device's measures, by our names, as far as it gave them."""
    return {name: held for name, names in MEASURES.items() if (held := first(summary, device, names)) is not None}


def readings(summary: Mapping[str, Summary]) -> int:
    """Return the number of readings of the metric that was read most often."""
    return max((held.count for held in summary.values()), default=0)


# Of a window


def of_window(window: Window, latest: Snapshot | None, title: str, seconds: float | None = None, number: int | None = None) -> str:
    """Return a window's devices, a line each; where there is none, the host.

    Args:
        window: What was measured.
        latest: A reading that has the devices.
        title: What it is about.
        seconds: How long that lasted, where the window's duration is another.
        number: How many readings that were, where these are not all that the window was given: short ones had some of their own.
    """
    summary, energy = window.summary, window.energy_joules
    number = readings(summary) if number is None else number
    head = f"{title}: {window.duration if seconds is None else seconds:.1f} s, {number} reading{'' if number == 1 else 's'}"
    rows: list[tuple[str, ...]] = [("", "util mean", "max", "memory mean", "max", "power mean", "max", "temp max", "energy")]
    for place in latest.identities if latest is not None else ():
        held = measured(summary, place.key)
        cells = [_cell(held.get(name), part, unit, scale) for _, name, unit, scale in COLUMNS[:3] for part in ("mean", "max")]
        heat = held.get("temperature_celsius")
        rows.append((place.key, *cells, NONE if heat is None else f"{heat.max:.0f}°C", _energy(energy.get(place.key))))
    table = aligned(rows, "  ", numeric=True) if len(rows) > 1 else _host(summary, ("mean", "max"))
    return "\n".join((head, *table)) + "\n"


def of_devices(window: Window, latest: Snapshot | None) -> dict[str, Any]:
    """Return by device: its identity, and of each measure that it gave ``mean``, ``max`` and ``count``; its energy, its readings."""
    summary, energy = window.summary, window.energy_joules
    devices: dict[str, Any] = {}
    for place in latest.identities if latest is not None else ():
        identity = place.identity
        found = devices[place.key] = {"name": identity.name or identity.vendor, "vendor": identity.vendor}
        if identity.uuid:
            found["uuid"] = identity.uuid
        held = measured(summary, place.key)
        found["samples"] = readings(held)
        found.update({name: _values(one) for name, one in held.items()})
        if total := memory_total(summary, place):
            found["memory_total_bytes"] = total
        if (used := energy.get(place.key)) is not None:
            found.update(energy_joules=used.joules, energy_source=used.source, energy_seconds=used.seconds)
    return devices


def memory_total(summary: Mapping[str, Summary], place: DeviceSlot) -> float | None:
    """Return the bytes that a device has; None where neither a reading nor its identity says."""
    total = first(summary, place.key, MEMORY_TOTAL)
    return place.identity.memory_total_bytes if total is None else total.last


def of_process(window: Window) -> dict[str, Any]:
    """Return the watched process and its descendants: ``mean``, ``max`` and ``count`` of each measure."""
    summary = window.summary
    return {name: _values(summary[key], factor) for name, (key, factor) in PROCESS.items() if key in summary}


def _values(held: Summary, factor: float = 1.0) -> dict[str, float]:
    return {"mean": held.mean * factor, "max": held.max * factor, "count": held.count}


# Of a recording


def text(report: Report) -> str:
    """Return a report for people at a terminal."""
    lines = [
        f"{', '.join(report.hosts)}: {report.readings} readings over {report.end - report.begin:.1f} s, "
        f"{_moment(report.begin)} to {_moment(report.end)}"
    ]
    if report.devices:
        rows = [("", *(word for heading, *_ in COLUMNS for word in (f"{heading} mean", "max", "p95")), "energy", "samples")]
        for device in report.devices:
            held = device.measures
            cells = [_cell(held.get(name), part, unit, scale) for _, name, unit, scale in COLUMNS for part in ("mean", "max", "p95")]
            rows.append((device.key, *cells, _energy(device.energy), str(device.samples)))
        lines += aligned(rows, "  ", numeric=True)
    for device in report.devices:
        lines += [f"{device.key} was throttled for {seconds:.1f} s: {reason}" for reason, seconds in device.throttled.items()]
    for gap in report.gaps:
        what = f"{gap.seconds:.1f} s" if gap.seconds >= 0 else f"the clock was set back by {-gap.seconds:.1f} s"
        lines.append(f"gap: {what} after {_moment(gap.after)}")
    lines += [f"gap of {device.key}: {gap.seconds:.1f} s after {_moment(gap.after)}" for device in report.devices for gap in device.gaps]
    lines += [_work(name, work) for name, work in report.work.items()]
    return "\n".join([*lines, *([] if report.devices else _host(report.host, ("mean", "max", "p95")))]) + "\n"


def markdown(report: Report) -> str:
    """Return a table with a column for each device and their mean, and what the work cost."""
    parts = [f"# {', '.join(report.hosts)}", "", f"{report.readings} readings, {_moment(report.begin)} to {_moment(report.end)}.", ""]
    if report.devices:
        parts.append(f"| Metric | {' | '.join(device.key for device in report.devices)} | Mean |")
        parts.append("| --- |" + " ---: |" * (len(report.devices) + 1))
    else:
        parts.append("No devices.")
    for title, name, part, scale in (
        ("Mean utilisation (%)", "utilization_percent", "mean", 1.0),
        ("Mean memory used (GiB)", "memory_bytes", "mean", GIB),
        ("Mean power (W)", "power_watts", "mean", 1.0),
        ("Maximum temperature (°C)", "temperature_celsius", "max", 1.0),
    ):
        held = [device.measures.get(name) for device in report.devices]
        known = [getattr(one, part) / scale for one in held if one is not None]  # a device that says nothing is no zero
        mean = f"{sum(known) / len(known):.1f}" if known else NONE
        if held:
            parts.append(f"| {title} | {' | '.join(_cell(one, part, '', scale) for one in held)} | {mean} |")
    if report.work:
        parts += ["", "## Power efficiency", "", *(f"- {_work(name, work)}" for name, work in report.work.items())]
    return "\n".join(parts) + "\n"


def document(report: Report) -> str:
    """Return everything, as one JSON document."""
    found = {
        "hosts": list(report.hosts),
        "begin": rfc3339(int(report.begin * 1e9)),
        "end": rfc3339(int(report.end * 1e9)),
        "duration_seconds": report.end - report.begin,
        "readings": report.readings,
        "repeated": report.repeated,
        "gaps": _gaps(report.gaps),
        "devices": {device.key: _device(device) for device in report.devices},
        "host": {key: held._asdict() for key, held in report.host.items()},
        "work": {name: {"per_second": work.per_second, "per_joule": work.per_joule} for name, work in report.work.items()},
    }
    return json.dumps(found, indent=2) + "\n"


def _device(device: DeviceReport) -> dict[str, Any]:
    identity = device.place.identity
    measures = {}
    for name in MEASURES:
        held = device.measures.get(name)
        measures["memory_used_bytes" if name == "memory_bytes" else name] = None if held is None else held._asdict()
    return {
        "name": identity.name,
        "uuid": identity.uuid,
        "vendor": identity.vendor,
        **measures,
        "memory_total_bytes": device.memory_total,
        "power_limit_watts": device.power_limit,
        "energy": None if device.energy is None else device.energy._asdict(),
        "samples": device.samples,
        "throttled_seconds": dict(device.throttled),
        "gaps": _gaps(device.gaps),
    }


def gpu_stats(report: Report) -> str:
    """Return the flat statistics of each GPU: percent, GiB, watts and degrees Celsius, ``null`` where nothing was measured."""
    found = {}
    for device in report.devices:
        stats: dict[str, Any] = {"name": device.place.identity.name or None}
        for title, name, scale, further in (
            ("utilization", "utilization_percent", 1.0, {}),
            ("memory_used", "memory_bytes", GIB, {"memory_total": None if device.memory_total is None else device.memory_total / GIB}),
            ("power", "power_watts", 1.0, {"power_limit": device.power_limit}),
            ("temperature", "temperature_celsius", 1.0, {"sample_count": device.samples}),
        ):
            held = device.measures.get(name)
            stats |= {f"avg_{title}": held and held.mean / scale, f"max_{title}": held and held.max / scale, **further}
        found[device.key.replace(".mig.", "_mig_").replace(".", "_").replace(" ", "_")] = stats
    return json.dumps(found, indent=2) + "\n"


# Of both


def _host(summary: Mapping[str, Summary], parts: Sequence[str]) -> list[str]:
    rows = [("", *parts), *((key, *(f"{getattr(summary[key], part):.1f}" for part in parts)) for key in HOST if key in summary)]
    return aligned(rows, "  ", numeric=True)


def _cell(held: Summary | None, part: str, unit: str, scale: float) -> str:
    return NONE if held is None else f"{getattr(held, part) / scale:.1f}{unit}"


def _energy(energy: Energy | None) -> str:
    if energy is None:
        return NONE
    return f"{energy.joules:.0f} J" if energy.joules < WHOLE_J else f"{energy.joules / 3_600_000:.3f} kWh"


def _gaps(gaps: Sequence[Gap]) -> list[dict[str, Any]]:
    return [{"after": rfc3339(int(gap.after * 1e9)), "seconds": gap.seconds} for gap in gaps]


def _work(name: str, work: Work) -> str:
    said = f"{name}: {work.per_second:.1f} per second"
    return said if work.per_joule is None else f"{said}, {work.per_joule:.3g} per joule"


def _moment(seconds: float) -> str:
    return rfc3339(int(seconds * 1e9))[:19] + "Z"
