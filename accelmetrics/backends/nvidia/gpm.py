"""GPM, the profiling counters of Hopper and later: means and rates between two samples of one consumer.

Nothing here waits. The first reading takes a sample and returns ``needs_interval``. Every later reading takes the next sample and
computes the metrics between the two. NVML refreshes its counters every 100 ms. The second sample is taken no sooner than that after
the first; later samples no sooner than nearly two refreshes after the last. At 10 readings a second, each interval then holds about
two refreshes, and none holds zero. A reading in between returns the last values again, as the same block.
"""

from __future__ import annotations

import ctypes
import math
import struct
import weakref
from collections.abc import Mapping
from functools import partial
from operator import le, mul
from typing import Any

from accelmetrics.backends.contract import NO_REASONS, Block, Value
from accelmetrics.backends.nvidia.calls import CallGroup, Paced
from accelmetrics.backends.nvidia.metrics import GPM_METRICS, GPM_OF_INSTANCES, GPM_PACE, GPM_RATES, GPM_SUPPORT, MIB, ONCE
from accelmetrics.backends.nvidia.nvml import MISFIT, Handle, Library, impossible, unavailable
from accelmetrics.schemas.errors import Reason, Unavailable

MINIMUM_INTERVAL = 0.1
"""Shortest time in seconds between two samples; below it NVML's metrics mean nothing."""
_ROUNDING = 101.0
"""Percent. A share between 100 and this value is a rounding error."""

METRIC_LAYOUT = "4xid24x"
"""Layout of ``nvmlGpmMetric_t``: identifier (skipped), return code, value, three pointers (skipped)."""
METRICS_OFFSET = 24
"""Offset of the metrics in ``nvmlGpmMetricsGet_t``, after version, count and two sample pointers."""
SAMPLES_OFFSET = 8
METRICS_VERSION = 1
FEWEST_METRICS, MOST_METRICS = 98, 512
"""The smallest and largest number of metrics in the structure. The first header has room for 98. Later headers have more under the
same version, so the driver must go by the count. Another library may fill all the room of its own header (T-Head: 250).
"""
_HEAD, _IDENTIFIER = struct.Struct("=II"), struct.Struct("=I")
_METRIC_SIZE = struct.calcsize(f"={METRIC_LAYOUT}")
_ROOM = 1024
"""Spare bytes after the structure. A driver that knows the structure never writes to them."""

NEEDS_INTERVAL = Unavailable(Reason.NEEDS_INTERVAL, "GPM metrics are taken between two readings")
Sample = ctypes.c_void_p
Samples = tuple[Sample, Sample]


