"""The default Prometheus names: base units, two identity labels on every device's series, everything else on info metrics.

The names are in the catalogue (``Metric.prometheus``). A device's series have the labels ``accelerator`` (its key, unique on a mixed
host) and ``uuid`` (its UUID, else its PCI address, else its key; never empty). They have no label that could change while the device
stays the same: model, driver and job are joined from ``accel_info`` and ``accel_job_info``. Series of the host have neither label. A
missing value has no series.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, compress
from math import isfinite
from typing import NamedTuple

from accelmetrics.dialects.contract import Distribution, Number, Point
from accelmetrics.dialects.health import health, identity_labels, jobs, label_name
from accelmetrics.dialects.tables import FunctionDialect
from accelmetrics.schemas.catalogue import edition, per_key, recognise
from accelmetrics.schemas.errors import Unavailable
from accelmetrics.schemas.identity import DeviceProcess, DeviceSlot
from accelmetrics.schemas.metric import BASE_UNITS, PARTITION, Metric, split_series
from accelmetrics.schemas.reading import Header
from accelmetrics.schemas.record import NO_PROCESS_LABELS, Record, Step, StepSource, under_one_name
from accelmetrics.schemas.snapshot import Snapshot, own_processes

SHARED: Mapping[str, str] = {
    "accel_utilization_ratio": "Share of the time during which the engine was busy.",
    "accel_memory_bandwidth_ratio": "Share of the time during which the memory was read or written.",
    "accel_memory_used_bytes": "Memory of the device that is allocated.",
    "accel_memory_total_bytes": "Memory that the device has for programs.",
    "accel_temperature_celsius": "Temperature at the sensor.",
    "accel_temperature_limit_celsius": "Temperature at which the device lowers its clocks, slows itself down or shuts down.",
    "accel_clock_hertz": "Clock of the domain.",
    "accel_clock_max_hertz": "Highest clock that the domain can run at.",
    "accel_throttle_active": "1 while the clocks are held down for the reason, else 0.",
    "accel_ecc_errors_total": "Memory errors since the driver was loaded (volatile) or over the life of the device (aggregate).",
    "accel_chip_ecc_errors_total": "Errors of all of the chip's memories since the driver was loaded, or over its life.",
    "accel_sram_ecc_errors_total": "Errors of the chip's SRAM since the driver was loaded, or over its life, by how they were found.",
    "accel_sram_ecc_source_errors_total": "Errors of the SRAM of that part of the chip that could not be corrected, over its life.",
    "accel_violation_seconds_total": "For how long the device ran below its clocks for the reason, as its driver counts.",
    "accel_power_limit_bound_watts": "Lowest and highest power limit that can be set, and the one that the device starts with.",
    "accel_board_power_watts": "Power that the whole board draws: at each IPU of it, and of other vendors at its first device alone.",
    "accel_neuron_power_ratio": "Power of the chip in the last minute that the driver has, as a share of the chip's highest.",
    "accel_ecc_mode": "1 if error correction is on, now or after the next reset, else 0.",
    "accel_mig_mode": "1 if the GPU is in MIG mode, now or after the next reset, whether or not it has instances, else 0.",
    "accel_retired_pages_total": "Memory pages that are no longer used because of errors.",
    "accel_remapped_rows_total": "Memory rows that were replaced by spare ones after errors of the severity.",
    "accel_pcie_bytes_total": "Bytes moved over PCIe since the driver was loaded.",
    "accel_pcie_bytes_per_second": "Bytes per second moved over PCIe.",
    "accel_link_bytes_total": "Bytes moved over all links of the type to other devices since the driver was loaded.",
    "accel_link_bytes_per_second": "Bytes per second moved over all links of the type to other devices.",
    "accel_link_errors_total": "Errors on all links of the type to other devices.",
    "accel_link_recoveries_total": "Times that a link of the type came up again after errors, or stayed down.",
    "accel_link_bit_error_rate": "Share of wrong bits on the worst link of the type.",
    "accel_link_fec_total": "What all links of the type count in the bin of their histogram of corrected symbol errors.",
    "accel_link_port_bytes_total": "Bytes moved over the one link since the driver was loaded.",
    "accel_pipe_active_ratio": "Share of the time during which the pipe was active.",
    "accel_operation_latency_seconds": "How long the operation takes, as the TPU runtime sums it up.",
    "accel_host_process_cpu_mode_ratio": "CPU time that the watched process spent in the mode, as a share of the CPUs that it may use.",
    "accel_host_load_average": "Processes of the host that run or wait to run, averaged over so many minutes.",
    "accel_network_round_trip_seconds": "Shortest round trip over TCP between slices, as the TPU runtime sums it up.",
    "accel_network_delivery_bytes_per_second": "Rate at which TCP delivers between slices, as the TPU runtime sums it up.",
    "accel_program_execution_seconds": "How long executing a compiled program on a core takes, as the TPU runtime sums it up.",
    "accel_neuroncore_memory_used_bytes": "Device memory that programs use on the core for the category.",
    "accel_neuron_host_memory_used_bytes": "Host memory that programs with NeuronCores use for the category.",
    "accel_neuron_ecc_errors_total": "Errors of the Neuron device's memories, by severity.",
    "accel_neuron_recent_executions": "Executions with this outcome in the tool's last period.",
    "accel_neuron_recent_errors": "Errors of this kind in the tool's last period.",
    "accel_neuron_latency_seconds": "How long an execution took in the tool's last period.",
    "accel_host_disks_bytes_total": "Bytes read from or written to all disks since the first reading.",
    "accel_host_disk_bytes_total": "Bytes read from or written to the disk since the first reading.",
    "accel_host_network_bytes_total": "Bytes moved over all interfaces but loopback since the first reading.",
    "accel_infiniband_bytes_total": "Bytes moved by the port of InfiniBand or RoCE since its driver was loaded.",
    "accel_infiniband_packets_total": "Packets moved by the port of InfiniBand or RoCE since its driver was loaded.",
    "accel_infiniband_errors_total": "Errors of the port of InfiniBand or RoCE, by what went wrong.",
    "accel_infiniband_congestion_packets_total": "Packets by which RoCE tells of congestion, by what they are.",
    "accel_soc_cpu_ratio": "Share of the cores' capacity that was used: the time they were active, weighted by their clock.",
    "accel_soc_cpu_clock_hertz": "Clock of the cores of the cluster, averaged over them.",
}
"""By name. A test holds it to the catalogue: each shared metric has its sentence, and no other."""

_JOB = "What the scheduler calls the job that uses the device; joined on accelerator and uuid."
_POD = "A container of a pod that the device was given to; joined on accelerator and uuid."


class SeriesTemplate(NamedTuple):
    """The series of a key without its value.

    Attributes:
        point: Point with the catalogue row's labels, without the device's labels. Its ``meaning`` is empty if the catalogue does not
            describe the key.
        device: Key of the device that the series belongs to; empty for the host.
        times: Factor from the key's unit to the base unit.
        over: Divisor from the key's unit to the base unit.
        whole: Whether the value in the base unit is always a whole number.
    """

    point: Point
    device: str
    times: int
    over: int
    whole: bool


def series_of(key: str, spelled: Callable[[Metric, str], str]) -> SeriesTemplate | None:
    """Return the series of a key; None for an alias and for a key that is derivable from others.

    Args:
        key: The key.
        spelled: Returns the series of a catalogue row for a kind of device.
    """
    found = recognise(key)
    if found is None or found.alias:
        return None
    row = found.row
    name, labels = split_series(spelled(row, found.device.partition(".")[0]))
    filled = {label: found.instance if value.startswith("{") else value for label, value in labels.items()}
    unit, times, over, _ = BASE_UNITS.get(row.unit, BASE_UNITS["1"])
    meaning = SHARED.get(split_series(row.prometheus)[0], row.meaning)
    point = Point(name, 0, filled, row.kind, unit, meaning)
    return SeriesTemplate(point, found.device, times, over, row.integer and over == 1) if name else None


@per_key
def _series(key: str) -> SeriesTemplate | None:
    return series_of(key, lambda row, kind: row.prometheus)


@lru_cache(maxsize=1024)
def _info(slot: DeviceSlot) -> Point:
    about = slot.identity
    facts = {
        "kind": about.kind,
        "vendor": about.vendor,
        "architecture": about.architecture,
        "pci_bus_id": about.pci_bus_id,
        "serial": about.serial,
        "part_number": about.part_number,
        "driver_version": about.driver_version,
        "runtime_version": about.runtime_version,
        "firmware": about.firmware,
        "chassis_serial": about.chassis_serial,
        "index": slot.index,
        "model": about.name,
        "parent_uuid": about.parent,
        "partition": slot.key.partition(f".{PARTITION}.")[2],
        "visible_index": slot.visible_index,
        "numa_node": about.numa_node,
        "cores": about.cores,
        "gpu_instance_id": about.gpu_instance_id,
        "minor_number": about.minor_number,
        "chassis_slot": about.chassis_slot,
        "tray_index": about.tray_index,
        "host_id": about.host_id,
        "module_id": about.module_id,
    }
    # An unknown attribute has no label: a placeholder would look like a value.
    labels = {**identity_labels(slot), **{name: str(value) for name, value in facts.items() if value not in ("", None)}}
    return Point("accel_info", 1, labels, "gauge", "1", "What the device is; joined on accelerator and uuid.")


def device_points(record: Record) -> Iterator[Point]:
    """Yield the identity, the jobs and pods, and the number of processes of each device.

    The record's own job is on every device. Other jobs are on the devices that attribution or the device labels assign to them.
    """
    snapshot = record.snapshot
    identities = {slot.key: identity_labels(slot) for slot in snapshot.identities}
    yield from map(_info, snapshot.identities)
    own = jobs(record.labels)
    for scheduler, job in own.items():
        for identity in identities.values():
            yield Point("accel_job_info", 1, {**identity, "scheduler": scheduler, **job}, "gauge", "1", _JOB)
    for key, user in record.device_labels.items():
        if user and key in identities:
            yield Point("accel_job_info", 1, {**identities[key], "scheduler": "kubernetes", **user}, "gauge", "1", _JOB)
    # Attribution also finds the record's own job, which is yielded above already.
    own_ids = {job.get("job_id") for job in own.values()}
    for holder in record.holders.found:
        if holder.device in identities and not (holder.kind == "job" and holder.labels.get("job_id") in own_ids):
            name, meaning = ("accel_job_info", _JOB) if holder.kind == "job" else ("accel_pod_info", _POD)
            yield Point(name, 1, {**identities[holder.device], **holder.labels}, "gauge", "1", meaning)
    for key, processes in snapshot.processes.items():
        if key in identities:
            yield Point("accel_processes", len(processes), identities[key], "gauge", "1", "Number of processes that use the device.")


def described(header: Header) -> Iterator[tuple[str, SeriesTemplate, Mapping[str, str]]]:
    """Yield each key of a header that has a series, with the series and the labels of its device."""
    identities = {slot.key: identity_labels(slot) for slot in header.identities}
    for key in header.keys:
        found = _series(key)
        if found is not None and (found.point.meaning or found.device in identities):
            device = found.device
            yield key, found, identities.get(device) or ({"accelerator": device, "uuid": device} if device else {})


def finding_and_logged_points(record: Record) -> Iterator[Point]:
    """Yield the findings of the record, and the last value of each number that a process logged."""
    identities = {slot.key: identity_labels(slot) for slot in record.snapshot.identities} if record.findings else {}
    for finding in record.findings:
        about = identities.get(finding.key) or ({"key": finding.key} if finding.key else {})
        yield Point(
            "accel_finding",
            1,
            {**about, "rule": finding.rule, "severity": finding.severity},
            "gauge",
            "1",
            "1 while a rule finds something; there is no series when it is over.",
        )
    # A scrape sees only the current value, so of several steps since the last reading the latest value is enough.
    latest: dict[StepSource, dict[str, Number]] = {}
    for step in record.steps:
        values = under_one_name(step.values)
        latest.setdefault(step.source, {}).update(values if step.step is None else {**values, "step": step.step})
    for source, values in latest.items():
        labels = source_labels(source)
        for name, value in values.items():
            yield Point(
                f"training_{label_name(name)}", value, labels, "gauge", "", "The number that the program logged last under this name."
            )


def largest_uses(snapshot: Snapshot, most: int) -> list[tuple[str, DeviceProcess]]:
    """Return the ``most`` processes with the most device memory over all devices, each with its device's key."""
    uses = [(key, use) for key, found in own_processes(snapshot).items() if not isinstance(found, Unavailable) for use in found]
    return heapq.nlargest(most, uses, key=lambda one: -1 if one[1].memory_bytes is None else one[1].memory_bytes)


