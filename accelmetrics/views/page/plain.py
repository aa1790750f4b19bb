"""The page for browsers that run no scripts: tables of one reading, fetched again by the browser itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from accelmetrics.schemas.snapshot import rfc3339
from accelmetrics.schemas.text import GIB
from accelmetrics.views.device_view import DeviceView
from accelmetrics.views.node_view import NodeView, ProcessRow, SourceRow

RELOAD = 5
"""Seconds until the browser asks again."""
_PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="refresh" content="{reload}">
<title>{hostname} · accelmetrics</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="static/style.css">
</head>
<body>
<main>
<h1>{hostname}</h1>
<p>Read at {time}. This page needs no scripts and is loaded again every {reload} seconds. <a href="./">With graphs</a> (needs scripts),
<a href="api/snapshot">as JSON</a>.</p>
<h2>Findings</h2>
<ul>{findings}</ul>
{tables}
</main>
</body>
</html>
"""


def plain_page(view: NodeView) -> str:
    """Write a node as a document of HTML; every text of it is escaped."""
    findings = [f"{one.severity}: {one.key}: {one.message}. {one.advice}" for one in view.findings]
    devices = [_device(device) for device in view.devices]
    silent = [_silent(source) for source in view.silent]
    columns = ("Device", "State", "Use", "Memory", "Power", "Temperature", "Clock", "Note")
    tables = [
        _table("Devices", columns, [*devices, *silent]),
        _table("Processes", ("PID", "Devices", "User", "Program", "Memory", "Job or pod"), map(_process, view.processes)),
        _table("Sources", ("Source", "Status", "What it says"), ((one.name, one.status, one.detail) for one in view.sources)),
    ]
    return _PAGE.format(
        reload=RELOAD,
        hostname=escape(view.hostname),
        time=escape(rfc3339(view.time_ns)),
        findings="".join(f"<li>{escape(one)}</li>" for one in findings or ["nothing is wrong that a rule judges"]),
        tables="\n".join(tables),
    )


def _table(caption: str, headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f'<th scope="col">{escape(heading)}</th>' for heading in headings)
    lines = []
    for first, *rest in rows:
        cells = "".join(f"<td>{escape(cell)}</td>" for cell in rest)
        lines.append(f'<tr><th scope="row">{escape(first)}</th>{cells}</tr>\n')
    return f"<table>\n<caption>{escape(caption)}</caption>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{''.join(lines)}</tbody>\n</table>"


def _device(device: DeviceView) -> list[str]:
    values = device.values

    def said(name: str, unit: str, of: str = "") -> str:
        if name in values:
            limit = f" of {values[of]:.0f} {unit}" if of in values else ""
            return f"{values[name]:.0f} {unit}{limit}"
        return f"- {device.missing[name].word}" if name in device.missing else "- n/a"

    return [
        f"{device.label} {device.name}",
        f"{device.mark} {device.state}",
        said("utilization", "%"),
        said("memory_percent", "%"),
        said("power_watts", "W", "power_limit_watts"),
        said("temperature_celsius", "°C"),
        said("sm_clock_mhz", "MHz"),
        ", ".join((*device.notes, *device.holders)),
    ]


def _silent(source: SourceRow) -> list[str]:
    return [source.name, f"{source.mark} {source.state}", *[f"- {source.status}"] * 5, f"{source.detail}. {source.advice}"]


def _process(row: ProcessRow) -> tuple[str, ...]:
    memory = "- not told" if row.memory_bytes is None else f"{row.memory_bytes / GIB:.1f} GiB"
    return str(row.pid), ", ".join(row.devices), row.user or "-", row.program or "-", memory, row.holder or "-"
