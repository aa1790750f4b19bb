"""Xid errors, counted from the driver's events by a thread, so that no reading waits for one.

The thread looks every 2 s for events, and each look waits only a few milliseconds inside the driver. Closing and exit never wait
long for it, and a fork does not happen in the middle of a call. Counting begins when the GPU is registered for events, at 0 or at
the known earlier errors (``schemas/xid.py``). While the GPU is not registered, or the driver reports no events, there is a reason
and no number, unless the kernel's log is followed. Errors are counted by code, so several between two readings are all counted.

Each GPU has its own event set: NVML may return GPU_IS_LOST for a whole set, and one set for all GPUs would then hide the others'
errors. The counts of a lost GPU are kept. The driver reports the loss itself (Xid 79), so the counts are known without a call to
the GPU.
"""

from __future__ import annotations

import ctypes
import math
import struct
import threading
from collections.abc import Mapping
from typing import Any

from accelmetrics.backends.contract import Number, Value
from accelmetrics.backends.nvidia.calls import Paced
from accelmetrics.backends.nvidia.metrics import SECOND
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
    lock_of_calls,
    unavailable,
)
from accelmetrics.schemas.xid import KNOWN_XIDS, LARGEST_CODE

XID_EVENT = 0x8
"""``nvmlEventTypeXidCriticalError``."""
EVENT = struct.Struct("=QQQ8x")
"""``nvmlEventData_t``: device, type and data. The ids of the MIG instance are not used; version 1 ends before them."""
WAIT_MS = 5
PAUSE = 2.0
"""Milliseconds of a wait inside the driver, and seconds between two waits."""
LONGEST_CALL = 1.0
"""Seconds after which a call counts as hung when the driver is closed."""


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
            self._thread.join(LONGEST_CALL)
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