def process_points(snapshot: Snapshot, most: int, labels_of: Mapping[int, Mapping[str, str]] = NO_PROCESS_LABELS) -> Iterator[Point]:
    """Yield identity, memory and utilisation of the processes that hold the most device memory.

    Args:
        snapshot: The reading.
        most: Maximum number of processes over all devices.
        labels_of: Labels of the owner by process id.
    """
    identities = {slot.key: identity_labels(slot) for slot in snapshot.identities}
    for key, use in largest_uses(snapshot, most):
        labels = {**identities[key], "pid": str(use.pid)}
        about = {**labels_of.get(use.pid, {}), **labels, **({"type": use.type} if use.type else {})}
        yield Point(
            "accel_process_info",
            1,
            about,
            "gauge",
            "1",
            "A process that uses the device; as many as were asked for, those that hold most memory.",
        )
        for name, value, over, unit, meaning in (
            ("accel_process_memory_bytes", use.memory_bytes, 1, "By", "Memory of the device that the process holds."),
            ("accel_process_utilization_ratio", use.utilization, 100, "1", "Share of the device's compute time that the process took."),
            ("accel_process_memory_bandwidth_ratio", use.memory_utilization, 100, "1", "Share of its memory's time that the process took."),
        ):
            if value is not None:
                yield Point(name, value / over if over > 1 else value, labels, "gauge", unit, meaning)


