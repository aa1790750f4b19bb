"""A driver's readings, taken apart."""

from __future__ import annotations

import os
from typing import ClassVar, NamedTuple

from accelmetrics.backends.contract import Number, Reading, ReadOptions
from accelmetrics.backends.tpu import backend
from accelmetrics.backends.tpu.driver import TpuDriver
from accelmetrics.schemas.errors import Unavailable


class Seen(NamedTuple):
    """One unit's reading."""

    values: dict[str, Number]
    reasons: dict[str, Unavailable]
    reading: Reading

    def reason(self, name: str) -> str:
        return str(self.reasons[name].reason)

    def detail(self, name: str) -> str:
        return self.reasons[name].detail

    def only_reason(self) -> str:
        """The reason under every name, where nothing has a value."""
        assert self.values == {}
        (reason,) = {str(why.reason) for why in self.reasons.values()}
        return reason


class Consumer:
    """A driver with one reader."""

    opened: ClassVar[list[TpuDriver]] = []

    def __init__(self, driver: TpuDriver | None = None) -> None:
        self.driver = driver or TpuDriver()
        self.opened.append(self.driver)
        self.reader = self.driver.reader(ReadOptions(os.getpid()))

    def device(self, number: int) -> Seen:
        """Read one device, by the runtime's number."""
        numbers = [device.vendor_index for device in self.driver.devices]
        return self._read(numbers.index(number), frozenset(backend.coverage().devices))

    def machine(self) -> Seen:
        """Read what belongs to all devices together."""
        return self._read(len(self.driver.devices), frozenset(backend.coverage().machine))

    def _read(self, unit: int, owed: frozenset[str]) -> Seen:
        reading = self.reader.read(unit, [])
        (block,) = reading.blocks
        values = dict(zip(block.names, block.values, strict=True))
        assert len(values) == len(block.names)
        assert not values.keys() & reading.unavailable.keys()
        assert values.keys() | reading.unavailable.keys() >= owed
        assert all(why.detail for why in reading.unavailable.values())
        return Seen(values, dict(reading.unavailable), reading)
