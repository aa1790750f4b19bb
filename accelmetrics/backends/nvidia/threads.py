"""Xid errors, and the PCIe throughput of older GPUs: threads read them, so that no reading waits for them.

Xid errors are counted from the driver's events. The thread looks every 2 s for events, and each look waits only a few
milliseconds inside the driver. Closing and exit never wait long for it, and a fork does not happen in the middle of a call.
Counting begins when the GPU is registered for events, at 0 or at the known earlier errors (``schemas/xid.py``). While the GPU is
not registered, or the driver reports no events, there is a reason and no number, unless the kernel's log is followed. Errors are
counted by code, so several between two readings are all counted.

Each GPU has its own event set: NVML may return GPU_IS_LOST for a whole set, and one set for all GPUs would then hide the others'
errors. The counts of a lost GPU are kept. The driver reports the loss itself (Xid 79), so the counts are known without a call to
the GPU.

PCIe throughput is measured on GPUs before Hopper, which have neither GPM nor byte counters. ``nvmlDeviceGetPcieThroughput``
counts bytes for 20 ms inside the driver, for each direction. No reading waits for it. A reading starts a measurement on a thread
when one is due, and returns the latest result until the next is there. The thread ends with its measurement, so there is none
while the metrics are not wanted. Only one thread at a time is in the driver. If a call hangs, the threads of other GPUs continue
after a while, and this GPU is not measured again until the call has returned.
"""

from __future__ import annotations

import ctypes
import math
import struct
import threading
import time
from collections.abc import Mapping
from typing import Any

from accelmetrics.backends.contract import Clock, Number, Value
from accelmetrics.backends.nvidia.calls import CallGroup, Paced
from accelmetrics.backends.nvidia.metrics import GPM_SUPPORT, KIB, LARGEST_32, ONCE, PCIE_COUNTERS, PCIE_RATES, SECOND
from accelmetrics.backends.nvidia.nvml import (
    FUNCTION_NOT_FOUND,
    GONE,
    GPU_IS_LOST,
    NOT_SUPPORTED,
    SUCCESS,
    TIMEOUT,
    Forms,
    Handle,
    Library,
    function_not_found,
    impossible,
    is_unsupported,
    lock_of_calls,
    unavailable,
)
from accelmetrics.schemas.errors import Reason, Unavailable
from accelmetrics.schemas.xid import KNOWN_XIDS, LARGEST_CODE

XID_EVENT = 0x8
"""``nvmlEventTypeXidCriticalError``."""
EVENT = struct.Struct("=QQQ8x")
"""``nvmlEventData_t``: device, type and data. The ids of the MIG instance are not used; version 1 ends before them."""
WAIT_MS = 5
PAUSE = 2.0
"""Milliseconds of a wait inside the driver, and seconds between two waits."""
PATIENCE = 1.0
"""Seconds after which a call counts as hung: when the driver is closed, and while another thread waits for it."""


