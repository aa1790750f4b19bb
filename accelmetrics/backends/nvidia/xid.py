"""Xid errors: counted from the driver's events by a thread of its own, so that no reading waits for one.

The thread looks every 2 s whether something has happened, and waits inside the driver for a few milliseconds only:
closing and exit never wait for it, and a fork does not meet it in the middle of a call. The counter begins when the GPU was registered
for events, at 0 or at what is known of before (``schemas/xid.py``); as long as it is not registered, or the driver does not say what
happened, there is a reason and no number, unless the kernel's log is followed. Errors are counted by their code, so that of several
between two readings none is lost.

Each GPU has an event set of its own: NVML may answer GPU_IS_LOST for a whole set, and a set of all GPUs would then tell nothing of the
others. The counts of a lost GPU stay: the driver reports a loss itself (Xid 79), and no call to the GPU is needed to know them.
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
"""Device, type and data of ``nvmlEventData_t``; the ids of the MIG instance, with which its first form ends before, are not used."""
WAIT_MS = 5
PAUSE = 2.0
"""How long a wait inside the driver is, and seconds between two of them."""
LONGEST_CALL = 1.0
"""Seconds after which a call counts as hung when the driver is closed."""


class XidListener:
    """The event sets of an open driver, and the thread that looks into them.

    Attributes:
        library: The open library.
        failures: By GPU's handle, the return code of the last look; 0 while looking works.
        counts: By GPU's handle, how many Xid errors there were of each code, the newest code last; 0 stands for those that are none.
        calling: Held while the thread is in the driver.
    """

    def __init__(self, library: Library) -> None:
        self.library = library
        self._create = library.function("nvmlEventSetCreate")
        self._register = library.function("nvmlDeviceRegisterEvents")
        forms = library.forms("nvmlEventSetWait_v2", "nvmlEventSetWait")
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
        """Register a GPU and begin to count its errors. Returns: the return code."""
        if function_not_found in (self._register, self._look):
            return FUNCTION_NOT_FOUND
        before = self._sets.get(handle.value)  # of a GPU whose calls were bound before
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
        """End the thread and free the sets. Returns: False when a call hangs, and nothing can be freed."""
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
            for device, events in list(self._sets.items()):
                with self.calling:
                    status = self._look(events, ctypes.byref(event), WAIT_MS)
                if status in GONE:
                    self.failures = dict.fromkeys(self._sets, status)
                    return
                # A lost GPU has reported what there was to report.
                self.failures[device] = 0 if status in (TIMEOUT, GPU_IS_LOST) else status
                if status == 0:
                    found = True
                    number, kind, code = EVENT.unpack_from(event)
                    before = self.counts.get(number)
                    if kind & XID_EVENT and before is not None:
                        code = code if code <= LARGEST_CODE else 0
                        # An error in a MIG instance is the GPU's too: it is counted there, so that sums are right.
                        others = {known: count for known, count in before.items() if known != code}
                        self.counts[number] = {**others, code: before.get(code, 0) + 1}
                if self._stop.is_set():
                    return
            if not found:
                self._stop.wait(PAUSE)


class Xids(Paced):
    """One GPU's Xid errors: registered at its first reading, and then looked up in memory once a second."""

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
        """Return the counts, without a call; empty while they are not known."""
        if KNOWN_XIDS.sequence is None and (not self._registered or self._listener.failures.get(self._handle.value, 0)):
            return {}
        counts = KNOWN_XIDS.total(self._address, self._listener.counts.get(self._handle.value, {}))
        codes = [code for code in counts if code]
        last = {"lastXid": codes[-1]} if codes else {}
        return {"xidErrors": sum(counts.values()), **last, **{f"xid.{code}.errors": counts[code] for code in codes}}
