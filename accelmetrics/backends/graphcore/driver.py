"""The open source: one call of the vendor's library lists all IPUs, and the IPUs of one pass share it.

A unit that a consumer has had from the latest listing gets a new one; the other units of that pass, and other consumers,
are served the listing that there is while it is fresh. A call that failed is shared in the same way, so that eight IPUs do
not make eight failing calls; after several failures in a row the library is closed and opened again.

IPUs are matched by their ids. When an id is new, or has become another IPU, the driver is to be opened again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from accelmetrics.backends.clock import Clock
from accelmetrics.backends.contract import Reading, ReadOptions
from accelmetrics.backends.graphcore.attributes import NAMES, Value, read_attributes
from accelmetrics.backends.graphcore.identity import identify, is_used_by, pci_bus_id, processes, serial
from accelmetrics.backends.graphcore.library import BACKEND, PARTITION, Attributes, Library
from accelmetrics.backends.kit.forms import Form
from accelmetrics.backends.kit.polled import PollCache
from accelmetrics.schemas.errors import DriverGoneError, SourceError
from accelmetrics.schemas.identity import DeviceIdentity
from accelmetrics.schemas.reasons import Reason, Unavailable

FRESH = 0.1
"""Seconds for which a listing is served to units and consumers that have not had it."""
PATIENCE = 3
"""Failed calls in a row after which the library is opened again."""


class Listing(NamedTuple):
    """What one call came to.

    Attributes:
        number: Counted from 1.
        finished: When the call returned, on the monotonic clock.
        devices: The IPUs by id; empty when it failed.
        failure: Why there are none.
        gone: Whether the driver must be opened again.
    """

    number: int
    finished: float
    devices: Mapping[int, Attributes]
    failure: Unavailable | None = None
    gone: bool = False

    def attributes(self, number: int) -> Attributes:
        """One IPU's attributes.

        Raises:
            SourceError: The call failed, or the IPU was not listed.
        """
        if self.failure is not None:  # made anew for each reader: raised in two threads, one error would get both tracebacks
            kind = DriverGoneError if self.gone else SourceError
            raise kind(self.failure.reason, self.failure.detail, backend=BACKEND)
        if number not in self.devices:
            raise SourceError(Reason.DEVICE_LOST, f"gcipuinfo no longer lists IPU {number}", backend=BACKEND)
        return self.devices[number]


class GraphcoreDriver:
    """The open library. Any thread may read.

    Args:
        clock: Where the age of a listing is taken from.

    Raises:
        SourceError: The library is missing, does not start, or lists no IPU.
    """

    source = "gcipuinfo"
    machine_wide = False

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._library = Library()
        devices = self._library.devices()
        if not devices:
            raise SourceError(Reason.DRIVER_UNAVAILABLE, "gcipuinfo lists no IPU", backend=BACKEND, advice=PARTITION)
        self._devices = identify(devices)
        self._known = {device.vendor_index: device for device in self._devices}
        self._failures = 0
        self._listings = PollCache(Listing(1, clock.monotonic(), devices), clock, FRESH)

    @property
    def devices(self) -> Sequence[DeviceIdentity]:
        return self._devices

    def reader(self, options: ReadOptions) -> GraphcoreReader:
        return GraphcoreReader(self, options)

    def close(self) -> None:
        """The library holds nothing open that could be given back."""

    def listing(self, had: int) -> Listing:
        """The latest listing while it is fresh, else a new one.

        Args:
            had: Number of the listing that the caller was given last for the unit it reads now.
        """
        return self._listings.get(had, self._list)

    def _list(self, number: int) -> Listing:
        try:
            devices = self._library.devices()
        except SourceError as error:
            self._failures += 1
            return Listing(number, self._clock.monotonic(), {}, error.unavailable, self._failures >= PATIENCE)
        self._failures = 0
        moved = self._moved(devices)
        failure = Unavailable(Reason.DRIVER_UNAVAILABLE, f"{moved}: the IPUs are to be listed again") if moved else None
        return Listing(number, self._clock.monotonic(), devices, failure, gone=failure is not None)

    def _moved(self, devices: Mapping[int, Attributes]) -> str:
        for number, attributes in devices.items():
            device = self._known.get(number)
            if device is None:
                return f"IPU {number} is new"
            if _differs(device.pci_bus_id, pci_bus_id(attributes)) or _differs(device.serial, serial(attributes)):
                return f"IPU {number} is another one now"
        return ""


class GraphcoreReader:
    """One consumer's view: which listing it was given last for each unit, and whose IPUs it wants."""

    def __init__(self, driver: GraphcoreDriver, options: ReadOptions) -> None:
        self._driver = driver
        self._options = options
        self._had: dict[int, int] = {}
        self._forms = [Form() for _ in driver.devices]

    def read(self, unit: int, progress: list[Any]) -> Reading:
        latest = self._driver.listing(self._had.get(unit, 0))
        progress.append(latest.number)
        self._had[unit] = latest.number
        attributes = latest.attributes(self._driver.devices[unit].vendor_index)
        return self._forms[unit].reading(self._values(attributes), processes(attributes), latest.finished)

    def _values(self, attributes: Attributes) -> dict[str, Value]:
        if not self._options.watched or is_used_by(attributes, self._options):
            return read_attributes(attributes)
        why = Unavailable(Reason.NOT_IN_USE, f"the watched process {self._options.pid} does not use this IPU")
        return dict.fromkeys(NAMES, why)


def _differs(known: str, printed: str) -> bool:
    return bool(known and printed) and known != printed
