"""What tests of the driver share: open it, read it once, wait for something."""

import time
from collections.abc import Callable
from typing import NamedTuple

from accelmetrics.backends.apple.driver import AppleDriver, AppleReader
from accelmetrics.backends.clock import SYSTEM_CLOCK
from accelmetrics.backends.contract import ReadOptions
from accelmetrics.schemas.reasons import Unavailable


class Read(NamedTuple):
    """Both units' values and reasons: the GPU's by name, the machine's by key."""

    values: dict[str, float]
    reasons: dict[str, Unavailable]


def open_driver(drivers: list[AppleDriver]) -> AppleReader:
    """A reader of a driver that the fixture closes."""
    drivers.append(AppleDriver(SYSTEM_CLOCK))
    return drivers[-1].reader(ReadOptions(1))


def read(reader: AppleReader) -> Read:
    """A new round, as every second reading of a unit is."""
    reader.read(1, [])
    found = Read({}, {})
    for unit in (0, 1):
        reading = reader.read(unit, [])
        found.reasons.update(reading.unavailable)
        for block in reading.blocks:
            found.values.update(zip(block.names, block.values, strict=True))
    return found


def eventually(reader: AppleReader, condition: Callable[[Read], bool], seconds: float = 10.0) -> Read:
    """The first round for which something is true; it must come."""
    end = time.monotonic() + seconds
    found = read(reader)
    while not condition(found):
        assert time.monotonic() < end, found
        time.sleep(0.05)
        found = read(reader)
    return found