class Gpm(Paced):
    """A consumer's profiling metrics of one device, measured since its own last sample.

    Args:
        library: The open library.
        samples: Lends sample buffers.
        handle: The GPU's handle.
        instance: For a MIG instance, the id of its GPU instance, or why the id is not known. The compute instances of a GPU
            instance share its measurements. None for the whole GPU.
        needed: The metrics to compute; without any, no sample is taken.

    Attributes:
        due: Time of the next sample.
    """

    def __init__(
        self, library: Library, samples: SamplePool, handle: Handle, instance: int | Unavailable | None, needed: frozenset[str]
    ) -> None:
        super().__init__(GPM_PACE)
        self._names = tuple(name for name in (GPM_METRICS if instance is None else GPM_OF_INSTANCES) if name in needed)
        self.due = -math.inf if self._names else math.inf
        self._identifiers = [GPM_METRICS[name][0] for name in self._names]
        self._factors = tuple(MIB if name in GPM_RATES else 1.0 for name in self._names)
        self._limits = tuple(GPM_RATES.get(name, 100.0) for name in self._names)
        self._support = CallGroup(library, handle, (GPM_SUPPORT,), ONCE)
        self._library = library
        self._pool = samples
        self._samples: Samples | None = None
        self._sampled = False
        self._fitting = False
        self._take = partial(library.function("nvmlGpmSampleGet"), handle)
        if isinstance(instance, int):
            self._take = partial(library.function("nvmlGpmMigSampleGet"), handle, instance)
        elif instance is not None:  # samples of the whole GPU would pass for the instance's
            self.due = math.inf
            self.keep(dict.fromkeys(self._names, instance))
        get = self._get = ctypes.create_string_buffer(METRICS_OFFSET + MOST_METRICS * _METRIC_SIZE + _ROOM)
        _HEAD.pack_into(get, 0, METRICS_VERSION, len(self._names))
        for number, identifier in enumerate(self._identifiers):
            _IDENTIFIER.pack_into(get, METRICS_OFFSET + number * _METRIC_SIZE, identifier)
        self._compute = partial(library.function("nvmlGpmMetricsGet"), ctypes.byref(get))
        self._pointers = (Sample * 2).from_buffer(get, SAMPLES_OFFSET)
        self._raw = partial(struct.Struct("=" + METRIC_LAYOUT * len(self._names)).unpack_from, get, METRICS_OFFSET)

    def ask(self, now: float, progress: list[Any]) -> Mapping[str, Value] | None:
        """Take a sample, and compute the metrics since the sample before."""
        if self._samples is None:
            if now >= self._support.due:
                self._support.read(now, progress)
            answer = self._support.answers[GPM_SUPPORT.name]
            if answer != 1:
                self.due = self._support.due
                absent = Unavailable(Reason.NOT_SUPPORTED, "the GPU has no GPM (Hopper and later have it)")
                return dict.fromkeys(self._names, answer if isinstance(answer, Unavailable) else absent)
            lent = self._pool.lend(self, progress)
            if isinstance(lent, int):
                return self._failure(lent, "nvmlGpmSampleAlloc")
            self._samples = lent
        older, newer = self._samples
        status = self._take(older)
        progress.append(status)
        if status:
            # The sample before stays valid: the next one is measured against it.
            return self._failure(status, "nvmlGpmSampleGet")
        # The buffers swap roles: the next sample overwrites the older one.
        self._samples = newer, older
        if not self._sampled:
            self._sampled, self.due = True, now + MINIMUM_INTERVAL
            return dict.fromkeys(self._names, NEEDS_INTERVAL)
        self.due = now + GPM_PACE
        self._pointers[0], self._pointers[1] = newer.value, older.value
        status = self._compute()
        progress.append(status)
        if not status and not self._fitting:
            # Checked once: each metric is in its place, and nothing was written after the structure.
            places = range(METRICS_OFFSET, METRICS_OFFSET + len(self._names) * _METRIC_SIZE, _METRIC_SIZE)
            found = [_IDENTIFIER.unpack_from(self._get, place)[0] for place in places]
            self._fitting = found == self._identifiers and not any(self._get.raw[-_ROOM:])
            status = 0 if self._fitting else MISFIT
        if status:
            return self._failure(status, "nvmlGpmMetricsGet")
        raw = self._raw()
        values = tuple(map(mul, raw[1::2], self._factors))
        # Every comparison with NaN is false, so a NaN fails the second test.
        if not any(raw[::2]) and all(map(le, values, self._limits)) and min(values) >= 0:
            # The usual case, without a dict of answers.
            self.answers, self.block, self.unavailable = {}, Block(self._names, values), NO_REASONS
            return None
        answers: dict[str, Value] = {}
        for name, status, value, limit in zip(self._names, raw[::2], values, self._limits, strict=True):
            rounded = 100.0 if limit == 100 < value <= _ROUNDING else value
            possible: Value = rounded if 0 <= rounded <= limit else impossible("nvmlGpmMetricsGet")
            answers[name] = unavailable(status) if status else possible
        return answers

    def _failure(self, status: int, function: str) -> Mapping[str, Value]:
        """Return a call's return code as the reason of all metrics. Raises it if it concerns the whole device."""
        self._library.check(status, function)
        return dict.fromkeys(self._names, unavailable(status))


class SamplePool:
    """Lends pairs of sample buffers, allocated by the driver, to consumers. Workers share it, because its lists change in one step.

    A pair is lent again when its consumer is gone, so consumers that come and go cost no memory. All pairs are freed when the
    driver is closed. A worker that hangs in a call keeps its consumer alive, so its buffers are never lent a second time.
    """

    def __init__(self, library: Library) -> None:
        self._allocate = library.function("nvmlGpmSampleAlloc")
        self._free = library.function("nvmlGpmSampleFree")
        self._made: list[Samples] = []
        self._idle: list[Samples] = []

    def lend(self, consumer: object, progress: list[Any]) -> Samples | int:
        """Lend a pair to a consumer. Returns the pair, or the return code that explains why there is none."""
        try:
            # pop() is one step. A check before it could race with another worker.
            pair = self._idle.pop()
        except IndexError:
            pair = (Sample(), Sample())
            for sample in pair:
                status = self._allocate(ctypes.byref(sample))
                progress.append(status)
                if status:
                    # The first buffer of the pair may have been allocated.
                    self._give_back(pair)
                    return status
            self._made.append(pair)
        # Nothing needs the pair at interpreter exit.
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
