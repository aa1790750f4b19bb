"""The parts of a report: everything that texts, tables and pictures of recordings are made from, of bounded size however long they are.

Moments are seconds since 1970 (UTC). Numbers that are missing are None. Devices are named as in the document of ``--format json``: with the
host, the rank or the number of the run before the key where there are several.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from accelmetrics.schemas.identity import DeviceIdentity
from accelmetrics.schemas.record import Finding
from accelmetrics.schemas.summary import Summary

Plain = dict[str, Any]
Column = Sequence[float | None]


class Price(NamedTuple):
    """What a kilowatt-hour costs, or an hour of a device.

    Attributes:
        amount: So much.
        currency: Of this; empty where none was named.
        per_hour: Whether it is of an hour.
    """

    amount: float
    currency: str = ""
    per_hour: bool = False


@dataclass(frozen=True)
class ReducedSeries:
    """A metric over time: least, mean and largest reading in each bucket of time. All three are equal where a bucket has one reading.

    Attributes:
        key: The key in the recording: ``gpu.0.powerWatts``.
        device: The label of the device that it is about; empty for the machine.
        name: The metric's name without the device: ``powerWatts``, ``cpu``.
        measure: What it is in reports, whatever the vendor calls it: ``power_watts``; empty for other metrics.
        unit: Its unit, as the catalogue has it (``W``, ``%``, ``By``, ``Cel``, ``MHz``); empty where that is not known.
        low: By bucket, the least reading; None where there was none.
        mean: By bucket, the mean of the readings.
        high: By bucket, the largest one.
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
    """A number that the program logged, reduced over time as a metric is.

    Attributes:
        name: As it was logged: ``loss``.
        source: The process that logged it, in words: ``rank 3``, ``rank 3 on node-1``; empty where there is only one.
        times: When, for each bucket: its last number.
        steps: The program's step then; None where it named none.
        low: By bucket, the least number. Those that are not finite are left out, and events.
        mean: Their mean.
        high: The largest one.
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
    """A stretch of time, or a moment, that plots mark.

    Attributes:
        kind: ``gap``: nothing was read; ``silence``: a device gave nothing while others were read; ``window``: named by the program;
            ``epoch``: while the program logged one number of an epoch; ``finding``: of a rule; ``event``: an error, a lost device, a
            logged number that was not finite.
        label: What it is, in words.
        begin: Its beginning.
        end: Its end, that of the run while it lasts; not after the beginning where the clock was set back in a gap.
        severity: Of a finding.
        plots: Of a finding, the names of the plots that it is about.
        clock: The number of the clock that says its steps, among those of the pictures.
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
        label: What precedes its devices' keys; empty where there is one stream.
        host: The machine.
        run_id: The run.
        rank: The rank; empty where there is none.
        labels: All labels of its records.
        begin: The first reading.
        end: The last one.
        readings: How many.
        interval: Seconds between two readings, usually.
        first_step: When the program logged first; None where it logged nothing.
        last_step: When it did last.
        width: Seconds of a bucket.
        times: The beginning of each bucket with readings, rising; a bucket in a gap stands for it, with None in every series.
        series: Metrics over those buckets.
        strips: By label of a device and reason for which it was throttled, the share of the readings of each bucket in which it was.
        details: Findings with the readings around their beginning as they were taken: the finding, moments, and by key the readings.
        marks: Gaps, silences, windows and epochs, by their beginning; then what rules found; then what happened, by time, the first of
            each kind and device where there are many.
        curves: What the program logged.
        step_times: How long its steps took, as the document has it.
        missing: What was not read: the device's label, or an empty one for the machine or a source; the metrics; why, in one word and in
            words; since when and until when.
        summary: By key, statistics of every metric.
        distributions: By measure, the readings of all its devices from the first step on: each value, rising, with how often it was read.
            Empty unless reports are to be compared.
        sources: By source, where numbers come from, in its own words (``libnvidia-ml.so.1 …``).
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
    """What recordings came to.

    Attributes:
        document: What ``--format json`` prints: statistics by device, findings, gaps, work, energy, steps, epochs or windows. Texts and
            tables are views of it.
        streams: Each process of each run, in the order of the files.
        devices: The identity of each device as it was last, by label, in the order of the document.
        counted: The devices whose energy is part of the sums: neither partitions of a device nor those that another stream has too.
        files: Of each file that was read its path, its length when it was opened, its records, lines that could not be read, and the
            SHA-256 of that length; empty where it was not asked for.
        warnings: What readers are to know of the files: lines that could not be read, readings that are there twice.
    """

    document: Plain
    streams: Sequence[StreamReport]
    devices: Mapping[str, DeviceIdentity]
    counted: frozenset[str]
    files: Sequence[tuple[str, int, int, int, str]]
    warnings: tuple[str, ...]
