"""``training`` and ``verl``: names of training dashboards, which show logged numbers and devices together.

``training`` has the Prometheus names of home-grown dashboards, and the two kinds of JSON lines that go with them. A logged number is
kept until the program logs it again. Steps are counted by their numbers: for a program that logs every tenth step, each record counts
as ten steps and ten durations. MB means MiB.

``verl`` has the flat names of a monitor for reinforcement learning with verl; the names contain the device's number.
``memory_allocated_gb``, ``memory_reserved_gb`` and ``memory_utilization_pct`` come from PyTorch's allocator in the watched program. They
are absent if it does not use PyTorch, and never come from the driver, which counts the memory of all programs. GB means GiB.
"""

from __future__ import annotations

from collections.abc import Iterator

from accelmetrics.dialects.contract import Dialect, Distribution, Number, Point
from accelmetrics.dialects.prometheus import StepCounts
from accelmetrics.dialects.tables import DialectRow, DialectTable, FunctionDialect, convert, designation
from accelmetrics.schemas.record import STEP_NAMES, Record, in_json, logged_number
from accelmetrics.schemas.snapshot import Snapshot, rfc3339
from accelmetrics.schemas.vitals import processors

TORCH = "torch."
ALLOCATED, RESERVED = "memoryAllocatedBytes", "memoryReservedBytes"


def allocator(snapshot: Snapshot, name: str) -> dict[str, Number]:
    """Return a value of PyTorch's allocator by GPU number."""
    end = f".{name}"
    return {key[len(TORCH) : -len(end)]: value for key, value in snapshot.metrics.items() if key.startswith(TORCH) and key.endswith(end)}


# training

GAUGES = (
    DialectRow("gpu_utilization_percent", "gpu.{i}.gpu"),
    DialectRow("gpu_memory_used_mb", "gpu.{i}.memoryAllocatedBytes", "MiBy"),
    DialectRow("gpu_memory_total_mb", "gpu.{i}.memoryTotalBytes", "MiBy"),
    DialectRow("gpu_temperature_celsius", "gpu.{i}.temp"),
    DialectRow("gpu_power_draw_watts", "gpu.{i}.powerWatts"),
    DialectRow("gpu_fan_speed_percent", "gpu.{i}.fanSpeed"),
)
"""Rows of a device, with the label ``gpu_index``."""

FILE_FIELDS = (
    DialectRow("utilization_percent", "gpu.{i}.gpu"),
    DialectRow("memory_used_mb", "gpu.{i}.memoryAllocatedBytes", "MiBy"),
    DialectRow("memory_total_mb", "gpu.{i}.memoryTotalBytes", "MiBy"),
    DialectRow("memory_percent", "gpu.{i}.memoryAllocated", otherwise=("tpu.{i}.hbmMemoryUsage",)),
    DialectRow("temperature_celsius", "gpu.{i}.temp"),
    DialectRow("power_draw_watts", "gpu.{i}.powerWatts"),
    DialectRow("fan_speed_percent", "gpu.{i}.fanSpeed"),
)
"""Fields of a line of ``gpu_metrics_….jsonl``, after ``timestamp`` and ``gpu_index``."""

LOGGED = {
    "training_loss": ("loss", "Loss that the program logged last."),
    "training_epoch": ("epoch", "Epoch that the program logged last."),
    "learning_rate": ("learning_rate", "Learning rate that the program logged last."),
    "gradient_norm": ("grad_norm", "Gradient norm that the program logged last."),
}
"""The logged number behind each metric, and its help text."""

STEP_FIELDS = {
    "epoch": "epoch",
    "loss": "loss",
    "learning_rate": "learning_rate",
    "gradient_norm": "grad_norm",
    "throughput_samples_per_sec": "samples_per_second",
}
"""Fields of a line of ``training_metrics_….jsonl``, after ``timestamp`` and ``step``, each with its logged number."""
ALLOCATOR_FIELDS = {"memory_allocated_mb": ALLOCATED, "memory_reserved_mb": RESERVED}
"""The last fields of such a line: PyTorch's allocator, summed over the devices that the program uses."""