# Counters over the steps of a training: number, duration, non-finite values. No single record has them

BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
"""Upper bounds of the histogram of step durations, in seconds."""
DERIVED = ("step_seconds", "_per_second", "_per_joule", "_per_joule_of_mean_device", "nonFinite")
"""Suffixes of the numbers that the monitor adds to a step. They are always finite, so they are not counted as such."""


class StepCounts(NamedTuple):
    """Counters over the logged steps of one process. Immutable: :meth:`after` returns the next state.

    Steps are counted by their numbers: for a program that logs every tenth step, each record counts as ten steps and ten durations.

    Attributes:
        bounds: Ascending upper bounds of the histogram of durations, in seconds.
        observed: Steps by bucket, the bucket of infinity last; empty before the first duration.
        seconds: Sum of the durations.
        steps: Number of steps.
        number: Number of the last step.
        not_finite: Count of NaN or infinite values by logged name.
    """

    bounds: tuple[float, ...] = BUCKETS
    observed: tuple[int, ...] = ()
    seconds: float = 0.0
    steps: int = 0
    number: int | None = None
    not_finite: Mapping[str, int] = {}

    def after(self, step: Step) -> StepCounts:
        """Return the counters including this step."""
        before, number = self.number, step.step
        # A step without a number, or with a smaller number than before (the program restarted its count), counts as one.
        advanced = 1 if before is None or number is None or number < before else number - before
        observed, seconds = self.observed, self.seconds
        duration = step.values.get("step_seconds")
        if duration is not None and isfinite(duration) and advanced:
            buckets = list(observed) or [0] * (len(self.bounds) + 1)
            buckets[bisect_left(self.bounds, duration)] += advanced
            observed, seconds = tuple(buckets), seconds + duration * advanced
        # A name that was always finite has the value 0, so that Prometheus sees a rise at its first NaN.
        not_finite = {
            name: self.not_finite.get(name, 0) + (not isfinite(value)) for name, value in step.values.items() if not name.endswith(DERIVED)
        }
        return StepCounts(
            self.bounds, observed, seconds, self.steps + advanced, before if number is None else number, {**self.not_finite, **not_finite}
        )

    def points(self, labels: Mapping[str, str]) -> Iterator[Point]:
        """Yield the number of steps and, if any duration is known, the histogram of durations."""
        if self.steps:
            yield Point("training_steps_total", self.steps, labels, "counter", "1", "Training steps since the monitor saw the first one.")
        if self.observed:
            durations = Distribution(sum(self.observed), self.seconds, tuple(zip(self.bounds, accumulate(self.observed), strict=False)))
            meaning = "Duration of a training step."
            yield Point("training_step_duration_seconds", durations.mean, labels, "histogram", "s", meaning, durations)


