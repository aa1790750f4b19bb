"""Summaries of a monitored period or a recording: text and Markdown for people, plain values for programs."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from accelmetrics.schemas.identity import DeviceSlot
from accelmetrics.schemas.snapshot import Snapshot
from accelmetrics.schemas.statistics import Energy, Summary
from accelmetrics.schemas.text import GIB, KWH_FROM, MIB, aligned, cells, clipped, consecutive, counted, energy, fixed, printable
from accelmetrics.schemas.vitals import MEMORY_PERCENT, MEMORY_TOTAL, MEMORY_USED, POWER, POWER_LIMIT, TEMPERATURE, UTILIZATION, first

Plain = dict[str, Any]


class Measured(Protocol):
    """A measured period: a window of a monitor, or of records."""

    @property
    def duration(self) -> float:
        """Duration in seconds."""
        ...

    @property
    def summary(self) -> Mapping[str, Summary]:
        """Statistics by key."""
        ...

    @property
    def energy_joules(self) -> Mapping[str, Energy]:
        """Energy by device key."""
        ...


NONE = "-"
WIDTH = 80
"""Largest width of a line in columns."""
MEASURES = {
    "utilization_percent": UTILIZATION,
    "memory_percent": MEMORY_PERCENT,
    "memory_used_bytes": MEMORY_USED,
    "power_watts": POWER,
    "temperature_celsius": TEMPERATURE,
}
"""Measures of devices: the name in reports, and the possible names in snapshots."""
COLUMNS = (
    ("util", "utilization_percent", "%", 1.0),
    ("memory", "memory_used_bytes", " GiB", GIB),
    ("power", "power_watts", " W", 1.0),
    ("temp", "temperature_celsius", "°C", 1.0),
)
"""Columns of tables: heading, measure, unit, and the size of that unit."""
Parts = tuple[tuple[str, ...], ...]
FULL: Parts = (("mean", "max", "p95"),) * 4
SHAPES: tuple[Parts, ...] = (
    (("mean", "max"),) * 4,
    (("mean", "max"), ("mean", "max"), ("mean", "max"), ("max",)),
    (("mean", "max"), ("max",), ("mean", "max"), ("max",)),
    (("mean",), ("max",), ("mean",), ("max",)),
)
"""Statistics in each column of a table, fullest shape first. The first one that fits is used."""
JOB_COLUMNS = (
    ("util mean", "utilization_percent_mean", "%", 1.0),
    ("memory max", "memory_used_bytes_max", " GiB", GIB),
    ("power mean", "power_watts_mean", " W", 1.0),
    ("temp max", "temperature_celsius_max", "°C", 1.0),
)
"""The same for the devices of a job."""
HOURS = {"held_hours": "held", "used_hours": "used", "wasted_hours": "wasted", "unmeasured_hours": "not measured"}
"""Names of a job's device hours."""
PROCESS = {"cpu_percent": ("cpu", 1.0), "memory_bytes": ("proc.memory.rssMB", MIB), "threads": ("proc.cpu.threads", 1.0)}
"""Measures of the watched process: the key, and the factor to the unit of reports."""
STATISTICS = ("mean", "max", "count")
"""Statistics of each measure in ``run --stats``."""
HOST = ("cpu", "memory_percent", "proc.memory.rssMB")


def measured(summary: Mapping[str, Summary], device: str) -> dict[str, dict[str, float] | None]:
    """Return a device's measures as plain values, by their names in reports; None for missing ones."""
    found = {name: first(summary, device, names) for name, names in MEASURES.items()}
    return {name: None if held is None else held._asdict() for name, held in found.items()}


def samples(measures: Mapping[str, Mapping[str, float] | None]) -> int:
    """Return the number of readings with any measure of a device."""
    return max((int(held["count"]) for held in measures.values() if held is not None), default=0)


def readings(summary: Mapping[str, Summary]) -> int:
    """Return the number of readings of the metric that was read most often."""
    return max((held.count for held in summary.values()), default=0)


# Of a window


def of_window(window: Measured, latest: Snapshot | None, title: str, seconds: float | None = None, number: int | None = None) -> str:
    """Return a window as text, with a line for each device, or for the host if there are no devices.

    Args:
        window: The window.
        latest: A reading with the devices.
        title: Title of the text.
        seconds: The duration to show, if it differs from the window's.
        number: The number of readings to show, if it differs from the window's, which has extra readings at its edges.
    """
    summary, energy = window.summary, window.energy_joules
    number = readings(summary) if number is None else number
    head = f"{title}: {window.duration if seconds is None else seconds:.1f} s, {counted(number, 'reading')}"
    places = latest.identities if latest is not None else ()
    rows = [(place.key, measured(summary, place.key), (used := energy.get(place.key)) and used.joules) for place in places]
    host = {key: summary[key]._asdict() for key in HOST if key in summary}
    table = device_table(rows, SHAPES[1:]) if rows else host_table(host, ("mean", "max"))
    doubts = doubt_lines({key: used.reason for key, used in energy.items() if used.reason})
    return "\n".join((*folded(head), *table, *doubts)) + "\n"


