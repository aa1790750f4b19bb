"""What backends give, held to the contract: whatever is of the wrong kind is named here, under the guard, and gets no further.

A plug-in's author reads these words in ``doctor``; nobody else is harmed by the mistake.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from accelmetrics.backends.contract import Backend, Block, Coverage, Detection, Driver, Reading
from accelmetrics.schemas.identity import DeviceIdentity
from accelmetrics.schemas.metric import Metric
from accelmetrics.schemas.reasons import Unavailable


def coverage(backend: Backend) -> Coverage:
    """Which metrics the backend gives."""
    given: object = backend.coverage()
    if not isinstance(given, Coverage) or not all(isinstance(getattr(given, part), Mapping) for part in Coverage._fields):
        raise TypeError(f"coverage() gave {given!r}, which is no Coverage of mappings")
    return given


class Opened(NamedTuple):
    """An open driver, and what it said of itself.

    Attributes:
        driver: The driver.
        devices: Its devices.
        rows: The catalogue rows that only its backend knows.
    """

    driver: Driver
    devices: tuple[DeviceIdentity, ...]
    rows: tuple[Metric, ...]


def detect(backend: Backend) -> Detection:
    """Look for the hardware."""
    found = backend.detect()
    if not _is_detection(found):
        raise TypeError(f"detect() gave {found!r}, which is no Detection(present, evidence, devices)")
    return found


def open_driver(backend: Backend) -> Opened:
    """Open the source."""
    driver = backend.open()
    missing = [part for part in ("source", "machine_wide", "devices", "reader", "close") if not hasattr(driver, part)]
    if missing:
        raise TypeError(f"open() gave {driver!r}, which is no driver: it lacks {', '.join(missing)}")
    return Opened(driver, checked_devices(driver.devices), _rows(backend))


def checked_devices(devices: object) -> tuple[DeviceIdentity, ...]:
    """What a driver lists."""
    listed = tuple(devices) if isinstance(devices, (list, tuple)) else (devices,)
    for device in listed:
        if not isinstance(device, DeviceIdentity):
            raise TypeError(f"the driver lists {device!r}, which is no DeviceIdentity")
    return listed


def checked_reading(reading: object) -> Reading:
    """What a reader gave, if it did not look like a reading at first sight."""
    if not isinstance(reading, Reading):
        raise TypeError(f"read() gave {reading!r}, which is no Reading")
    if reading.read_at is not None:
        reading.read_at = float(reading.read_at)
    return reading


def fault(reading: Reading) -> str:
    """What is wrong with the parts of a reading, in words; empty when nothing is. For readings whose form has changed."""
    if not isinstance(reading.blocks, (list, tuple)) or not all(isinstance(block, Block) for block in reading.blocks):
        return f"blocks is {reading.blocks!r}, not a list of blocks"
    for block in reading.blocks:
        if not isinstance(block.names, tuple) or not all(isinstance(name, str) for name in block.names):
            return f"a block's names are {block.names!r}, not a tuple of strings"
        if not isinstance(block.values, (list, tuple)):
            return f"a block's values are {block.values!r}, not a list"
    return _fault_of_reasons(reading.unavailable)


def _fault_of_reasons(reasons: object) -> str:
    if not isinstance(reasons, Mapping):
        return f"unavailable is {reasons!r}, not a mapping"
    for name, why in reasons.items():
        if not isinstance(name, str) or not isinstance(why, Unavailable):
            return f"unavailable has {name!r}: {why!r}, not a name and an Unavailable"
    return ""


def _is_detection(found: object) -> bool:
    if not isinstance(found, Detection):
        return False
    evidence, devices, advice = (getattr(found, part) for part in ("evidence", "devices", "advice"))
    return isinstance(evidence, str) and isinstance(advice, str) and type(devices) is int and devices >= 0


def _rows(backend: Backend) -> tuple[Metric, ...]:
    rows = tuple(backend.own_metrics())
    for row in rows:
        if not isinstance(row, Metric):
            raise TypeError(f"own_metrics() has {row!r}, which is no Metric")
    return rows