class XidListener:
    """The event sets of an open driver, and the thread that checks them.

    Attributes:
        library: The open library.
        failures: The return code of the last check, by GPU handle; 0 while checks succeed.
        counts: The number of Xid errors of each code, the newest code last, by GPU handle. Code 0 collects invalid codes.
        calling: Held while the thread is in the driver.
    """

    def __init__(self, library: Library) -> None:
        self.library = library
        self._create = library.function("nvmlEventSetCreate")
        self._register = library.function("nvmlDeviceRegisterEvents")
        forms = library.forms("nvmlEventSetWait_v2", "nvmlEventSetWait")
        # A wait that times out is an answer too.
        self._look = Forms(forms, frozenset({SUCCESS, TIMEOUT})) if forms else function_not_found
        self._free = library.function("nvmlEventSetFree")
        self._sets: dict[int | None, ctypes.c_void_p] = {}
        self.failures: dict[int | None, int] = {}
        self.counts: dict[int | None, dict[int, int]] = {}
        self.calling = lock_of_calls()
        self._stop = threading.Event()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None

    def register(self, handle: Handle, progress: list[Any]) -> int:
        """Register a GPU and start counting its errors. Returns the return code."""
        if function_not_found in (self._register, self._look):
            return FUNCTION_NOT_FOUND
        before = self._sets.get(handle.value)  # the GPU was bound before
        events = before or ctypes.c_void_p()
        if before is None:
            status = self._create(ctypes.byref(events))
            progress.append(status)
            if status:
                return status
        status = self._register(handle, ctypes.c_ulonglong(XID_EVENT), events)
        progress.append(status)
        if status:
            if before is None:
                self._free(events)
            return status
        self.counts.setdefault(handle.value, {})
        self._sets[handle.value] = events
        with self._starting:
            if self._thread is None and not self._stop.is_set():
                thread = threading.Thread(target=self._listen, name="accelmetrics-nvidia-xid", daemon=True)
                thread.start()
                self._thread = thread
        return 0

    def close(self) -> bool:
        """End the thread and free the sets. Returns False if a call hangs, so that nothing may be freed."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(PATIENCE)
            if self._thread.is_alive():
                return False
        while self._sets:
            self._free(self._sets.popitem()[1])
        return True

    def _listen(self) -> None:
        event = (ctypes.c_ulonglong * 32)()  # with room for a longer form
        while not self._stop.is_set():
            found = False
            # A copy, because readings register GPUs meanwhile.
            for device, events in list(self._sets.items()):
                with self.calling:
                    status = self._look(events, ctypes.byref(event), WAIT_MS)
                if status in GONE:
                    self.failures = dict.fromkeys(self._sets, status)
                    return
                # A lost GPU has reported its last error already, so its counts stay valid.
                self.failures[device] = 0 if status in (TIMEOUT, GPU_IS_LOST) else status
                if status == 0:
                    found = True
                    number, kind, code = EVENT.unpack_from(event)
                    before = self.counts.get(number)
                    if kind & XID_EVENT and before is not None:
                        code = code if code <= LARGEST_CODE else 0
                        # An error in a MIG instance is counted for its GPU, so that sums are right.
                        others = {known: count for known, count in before.items() if known != code}
                        # A new dict in one step: readers take no lock.
                        self.counts[number] = {**others, code: before.get(code, 0) + 1}
                if self._stop.is_set():
                    return
            # After an event, more may be waiting: check again at once.
            if not found:
                self._stop.wait(PAUSE)


class Xids(Paced):
    """A GPU's Xid errors. The GPU is registered at its first reading; later readings look up the counts once a second."""

    def __init__(self, listener: XidListener, handle: Handle, address: str) -> None:
        super().__init__(SECOND)
        self._listener = listener
        self._handle = handle
        self._address = address
        self._registered = False

    def ask(self, now: float, progress: list[Any]) -> Mapping[str, Value] | None:
        status = 0 if self._registered else self._listener.register(self._handle, progress)
        self._registered = status == 0
        self.schedule(now, status != 0)
        if KNOWN_XIDS.sequence is not None:
            return self.known()
        if status == NOT_SUPPORTED:
            self.due = math.inf
        elif status:
            self._listener.library.check(status, "nvmlDeviceRegisterEvents")
        if failure := status or self._listener.failures.get(self._handle.value, 0):
            return {"xidErrors": unavailable(failure)}
        return self.known()

    def known(self) -> dict[str, Number]:
        """Return the counts without a call; empty while they are not known."""
        if KNOWN_XIDS.sequence is None and (not self._registered or self._listener.failures.get(self._handle.value, 0)):
            return {}
        counts = KNOWN_XIDS.total(self._address, self._listener.counts.get(self._handle.value, {}))
        codes = [code for code in counts if code]
        last = {"lastXid": codes[-1]} if codes else {}
        return {"xidErrors": sum(counts.values()), **last, **{f"xid.{code}.errors": counts[code] for code in codes}}


# PCIe throughput

FUNCTION = "nvmlDeviceGetPcieThroughput"
LATE = 4 * PATIENCE
"""Seconds after which a measurement counts as hung. Both directions may have waited for another GPU's call."""
PENDING = Unavailable(Reason.NEEDS_INTERVAL, f"{FUNCTION} takes 20 ms a direction, so a thread measures it: the next reading has it")
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
        latest: The latest result, by GPU handle.
    """

    def __init__(self, library: Library, clock: Clock) -> None:
        self.calling = lock_of_calls()
        self.latest: dict[int | None, Measured] = {}
        self._throughput = library.function(FUNCTION)
        self._clock = clock
        self._changing = threading.Lock()
        self._threads: dict[int | None, threading.Thread] = {}
        self._closed = False

    def start(self, handle: Handle) -> bool:
        """Start a measurement of a GPU. Returns False if it is still being measured, or the driver is closed."""
        with self._changing:
            if self._closed or handle.value in self._threads:
                return False
            thread = threading.Thread(target=self._measure, args=(handle,), name="accelmetrics-nvidia-pcie", daemon=True)
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

    def _measure(self, handle: Handle) -> None:
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
        self.latest[handle.value] = min(times), answers
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

    def ask(self, now: float, progress: list[Any]) -> Mapping[str, Value]:
        for other in self._others:
            if now >= other.due:
                other.read(now, progress)
            if not all(is_unsupported(answer) or (name == GPM_SUPPORT.name and answer == 0) for name, answer in other.answers.items()):
                self.due = other.due
                return {}
        # "Not supported" is final: it is measured only once.
        measured = self._meter.latest.get(self._handle.value)
        if measured is not None and all(map(is_unsupported, measured[1].values())):
            self.due = math.inf
            return measured[1]
        if now >= self._begun + self._interval and self._meter.start(self._handle):
            self._begun = now
        # The order matters: a result is stored before its measurement counts as over, so none is missed.
        pending = self._meter.measures(self._handle)
        measured = self._meter.latest.get(self._handle.value)
        self.due = -math.inf if pending else self._begun + self._interval
        why = HUNG if pending and now - self._begun > LATE else PENDING
        if measured is None:
            return dict.fromkeys(PCIE_RATES, why)
        at, answers = measured
        if now - at > 2 * self._every + 2 * PATIENCE:
            return dict.fromkeys(PCIE_RATES, HUNG if why is HUNG else OLD)
        return answers
