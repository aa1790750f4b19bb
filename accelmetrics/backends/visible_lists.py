"""What a program sees of one vendor's devices: the record, and the small parsers that several vendors' rules share."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from accelmetrics.schemas.identity import DeviceIdentity

Devices = Sequence[DeviceIdentity]


class VisibleList(NamedTuple):
    """A variable that takes part in the choice, as it was set.

    Attributes:
        variable: Its name: ``CUDA_VISIBLE_DEVICES``.
        value: Its value, untouched.
    """

    variable: str
    value: str


class Sight(NamedTuple):
    """Which of the devices it was asked about a program sees.

    Attributes:
        devices: Their places in the sequence that was given, in the program's order; None where it cannot be told.
        ordered: Whether that order is the program's; if not, which devices it sees is known, and their numbers are not.
        lists: The variables that decide; empty when none is set, and the program sees every device.
        caveats: What to know about the answer, or why there is none.
    """

    devices: tuple[int, ...] | None
    ordered: bool = True
    lists: tuple[VisibleList, ...] = ()
    caveats: tuple[str, ...] = ()


def by_pci_address(devices: Devices) -> list[int]:
    """Places in the order of PCI addresses; in that of the vendor's numbers where one has no address."""
    if all(device.pci_bus_id for device in devices):
        return sorted(range(len(devices)), key=lambda place: _address(devices[place].pci_bus_id))
    return by_number(devices)


def by_number(devices: Devices) -> list[int]:
    """Places in the order of the vendor's own numbers."""
    return sorted(range(len(devices)), key=lambda place: devices[place].vendor_index)


def _address(text: str) -> tuple[str, ...]:
    """A PCI address that sorts: NVML writes eight digits of the domain, sysfs four."""
    domain, _, rest = text.lower().partition(":")
    return domain.zfill(8), rest


_BASES = ((re.compile(r"[+-]?0x[0-9a-f]+", re.IGNORECASE | re.ASCII), 16), (re.compile(r"[+-]?0[0-7]*", re.ASCII), 8))
_DECIMAL = re.compile(r"[+-]?\d{1,4000}", re.ASCII)
"""More digits than Python converts name no device either."""


def leading_number(text: str) -> int | None:
    """What C's ``strtol`` reads at the beginning in base 10; None when there is no digit."""
    found = _DECIMAL.match(text.lstrip())
    return int(found[0]) if found else None


def whole_number_any_base(text: str) -> int | None:
    """What ``strtol`` reads in base 0 (``0x1`` and ``010`` count as C counts), if nothing is left over."""
    for pattern, base in _BASES:
        if pattern.fullmatch(text):
            return int(text, base)
    return int(text) if _DECIMAL.fullmatch(text) and text.lstrip("+-")[0] != "0" else None


def plain_number(text: str) -> int | None:
    """A number written exactly as C prints it: no sign, no space, no leading zero."""
    return int(text) if _DECIMAL.fullmatch(text) and text == str(int(text)) and text[0] != "-" else None