def of_devices(window: Measured, latest: Snapshot | None) -> dict[str, Any]:
    """Return for each device its identity, ``mean``, ``max`` and ``count`` of each measure, its energy and its number of readings."""
    summary, energy = window.summary, window.energy_joules
    devices: dict[str, Plain] = {}
    for place in latest.identities if latest is not None else ():
        identity, used = place.identity, energy.get(place.key)
        held, limit = measured(summary, place.key), first(summary, place.key, POWER_LIMIT)
        found = {
            "name": identity.name or identity.vendor,
            "vendor": identity.vendor,
            "uuid": identity.uuid or None,
            "samples": samples(held),
            **{name.replace("_used", ""): one and {part: one[part] for part in STATISTICS} for name, one in held.items()},
            "memory_total_bytes": memory_total(summary, place),
            "power_limit_watts": limit and limit.last,
            "energy_joules": used and used.joules,
            "energy_source": used and used.source,
            "energy_seconds": used and used.seconds,
            "energy_reason": (used and used.reason) or None,
        }
        devices[place.key] = {name: value for name, value in found.items() if value is not None}
    return devices


def memory_total(summary: Mapping[str, Summary], place: DeviceSlot) -> float | None:
    """Return the memory size of a device in bytes; None if neither readings nor the identity have it."""
    total = first(summary, place.key, MEMORY_TOTAL)
    return place.identity.memory_total_bytes if total is None else total.last


def of_process(window: Measured) -> dict[str, Any]:
    """Return ``mean``, ``max`` and ``count`` of each measure of the watched process and its descendants."""
    summary = window.summary
    held = {name: (summary[key], factor) for name, (key, factor) in PROCESS.items() if key in summary}
    return {name: {"mean": one.mean * factor, "max": one.max * factor, "count": one.count} for name, (one, factor) in held.items()}


# Of a job


def of_job(summary: Plain) -> str:
    """Return the summary of a job as text, from the document that the monitor of its node wrote."""
    labels, seconds, held = summary["labels"], int(summary["ended"] - summary["began"]), counted(summary["devices_held"], "device")
    about = ", ".join(labels[name] for name in ("user", "partition") if name in labels)
    hours = (f"{'unknown' if summary[name] is None else format(summary[name], '.2f')} {words}" for name, words in HOURS.items())
    lasted = f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    lines = [
        printable(f"job {summary['job_id']}{f' ({about})' if about else ''} on {summary['hostname']}: {held} for {lasted}"),
        f"  GPU hours: {', '.join(hours)}",
        f"  energy: {energy_text(summary['energy_joules'])}",
    ]
    rows = [("", *(heading for heading, *_ in JOB_COLUMNS), "energy")]
    energy_unit, energies = energy_column([device["energy_joules"] for device in summary["devices"]])
    for device, used in zip(summary["devices"], energies, strict=True):
        cells = (cell_text(device, name, unit, scale) if device[name] is not None else NONE for _, name, unit, scale in JOB_COLUMNS)
        rows.append((device["device"], *cells, used if used == NONE else f"{used} {energy_unit}"))
    doubts = doubt_lines({device["device"]: device["energy_reason"] for device in summary["devices"] if device.get("energy_reason")})
    return "\n".join((*lines, *aligned(rows, "  ", numeric=True), *doubts)) + "\n"


# Of both


def folded(line: str) -> list[str]:
    """Return a line wrapped to the width, with all but the first line indented. A longer word, for example a path, stays whole."""
    return textwrap.wrap(printable(line), WIDTH, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False) or [""]


