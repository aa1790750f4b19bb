"""GPM, the profiling counters of Hopper and later: rates between two samples of one consumer.

Nothing here waits. The first reading takes a sample and answers ``needs_interval``; every later one takes the next sample
and asks for the metrics between the two. NVML refreshes its counters every 100 ms: the second sample comes no sooner after
the first, and the others no sooner than nearly two refreshes after the last, so that at 10 readings a second an interval never
holds one refresh now and none or two the next time. A reading in between serves the last values again, the same block.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Mapping, Sequence
from functools import cache, partial
from operator import le, mul
from typing import Any, NamedTuple

from accelmetrics.backends.contract import NO_REASONS, Block, Number
from accelmetrics.backends.nvidia.errors import FUNCTION_NOT_FOUND, check_device, impossible, unavailable
from accelmetrics.backends.nvidia.library import Library
from accelmetrics.backends.nvidia.paced import Group
from accelmetrics.backends.nvidia.samples import SamplePool
from accelmetrics.schemas.reasons import Reason, Unavailable

MINIMUM_INTERVAL = 0.1
"""Seconds between two samples, below which NVML's metrics mean nothing."""
PACE = 0.19
"""Seconds between later samples: every second reading at 10 a second, the one that comes a little early included."""
_MIB = 2.0**20
_ROUNDING = 101.0
"""Percent. Up to here a share above 100 is taken for rounding."""


class Metric(NamedTuple):
    """One GPM metric: its number in the header, and what its answer is multiplied by."""

    name: str
    identifier: int
    factor: float = 1.0
    maximum: float = 2.0**63


METRICS = (
    Metric("smActive", 2, maximum=100.0),
    Metric("smOccupancy", 3, maximum=100.0),
    Metric("dramActive", 10, maximum=100.0),
    Metric("pipeTensorActive", 5, maximum=100.0),
    Metric("pipeTensorHmmaActive", 7, maximum=100.0),
    Metric("pipeFp64Active", 11, maximum=100.0),
    Metric("pipeFp32Active", 12, maximum=100.0),
    Metric("pipeFp16Active", 13, maximum=100.0),
    Metric("pcieTxBytes", 20, _MIB),
    Metric("pcieRxBytes", 21, _MIB),
    Metric("nvlinkTxBytes", 61, _MIB),
    Metric("nvlinkRxBytes", 60, _MIB),
)
"""Percent, and bytes per second: NVML answers MiB per second."""
SHARES = METRICS[:8]
"""What a MIG instance has: its share of PCIe and NVLink is not measured, and the board's stays with the board."""

# Of nvmlGpmMetric_t: identifier (skipped), return code, value, three pointers (skipped).
METRIC_LAYOUT = "4xid24x"
METRICS_OFFSET = 24
"""Of ``nvmlGpmMetricsGet_t``: version, count, two sample pointers, then the metrics."""
_SAMPLES_OFFSET = 8

Result = tuple[Block, Mapping[str, Unavailable]]
_NOTHING = Block((), ())
NEEDS_INTERVAL = Unavailable(Reason.NEEDS_INTERVAL, "GPM metrics are taken between two readings")
NO_GPM = Unavailable(Reason.NOT_SUPPORTED, "the GPU has no GPM (Hopper and later have)")


@cache
def none_of(reason: Unavailable, metrics: tuple[Metric, ...] = METRICS) -> Result:
    """No metric at all, all for one reason; the same objects for the same reason."""
    return _NOTHING, dict.fromkeys([metric.name for metric in metrics], reason)


class Gpm:
    """The GPM calls of one device, shared by its consumers: they never read it at the same time.

    Args:
        library: The open library.
        handle: The GPU's handle.
        gpu_instance: The MIG instance's id on that GPU, if it is one; its compute instances share what is measured.

    Attributes:
        metrics: What is measured.
    """

    def __init__(self, library: Library, handle: Any, gpu_instance: int | None = None) -> None:
        whole = gpu_instance is None
        self.metrics = METRICS if whole else SHARES
        sample = library.function("nvmlGpmSampleGet" if whole else "nvmlGpmMigSampleGet")
        self._sample = None if sample is None else partial(sample, handle, *(() if whole else (gpu_instance,)))
        self._compute = library.function("nvmlGpmMetricsGet")
        self._get = library.nvml.c_nvmlGpmMetricsGet_t()
        self._get.version = 1
        self._get.numMetrics = len(self.metrics)
        for number, metric in enumerate(self.metrics):
            self._get.metrics[number].metricId = metric.identifier
        self._names = tuple(metric.name for metric in self.metrics)
        self._factors = tuple(metric.factor for metric in self.metrics)
        self._limits = tuple(metric.maximum for metric in self.metrics)
        self._pointers = (ctypes.c_void_p * 2).from_buffer(self._get, _SAMPLES_OFFSET)
        self._raw = partial(struct.Struct("=" + METRIC_LAYOUT * len(self.metrics)).unpack_from, self._get, METRICS_OFFSET)

    def take(self, sample: ctypes.c_void_p) -> int:
        """Take a sample into its buffer."""
        return FUNCTION_NOT_FOUND if self._sample is None else self._sample(sample)

    def between(self, first: ctypes.c_void_p, second: ctypes.c_void_p) -> int:
        """Work out the metrics between two samples."""
        self._pointers[0], self._pointers[1] = first.value, second.value
        return FUNCTION_NOT_FOUND if self._compute is None else self._compute(ctypes.byref(self._get))

    def result(self) -> Result:
        """The metrics that the last ``between`` worked out."""
        raw = self._raw()
        values = tuple(map(mul, raw[1::2], self._factors))
        # NaN compares with nothing, so it fails the first test.
        if not any(raw[::2]) and all(map(le, values, self._limits)) and min(values) >= 0:
            return Block(self._names, values), NO_REASONS
        return _sort_out(self.metrics, raw[::2], values)


