"""What tests of this backend share: the kernel's words, and the open source, read until something holds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple

from accelmetrics.backends.contract import ReadOptions
from accelmetrics.backends.kit import DeviceSample
from accelmetrics.backends.kit.fields import Row, Table, flat
from accelmetrics.backends.kit.polled import PolledDriver, PolledReader
from accelmetrics.schemas.errors import SourceError, Unavailable
from tests.support.waiting import wait_for


class Read(NamedTuple):
    """Both units' values and reasons: the GPU's by name, the machine's by key."""

    values: dict[str, float]
    reasons: dict[str, Unavailable]


class Mac:
    """The open source, opened on first use.

    Args:
        open_driver: Opens it.
    """

    def __init__(self, open_driver: Callable[[], PolledDriver]) -> None:
        self._open = open_driver
        self._driver: PolledDriver | None = None
        self._reader: PolledReader | None = None

    @property
    def driver(self) -> PolledDriver:
        """The driver."""
        if self._driver is None:
            self._driver = self._open()
        return self._driver

    @property
    def reader(self) -> PolledReader:
        """One consumer's view."""
        if self._reader is None:
            self._reader = self.driver.reader(ReadOptions(1))
        return self._reader

    def read(self) -> Read:
        """A new poll, as every second reading of a unit is, of both units."""
        self.reader.read(1, [])
        found = Read({}, {})
        for unit in (0, 1):
            reading = self.reader.read(unit, [])
            found.reasons.update(reading.unavailable)
            for block in reading.blocks:
                found.values.update(zip(block.names, block.values, strict=True))
        return found

    def until(self, condition: Callable[[Read], bool]) -> Read:
        """The first poll for which something is true; it must come. One without an answer of any tool, on a busy machine, is none."""
        seen: list[Read] = []

        def holds() -> bool:
            seen.clear()
            with suppress(SourceError):
                seen.append(self.read())
            return bool(seen) and condition(seen[0])

        wait_for(holds, what=lambda: seen)
        return seen[0]


def tabled(samples: Iterable[DeviceSample], gpu: Sequence[Row], machine: Sequence[Row] = ()) -> Read:
    """What rows make of samples."""
    read = Read({}, {})
    for sample in samples:
        table = Table("it", "", machine) if sample.machine else Table("it", "gpu", gpu)
        found = table.read(flat(sample.record), {}, 0.0)
        table.derive(found)
        for name, value in found.items():
            if isinstance(value, Unavailable):
                read.reasons[name] = value
            elif table.names(name):
                read.values[name] = value
    return read
