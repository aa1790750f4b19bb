"""PCIe throughput of GPUs before Hopper, which have neither GPM nor byte counters.

``nvmlDeviceGetPcieThroughput`` counts bytes for 20 ms inside the driver, for each direction. No reading waits for it. A reading
starts a measurement on a thread when one is due, and returns the latest result until the next is there. The thread ends with its
measurement, so there is none while the metrics are not wanted. Only one thread at a time is in the driver. If a call hangs, the
threads of other GPUs continue after a while, and this GPU is not measured again until the call has returned.
"""

from __future__ import annotations

import ctypes
import math
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from accelmetrics.backends.contract import Clock, Value
from accelmetrics.backends.nvidia.calls import CallGroup, Paced
from accelmetrics.backends.nvidia.metrics import GPM_SUPPORT, KIB, LARGEST_32, ONCE, PCIE_COUNTERS, PCIE_RATES
from accelmetrics.backends.nvidia.nvml import Handle, Library, impossible, is_unsupported, lock_of_calls, unavailable
from accelmetrics.schemas.errors import Reason, Unavailable

FUNCTION = "nvmlDeviceGetPcieThroughput"
PATIENCE = 1.0
"""Seconds that a thread waits for another thread's call, and that closing waits for all threads."""
LATE = 4 * PATIENCE
"""Seconds after which a measurement counts as hung. Both directions may have waited for another GPU's call."""
PENDING = Unavailable(Reason.NEEDS_INTERVAL, f"{FUNCTION} takes 20 ms a direction, so it is read beside the readings: the next one has it")
HUNG = Unavailable(Reason.TIMED_OUT, f"{FUNCTION} has not returned")
OLD = Unavailable(Reason.STALE, "the latest measurement is older than two intervals; a new one has begun")

Measured = tuple[float, Mapping[str, Value]]
"""When the values were measured, on the driver's clock, and the values."""


class PcieMeter:
    """Measures the PCIe throughput of an open driver's GPUs.

    Args:
        library: The open library.
        clock: The driver's clock.

    Attributes:
        calling: Held while a thread is in the driver.
    """

    def __init__(self, library: Library, clock: Clock) -> None:
        self.calling = lock_of_calls()
        self._throughput = library.function(FUNCTION)
        self._clock = clock
        self._changing = threading.Lock()
        self._threads: dict[int | None, threading.Thread] = {}
        self._closed = False

    def start(self, handle: Handle, note: Callable[[Measured], None]) -> bool:
        """Start a measurement of a GPU. Returns False if it is still being measured, or the driver is closed."""
        with self._changing:
            if self._closed or handle.value in self._threads:
                return False
            thread = threading.Thread(target=self._measure, args=(handle, note), name="accelmetrics-nvidia-pcie", daemon=True)
            thread.start()
            self._threads[handle.value] = thread
        return True

    def measures(self, handle: Handle) -> bool:
        """Return whether a GPU is being measured. Its result is stored before this becomes false."""
        return handle.value in self._threads

    def close(self) -> bool:
        """Wait for running measurements. Returns False if a call hangs, so that nothing may be freed."""
        with self._changing:
            self._closed = True
            threads = list(self._threads.values())
        end = time.monotonic() + PATIENCE
        for thread in threads:
            thread.join(max(0.0, end - time.monotonic()))
        return not any(thread.is_alive() for thread in threads)

    def _measure(self, handle: Handle, note: Callable[[Measured], None]) -> None:
        times, answers = [], {}
        for name, (_, counter) in PCIE_RATES.items():
            kib_per_second = ctypes.c_uint()
            # After the timeout the call is made anyway, so that one hanging GPU does not stop the others.
            held = self.calling.acquire(timeout=PATIENCE)
            try:
                status = self._throughput(handle, counter, ctypes.byref(kib_per_second))
            finally:
                if held:
                    self.calling.release()
            possible: Value = kib_per_second.value * KIB if kib_per_second.value <= LARGEST_32 else impossible(FUNCTION)
            answers[name] = unavailable(status) if status else possible
            times.append(self._clock.monotonic())
        # The age of the result is that of its older direction.
        note((min(times), answers))
        with self._changing:
            del self._threads[handle.value]


class PcieThroughput(Paced):
    """A GPU's PCIe throughput in bytes per second; no values if the GPU has GPM, or counters for the rates.

    Args:
        library: The open library.
        meter: Measures it.
        handle: The GPU's handle.
        interval: Seconds between two measurements.
    """

    def __init__(self, library: Library, meter: PcieMeter, handle: Handle, interval: float) -> None:
        super().__init__(interval)
        self._meter = meter
        self._handle = handle
        self._every = interval
        # Counters come first, so that a GPU with counters is not asked for GPM, which has its own reader.
        self._others = [CallGroup(library, handle, rows, ONCE) for rows in (PCIE_COUNTERS, (GPM_SUPPORT,))]
        self._begun = -math.inf
        self._measured: Measured | None = None

    def ask(self, now: float, progress: list[Any]) -> Mapping[str, Value]:
        for other in self._others:
            if now >= other.due:
                other.read(now, progress)
            if not all(is_unsupported(answer) or (name == GPM_SUPPORT.name and answer == 0) for name, answer in other.answers.items()):
                self.due = other.due
                return {}
        # "Not supported" is final: it is measured only once.
        if self._measured is not None and all(map(is_unsupported, self._measured[1].values())):
            self.due = math.inf
            return self._measured[1]
        if now >= self._begun + self._interval and self._meter.start(self._handle, self._store):
            self._begun = now
        # The order matters: a result is stored before its measurement counts as over, so none is missed.
        pending = self._meter.measures(self._handle)
        measured = self._measured
        self.due = -math.inf if pending else self._begun + self._interval
        waits = HUNG if pending and now - self._begun > LATE else PENDING
        if measured is None:
            return dict.fromkeys(PCIE_RATES, waits)
        at, answers = measured
        if now - at > 2 * self._every + 2 * PATIENCE:
            return dict.fromkeys(PCIE_RATES, HUNG if waits is HUNG else OLD)
        return answers

    def _store(self, measured: Measured) -> None:
        self._measured = measured