def _sort_out(wanted: Sequence[Metric], statuses: Sequence[int], values: Sequence[float]) -> Result:
    metrics: dict[str, Number] = {}
    reasons: dict[str, Unavailable] = {}
    for metric, status, value in zip(wanted, statuses, values, strict=True):
        if status:
            reasons[metric.name] = unavailable(status)
        elif 0 <= value <= metric.maximum:
            metrics[metric.name] = value
        elif metric.maximum == 100 and 100 < value <= _ROUNDING:
            metrics[metric.name] = 100.0
        else:
            reasons[metric.name] = impossible("nvmlGpmMetricsGet")
    return Block(tuple(metrics), tuple(metrics.values())), reasons


class Cursor:
    """Where one consumer stands: its last sample of one device, and what came of it.

    Args:
        gpm: The device's calls.
        samples: Two sample buffers that are this consumer's alone.
    """

    def __init__(self, gpm: Gpm, samples: tuple[ctypes.c_void_p, ctypes.c_void_p]) -> None:
        self._gpm = gpm
        self._older, self._newer = samples
        self._due_at: float | None = None
        self._result = none_of(NEEDS_INTERVAL, gpm.metrics)

    def read(self, now: float, steps: list[Any]) -> Result:
        """Sample the device, unless that is too soon, and give the metrics since the sample before."""
        if self._due_at is not None and now < self._due_at:
            return self._result
        status = self._gpm.take(self._older)
        steps.append(status)
        check_device(status, "nvmlGpmSampleGet")
        if status:
            # The sample before stays good: the next one is measured against it.
            return none_of(unavailable(status), self._gpm.metrics)
        self._older, self._newer = self._newer, self._older
        first = self._due_at is None
        self._due_at = now + (MINIMUM_INTERVAL if first else PACE)
        self._result = none_of(NEEDS_INTERVAL, self._gpm.metrics) if first else self._between(steps)
        return self._result

    def _between(self, steps: list[Any]) -> Result:
        status = self._gpm.between(self._older, self._newer)
        steps.append(status)
        check_device(status, "nvmlGpmMetricsGet")
        return none_of(unavailable(status), self._gpm.metrics) if status else _alike(self._gpm.result(), self._result)


def _alike(new: Result, old: Result) -> Result:
    """The new result with the old one's names and reasons where they are equal: the same objects save work further up."""
    (block, reasons), (before, before_reasons) = new, old
    if block.names is not before.names and block.names == before.names:
        block = Block(before.names, block.values)
    return block, before_reasons if reasons == before_reasons else reasons


class Profile:
    """One consumer's GPM metrics of one device, from the question whether there are any to the sample last taken.

    Args:
        gpm: The device's calls.
        support: The group that asks whether the device has GPM; read by somebody else, or here if nobody does.
        samples: Lends sample buffers.

    Attributes:
        cursor: Where the consumer stands, once there is a sample.
    """

    def __init__(self, gpm: Gpm, support: Group, samples: SamplePool) -> None:
        self.cursor: Cursor | None = None
        self._gpm = gpm
        self._support = support
        self._samples = samples

    def begin(self, now: float, steps: list[Any]) -> Result:
        """The metrics before there is a cursor: the one reason why there are none, or the first sample."""
        self._support.read(now, steps)
        support = self._support.get("gpm")
        if support != 1:
            return none_of(support if isinstance(support, Unavailable) else NO_GPM, self._gpm.metrics)
        lent = self._samples.lend(self, steps)
        if isinstance(lent, int):
            check_device(lent, "nvmlGpmSampleAlloc")
            return none_of(unavailable(lent), self._gpm.metrics)
        self.cursor = Cursor(self._gpm, lent)
        return self.cursor.read(now, steps)
