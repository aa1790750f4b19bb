"""Data of a report: everything that its texts, tables and pictures need, of bounded size for recordings of any length.

Times are seconds since 1970 (UTC). Missing numbers are None. Devices have the labels of the JSON document: the key, after the host, the
rank or the number of the run if there are several.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from accelmetrics.schemas.identity import DeviceIdentity
from accelmetrics.schemas.record import Finding
from accelmetrics.schemas.statistics import Summary

Plain = dict[str, Any]
Column = Sequence[float | None]


class Price(NamedTuple):
    """Price of a kilowatt-hour, or of a device for an hour.

    Attributes:
        amount: The amount.
        currency: Its currency; empty if none was named.
        per_hour: Whether it is for an hour of a device.
    """

    amount: float
    currency: str = ""
    per_hour: bool = False


@dataclass(frozen=True)
class ReducedSeries:
    """A metric over time: lowest, mean and highest reading of each bucket of time.

    Attributes:
        key: The key in the recording: ``gpu.0.powerWatts``.
        device: Label of the device; empty for the machine.
        name: The metric's name without the device: ``powerWatts``, ``cpu``.
        measure: The vendor-independent name in reports: ``power_watts``; empty for other metrics.
        unit: The catalogue's unit (``W``, ``%``, ``By``, ``Cel``, ``MHz``); empty if unknown.
        low: Lowest reading of each bucket; None without readings.
        mean: Mean of each bucket.
        high: Highest reading of each bucket.
    """

    key: str
    device: str
    name: str
    measure: str
    unit: str
    low: Column
    mean: Column
    high: Column


@dataclass(frozen=True)
class Curve:
    """A logged number over time, reduced like a metric.

    Attributes:
        name: The logged name: ``loss``.
        source: The process that logged it: ``rank 3``, ``rank 3 on node-1``; empty if there is only one.
        times: Time of the last number of each bucket.
        steps: The program's step at that time; None without one.
        low: Lowest number of each bucket. Numbers that are not finite are left out and shown as events.
        mean: Mean of each bucket.
        high: Highest number of each bucket.
    """

    name: str
    source: str
    times: Sequence[float]
    steps: Column
    low: Column
    mean: Column
    high: Column


@dataclass(frozen=True)
class Mark:
    """A period or a point in time that plots mark.

    Attributes:
        kind: ``gap``: nothing was read; ``silence``: a device had no values while others had; ``window``: named by the program; ``epoch``:
            steps with one epoch number; ``finding``: of a rule; ``event``: an error, a lost device, or a logged number that is not finite.
        label: Description.
        begin: Its begin.
        end: Its end, or the end of the run. It equals ``begin`` if the clock was set back in a gap.
        severity: Severity of a finding.
        plots: Names of the plots that a finding concerns.
        clock: Index of the clock that has its steps, among the clocks of the pictures.
    """

    kind: str
    label: str
    begin: float
    end: float
    severity: str = ""
    plots: tuple[str, ...] = ()
    clock: int = 0


@dataclass(frozen=True)
class StreamReport:
    """The records of one process of one run on one host.

    Attributes:
        label: Prefix of its devices' keys; empty for a single stream.
        host: The machine.
        run_id: The run.
        rank: The rank; empty without one.
        labels: All labels of its records.
        begin: Time of the first reading.
        end: Time of the last reading.
        readings: Number of readings.
        interval: Usual seconds between two readings.
        first_step: Time of the first logged step; None without steps.
        last_step: Time of the last logged step.
        width: Seconds of a bucket.
        times: Begin of each bucket with readings, rising. A gap has one bucket, with None in every series.
        series: Metrics by bucket.
        strips: Share of the readings of each bucket in which a device was throttled, by device label and reason.
        details: Findings with the original readings around their begin: the finding, times, and readings by key.
        marks: Gaps, silences, windows and epochs by begin; then findings; then events by time, the first of each kind and device if there
            are many.
        curves: Logged numbers.
        step_times: Durations of the steps, as in the document.
        missing: Missing metrics: the device's label (empty for the machine or a source), the metrics, the reason and its detail, and the
            begin and end.
        summary: Statistics of every metric, by key.
        distributions: Readings of all devices from the first step on, by measure: each value, rising, with its count. Empty unless
            reports are compared.
        sources: Description of each source by its name (``libnvidia-ml.so.1 …``).
    """

    label: str
    host: str
    run_id: str
    rank: str
    labels: Mapping[str, str]
    begin: float
    end: float
    readings: int
    interval: float
    first_step: float | None
    last_step: float | None
    width: float
    times: Sequence[float]
    series: Sequence[ReducedSeries]
    strips: Mapping[tuple[str, str], Column]
    details: Sequence[tuple[Finding, Sequence[float], Mapping[str, Column]]]
    marks: Sequence[Mark]
    curves: Sequence[Curve]
    step_times: Sequence[Plain]
    missing: Sequence[tuple[str, tuple[str, ...], str, str, float, float]]
    summary: Mapping[str, Summary]
    distributions: Mapping[str, Sequence[tuple[float, int]]]
    sources: Mapping[str, str]


@dataclass(frozen=True)
class RunReport:
    """The report of recordings.

    Attributes:
        document: The JSON document: statistics by device, findings, gaps, work, energy, steps, epochs or windows. Texts and tables are
            views of it.
        streams: Each process of each run, in the order of the files.
        devices: The last identity of each device by label, in the order of the document.
        counted: Devices whose energy is part of the sums: no partitions, and no devices that another stream counts.
        files: For each file its path, its length at opening, its records, its unreadable lines, and the SHA-256 of that length, empty
            unless requested.
        warnings: Warnings about the files: unreadable lines, duplicate readings.
    """

    document: Plain
    streams: Sequence[StreamReport]
    devices: Mapping[str, DeviceIdentity]
    counted: frozenset[str]
    files: Sequence[tuple[str, int, int, int, str]]
    warnings: tuple[str, ...]
