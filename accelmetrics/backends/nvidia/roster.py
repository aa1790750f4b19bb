"""What an open driver lists: GPUs in NVML's order, then MIG instances in the order in which they were found.

A unit is a place in this list and stays what it is: an instance that is gone keeps its place and says so, one that turns up
is added at the end.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Protocol

from accelmetrics.schemas.identity import DeviceIdentity

if TYPE_CHECKING:
    from accelmetrics.backends.nvidia.device import Device
    from accelmetrics.backends.nvidia.instance import Instance


class Listed(Protocol):
    """Whoever has a place in the list."""

    @property
    def identity(self) -> DeviceIdentity:
        """Who is there, as far as is known."""
        ...

    @property
    def opened(self) -> bool:
        """Whether nobody is at work any more to find that out for the first time."""
        ...

    def device(self, now: float, steps: list[Any]) -> Device | Instance:
        """What is read there, or the error that keeps it from being read."""
        ...


class Roster:
    """The list, and what it says of everybody. Lanes of several units change it, hence the lock.

    Attributes:
        places: Who is listed.
        devices: Their identities; the same object while none of them changed.
    """

    def __init__(self) -> None:
        self.places: list[Listed] = []
        self.devices: tuple[DeviceIdentity, ...] = ()
        self._lock = threading.Lock()

    @property
    def opening(self) -> bool:
        """Whether some place is still being opened."""
        return any(not place.opened for place in self.places)

    def add(self, place: Listed) -> None:
        """Give somebody a place."""
        with self._lock:
            self.places.append(place)
        self.note()

    def note(self) -> None:
        """Somebody's identity may have changed."""
        with self._lock:
            devices = tuple([place.identity for place in self.places])
            if devices != self.devices:
                self.devices = devices