def source_labels(source: StepSource) -> dict[str, str]:
    """Return the labels of a process that logs: rank and node. Empty for a process without a rank."""
    rank, node = source
    return {} if rank is None else {"rank": str(rank), **({"node": node} if node else {})}


def step_points(counts: Mapping[StepSource, StepCounts]) -> Iterator[Point]:
    """Yield the step counters of each process."""
    for source, counted in counts.items():
        labels = source_labels(source)
        yield from counted.points(labels)
        for name, number in counted.not_finite.items():
            yield Point(
                "training_nonfinite_total",
                number,
                {**labels, "name": name},
                "counter",
                "1",
                "Numbers logged under the name that were NaN or infinite.",
            )


def points(record: Record) -> Iterator[Point]:
    """Yield the health metrics, the devices' identities, the measured values, the findings and the logged numbers."""
    yield from health(record)
    yield from device_points(record)
    yield from metric_points(record.snapshot, described)
    yield from finding_and_logged_points(record)


PROMETHEUS = FunctionDialect("prometheus", "Prometheus names in base units, as our own endpoint serves them", points)


# Points with their numbers in a separate column: while only numbers change, the rest is neither built nor written again

Described = Callable[[Header], Iterator[tuple[str, SeriesTemplate, Mapping[str, str]]]]
"""Function that yields each key of a header that has a series, with the series and the labels of its device."""


