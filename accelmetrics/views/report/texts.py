"""What recordings came to as text and Markdown, for people: views of the report's document."""

from __future__ import annotations

from collections.abc import Mapping

from accelmetrics.schemas.text import aligned, printable
from accelmetrics.views.report.run_report import Plain
from accelmetrics.views.summaries import COLUMNS, GIB, NONE, cell_text, energy_text, host_table


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
            cells = [cell_text(device[name], part, unit, scale) for _, name, unit, scale in COLUMNS for part in ("mean", "max", "p95")]
            rows.append((key, *cells, energy_text(device["energy"] and device["energy"]["joules"]), str(device["samples"])))
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
    return "\n".join([*lines, *([] if devices else host_table(report["host"], ("mean", "max", "p95")))]) + "\n"


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
            parts.append(f"| {title} | {' | '.join(cell_text(device[name], part, '', scale) for device in devices)} | {mean} |")
    if found := _findings(report):
        parts += ["", "## Findings", "", *(f"- {line}" for line in found)]
    if report["work"]:
        parts += ["", "## Power efficiency", "", *(f"- {_work(name, work)}" for name, work in report["work"].items())]
    return "\n".join(parts) + "\n"


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


def _work(name: str, work: Mapping[str, float | None]) -> str:
    said = f"{name}: {work['per_second']:.1f} per second"
    return said if work["per_joule"] is None else f"{said}, {work['per_joule']:.3g} per joule"


def _moment(timestamp: str) -> str:
    return timestamp[:19] + "Z"
