"""What a stretch of watching, or a recording, came to: as text and Markdown for people, as plain values for programs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from accelmetrics.cli.text import aligned
from accelmetrics.monitor.window import Window
from accelmetrics.schemas.snapshot import DeviceSlot, Snapshot
from accelmetrics.schemas.summary import Summary
from accelmetrics.schemas.text import printable
from accelmetrics.schemas.vitals import MEMORY_PERCENT, MEMORY_TOTAL, MEMORY_USED, POWER, TEMPERATURE, UTILIZATION, first

Plain = dict[str, Any]

GIB, MIB = 2.0**30, 2.0**20
NONE = "-"
MEASURES = {
    "utilization_percent": UTILIZATION,
    "memory_percent": MEMORY_PERCENT,
    "memory_used_bytes": MEMORY_USED,
    "power_watts": POWER,
    "temperature_celsius": TEMPERATURE,
}
"""Measures of devices: the name in reports, and those in snapshots."""
COLUMNS = (
    ("util", "utilization_percent", "%", 1.0),
    ("memory", "memory_used_bytes", " GiB", GIB),
    ("power", "power_watts", " W", 1.0),
    ("temp", "temperature_celsius", "°C", 1.0),
)
"""Of tables: the heading, the measure, its unit, and what is one of that."""
JOB_COLUMNS = (
    ("util mean", "utilization_percent_mean", "%", 1.0),
    ("memory max", "memory_used_bytes_max", " GiB", GIB),
    ("power mean", "power_watts_mean", " W", 1.0),
    ("temp max", "temperature_celsius_max", "°C", 1.0),
)
"""Of a job's devices, likewise."""
HOURS = {"held_hours": "held", "used_hours": "used", "wasted_hours": "wasted", "unmeasured_hours": "not measured"}
"""Of a job: what its hours are called."""
PROCESS = {"cpu_percent": ("cpu", 1.0), "memory_bytes": ("proc.memory.rssMB", MIB), "threads": ("proc.cpu.threads", 1.0)}
"""Of the watched process: the key, and the factor to the unit of reports."""
STATISTICS = ("mean", "max", "count")
"""What ``run --stats`` has of each measure."""
HOST = ("cpu", "memory_percent", "proc.memory.rssMB")
WHOLE_J = 100_000
"""Joules from where on energy is told in kWh."""


def measured(summary: Mapping[str, Summary], device: str) -> dict[str, dict[str, float] | None]:
    """Return a device's measures as plain values, by their names in reports; None for those that it did not give."""
    found = {name: first(summary, device, names) for name, names in MEASURES.items()}
    return {name: None if held is None else held._asdict() for name, held in found.items()}


def samples(measures: Mapping[str, Mapping[str, float] | None]) -> int:
    """Return the number of readings in which a device gave any of its measures."""
    return max((int(held["count"]) for held in measures.values() if held is not None), default=0)


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
        cells = [_cell(held[name], part, unit, scale) for _, name, unit, scale in COLUMNS[:3] for part in ("mean", "max")]
        heat, used = held["temperature_celsius"], energy.get(place.key)
        rows.append((place.key, *cells, NONE if heat is None else f"{heat['max']:.0f}°C", _energy(used and used.joules)))
    host = {key: summary[key]._asdict() for key in HOST if key in summary}
    table = aligned(rows, "  ", numeric=True) if len(rows) > 1 else _host(host, ("mean", "max"))
    return "\n".join((head, *table)) + "\n"


def of_devices(window: Window, latest: Snapshot | None) -> dict[str, Any]:
    """Return by device: its identity, and of each measure that it gave ``mean``, ``max`` and ``count``; its energy, its readings."""
    summary, energy = window.summary, window.energy_joules
    devices: dict[str, Plain] = {}
    for place in latest.identities if latest is not None else ():
        identity, used = place.identity, energy.get(place.key)
        held = measured(summary, place.key)
        found = {
            "name": identity.name or identity.vendor,
            "vendor": identity.vendor,
            "uuid": identity.uuid or None,
            "samples": samples(held),
            **{name.replace("_used", ""): one and {part: one[part] for part in STATISTICS} for name, one in held.items()},
            "memory_total_bytes": memory_total(summary, place),
            "energy_joules": used and used.joules,
            "energy_source": used and used.source,
            "energy_seconds": used and used.seconds,
        }
        devices[place.key] = {name: value for name, value in found.items() if value is not None}
    return devices


