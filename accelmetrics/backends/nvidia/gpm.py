"""GPM, the profiling counters of Hopper and later: rates between two samples of one consumer.

Nothing here waits. The first reading takes a sample and answers ``needs_interval``; every later one takes the next sample
and asks for the metrics between the two. NVML refreshes its counters every 100 ms: the second sample comes no sooner after
the first, and the others no sooner than nearly two refreshes after the last, so that at 10 readings a second an interval never
holds one refresh now and none or two the next time. A reading in between serves the last values again, the same block.
"""

from __future__ import annotations

import ctypes
import math
import struct
import weakref
from functools import partial
from operator import le, mul
from typing import Any

from accelmetrics.backends.contract import NO_REASONS, Block
from accelmetrics.backends.nvidia.groups import Answer, Group, Values
from accelmetrics.backends.nvidia.metrics import GPM_METRICS, GPM_OF_INSTANCES, GPM_PACE, GPM_SUPPORT, ONCE, GpmMetric
from accelmetrics.backends.nvidia.nvml import Handle, Library, check_device, impossible, unavailable
from accelmetrics.schemas.errors import Reason, Unavailable

MINIMUM_INTERVAL = 0.1
"""Seconds between two samples, below which NVML's metrics mean nothing."""
_ROUNDING = 101.0
"""Percent. Up to here a share above 100 is taken for rounding."""

METRIC_LAYOUT = "4xid24x"
"""Of ``nvmlGpmMetric_t``: identifier (skipped), return code, value, three pointers (skipped)."""
METRICS_OFFSET = 24
"""Of ``nvmlGpmMetricsGet_t``: version, count, two sample pointers, then the metrics."""
SAMPLES_OFFSET = 8

NEEDS_INTERVAL = Unavailable(Reason.NEEDS_INTERVAL, "GPM metrics are taken between two readings")
NO_GPM = Unavailable(Reason.NOT_SUPPORTED, "the GPU has no GPM (Hopper and later have)")
Sample = ctypes.c_void_p
Samples = tuple[Sample, Sample]


class Gpm:
    """The GPM calls of one device, shared by its consumers: they never read it at the same time.

    Args:
        library: The open library.
        handle: The GPU's handle.
        instance: The MIG instance's id on that GPU, if it is one; its compute instances share what is measured.

    Attributes:
        metrics: What is measured.
        names: Their names.
        support: Whether the device has GPM, as its group's only value.
        take: Takes a sample into its buffer; answers with the return code.
    """

    def __init__(self, library: Library, handle: Handle, instance: int | None = None) -> None:
        whole = instance is None
        self.metrics: tuple[GpmMetric, ...] = GPM_METRICS if whole else GPM_OF_INSTANCES
        self.names = tuple(metric.name for metric in self.metrics)
        self.support = Group(library, handle, (GPM_SUPPORT,), ONCE)
        sample = library.function("nvmlGpmSampleGet" if whole else "nvmlGpmMigSampleGet")
        self.take = partial(sample, handle, *(() if whole else (instance,)))
        self._compute = library.function("nvmlGpmMetricsGet")
        self._get = library.nvml.c_nvmlGpmMetricsGet_t()
        self._get.version = 1
        self._get.numMetrics = len(self.metrics)
        for number, metric in enumerate(self.metrics):
            self._get.metrics[number].metricId = metric.identifier
        self._factors = tuple(metric.factor for metric in self.metrics)
        self._limits = tuple(metric.maximum for metric in self.metrics)
        self._pointers = (Sample * 2).from_buffer(self._get, SAMPLES_OFFSET)
        self._raw = partial(struct.Struct("=" + METRIC_LAYOUT * len(self.metrics)).unpack_from, self._get, METRICS_OFFSET)

    def between(self, first: Sample, second: Sample) -> int:
        """Compute the metrics between two samples. Returns: the return code."""
        self._pointers[0], self._pointers[1] = first.value, second.value
        return self._compute(ctypes.byref(self._get))

    def values(self) -> tuple[float, ...] | None:
        """Return all metrics of the last ``between``; None where one of them failed or is impossible."""
        raw = self._raw()
        values = tuple(map(mul, raw[1::2], self._factors))
        # NaN compares with nothing, so it fails the first test.
        good = not any(raw[::2]) and all(map(le, values, self._limits)) and min(values) >= 0
        return values if good else None

    def answers(self) -> dict[str, Answer]:
        """Return each metric of the last ``between``, or why it is missing."""
        raw = self._raw()
        return {
            metric.name: unavailable(status) if status else _checked(metric, value * metric.factor)
            for metric, status, value in zip(self.metrics, raw[::2], raw[1::2], strict=True)
        }


