"""``training``: Prometheus names of home-grown training dashboards, and the two kinds of JSON lines that go with them. MB are MiB.

What the program logs is kept until it logs anew. Steps are counted by their own numbers, so that a program which logs every
tenth step counts ten; the duration of a step is observed as often.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import NamedTuple

from accelmetrics.dialects.contract import Distribution, Number, Point, PointKind
from accelmetrics.dialects.series import series
from accelmetrics.dialects.tables import Entry, Table, convert, designation
from accelmetrics.schemas.record import Record, Step
from accelmetrics.schemas.snapshot import Snapshot, rfc3339

GAUGES = (
    Entry("gpu_utilization_percent", "gpu.{i}.gpu"),
    Entry("gpu_memory_used_mb", "gpu.{i}.memoryAllocatedBytes", "MiBy"),
    Entry("gpu_memory_total_mb", "gpu.{i}.memoryTotalBytes", "MiBy"),
    Entry("gpu_temperature_celsius", "gpu.{i}.temp"),
    Entry("gpu_power_draw_watts", "gpu.{i}.powerWatts"),
    Entry("gpu_fan_speed_percent", "gpu.{i}.fanSpeed"),
)
"""Of each device, which the label ``gpu_index`` numbers."""

FILE_FIELDS = (
    Entry("utilization_percent", "gpu.{i}.gpu"),
    Entry("memory_used_mb", "gpu.{i}.memoryAllocatedBytes", "MiBy"),
    Entry("memory_total_mb", "gpu.{i}.memoryTotalBytes", "MiBy"),
    Entry("memory_percent", "gpu.{i}.memoryAllocated", otherwise=("tpu.{i}.hbmMemoryUsage",)),
    Entry("temperature_celsius", "gpu.{i}.temp"),
    Entry("power_draw_watts", "gpu.{i}.powerWatts"),
    Entry("fan_speed_percent", "gpu.{i}.fanSpeed"),
)
"""Of a line of ``gpu_metrics_….jsonl``, behind ``timestamp`` and ``gpu_index``."""

LOGGED = {
    "training_loss": ("loss", "Loss that the program logged last."),
    "training_epoch": ("epoch", "Epoch that the program logged last."),
    "learning_rate": ("learning_rate", "Learning rate that the program logged last."),
    "gradient_norm": ("grad_norm", "Gradient norm that the program logged last."),
}
"""By name, which of the numbers that the program logs it is, and its meaning."""

STEP_FIELDS = {
    "epoch": "epoch",
    "loss": "loss",
    "learning_rate": "learning_rate",
    "gradient_norm": "grad_norm",
    "throughput_samples_per_sec": "samples_per_second",
}
"""Of a line of ``training_metrics_….jsonl``, behind ``timestamp`` and ``step``: which logged number each is."""
ALLOCATOR_FIELDS = {"memory_allocated_mb": "memoryAllocatedBytes", "memory_reserved_mb": "memoryReservedBytes"}
"""And behind those: PyTorch's, over the devices that the program uses it on."""

STEPS, DURATION, ALLOCATION = "training_steps_total", "training_step_duration_seconds", "memory_allocation_mb"
BUCKETS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds of the durations' histogram, in seconds."""
INDEX = "gpu_index"

_TORCH = "torch."
_MEANINGS = {
    STEPS: "Training steps since the monitor saw the first one.",
    DURATION: "Duration of a training step.",
    ALLOCATION: "Memory that PyTorch's allocator holds for tensors, observed at every reading, in MiB.",
}


class _Seen(NamedTuple):
    """What has been counted so far. Replaced as a whole, since one thread counts and another one reads."""

    snapshot: Snapshot | None = None
    step: int | None = None
    steps: int = 0
    values: Mapping[str, Number] = {}
    durations: tuple[int, ...] = (0,) * (len(BUCKETS) + 1)
    seconds: float = 0.0
    allocated: Mapping[str, Distribution] = {}


