"""Xid errors: counted from the driver's events by a thread of its own, so that no reading waits for one.

The thread looks every 2 s whether something has happened, and waits inside the driver for a few milliseconds only:
closing and exit never wait for it, and a fork does not meet it in the middle of a call. The counter begins at 0 when the GPU
was registered for events; as long as it is not, or the driver does not say what happened, there is a reason and no number.
"""

from __future__ import annotations

import ctypes
import math
import os
import struct
import threading
from collections.abc import Mapping
from typing import Any, NamedTuple
from weakref import WeakSet

from accelmetrics.backends.nvidia.groups import Answer, Paced
from accelmetrics.backends.nvidia.nvml import FUNCTION_NOT_FOUND, GONE, TIMEOUT, Handle, Library, check_device, unavailable

XID_EVENT = 0x8
"""``nvmlEventTypeXidCriticalError``."""
EVENT = struct.Struct("=QQQ8x")
"""Device, type and data of ``nvmlEventData_t``; the ids of the MIG instance, with which its first form ends before, are not used."""
WAIT_MS = 5
PAUSE = 2.0
"""How long a wait inside the driver is, and seconds between two of them."""
LONGEST_CALL = 1.0
"""Seconds after which a call counts as hung when the driver is closed."""
LONGEST_HOLD = 0.1
"""Seconds that a fork waits for the call in progress."""
INTERVAL = 1.0


class Tally(NamedTuple):
    """What has happened on one GPU: how many Xid errors, and the code of the newest."""

    errors: int = 0
    last: int = 0


class XidListener:
    """The event set of an open driver, and the thread that looks into it.

    Attributes:
        failure: The return code of the last look; 0 while looking works.
        able: Whether the driver has the functions that it takes.
    """

    def __init__(self, library: Library) -> None:
        self.failure = 0
        self._library = library
        self._create = library.function("nvmlEventSetCreate")
        self._register = library.function("nvmlDeviceRegisterEvents")
        self._look = library.newest(("nvmlEventSetWait_v2", "nvmlEventSetWait"))
        self.able = None not in (self._create, self._register, self._look)
        self._set = ctypes.c_void_p()
        self._tallies: dict[int | None, Tally] = {}
        self._stop = threading.Event()
        self._starting = threading.Lock()
        self._calling = threading.Lock()
        self._thread: threading.Thread | None = None
        self.make_set()

    def make_set(self) -> int:
        """Have an event set. Returns: the return code; where another worker is at it already, it counts as still to come."""
        if not self.able or self._create is None:
            return FUNCTION_NOT_FOUND
        if self._set.value is not None:
            return 0
        if not self._starting.acquire(blocking=False):
            return TIMEOUT
        try:
            return self._create(ctypes.byref(self._set))
        finally:
            self._starting.release()

    def register(self, handle: Handle) -> int:
        """Begin to count what happens on a GPU. There must be a set. Returns: the return code."""
        assert self._register is not None  # else there is no set
        status = self._register(handle, ctypes.c_ulonglong(XID_EVENT), self._set)
        if status == 0:
            self._tallies.setdefault(handle.value, Tally())
            self._start()
        return status

    def tally(self, handle: Handle) -> Tally:
        """Return what has happened on a registered GPU."""
        return self._tallies[handle.value]

    def close(self) -> bool:
        """End the thread and give the set back. Returns: False when a call hangs, and nothing can be given back."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(LONGEST_CALL)
            if self._thread.is_alive():
                return False
        free = self._library.function("nvmlEventSetFree")
        if free is not None and self._set.value is not None:
            free(self._set)
            self._set = ctypes.c_void_p()
        return True

    def hold(self) -> bool:
        """Keep the thread out of the driver. Returns: whether that worked."""
        return self._calling.acquire(timeout=LONGEST_HOLD)

    def release(self) -> None:
        """Let the thread go on."""
        self._calling.release()

    def _start(self) -> None:
        with self._starting:
            if self._thread is None and not self._stop.is_set():
                self._thread = threading.Thread(target=self._listen, name="accelmetrics-nvidia-xid", daemon=True)
                _LISTENERS.add(self)
                self._thread.start()

    def _listen(self) -> None:
        assert self._look is not None  # else there is no set
        event = (ctypes.c_ulonglong * (EVENT.size // 8))()
        while not self._stop.is_set():
            with self._calling:
                status = self._look(self._set, ctypes.byref(event), WAIT_MS)
            self.failure = 0 if status == TIMEOUT else status
            if status == 0:
                self._note(*EVENT.unpack(event))
            elif status in GONE:
                return
            else:
                self._stop.wait(PAUSE)

    def _note(self, device: int, kind: int, code: int) -> None:
        before = self._tallies.get(device)
        if kind & XID_EVENT and before is not None:
            # An error in a MIG instance is the GPU's too: it is counted there, so that sums are right.
            self._tallies[device] = Tally(before.errors + 1, code)


class Xids(Paced):
    """One GPU's Xid errors: registered at its first reading, and then looked up in memory once a second."""

    def __init__(self, listener: XidListener, handle: Handle) -> None:
        super().__init__(INTERVAL)
        self._listener = listener
        self._handle = handle
        self._registered = False

    def ask(self, now: float, progress: list[Any]) -> Mapping[str, Answer] | None:
        status = 0 if self._registered else self._register(progress)
        self.wait(now, status)
        if status and not self._listener.able:
            self.due = math.inf
        self._registered = not status
        failure = status or self._listener.failure
        if failure:
            return {"xidErrors": unavailable(failure)}
        errors, last = self._listener.tally(self._handle)
        return {"xidErrors": errors, "lastXid": last} if errors else {"xidErrors": 0}

    def _register(self, progress: list[Any]) -> int:
        status = self._listener.make_set()
        if status:
            progress.append(status)
            return status
        status = self._listener.register(self._handle)
        progress.append(status)
        check_device(status, "nvmlDeviceRegisterEvents")
        return status


_LISTENERS: WeakSet[XidListener] = WeakSet()
_held: list[XidListener] = []


def _before_fork() -> None:
    """A child must not inherit the driver's library in the middle of a call, with a lock that is never released there."""
    _held.extend(listener for listener in list(_LISTENERS) if listener.hold())


def _after_fork() -> None:
    while _held:
        _held.pop().release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)
