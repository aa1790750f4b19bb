"""A report as text, Markdown, or JSON of either shape."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from accelmetrics.cli.text import aligned
from accelmetrics.schemas.snapshot import rfc3339

if TYPE_CHECKING:
    from accelmetrics.cli.recorded import DeviceReport, Gap, Report, Work
    from accelmetrics.schemas.summary import Summary

GIB = 2.0**30
NONE = "-"
MEASURED = ("util", "memory", "power", "temp")
HEADINGS = ("", *(heading for name in MEASURED for heading in (f"{name} mean", "max", "p95")), "energy", "samples")


def text(report: Report) -> str:
    """For people at a terminal."""
    lines = [
        f"{', '.join(report.hosts)}: {report.readings} readings over {report.end - report.begin:.1f} s, "
        f"{_moment(report.begin)} to {_moment(report.end)}"
    ]
    if report.devices:
        lines += aligned([HEADINGS, *map(_row, report.devices)], "  ", numeric=True)
    lines += [line for device in report.devices for line in _throttling(device)]
    lines += [_gap(gap) for gap in report.gaps]
    lines += [f"gap of {device.key}: {gap.seconds:.1f} s after {_moment(gap.after)}" for device in report.devices for gap in device.gaps]
    lines += [_work(name, work) for name, work in report.work.items()]
    if not report.devices:
        lines += aligned(
            [("", "mean", "max", "p95"), *(_host_row(key, report.host[key]) for key in _host_keys(report))], "  ", numeric=True
        )
    return "\n".join(lines) + "\n"


def markdown(report: Report) -> str:
    """A table with a column for each device and their mean, and what the work cost."""
    devices = report.devices
    rows = [
        ("Mean utilisation (%)", [_of(device.utilization, "mean") for device in devices]),
        ("Mean memory used (GiB)", [_of(device.memory_used, "mean", GIB) for device in devices]),
        ("Mean power (W)", [_of(device.power, "mean") for device in devices]),
        ("Maximum temperature (°C)", [_of(device.temperature, "max") for device in devices]),
    ]
    head = [f"| Metric | {' | '.join(device.key for device in devices)} | Mean |", "| --- |" + " ---: |" * (len(devices) + 1)]
    table = [f"| {title} | {' | '.join(map(_cell, values))} | {_cell(_mean(values))} |" for title, values in rows]
    parts = [f"# {', '.join(report.hosts)}", "", f"{report.readings} readings, {_moment(report.begin)} to {_moment(report.end)}.", ""]
    parts += [*head, *table] if devices else ["No devices."]
    if report.work:
        parts += ["", "## Power efficiency", "", *(f"- {_work(name, work)}" for name, work in report.work.items())]
    return "\n".join(parts) + "\n"


def summary(report: Report) -> str:
    """Everything, as one JSON document."""
    document = {
        "hosts": list(report.hosts),
        "begin": rfc3339(int(report.begin * 1e9)),
        "end": rfc3339(int(report.end * 1e9)),
        "duration_seconds": report.end - report.begin,
        "readings": report.readings,
        "repeated": report.repeated,
        "gaps": _gaps(report.gaps),
        "devices": {device.key: _document(device) for device in report.devices},
        "host": {key: held._asdict() for key, held in report.host.items()},
        "work": {name: work._asdict() for name, work in report.work.items()},
    }
    return json.dumps(document, indent=2) + "\n"


def gpu_stats(report: Report) -> str:
    """The flat statistics of each GPU: percent, GiB, watts and degrees Celsius, ``null`` where nothing was measured."""
    return json.dumps({_stats_key(device): _stats(device) for device in report.devices}, indent=2) + "\n"


def _stats_key(device: DeviceReport) -> str:
    return device.key.replace(".mig.", "_mig_").replace(".", "_").replace(" ", "_")


def _stats(device: DeviceReport) -> dict[str, Any]:
    return {
        "name": device.place.identity.name or None,
        "avg_utilization": _of(device.utilization, "mean"),
        "max_utilization": _of(device.utilization, "max"),
        "avg_memory_used": _of(device.memory_used, "mean", GIB),
        "max_memory_used": _of(device.memory_used, "max", GIB),
        "memory_total": None if device.memory_total is None else device.memory_total / GIB,
        "avg_power": _of(device.power, "mean"),
        "max_power": _of(device.power, "max"),
        "power_limit": device.power_limit,
        "avg_temperature": _of(device.temperature, "mean"),
        "max_temperature": _of(device.temperature, "max"),
        "sample_count": device.samples,
    }


def _document(device: DeviceReport) -> dict[str, Any]:
    measured = {
        "utilization_percent": device.utilization,
        "memory_percent": device.memory_percent,
        "memory_used_bytes": device.memory_used,
        "power_watts": device.power,
        "temperature_celsius": device.temperature,
    }
    identity = device.place.identity
    return {
        "name": identity.name,
        "uuid": identity.uuid,
        "vendor": identity.vendor,
        **{name: None if held is None else held._asdict() for name, held in measured.items()},
        "memory_total_bytes": device.memory_total,
        "power_limit_watts": device.power_limit,
        "energy": None if device.energy is None else device.energy._asdict(),
        "samples": device.samples,
        "throttled_seconds": dict(device.throttled),
        "gaps": _gaps(device.gaps),
    }


def _row(device: DeviceReport) -> tuple[str, ...]:
    cells = [device.key]
    for held, unit, scale in ((device.utilization, "%", 1.0), (device.memory_used, " GiB", GIB), (device.power, " W", 1.0)):
        cells += [_with_unit(held, part, unit, scale) for part in ("mean", "max", "p95")]
    cells += [_with_unit(device.temperature, part, "°C", 1.0) for part in ("mean", "max", "p95")]
    return (*cells, NONE if device.energy is None else f"{device.energy.joules:.0f} J", str(device.samples))


def _host_keys(report: Report) -> list[str]:
    return [key for key in ("cpu", "memory_percent", "proc.memory.rssMB") if key in report.host]


def _host_row(key: str, held: Summary) -> tuple[str, ...]:
    return (key, *(f"{value:.1f}" for value in (held.mean, held.max, held.p95)))


def _gap(gap: Gap) -> str:
    if gap.seconds < 0:
        return f"gap: the clock was set back by {-gap.seconds:.1f} s after {_moment(gap.after)}"
    return f"gap: {gap.seconds:.1f} s after {_moment(gap.after)}"


def _gaps(gaps: Sequence[Gap]) -> list[dict[str, Any]]:
    return [{"after": rfc3339(int(gap.after * 1e9)), "seconds": gap.seconds} for gap in gaps]


def _throttling(device: DeviceReport) -> list[str]:
    return [f"{device.key} was throttled for {seconds:.1f} s: {reason}" for reason, seconds in device.throttled.items()]


def _work(name: str, work: Work) -> str:
    said = f"{name}: {work.per_second:.1f} per second"
    return said if work.per_joule is None else f"{said}, {work.per_joule:.3g} per joule"


def _with_unit(held: Summary | None, part: str, unit: str, scale: float) -> str:
    value = _of(held, part, scale)
    return NONE if value is None else f"{value:.1f}{unit}"


def _of(held: Summary | None, part: str, scale: float = 1.0) -> float | None:
    return None if held is None else getattr(held, part) / scale


def _mean(values: Sequence[float | None]) -> float | None:
    """Of the devices that say; one that says nothing is no zero."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _cell(value: float | None) -> str:
    return NONE if value is None else f"{value:.1f}"


def _moment(seconds: float) -> str:
    return rfc3339(int(seconds * 1e9))[:19] + "Z"