class Training:
    """Counts over the records that it is shown."""

    name = "training"
    summary = "home-grown training dashboards: gpu_utilization_percent, training_loss, training_steps_total"

    def __init__(self) -> None:
        self._table = Table(GAUGES)
        self._seen = _Seen()

    def observe(self, record: Record) -> None:
        """Count a record, unless it is the one that was counted last."""
        if record.snapshot is self._seen.snapshot:
            return
        seen = self._seen
        for step in record.steps:
            seen = _with_step(seen, step)
        self._seen = seen._replace(snapshot=record.snapshot, allocated=_with_allocation(seen.allocated, record.snapshot))

    def flat(self, record: Record) -> dict[str, Number | None]:
        """Series as PromQL writes them; of a distribution the number and the sum of what was observed."""
        found: dict[str, Number | None] = {}
        for point in self.points(record):
            if point.distribution is None:
                found[series(point.name, point.labels)] = point.value
            else:
                found[series(f"{point.name}_count", point.labels)] = point.distribution.observations
                found[series(f"{point.name}_sum", point.labels)] = point.distribution.total
        return found

    def points(self, record: Record) -> Iterator[Point]:
        """Each device's gauges, then what the program logged and what was counted of it."""
        self.observe(record)
        seen = self._seen
        for place in record.snapshot.identities:
            labels = {INDEX: designation(place)}
            for told in self._table.told(record.snapshot, place):
                yield Point(told.entry.name, told.value, labels, told.kind, told.unit, told.meaning)
        for name, (logged, meaning) in LOGGED.items():
            if logged in seen.values:
                yield Point(name, seen.values[logged], {}, "gauge", "1", meaning)
        yield from _counted(seen)


def _counted(seen: _Seen) -> Iterator[Point]:
    if seen.steps:
        yield Point(STEPS, seen.steps, {}, "counter", "1", _MEANINGS[STEPS])
    if observed := sum(seen.durations):
        up_to = zip(BUCKETS, accumulate(seen.durations), strict=False)
        yield _distributed(DURATION, "histogram", "s", Distribution(observed, seen.seconds, tuple(up_to)), {})
    for device, distribution in seen.allocated.items():
        yield _distributed(ALLOCATION, "summary", "MiBy", distribution, {INDEX: device})


def _distributed(name: str, kind: PointKind, unit: str, distribution: Distribution, labels: Mapping[str, str]) -> Point:
    return Point(name, distribution.mean, labels, kind, unit, _MEANINGS[name], distribution)


def _with_step(seen: _Seen, step: Step) -> _Seen:
    advanced = _advanced(seen.step, step.step)
    durations, seconds = seen.durations, seen.seconds
    duration = step.values.get("step_seconds")
    if duration is not None and advanced:
        bucket = bisect_left(BUCKETS, duration)
        durations = (*durations[:bucket], durations[bucket] + advanced, *durations[bucket + 1 :])
        seconds += duration * advanced
    number = seen.step if step.step is None else step.step
    values = {**seen.values, **step.values}
    return seen._replace(step=number, steps=seen.steps + advanced, values=values, durations=durations, seconds=seconds)


def _advanced(before: int | None, now: int | None) -> int:
    """By how many steps the program has come on: by one where it does not number them, or begins to count anew."""
    if before is None or now is None or now < before:
        return 1
    return now - before


def _with_allocation(allocated: Mapping[str, Distribution], snapshot: Snapshot) -> Mapping[str, Distribution]:
    found = dict(allocated)
    for device, held in _allocator(snapshot, "memoryAllocatedBytes").items():
        before = found.get(device, Distribution(0, 0.0))
        found[device] = Distribution(before.observations + 1, before.total + convert(held, "By", "MiBy"))
    return found


def _allocator(snapshot: Snapshot, name: str) -> dict[str, Number]:
    """By device, what PyTorch's allocator says."""
    end = f".{name}"
    keys = [key for key in snapshot.metrics if key.startswith(_TORCH) and key.endswith(end)]
    return {key[len(_TORCH) : -len(end)]: snapshot.metrics[key] for key in keys}


# Lines of files

Line = dict[str, Number | str | None]
_FILE_TABLE = Table(FILE_FIELDS)


def gpu_lines(record: Record) -> Iterator[Line]:
    """A line per device: each GPU, and each other device that says any of this. What is missing is None."""
    for place in record.snapshot.identities:
        told = {one.entry.name: one.value for one in _FILE_TABLE.told(record.snapshot, place)}
        if told or place.identity.kind == "gpu":
            index = designation(place)
            line: Line = {"timestamp": record.snapshot.timestamp, INDEX: int(index) if index.isdecimal() else index}
            line.update((entry.name, told.get(entry.name)) for entry in FILE_FIELDS)
            yield line


def training_lines(record: Record) -> Iterator[Line]:
    """A line per step that was logged. What is missing is None."""
    held = {field: _allocator(record.snapshot, name).values() for field, name in ALLOCATOR_FIELDS.items()}
    for step in record.steps:
        line: Line = {"timestamp": rfc3339(step.time_ns), "step": step.step}
        line.update((field, step.values.get(name)) for field, name in STEP_FIELDS.items())
        line.update((field, convert(sum(values), "By", "MiBy") if values else None) for field, values in held.items())
        yield line