def _checked(metric: GpmMetric, value: float) -> Answer:
    if 0 <= value <= metric.maximum:
        return value
    return 100.0 if metric.maximum == 100 and 100 < value <= _ROUNDING else impossible("nvmlGpmMetricsGet")


class GpmReader(Values):
    """One consumer's profiling metrics of one device: those since its own last sample.

    Args:
        gpm: The device's calls.
        samples: Lends sample buffers.

    Attributes:
        due: When the next sample is wanted.
    """

    def __init__(self, gpm: Gpm, samples: SamplePool) -> None:
        super().__init__()
        self.due = -math.inf
        self._gpm = gpm
        self._pool = samples
        self._samples: Samples | None = None
        self._sampled = False

    def read(self, now: float, progress: list[Any]) -> None:
        """Take a sample, and compute the metrics since the sample before."""
        samples, gpm = self._samples or self._begin(now, progress), self._gpm
        if samples is None:
            return
        older, newer = samples
        status = gpm.take(older)
        progress.append(status)
        if status:
            # The sample before stays good: the next one is measured against it.
            self._fail(status, "nvmlGpmSampleGet")
            return
        self._samples = newer, older
        if not self._sampled:
            self._sampled, self.due = True, now + MINIMUM_INTERVAL
            self._miss(NEEDS_INTERVAL)
            return
        self.due = now + GPM_PACE
        status = gpm.between(newer, older)
        progress.append(status)
        values = None if status else gpm.values()
        if values is not None:
            self.block, self.unavailable = Block(gpm.names, values), NO_REASONS
        elif status:
            self._fail(status, "nvmlGpmMetricsGet")
        else:
            self.keep(gpm.answers())

    def _begin(self, now: float, progress: list[Any]) -> Samples | None:
        """Borrow sample buffers, if the device has GPM."""
        support = self._gpm.support
        support.read(now, progress)
        answer = support.answers()[GPM_SUPPORT.name]
        if answer != 1:
            self.due = support.due
            self._miss(answer if isinstance(answer, Unavailable) else NO_GPM)
            return None
        lent = self._pool.lend(self, progress)
        if isinstance(lent, int):
            self._fail(lent, "nvmlGpmSampleAlloc")
            return None
        self._samples = lent
        return lent

    def _fail(self, status: int, function: str) -> None:
        """Make a call's return code the reason of all metrics, or of the device's failure."""
        check_device(status, function)
        self._miss(unavailable(status))

    def _miss(self, reason: Unavailable) -> None:
        self.keep(dict.fromkeys(self._gpm.names, reason))


class SamplePool:
    """Lends pairs of sample buffers, which the driver allocates, to consumers. Shared by the workers of a driver: lists change in one step.

    A pair whose consumer is gone is lent again, so that consumers that come and go cost no memory; all are freed when the
    driver is closed. A worker that is stuck in a call holds its consumer, so its buffers are never lent a second time.
    """

    def __init__(self, library: Library) -> None:
        self._allocate = library.function("nvmlGpmSampleAlloc")
        self._free = library.function("nvmlGpmSampleFree")
        self._made: list[Samples] = []
        self._idle: list[Samples] = []

    def lend(self, consumer: object, progress: list[Any]) -> Samples | int:
        """Lend a pair to a consumer. Returns: the pair, or the return code that says why there is none."""
        try:
            pair = self._idle.pop()
        except IndexError:
            pair = (Sample(), Sample())
            for sample in pair:
                status = self._allocate(ctypes.byref(sample))
                progress.append(status)
                if status:
                    self._give_back(pair)
                    return status
            self._made.append(pair)
        weakref.finalize(consumer, self._idle.append, pair).atexit = False
        return pair

    def _give_back(self, pair: Samples) -> None:
        for sample in pair:
            if sample.value is not None:
                self._free(sample)

    def close(self) -> None:
        """Free every buffer."""
        while self._made:
            self._give_back(self._made.pop())
