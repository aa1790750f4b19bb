"""Text formats of a snapshot: one screen for people, tables of all or some metrics, and CSV, under our own names or a dialect's."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import zip_longest

from accelmetrics.cli.output import WriteError, first_line, say
from accelmetrics.dialects.contract import Dialect
from accelmetrics.exporters.csv import columns_in, columns_of, csv_text
from accelmetrics.monitor.findings import of_one_reading
from accelmetrics.schemas.catalogue import SECTIONS, coverage_of, resolve
from accelmetrics.schemas.errors import WORDS, Unavailable
from accelmetrics.schemas.metric import device_key, fill
from accelmetrics.schemas.record import Record
from accelmetrics.schemas.snapshot import Snapshot
from accelmetrics.schemas.text import (
    GAP,
    GIB,
    aligned,
    brief,
    cells,
    celsius,
    clipped,
    fixed,
    memory,
    number,
    of_limit,
    percent,
    quantity,
    watts,
    wrapped,
)
from accelmetrics.views.device_view import DeviceView
from accelmetrics.views.node_view import NodeView, node_view

OTHER = ("", "Other")
"""The section of keys that are not in the catalogue: metrics of plug-ins."""
INDENT = "  "
HOST_WORDS: Mapping[str, Callable[[float], str]] = {
    "_percent": percent,
    "_watts": watts,
    "_celsius": celsius,
    "_bytes_per_second": lambda value: quantity(value, "By/s"),
    "_bytes": memory,
    "_1m": number,
}
"""Formatter of a number of the host, by the ending of its name."""
HEAD = ("timestamp", "hostname")


# Tables


def names(snapshot: Snapshot, dialect: Dialect) -> str:
    """Return a snapshot under a dialect's names: one name and value per line, below the dialect's summary."""
    rows = [(name, number(value)) for name, value in dialect.flat(Record(snapshot)).items()]
    lines = aligned(rows, INDENT, numeric=True) if rows else [f"{INDENT}Nothing that {dialect.name} has a name for."]
    return "\n".join([f"{snapshot.hostname}  {snapshot.timestamp}", "", dialect.summary, *lines]) + "\n"


HEADINGS = ("", "DEVICE", "NAME", "UTIL", "MEMORY/GiB", "POWER/W", "TEMP/°C", "PROC", "STATE")
SHORTEST_NAME = 8
"""Columns that a device's name keeps on a narrow screen."""
LEFT = frozenset({0, 1, 2, 8})
"""Indices of the left-aligned columns."""
MOST_ABSENT = 5
"""Number of vendors whose absence is explained on a machine without accelerators. The screen then fits 24 rows."""
DEVICE_REASON = re.compile(r"(?:^|; )([a-z]+\.[\w.]+): [a-z_]+: ")
"""Matches each device, followed by its reason, in the detail of a source that lacks some devices: ``gpu.2: device_lost: …``."""


def screen(snapshot: Snapshot, width: int) -> str:
    """Return the node on one screen: one line per device, then problems with their remedies.

    For a machine without devices it has the host's metrics, and why each vendor's devices are absent.
    """
    view = node_view(Record(snapshot, findings=of_one_reading(snapshot)))
    totals, host = view.summary, view.host
    used, total = host.get("memory_used_bytes"), host.get("memory_total_bytes")
    numbers = (
        ", ".join(f"{count} {kind}" for kind, count in totals.kinds.items()) or "no accelerator",
        "" if totals.utilization is None else f"util {percent(totals.utilization)}",
        "" if totals.power_watts is None else watts(totals.power_watts, totals.power_limit_watts),
        f"host cpu {percent(host['cpu_percent'])}" if "cpu_percent" in host else "",
        "" if used is None else f"host memory {memory(used, total)}",
    )
    head = wrapped(f"{snapshot.hostname}  {snapshot.timestamp[:19].replace('T', ' ')} UTC", width, "")
    parts = [[*head, *wrapped(", ".join(filter(None, numbers)), width, "")]]
    rows = [HEADINGS, *(_device_cells(view, device) for device in view.devices)]
    if view.devices:
        # Only the name is cut: every other column holds numbers or a short word.
        excess = sum(max(map(cells, column)) for column in zip(*rows, strict=True)) + GAP * (len(HEADINGS) - 1) - width
        name = max(SHORTEST_NAME, max(cells(row[2]) for row in rows) - max(0, excess))
        cut = [(*row[:2], clipped(row[2], name), *row[3:]) for row in rows]
        parts.append([clipped(line, width) for line in aligned(cut, numeric=True, left=LEFT)])
    else:
        pairs = ((name, ending, value) for ending in HOST_WORDS for name, value in host.items() if name.endswith(ending))
        words = [(name.removesuffix(ending).replace("_", " "), HOST_WORDS[ending](value)) for name, ending, value in pairs]
        parts.append(packed(words, width, ""))
        absent = list(view.absent.items())
        parts.append(["No accelerator was found. `accelmetrics doctor` says:" if absent else "No accelerator is read: --backends chooses."])
        parts[-1] += [clipped(line, width) for line in aligned(absent[:MOST_ABSENT], INDENT)]
        if len(absent) > MOST_ABSENT:
            parts[-1].append(f"{INDENT}and {len(absent) - MOST_ABSENT} more makers, none of them here")
    wrong: dict[str, dict[tuple[str, str], list[str]]] = {}  # by advice; devices with the same cause share one remark
    for device in view.devices:
        if device.state != "ok":
            wrong.setdefault(". ".join(device.advice), {}).setdefault((device.mark, device.note), []).append(device.label)
    silent = {device.key for device in view.devices if device.silent is not None}
    for source in view.sources:
        named = set(DEVICE_REASON.findall(source.detail))
        if source.state != "ok" and not (named and named <= silent):  # the remarks on the devices cover it
            detail = ": ".join(filter(None, (source.status.replace("_", " "), source.detail)))
            wrong.setdefault(source.advice, {}).setdefault((source.mark, detail), []).append(f"source {source.name}")
    remarks = []
    for advice, causes in wrong.items():
        for (mark, detail), keys in causes.items():
            remarks += wrapped(f"{mark} {', '.join(keys)}: {detail}", width, "")
        remarks += wrapped(advice, width - 2, "  ")
    parts.append(remarks)
    more = f"{len(snapshot.metrics)} metrics: `accelmetrics dump --all`, or `--json`."
    missing = f" {len(snapshot.unavailable)} are missing, --all says why." if snapshot.unavailable else ""
    parts.append(wrapped(more + missing, width, ""))
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def _device_cells(view: NodeView, device: DeviceView) -> tuple[str, ...]:
    values = device.values
    used, power, temperature = (values.get(name) for name in ("memory_used_bytes", "power_watts", "temperature_celsius"))
    why = device.silent or device.missing.get("utilization")
    processes = "-" if device.key in view.unlisted else str(sum(device.key in process.devices for process in view.processes))
    return (
        device.mark,
        device.label,
        device.name,
        f"{fixed(values['utilization'])} %" if "utilization" in values and device.silent is None else "-" if why is None else why.word,
        "-" if used is None else of_limit(used, values.get("memory_total_bytes"), GIB, 1),
        "-" if power is None else of_limit(power, values.get("power_limit_watts")),
        "-" if temperature is None else fixed(temperature),
        processes,
        device.word,
    )