def table_lines(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a table of numbers with row names in the first column. Columns that do not fit are put into a second table below."""
    left, begin = len(rows[0]), 1
    tables: list[list[str]] = []
    while begin < left or not tables:
        end = begin + 1
        while end < left and max(map(cells, aligned([(row[0], *row[begin : end + 1]) for row in rows], "  ", numeric=True))) <= WIDTH:
            end += 1
        tables.append([clipped(line, WIDTH) for line in aligned([(row[0], *row[begin:end]) for row in rows], "  ", numeric=True)])
        begin = end
    return [line for position, each in enumerate(tables) for line in (*([""] if position else []), *each)]


def device_table(
    devices: Sequence[tuple[str, Mapping[str, Mapping[str, float] | None], float | None]], shapes: Sequence[Parts] = (FULL, *SHAPES)
) -> list[str]:
    """Return the table of devices, with units in its head.

    Args:
        devices: Label, measures and energy in joules of each device.
        shapes: Possible statistics of the columns, fullest first.
    """
    lines: list[str] = []
    for shape in shapes:
        groups = [("", [["", *(printable(label) for label, *_ in devices)]])]
        # Means and amounts of memory have a decimal; other readings are whole numbers.
        for (title, name, unit, scale), parts in zip(COLUMNS, shape, strict=True):
            columns = []
            for part in parts:
                digits = int(part == "mean" or scale != 1.0)
                columns.append([part, *(cell_text(held[name], part, "", scale, digits) for _, held, _ in devices)])
            groups.append((f"{title}, {unit.strip()}", columns))
        energy_unit, energies = energy_column([joules for *_, joules in devices])
        groups.append(("energy", [[energy_unit, *energies]]))
        blocks: list[list[str]] = []
        for title, columns in groups:
            right = bool(blocks)  # numbers end below each other
            if right:
                columns = [[cell.rjust(max(map(len, column))) for cell in column] for column in columns]  # noqa: PLW2901
            found = [" ".join(row) for row in zip(*columns, strict=True)]
            widest = max(cells(title), *map(cells, found))
            spaces = [" " * (widest - cells(one)) for one in found]
            block = [space + one if right else one + space for one, space in zip(found, spaces, strict=True)]
            blocks.append([title + " " * (widest - cells(title)), *block])
        lines = [("  " + "  ".join(row)).rstrip() for row in zip(*blocks, strict=True)]
        if max(map(cells, lines)) <= WIDTH:
            break
    return [clipped(line, WIDTH) for line in lines]


def named(keys: Sequence[str]) -> str:
    """Return the names of devices, with three or more consecutive ones as a range: ``gpu.0 to gpu.3, gpu.6``."""
    return ", ".join(f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(run) for run in consecutive(keys))


def reasons(missing: Mapping[str, str]) -> list[str]:
    """Return the reasons by device as lines, one for all devices with the same: ``gpu.0 to gpu.3: no permission``."""
    return [f"{named([key for key, other in missing.items() if other == why])}: {why}" for why in dict.fromkeys(missing.values())]


def host_table(host: Mapping[str, Mapping[str, float]], parts: Sequence[str]) -> list[str]:
    """Return the host's table, or a line that says that there are no values."""
    rows = [("", *parts), *((key, *(f"{host[key][part]:.1f}" for part in parts)) for key in HOST if key in host)]
    if len(rows) == 1:
        return ["no values of devices or the host"]
    return table_lines(rows)


def cell_text(held: Mapping[str, float] | None, part: str, unit: str, scale: float, digits: int = 1) -> str:
    """Return a statistic of a measure with its unit; a dash if nothing was measured."""
    return NONE if held is None else f"{fixed(held[part] / scale, digits)}{unit}"


def energy_text(joules: float | None) -> str:
    """Return energy in joules, or in kWh if it is large; a dash if unknown."""
    return NONE if joules is None else energy(joules)


def energy_column(joules: Sequence[float | None]) -> tuple[str, list[str]]:
    """Return the unit for a column of energies, and the energies in it: kWh if the largest one is displayed in kWh, else joules."""
    largest = max((abs(one) for one in joules if one is not None), default=0.0)
    unit, size, digits = ("J", 1.0, 0) if largest < KWH_FROM else ("kWh", 3.6e6, 3)
    return unit, [NONE if one is None else fixed(one / size, digits) for one in joules]


def work_of_devices(rate: Mapping[str, float | None], devices: int) -> Plain:
    """Return the rates of work, also for the mean power of one device, with a reason for each None.

    Args:
        rate: The work per second and per joule.
        devices: Number of devices with known energy.
    """
    per_joule = rate["per_joule"]
    found: Plain = {**rate, "per_joule_of_mean_device": per_joule * devices if per_joule is not None and devices else None}
    if not devices:
        found["reason"] = "energy is unknown: it needs two readings of a device that reports power or energy"
    elif per_joule is None:
        found["reason"] = "the energy of every step is unknown: it needs a reading before the step and one after it"
    return found


def work_text(name: str, work: Plain) -> str:
    """Return the rate of work in words, with the work per joule if it is known."""
    text, per_joule, mean = f"{name}: {work['per_second']:.1f} per second", work.get("per_joule"), work.get("per_joule_of_mean_device")
    if per_joule is not None:
        text += f", {per_joule:.3g} per joule"
        text += "" if mean is None or mean == per_joule else f" ({mean:.3g} by the mean power of one device)"
    return text


def doubt_lines(reasons: Mapping[str, str]) -> list[str]:
    """Return a remark on devices whose energy counter was rejected, with the first reason; empty if there are none."""
    if not reasons:
        return []
    (first_key, reason), *more = reasons.items()
    if not more:
        return folded(f"{first_key}: energy is computed from power: {reason}")
    return folded(f"{named(list(reasons))}: energy is computed from power; of {first_key}, {reason}")


def as_json(document: Plain) -> str:
    """Return a document as JSON."""
    return json.dumps(document, indent=2) + "\n"
