"""Who an IPU is and who uses it: the attributes that are not metrics."""

from __future__ import annotations

from collections.abc import Mapping

from accelmetrics.backends.contract import ReadOptions
from accelmetrics.backends.graphcore.attributes import USER
from accelmetrics.backends.graphcore.library import BACKEND, Attributes
from accelmetrics.schemas.identity import DeviceIdentity, DeviceProcess

_ABSENT = frozenset({"", "n/a", "none", "unknown"})


def identify(devices: Mapping[int, Attributes]) -> tuple[DeviceIdentity, ...]:
    """The IPUs in the order of their ids."""
    return tuple(_identify(number, devices[number]) for number in sorted(devices))


def _identify(number: int, attributes: Attributes) -> DeviceIdentity:
    return DeviceIdentity(
        kind="ipu",
        vendor=BACKEND,
        vendor_index=number,
        name=_text(attributes, "board type"),
        pci_bus_id=pci_bus_id(attributes),
        serial=serial(attributes),  # of the board: its IPUs share it
        architecture=_text(attributes, "ipu architecture"),
        driver_version=_text(attributes, "driver version"),
        firmware=_text(attributes, "firmware version"),
        numa_node=_whole(_text(attributes, "numa node")),
    )


def pci_bus_id(attributes: Attributes) -> str:
    """The PCI address of a card's IPU; empty for one of an IPU-Machine."""
    return _text(attributes, "pci id")


def serial(attributes: Attributes) -> str:
    """The board's serial number."""
    return _text(attributes, "board serial number")


def processes(attributes: Attributes) -> tuple[DeviceProcess, ...] | None:
    """The process that holds the IPU: one, or none; None where the attribute makes no sense."""
    pid = user(attributes)
    if pid is None:
        return () if not _text(attributes, USER) else None
    return (DeviceProcess(pid, "compute"),)


def user(attributes: Attributes) -> int | None:
    """The number of the process that holds the IPU."""
    return _whole(_text(attributes, USER)) or None


def is_used_by(attributes: Attributes, options: ReadOptions) -> bool:
    """Whether the watched process holds the IPU, or a descendant that is watched with it."""
    pid = user(attributes)
    if pid is None or pid == options.pid:
        return pid is not None
    return options.children and options.pid in _ancestors(pid)


def _ancestors(pid: int) -> list[int]:
    import psutil  # only where descendants are watched

    try:
        return [parent.pid for parent in psutil.Process(pid).parents()]
    except psutil.Error:  # it has just ended, or is another user's
        return []


def _text(attributes: Attributes, name: str) -> str:
    printed = attributes.get(name)
    text = printed.strip() if isinstance(printed, str) else ""
    return "" if text.lower() in _ABSENT else text


def _whole(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 12 else None