class PointColumns(NamedTuple):
    """Points with their numbers in a separate column.

    Attributes:
        shape: Everything except the numbers: equal if only numbers differ. Most parts are the same object from record to record, which
            makes the comparison cheap.
        points: Points of that shape. Their numbers may be those of an earlier record.
        numbers: A number per point; for a distribution, its cumulative bucket counts, its count and its sum.
    """

    shape: tuple[object, ...]
    points: Sequence[Point]
    numbers: Sequence[Number]


def columns(points: Iterable[Point]) -> PointColumns:
    """Return the points as columns."""
    found = tuple(points)
    if not found:
        return PointColumns((), (), ())
    names, values, labels, kinds, units, meanings, distributions = zip(*found, strict=True)
    bounds = tuple(whole and tuple(bound for bound, _ in whole.buckets) for whole in distributions)
    numbers: list[Number] = []
    for value, whole in zip(values, distributions, strict=True):
        numbers += (value,) if whole is None else (*(up_to for _, up_to in whole.buckets), whole.observations, whole.total)
    return PointColumns((names, labels, kinds, units, meanings, bounds), found, numbers)


def numbered(points: Iterable[Point]) -> Iterator[Point]:
    """Yield the points with each number replaced by its index in ``numbers``."""
    place = 0
    for point in points:
        whole = point.distribution
        if whole is None:
            yield point._replace(value=place)
            place += 1
        else:
            last = place + len(whole.buckets)
            buckets = tuple((bound, place + number) for number, (bound, _) in enumerate(whole.buckets))
            yield point._replace(distribution=whole._replace(observations=last, total=last + 1, buckets=buckets))
            place = last + 2


def metric_columns(snapshot: Snapshot, described: Described, of_one_type: bool = False, left_out: tuple[str, ...] = ()) -> PointColumns:
    """Return the columns of a reading's metrics. Everything except the numbers is built once per header.

    Args:
        snapshot: The reading.
        described: Yields the series of the header's keys.
        of_one_type: Whether each series keeps one type, int or float, even if the driver's answers vary.
        left_out: Prefixes of series names to leave out.
    """
    header = snapshot.header

    def convert() -> tuple[list[bool], list[tuple[int, SeriesTemplate]], list[Callable[[Number], Number]], PointColumns]:
        found = {key: (series, labels) for key, series, labels in described(header) if not series.point.name.startswith(left_out)}
        templates = [series for series, _ in found.values()]
        return (
            [key in found for key in header.keys],
            [(place, one) for place, one in enumerate(templates) if (one.times, one.over) != (1, 1)],
            [round if one.whole else float for one in templates],
            columns(series.point._replace(labels={**labels, **series.point.labels}) for series, labels in found.values()),
        )

    has_series, scaled, types, found = header.kept(("series", described, left_out, edition()), convert)
    numbers = list(compress(snapshot.numbers, has_series))
    for place, one in scaled:
        numbers[place] = numbers[place] * one.times / one.over if one.over != 1 else numbers[place] * one.times
    if of_one_type:
        numbers = [kind(number) for kind, number in zip(types, numbers, strict=True)]
    return found._replace(numbers=numbers)


def metric_points(snapshot: Snapshot, described: Described, of_one_type: bool = False) -> Iterator[Point]:
    """Yield the points of a reading's metrics. For the arguments see :func:`metric_columns`."""
    found = metric_columns(snapshot, described, of_one_type)
    return (point._replace(value=number) for point, number in zip(found.points, found.numbers, strict=True))
