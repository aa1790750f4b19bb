"""The parts of a report: everything that texts, tables and pictures of recordings are made from, of bounded size however long they are.

Moments are seconds since 1970 (UTC). Numbers that are missing are None. Devices are named as in the document of ``--format json``: with the
host, the rank or the number of the run before the key where there are several.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from accelmetrics.schemas.finding import CannotTell, Finding
from accelmetrics.schemas.identity import DeviceIdentity
from accelmetrics.schemas.summary import Energy, Summary

Plain = dict[str, Any]
Column = Sequence[float | None]


class Price(NamedTuple):
    """What a kilowatt-hour costs.

    Attributes:
        amount: So much.
        currency: Of this; empty where none was named.
    """

    amount: float
    currency: str = ""


class SourceFile(NamedTuple):
    """One file that was read.

    Attributes:
        path: The file.
        bytes: How long it was when it was opened.
        sha256: Of those bytes, in hexadecimal digits; empty where that was not asked for.
        readings: Records that it held.
        skipped: Lines that could not be read.
        complaint: What was wrong with the first of them.
        headless: Readings without a header.
    """

    path: str
    bytes: int
    sha256: str
    readings: int
    skipped: int
    complaint: str
    headless: int


class DeviceFacts(NamedTuple):
    """A device of the report.

    Attributes:
        label: What it is called in the report: ``gpu.0``, ``node-1 gpu.0``.
        key: Its key in the recording.
        identity: Name, UUID, driver, firmware and the rest; as it was last.
        counted: Whether its energy is part of the sums: another stream has it too, or it is a partition of a device, where it is not.
    """

    label: str
    key: str
    identity: DeviceIdentity
    counted: bool


class ReducedSeries(NamedTuple):
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


class Detail(NamedTuple):
    """Readings as they were taken, around the beginning of a finding.

    Attributes:
        finding: The position of the finding in ``StreamReport.findings``.
        times: Moments.
        series: By key, the readings at those; None where there was none.
    """

    finding: int
    times: Sequence[float]
    series: Mapping[str, Column]


class Strip(NamedTuple):
    """Something that is or is not, over time: a reason for which a device was throttled.

    Attributes:
        device: The label of the device.
        name: What: ``swPowerCap``.
        share: By bucket, the share of readings in which it was so, 0 to 1; None where there was none.
        seconds: For how long it was so in all.
    """

    device: str
    name: str
    share: Column
    seconds: float


class Stretch(NamedTuple):
    """A stretch of time with a name.

    Attributes:
        kind: ``gap``: nothing was read; ``silence``: a device gave nothing while others were read; ``window``: named by the program;
            ``epoch``: while the program logged one number of an epoch.
        name: The label of the device that was silent, the window's name, the epoch's number; empty for a gap.
        begin: Its beginning.
        end: Its end; not after the beginning where the clock was set back in a gap.
    """

    kind: Literal["gap", "silence", "window", "epoch"]
    name: str
    begin: float
    end: float


EventKind = Literal["xid", "memory", "lost", "not_finite"]


class Event(NamedTuple):
    """Something that happened at one moment.

    Attributes:
        kind: ``xid``: the driver reported an Xid error; ``memory``: an uncorrectable memory error; ``lost``: a device was lost;
            ``not_finite``: a logged number was not finite.
        device: The label of the device; empty for the run.
        at: When it was read.
        text: What, in words.
    """

    kind: EventKind
    device: str
    at: float
    text: str


class Curve(NamedTuple):
    """A number that the program logged, reduced over time as a metric is.

    Attributes:
        name: As it was logged: ``loss``.
        source: The process that logged it, in words: ``rank 3``, ``rank 3 on node-1``; empty where there is only one.
        times: When, for each bucket: its last number.
        steps: The program's step then; None where it named none.
        low: By bucket, the least number. Those that are not finite are left out, and events.
        mean: Their mean.
        high: The largest one.
        last: By bucket, the last one.
        count: How many were logged in all.
        not_finite: How many of them were not finite.
    """

    name: str
    source: str
    times: Sequence[float]
    steps: Column
    low: Column
    mean: Column
    high: Column
    last: Column
    count: int  # type: ignore[assignment]  # read by name, never searched
    not_finite: int


class StepTimes(NamedTuple):
    """How long the program's steps took.

    Attributes:
        source: The process, in words, as in :class:`Curve`.
        count: Steps whose duration is known.
        mean: Seconds.
        min: The shortest.
        p25: A quarter took no longer. Quantiles are exact up to 512 different values and within 0.5 % beyond.
        p50: The median.
        p75: Three quarters took no longer.
        p95: 95 % took no longer.
        p99: 99 % took no longer.
        max: The longest.
        edges: Of the histogram's bars, one more than there are of them, in seconds.
        counts: Steps in each bar.
    """

    source: str
    count: int  # type: ignore[assignment]  # read by name, never searched
    mean: float
    min: float
    p25: float
    p50: float
    p75: float
    p95: float
    p99: float
    max: float
    edges: Sequence[float]
    counts: Sequence[int]


class Missing(NamedTuple):
    """What was not read, and why.

    Attributes:
        device: The label of the device; empty for the machine or a source.
        names: The metrics.
        reason: Why, in one word.
        detail: The same in words, as it was said last.
        begin: When that was so first.
        end: When it was so last.
    """

    device: str
    names: tuple[str, ...]
    reason: str
    detail: str
    begin: float
    end: float


class Period(NamedTuple):
    """An epoch, a window, or the time in which the program logged one value of a number: what the run came to then.

    Attributes:
        name: ``epoch 3``, the window's name.
        times: How many stretches of that name there were.
        seconds: How long they lasted together.
        utilization_mean: Of all devices, in percent, weighted by time.
        utilization_max: The largest reading.
        power_watts_mean: Of all devices together.
        power_watts_max: The largest reading of one device.
        energy_joules: Of all devices together; None where not each of them tells.
        steps: Steps that were logged.
        work: How much was done by kind (``tokens``, ``samples``).
        per_second: The same in a second.
        per_joule: The same for a joule.
        cost: What the energy costs, where there is a price.
        carbon_grams: What its making gives off, where that is known.
    """

    name: str
    times: int
    seconds: float
    utilization_mean: float | None
    utilization_max: float | None
    power_watts_mean: float | None
    power_watts_max: float | None
    energy_joules: float | None
    steps: int
    work: Mapping[str, float]
    per_second: Mapping[str, float]
    per_joule: Mapping[str, float]
    cost: float | None
    carbon_grams: float | None


class StreamReport(NamedTuple):
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
        strips: What is or is not, over those buckets.
        details: Readings at full rate around findings.
        stretches: Gaps, silences, windows and epochs, by their beginning.
        events: What happened, by time; the first of each kind and device where there are many.
        findings: What rules found, by beginning.
        cannot_tell: What they could not judge.
        curves: What the program logged.
        step_times: How long its steps took.
        missing: What was not read, and why.
        summary: By key, statistics of every metric.
        energy: By key of the device, what it used.
        distributions: By measure, the readings of all its devices together: each value, rising, with how often it was read. Where reports
            are to be compared, those from the first step on.
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
    series: tuple[ReducedSeries, ...]
    strips: tuple[Strip, ...]
    details: tuple[Detail, ...]
    stretches: tuple[Stretch, ...]
    events: tuple[Event, ...]
    findings: tuple[Finding, ...]
    cannot_tell: tuple[CannotTell, ...]
    curves: tuple[Curve, ...]
    step_times: tuple[StepTimes, ...]
    missing: tuple[Missing, ...]
    summary: Mapping[str, Summary]
    energy: Mapping[str, Energy]
    distributions: Mapping[str, Sequence[tuple[float, int]]]
    sources: Mapping[str, str]


class EnergyUse(NamedTuple):
    """What all devices used together: each once, however many recordings have it; not the host, nor partitions of a device.

    Attributes:
        joules: The sum of those that tell; None where none does.
        devices: How many are in the sum.
        silent: How many tell nothing of their energy.
        price: What a kilowatt-hour costs, where that was given.
        cost: What the sum costs.
        carbon_intensity: Grams of CO2 equivalent for a kilowatt-hour, where that was given.
        carbon_grams: Those of the sum.
        per_step: Joules for a step; None where there are no steps with energy.
    """

    joules: float | None
    devices: int
    silent: int
    price: Price | None = None
    cost: float | None = None
    carbon_intensity: float | None = None
    carbon_grams: float | None = None
    per_step: float | None = None


class RunReport(NamedTuple):
    """What recordings came to.

    Attributes:
        document: What ``--format json`` prints: statistics by device, findings, gaps, work. Texts and tables are views of it.
        streams: Each process of each run, in the order of the files.
        devices: All devices, in the order of the document.
        energy: What they used.
        periods: A row for each epoch, window or value that was asked for; empty otherwise.
        files: What was read.
        warnings: What readers are to know of the files: lines that could not be read, readings that are there twice.
        version: The release that made the report.
        reduction: How series were reduced, in a sentence.
    """

    document: Plain
    streams: tuple[StreamReport, ...]
    devices: tuple[DeviceFacts, ...]
    energy: EnergyUse
    periods: tuple[Period, ...]
    files: tuple[SourceFile, ...]
    warnings: tuple[str, ...]
    version: str
    reduction: str
