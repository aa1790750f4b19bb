"""What a window's results are: statistics of a metric, energy of a device, one metric over all devices."""

from __future__ import annotations

from typing import Literal

from accelmetrics.schemas.named_tuple import NamedTuple


class Summary(NamedTuple):
    """One metric over a window.

    Attributes:
        count: Readings. One that was served twice counts once; an absent value does not count, a measured 0 does.
        mean: Weighted by the time that each reading stands for.
        min: The least value.
        max: The largest value.
        last: The last value.
        p50: The median: a value that half of the readings do not exceed. Percentiles are of readings, by nearest rank, exact
            up to 512 different values and within 0.5 % beyond.
        p95: What 95 % of the readings do not exceed.
        p99: What 99 % of the readings do not exceed.
        seconds: The time that the readings stand for: each until the next one.
    """

    count: int  # type: ignore[assignment]  # read by name, never searched
    mean: float
    min: float
    max: float
    last: float
    p50: float
    p95: float
    p99: float
    seconds: float


class Energy(NamedTuple):
    """What a device used.

    Attributes:
        joules: The energy.
        source: ``counter``: the device's own counter, between whose readings the value is interpolated to the moment;
            ``integrated``: the power readings, joined by straight lines; the first and the last one hold to the window's edges.
        seconds: The time that readings cover: less than the window's where the device gave none.
        reason: Why the counter of a device that has one was not believed: what it says and what power says. Empty otherwise.
    """

    joules: float
    source: Literal["counter", "integrated"]
    seconds: float
    reason: str = ""


class CrossDeviceStatistics(NamedTuple):
    """One metric over all devices of the selection: each reading's mean, largest value and sum, summarised over the window.

    Attributes:
        mean: Of the devices that gave a value.
        max: The largest of them.
        total: The sum, over the readings in which every device gave a value; None when there was none.
    """

    mean: Summary
    max: Summary
    total: Summary | None
