"""The results of a window: statistics of a metric, energy of a device, a metric over all devices."""

from __future__ import annotations

from typing import Literal

from accelmetrics.schemas.named_tuple import NamedTuple


class Summary(NamedTuple):
    """The statistics of a metric over a window.

    Attributes:
        count: Number of readings. A reading served twice counts once; an absent value does not count, a measured 0 does.
        mean: Mean, weighted by the time that each reading stands for.
        min: The smallest value.
        max: The largest value.
        last: The last value.
        p50: The median: the value that half of the readings do not exceed. Percentiles are over readings, by nearest rank: exact up
            to 512 different values, and within 0.5 % beyond.
        p95: The value that 95 % of the readings do not exceed.
        p99: The value that 99 % of the readings do not exceed.
        seconds: The time that the readings stand for: each one until the next.
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
    """The energy that a device used.

    Attributes:
        joules: The energy.
        source: ``counter``: the device's own counter, interpolated between its readings; ``integrated``: the power readings,
            interpolated linearly and extended to the window's edges.
        seconds: The time that readings cover. It is less than the window's if the device gave none for a while.
        reason: Why the device's counter was not trusted: its energy and the energy by power. Empty otherwise.
    """

    joules: float
    source: Literal["counter", "integrated"]
    seconds: float
    reason: str = ""


class CrossDeviceStatistics(NamedTuple):
    """The statistics over a window of a metric's mean, maximum and sum over all selected devices.

    Attributes:
        mean: Statistics of the mean over the devices that gave a value.
        max: Statistics of the largest value.
        total: Statistics of the sum, over readings in which every device gave a value; None if there was none.
    """

    mean: Summary
    max: Summary
    total: Summary | None