def memory_total(summary: Mapping[str, Summary], place: DeviceSlot) -> float | None:
    """Return the bytes that a device has; None where neither a reading nor its identity says."""
    total = first(summary, place.key, MEMORY_TOTAL)
    return place.identity.memory_total_bytes if total is None else total.last


def of_process(window: Window) -> dict[str, Any]:
    """Return the watched process and its descendants: ``mean``, ``max`` and ``count`` of each measure."""
    summary = window.summary
    held = {name: (summary[key], factor) for name, (key, factor) in PROCESS.items() if key in summary}
    return {name: {"mean": one.mean * factor, "max": one.max * factor, "count": one.count} for name, (one, factor) in held.items()}


# Of a job


def of_job(summary: Plain) -> str:
    """Return what a job came to, as the monitor of its node has written it, for people."""
    labels, seconds, number = summary["labels"], int(summary["ended"] - summary["began"]), summary["devices_held"]
    about = ", ".join(labels[name] for name in ("user", "partition") if name in labels)
    held = f"{number} device{'' if number == 1 else 's'}"
    lasted = f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    lines = [
        printable(f"job {summary['job_id']}{f' ({about})' if about else ''} on {summary['hostname']}: {held} for {lasted}"),
        f"  GPU hours: {', '.join(f'{_hours(summary[name])} {words}' for name, words in HOURS.items())}",
        f"  energy: {_energy(summary['energy_joules'])}",
    ]
    rows = [("", *(heading for heading, *_ in JOB_COLUMNS), "energy")]
    for device in summary["devices"]:
        cells = (_cell(device, name, unit, scale) if device[name] is not None else NONE for _, name, unit, scale in JOB_COLUMNS)
        rows.append((device["device"], *cells, _energy(device["energy_joules"])))
    return "\n".join((*lines, *aligned(rows, "  ", numeric=True))) + "\n"


def _hours(hours: float | None) -> str:
    return "unknown" if hours is None else f"{hours:.2f}"


# Of a recording: views of the document that ``report`` makes


def _hosts(report: Plain) -> str:
    return ", ".join(host or "unknown host" for host in report["hosts"])


def text(report: Plain) -> str:
    """Return a report for people at a terminal."""
    devices = report["devices"]
    lines = [
        f"{_hosts(report)}: {report['readings']} readings over {report['duration_seconds']:.1f} s, "
        f"{_moment(report['begin'])} to {_moment(report['end'])}"
    ]
    if devices:
        rows = [("", *(word for heading, *_ in COLUMNS for word in (f"{heading} mean", "max", "p95")), "energy", "samples")]
        for key, device in devices.items():
            cells = [_cell(device[name], part, unit, scale) for _, name, unit, scale in COLUMNS for part in ("mean", "max", "p95")]
            rows.append((key, *cells, _energy(device["energy"] and device["energy"]["joules"]), str(device["samples"])))
        lines += aligned(rows, "  ", numeric=True)
    for key, device in devices.items():
        lines += [f"{key} was throttled for {seconds:.1f} s: {reason}" for reason, seconds in device["throttled_seconds"].items()]
    for gap in report["gaps"]:
        what = f"{gap['seconds']:.1f} s" if gap["seconds"] >= 0 else f"the clock was set back by {-gap['seconds']:.1f} s"
        lines.append(f"gap: {what} after {_moment(gap['after'])}")
    for key, device in devices.items():
        lines += [f"gap of {key}: {gap['seconds']:.1f} s after {_moment(gap['after'])}" for gap in device["gaps"]]
    lines += _findings(report)
    lines += [_work(name, work) for name, work in report["work"].items()]
    return "\n".join([*lines, *([] if devices else _host(report["host"], ("mean", "max", "p95")))]) + "\n"


