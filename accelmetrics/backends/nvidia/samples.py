"""GPM sample buffers: the driver allocates them, somebody has to give them back."""

from __future__ import annotations

import ctypes
import threading
import weakref
from typing import Any

from accelmetrics.backends.nvidia.errors import FUNCTION_NOT_FOUND
from accelmetrics.backends.nvidia.library import Library

Pair = tuple[ctypes.c_void_p, ctypes.c_void_p]


class SamplePool:
    """Lends pairs of sample buffers to consumers. Shared by the lanes of a driver, hence the lock.

    A pair whose consumer is gone is lent again, so that consumers that come and go cost no memory; all are freed when the
    driver is closed. A lane that is stuck in a call holds its consumer, so its buffers are never lent a second time.
    """

    def __init__(self, library: Library) -> None:
        self._allocate = library.function("nvmlGpmSampleAlloc")
        self._free = library.function("nvmlGpmSampleFree")
        self._lock = threading.Lock()
        self._lent: list[tuple[weakref.ref[Any], Pair]] = []

    def lend(self, consumer: object, steps: list[Any]) -> Pair | int:
        """A pair for a consumer, or the return code that says why there is none."""
        with self._lock:
            for place, (owner, pair) in enumerate(self._lent):
                if owner() is None:
                    self._lent[place] = (weakref.ref(consumer), pair)
                    return pair
        return self._new_pair(consumer, steps)

    def _new_pair(self, consumer: object, steps: list[Any]) -> Pair | int:
        pair = (ctypes.c_void_p(), ctypes.c_void_p())
        for sample in pair:
            status = FUNCTION_NOT_FOUND if self._allocate is None else self._allocate(ctypes.byref(sample))
            steps.append(status)
            if status:
                self._give_back(pair)
                return status
        with self._lock:
            self._lent.append((weakref.ref(consumer), pair))
        return pair

    def _give_back(self, pair: Pair) -> None:
        for sample in pair:
            if sample.value is not None and self._free is not None:
                self._free(sample)

    def close(self) -> None:
        """Free every buffer."""
        with self._lock:
            lent, self._lent = self._lent, []
        for _, pair in lent:
            self._give_back(pair)
