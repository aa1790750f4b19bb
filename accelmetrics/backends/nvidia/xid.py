"""Xid errors: counted from the driver's events by a thread of its own, so that no reading waits for one.

The thread looks every 2 s whether something has happened, and waits inside the driver for a few milliseconds only:
closing and exit never wait for it, and a fork does not meet it in the middle of a call. The counter begins at 0 when the GPU
was registered for events; as long as it is not, or the driver does not say what happened, there is a reason and no number.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Mapping
from typing import Any, NamedTuple
from weakref import WeakSet

from accelmetrics.backends.contract import Block
from accelmetrics.backends.nvidia.errors import FUNCTION_NOT_FOUND, GONE, TIMEOUT, check_device, unavailable
from accelmetrics.backends.nvidia.library import Library
from accelmetrics.backends.nvidia.paced import Pace
from accelmetrics.schemas.reasons import Unavailable

COUNT, LAST = "xidErrors", "lastXid"
XID_EVENT = 0x8
"""``nvmlEventTypeXidCriticalError``."""
WAIT_MS = 5
PAUSE = 2.0
"""How long a wait inside the driver is, and seconds between two of them."""
LONGEST_CALL = 1.0
"""Seconds after which a call counts as hung when the driver is closed."""
LONGEST_HOLD = 0.1
"""Seconds that a fork waits for the call in progress."""
INTERVAL = 1.0


class EventData(ctypes.Structure):
    """``nvmlEventData_t``; its first form ends before the instances' ids."""

    _fields_ = (
        ("device", ctypes.c_void_p),
        ("type", ctypes.c_ulonglong),
        ("data", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


class Tally(NamedTuple):
    """What has happened on one GPU: how many Xid errors, and the code of the newest."""

    errors: int = 0
    last: int = 0


class Listener:
    """The event set of an open driver, and the thread that looks into it.

    Attributes:
        failure: The return code of the last look; 0 while looking works.
        able: Whether the driver has what it takes.
    """

    def __init__(self, library: Library) -> None:
        self.failure = 0
        self._library = library
        self._register = library.function("nvmlDeviceRegisterEvents")
        self._look = library.function("nvmlEventSetWait_v2") or library.function("nvmlEventSetWait")
        self._set = ctypes.c_void_p()
        self._tallies: dict[int, Tally] = {}
        self._stop = threading.Event()
        self._starting = threading.Lock()
        self._calling = threading.Lock()
        self._thread: threading.Thread | None = None
        self._create = library.function("nvmlEventSetCreate")
        self.able = not (self._create is None or self._register is None or self._look is None)
        self.make_set()

    def make_set(self) -> int:
        """Have an event set; the return code. Where another lane is at it already, it counts as still to come."""
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

    def register(self, handle: Any) -> int:
        """Begin to count what happens on a GPU; the return code. There must be a set."""
        assert self._register is not None  # else there is no set
        status = self._register(handle, ctypes.c_ulonglong(XID_EVENT), self._set)
        if status == 0:
            self._tallies.setdefault(_address(handle), Tally())
            self._start()
        return status

    def tally(self, handle: Any) -> Tally:
        """What has happened on a registered GPU."""
        return self._tallies[_address(handle)]

    def close(self) -> bool:
        """End the thread and give the set back; False when a call hangs, and nothing can be given back."""
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
        """Keep the thread out of the driver; whether that worked."""
        return self._calling.acquire(timeout=LONGEST_HOLD)

    def release(self) -> None:
        """Let it go on."""
        self._calling.release()

    def _start(self) -> None:
        with self._starting:
            if self._thread is None and not self._stop.is_set():
                self._thread = threading.Thread(target=self._listen, name="accelmetrics-nvidia-xid", daemon=True)
                _LISTENERS.add(self)
                self._thread.start()

    def _listen(self) -> None:
        assert self._look is not None  # else there is no set
        event = EventData()
        while not self._stop.is_set():
            with self._calling:
                status = self._look(self._set, ctypes.byref(event), WAIT_MS)
            self.failure = 0 if status == TIMEOUT else status
            if status == 0:
                self._note(event)
            elif status in GONE:
                return
            else:
                self._stop.wait(PAUSE)

    def _note(self, event: EventData) -> None:
        before = self._tallies.get(event.device)
        if event.type & XID_EVENT and before is not None:
            # An error in a MIG instance is the GPU's too: it is counted there, so that sums are right.
            self._tallies[event.device] = Tally(before.errors + 1, event.data)


class Xids:
    """One GPU's Xid errors: registered at its first reading, and then looked up in memory once a second.

    Attributes:
        block: The counter, and the newest code once there is one.
        unavailable: Why the counter is missing.
        due: When ``read`` is wanted next.
    """

    def __init__(self, listener: Listener, handle: Any) -> None:
        self._listener = listener
        self._handle = handle
        self._registered = False
        self.block = Block((), ())
        self.unavailable: Mapping[str, Unavailable] = {}
        self._pace = Pace(INTERVAL)

    @property
    def due(self) -> float:
        return self._pace.due

    def read(self, now: float, steps: list[Any]) -> bool:
        """Bring the counter up to date, if that is due; says whether anything is different from before."""
        if now < self.due:
            return False
        status = 0 if self._registered else self._register(steps)
        self._pace.note(now, status)
        if status:
            if not self._listener.able:
                self._pace.end()
            return self._set((), (), unavailable(status))
        self._registered = True
        if self._listener.failure:
            return self._set((), (), unavailable(self._listener.failure))
        tally = self._listener.tally(self._handle)
        return self._set((COUNT, LAST), tally, None) if tally.errors else self._set((COUNT,), (0,), None)

    def _register(self, steps: list[Any]) -> int:
        missing = self._listener.make_set()
        if missing:
            steps.append(missing)
            return missing
        status = self._listener.register(self._handle)
        steps.append(status)
        check_device(status, "nvmlDeviceRegisterEvents")
        return status

    def _set(self, names: tuple[str, ...], values: tuple[int, ...], missing: Unavailable | None) -> bool:
        reasons = {} if missing is None else {COUNT: missing}
        if names == self.block.names and values == self.block.values and reasons == self.unavailable:
            return False
        self.block, self.unavailable = Block(names, values), reasons
        return True


def _address(handle: Any) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


_LISTENERS: WeakSet[Listener] = WeakSet()
_held: list[Listener] = []


def _before_fork() -> None:
    """A child must not inherit the driver's library in the middle of a call, with a lock that nobody there releases."""
    _held.extend(listener for listener in list(_LISTENERS) if listener.hold())


def _after_fork() -> None:
    while _held:
        _held.pop().release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)