ALLOCATION = "memory_allocation_mb"
BUCKETS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds of the histogram of step durations, in seconds."""
INDEX = "gpu_index"


class Training(Dialect):
    """The names of home-grown training dashboards. Accumulates steps and logged numbers over records."""

    name = "training"
    summary = "home-grown training dashboards: gpu_utilization_percent, training_loss, training_steps_total"
    counting = True

    def __init__(self) -> None:
        self._table = DialectTable(GAUGES)
        self._latest: Snapshot | None = None
        self._steps = StepCounts(BUCKETS)
        self._logged: dict[str, Number] = {}
        self._allocated: dict[str, Distribution] = {}

    def points(self, record: Record) -> Iterator[Point]:
        """Count the record, then yield the gauges of each device, the logged numbers and the counters."""
        if record.snapshot is not self._latest:  # a record that is served again counts once
            self._latest = record.snapshot
            for step in record.own_steps:
                self._steps = self._steps.after(step)
                found = {name: logged_number(step.values, names) for name, names in STEP_NAMES.items()}
                self._logged.update((name, number) for name, number in found.items() if number is not None)
            for device, value in allocator(record.snapshot, ALLOCATED).items():
                before = self._allocated.get(device, Distribution(0, 0.0))
                self._allocated[device] = Distribution(before.observations + 1, before.total + convert(value, "By", "MiBy"))
        for slot in record.snapshot.identities:
            yield from self._table.points(record.snapshot, slot, {INDEX: designation(slot)})
        for name, (logged, meaning) in LOGGED.items():
            if (number := self._logged.get(logged)) is not None:
                yield Point(name, number, {}, "gauge", "1", meaning)
        yield from self._steps.points({})
        meaning = "Memory that PyTorch's allocator holds for tensors, observed at every reading, in MiB."
        for device, observed in self._allocated.items():
            yield Point(ALLOCATION, observed.mean, {INDEX: device}, "summary", "MiBy", meaning, observed)


JsonLine = dict[str, Number | str | None]
_FILE_TABLE = DialectTable(FILE_FIELDS)


def gpu_lines(record: Record) -> Iterator[JsonLine]:
    """Yield a line per device: every GPU, and other devices that have any of these values. A missing value is None."""
    for slot in record.snapshot.identities:
        found = {point.name: point.value for point in _FILE_TABLE.points(record.snapshot, slot)}
        if found or slot.identity.kind == "gpu":
            index = designation(slot)
            line: JsonLine = {"timestamp": record.snapshot.timestamp, INDEX: int(index) if index.isdecimal() else index}
            line.update((row.name, found.get(row.name)) for row in FILE_FIELDS)
            yield line


def training_lines(record: Record, begun: JsonLine | None = None) -> list[JsonLine]:
    """Return a line for each step, including steps without a number. A missing value is None.

    Args:
        record: The record with the steps.
        begun: The last line of the previous record. A program may log the numbers of a step in several calls, which belong to one line.
    """
    allocated = {field: allocator(record.snapshot, name).values() for field, name in ALLOCATOR_FIELDS.items()}
    lines = [] if begun is None else [dict(begun)]
    for step in record.own_steps:
        numbers = {field: logged_number(step.values, STEP_NAMES[name]) for field, name in STEP_FIELDS.items()}
        if not lines or step.step is None or lines[-1]["step"] != step.step:
            line: JsonLine = {"timestamp": rfc3339(step.time_ns), "step": step.step, **dict.fromkeys(STEP_FIELDS)}
            line.update((field, convert(sum(values), "By", "MiBy") if values else None) for field, values in allocated.items())
            lines.append(line)
        lines[-1].update((field, in_json(number)) for field, number in numbers.items() if number is not None)
    return lines


def has_numbers(line: JsonLine) -> bool:
    """Return whether a step's line has any logged number other than the epoch."""
    # Some frameworks log the epoch at every step, so it alone is no reason for a line.
    return any(line[field] is not None for field in STEP_FIELDS if field != "epoch")


# verl

VERL_TABLE = (
    DialectRow("gpu_utilization_pct", "gpu.{i}.gpu"),
    DialectRow("memory_total_gb", "gpu.{i}.memoryTotalBytes", "GiBy"),
    DialectRow("temperature_c", "gpu.{i}.temp"),
    DialectRow("power_usage_w", "gpu.{i}.powerWatts"),
    DialectRow("graphics_clock_mhz", "gpu.{i}.graphicsClock", otherwise=("gpu.{i}.freq", "gpu.{i}.smClock")),
    DialectRow("memory_clock_mhz", "gpu.{i}.memoryClock"),
)
"""Rows of a device. Names have a prefix like ``gpu_0_``."""

ALLOCATOR = {"memory_allocated_gb": ALLOCATED, "memory_reserved_gb": RESERVED}
"""Values of ``torch.0.``, with the same prefix."""
SHARE = "memory_utilization_pct"
"""``memory_allocated_gb`` in percent of ``memory_total_gb``."""

CPU, MEMORY_USED, MEMORY_SHARE = "cpu_utilization_pct", "system_memory_used_gb", "system_memory_utilization_pct"
_UNITS = {"pct": "%", "gb": "GiBy", "c": "Cel", "w": "W", "mhz": "MHz"}


_VERL_TABLE = DialectTable(VERL_TABLE)


def verl_points(record: Record) -> Iterator[Point]:
    """Yield the points of each device, then of the machine. The name contains the device, so points have no labels."""
    snapshot = record.snapshot
    found: dict[str, Number | None] = {}
    for slot in snapshot.identities:
        values = {point.name: point.value for point in _VERL_TABLE.points(snapshot, slot)}
        allocated = snapshot.values_of(f"{TORCH}{designation(slot)}")
        values |= {name: convert(allocated[key], "By", "GiBy") for name, key in ALLOCATOR.items() if key in allocated}
        total = snapshot.values_of(slot.key).get("memoryTotalBytes")
        if ALLOCATED in allocated and total:
            values[SHARE] = allocated[ALLOCATED] / total * 100
        head = slot.key.replace(".", "_")
        found |= {f"{head}_{name}": value for name, value in values.items()}
    found[CPU] = processors(snapshot.metrics)
    used, available, share = map(snapshot.metrics.get, ("memory.used", "proc.memory.availableMB", "memory_percent"))
    if used is not None:
        found[MEMORY_USED] = used / 2**30
    elif available is not None and share is not None and share < 100:
        # Available memory and the used share refer to the same total, the machine's or the cgroup's limit, so used memory follows.
        found[MEMORY_USED] = available / 1024 * share / (100 - share)
    found[MEMORY_SHARE] = share
    for name, value in found.items():
        if value is not None:
            yield Point(name, value, unit=_UNITS[name.rpartition("_")[2]])


VERL = FunctionDialect("verl", "what a monitor for verl logs: gpu_0_gpu_utilization_pct, system_memory_used_gb", verl_points)