def chosen(snapshot: Snapshot, width: int) -> str:
    """Return the chosen metrics as a table, with devices as rows or as columns, whichever takes fewer lines.

    A missing metric has a word for its reason.
    """
    devices = [place.key for place in snapshot.identities]
    rows: dict[str, dict[str, str]] = {device: {} for device in devices}
    host: list[tuple[str, str]] = []
    values = {**snapshot.metrics, **snapshot.unavailable}
    for key, value in values.items():
        found = resolve(key)
        if found is not None and found.alias:  # the same value under another name
            continue
        text = (
            WORDS.get(value.reason, str(value.reason))
            if isinstance(value, Unavailable)
            else quantity(value, found.row.unit if found else "1")
        )
        device = next((device for device in devices if key.startswith(f"{device}.")), "")
        if device:
            rows[device][key[len(device) + 1 :]] = text
        else:
            host.append((key, text))
    columns = list(dict.fromkeys(name for texts in rows.values() for name in texts))
    by_device = _grid({device: texts for device, texts in rows.items() if texts}, columns, width)
    by_name = _grid({name: {device: rows[device][name] for device in devices if name in rows[device]} for name in columns}, devices, width)
    parts = [min(by_device, by_name, key=len), packed(host, width, "")]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def table(snapshot: Snapshot, width: int) -> str:
    """Return all metrics by section, devices side by side, then the missing keys and the state of each source."""
    home = {row.key: (section.family, section.title) for section in SECTIONS for row in section.rows}
    devices = [place.key for place in snapshot.identities]
    values: dict[tuple[str, str], dict[str, dict[str, str]]] = {}  # by section, name and device; the host's device is ""
    for key, value in snapshot.metrics.items():
        found = resolve(key)
        section, device, name, unit = OTHER, "", key, "1"
        if found is None:
            device = next((device for device in devices if key.startswith(f"{device}.")), "")
            name = key[len(device) + 1 :] if device else key
        elif found.alias:
            continue
        else:
            section, unit = home.get(found.row.key, OTHER), found.row.unit
            if found.row.device_part:
                device, name = found.device, fill(found.row.name, found.instance)
        values.setdefault(section, {}).setdefault(name, {})[device] = quantity(value, unit)
    parts = [[f"{snapshot.hostname}  {snapshot.timestamp}"]]
    rows = [(place.key, place.identity.name or place.identity.vendor, place.identity.uuid) for place in snapshot.identities]
    parts.append([clipped(line, width) for line in aligned(rows)] or ["No devices. `accelmetrics doctor` says why."])
    for title in dict.fromkeys((*home.values(), OTHER)):
        if title in values:
            host = packed([(name, texts[""]) for name, texts in values[title].items() if "" in texts], width, INDENT)
            parts.append([": ".join(filter(None, title)), *host, *_grid(values[title], devices, width)])
    parts.append(_missing(snapshot, width))
    sources = []
    for status in snapshot.backends:
        read = f"{status.source}, {brief(status.duration_seconds)}" if status.source else ""
        sources.append((status.name, status.status, " ".join("; ".join(filter(None, (read, status.detail))).split())))
    parts.append(["Sources", *(clipped(line, width) for line in aligned(sources, INDENT))] if sources else [])
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def _grid(values: dict[str, dict[str, str]], devices: Sequence[str], width: int) -> list[str]:
    """Return a table with names as rows and devices as columns, split into blocks of devices that fit the width."""
    values = {name: texts for name, texts in values.items() if texts.keys() - {""}}
    shown = [device for device in devices if any(device in texts for texts in values.values())]
    if not shown:
        return []
    column = GAP + max(max(len(device), len(text)) for texts in values.values() for device, text in texts.items())
    across = max(1, (width - max(map(len, values)) - len(INDENT)) // column)
    lines: list[str] = []
    for start in range(0, len(shown), across):
        block = shown[start : start + across]
        rows = [["", *block], *([name, *(texts.get(device, "-") for device in block)] for name, texts in values.items())]
        lines += aligned(rows, INDENT, numeric=True)
    return lines


def _missing(snapshot: Snapshot, width: int) -> list[str]:
    """Return one line of missing keys per reason, cut to the width. With several devices a key is ``gpu.*.fanSpeed``."""
    keys: dict[str, list[str]] = {}
    for key, why in snapshot.unavailable.items():
        found = device_key(key) if len(snapshot.identities) > 1 else None
        shown = key if found is None or found.process else f"{found.kind}.*.{key.split('.', 2)[2]}"
        keys.setdefault(str(why.reason), []).append(shown)
    rows = [(reason, str(len(listed)), ", ".join(dict.fromkeys(listed))) for reason, listed in keys.items()]
    return ["Not available", *(clipped(line, width) for line in aligned(rows, INDENT))] if rows else []


def packed(pairs: Sequence[tuple[str, str]], width: int, indent: str) -> list[str]:
    """Return names with values in as many columns as fit the width, ordered down each column."""
    if not pairs:
        return []
    lines = aligned(pairs, numeric=True)
    room = max(map(len, lines)) + 2 * GAP
    columns = max(1, (width - len(indent) + 2 * GAP) // room)
    height = -(-len(lines) // columns)
    stacks = [lines[start : start + height] for start in range(0, len(lines), height)]
    return [(indent + "".join(cell.ljust(room) for cell in row)).rstrip() for row in zip_longest(*stacks, fillvalue="")]


# CSV


def csv(repeated: bool, path: str, dialect: Dialect | None) -> Callable[[Snapshot], str]:
    """Return the function that formats a snapshot as a CSV row, with the header before the first one.

    The columns are the keys of the first reading, or the header of the file to append to. A key without a column is
    left out, and reported once on standard error.

    Args:
        repeated: Whether more readings follow. The header then also has the keys of processes that may start later.
        path: The file to append to; empty for none.
        dialect: The dialect of the column names; None for the catalogue's names.

    Raises:
        WriteError: The file to append to does not begin with this header.
    """
    left_out: set[str] = set()
    header = first_line(path) if repeated and path else ""
    names = columns_in(header.encode()) if header else ()
    if header and names[:2] != HEAD:
        raise WriteError(path, f"its first line does not begin with the columns {', '.join(HEAD)}")

    def render(snapshot: Snapshot) -> str:
        nonlocal names
        if dialect is not None:
            snapshot = Snapshot(snapshot.time_ns, snapshot.hostname, dialect.flat(Record(snapshot)))
        rows: list[Iterable[object]] = []
        if not names:
            names = (*HEAD, *columns(snapshot, repeated))
            rows.append(names)
        values = snapshot.metrics
        late = values.keys() - set(names) - left_out
        if late:
            left_out.update(late)
            say(f"left out, because the header has no column for them: {', '.join(sorted(late))}")
        rows.append((snapshot.timestamp, snapshot.hostname, *(values.get(key, "") for key in names[2:])))
        return csv_text(rows).decode()

    return render


def columns(snapshot: Snapshot, repeated: bool) -> list[str]:
    """Return every key that has a value or may get one. A stream also has the keys of a process on each whole device."""
    keys = dict.fromkeys(columns_of(snapshot))
    for place in snapshot.identities if repeated else ():
        processes = () if place.identity.parent else coverage_of(place.backend).get("processes", ())
        keys.update((f"{place.identity.kind}.process.{place.index}.{name}", None) for name in processes)
    return list(keys)


def device_rows(dialect: Dialect) -> Callable[[Snapshot], str]:
    """Return the function that formats a snapshot as one row per device, as the dialect's own tool prints it.

    Values are separated by a comma and a space.
    """
    headed = False

    def render(snapshot: Snapshot) -> str:
        nonlocal headed
        rows = dialect.rows(Record(snapshot))
        lines = [] if headed or not rows else [", ".join(rows[0])]
        headed = headed or bool(rows)
        return "".join(f"{line}\n" for line in (*lines, *(", ".join(row.values()) for row in rows)))

    return render