def _findings(report: Plain) -> list[str]:
    """Return a line for each finding, and one for all rules that could not be judged for the same reason."""
    lines = []
    for one in report["findings"]:
        about = f"{one['key']}, " if one["key"] else ""
        until = f"to {_moment(one['until'])}" if one["until"] else "to the end"
        lines.append(f"{one['severity']}: {one['rule']}, {about}{_moment(one['since'])} {until}: {printable(one['message'])}")
    lacks: dict[tuple[str, ...], list[str]] = {}
    for one in report["cannot_tell"]:
        about = " ".join(filter(None, (one["stream"], ", ".join(one["keys"]))))
        lacks.setdefault((about, one["reason"], one["detail"]), []).append(one["rule"])
    for (about, reason, detail), rules in lacks.items():
        words = f" ({printable(detail)})" if detail else ""
        lines.append(f"not judged: {', '.join(rules)}{f' of {about}' if about else ''}: {reason}{words}")
    return lines


def markdown(report: Plain) -> str:
    """Return a table with a column for each device and their mean, and what the work cost."""
    devices = report["devices"].values()
    moments = f"{_moment(report['begin'])} to {_moment(report['end'])}"
    parts = [f"# {_hosts(report)}", "", f"{report['readings']} readings, {moments}.", ""]
    heading = [f"| Metric | {' | '.join(report['devices'])} | Mean |", "| --- |" + " ---: |" * (len(devices) + 1)]
    parts += heading if devices else ["No devices."]
    for title, name, part, scale in (
        ("Mean utilisation (%)", "utilization_percent", "mean", 1.0),
        ("Mean memory used (GiB)", "memory_used_bytes", "mean", GIB),
        ("Mean power (W)", "power_watts", "mean", 1.0),
        ("Maximum temperature (°C)", "temperature_celsius", "max", 1.0),
    ):
        known = [device[name][part] / scale for device in devices if device[name]]  # a device that says nothing is no zero
        mean = f"{sum(known) / len(known):.1f}" if known else NONE
        if devices:
            parts.append(f"| {title} | {' | '.join(_cell(device[name], part, '', scale) for device in devices)} | {mean} |")
    if found := _findings(report):
        parts += ["", "## Findings", "", *(f"- {line}" for line in found)]
    if report["work"]:
        parts += ["", "## Power efficiency", "", *(f"- {_work(name, work)}" for name, work in report["work"].items())]
    return "\n".join(parts) + "\n"


def as_json(document: Plain) -> str:
    """Return a document for programs."""
    return json.dumps(document, indent=2) + "\n"


def gpu_stats(report: Plain) -> Plain:
    """Return the flat statistics of each GPU: percent, GiB, watts and degrees Celsius, None where nothing was measured."""
    found = {}
    for key, device in report["devices"].items():
        total = device["memory_total_bytes"]
        stats: Plain = {"name": device["name"] or None}
        for title, name, scale, further in (
            ("utilization", "utilization_percent", 1.0, {}),
            ("memory_used", "memory_used_bytes", GIB, {"memory_total": None if total is None else total / GIB}),
            ("power", "power_watts", 1.0, {"power_limit": device["power_limit_watts"]}),
            ("temperature", "temperature_celsius", 1.0, {"sample_count": device["samples"]}),
        ):
            held = device[name]
            stats |= {f"avg_{title}": held and held["mean"] / scale, f"max_{title}": held and held["max"] / scale, **further}
        found[key.replace(".mig.", "_mig_").replace(".", "_").replace(" ", "_")] = stats
    return found


# Of both


def _host(host: Mapping[str, Mapping[str, float]], parts: Sequence[str]) -> list[str]:
    rows = [("", *parts), *((key, *(f"{host[key][part]:.1f}" for part in parts)) for key in HOST if key in host)]
    if len(rows) == 1:
        return ["nothing of the devices or the host was measured"]
    return aligned(rows, "  ", numeric=True)


def _cell(held: Mapping[str, float] | None, part: str, unit: str, scale: float) -> str:
    return NONE if held is None else f"{held[part] / scale:.1f}{unit}"


def _energy(joules: float | None) -> str:
    if joules is None:
        return NONE
    return f"{joules:.0f} J" if joules < WHOLE_J else f"{joules / 3_600_000:.3f} kWh"


def _work(name: str, work: Mapping[str, float | None]) -> str:
    said = f"{name}: {work['per_second']:.1f} per second"
    return said if work["per_joule"] is None else f"{said}, {work['per_joule']:.3g} per joule"


def _moment(timestamp: str) -> str:
    return timestamp[:19] + "Z"
