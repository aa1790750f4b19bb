"""Which device a record is about, by what the source tells of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from accelmetrics.backends.kit.fields import NOT_READ, DeviceRecord, Printed, Table, flat, text, whole
from accelmetrics.backends.kit.system import pci_address

NUMBER = "vendor_index"
NUMBERS = (NUMBER, "numa_node", "cores")
"""Parts of an identity that are whole numbers."""

NAMES = ("uuid", "serial")
"""Parts of an identity that tell one device from all others."""

Identity = Mapping[str, str | Sequence[str]]
"""By attribute of :class:`~accelmetrics.schemas.identity.DeviceIdentity`, where it stands in the record."""


class Identities:
    """What one source's records tell of their devices' identities.

    Args:
        where: By attribute, where it stands in a record.
        table: The source's rows of devices.
    """

    def __init__(self, where: Identity, table: Table) -> None:
        self._where = where
        self._table = table
        self._known: WeakKeyDictionary[DeviceRecord, dict[str, Any]] = WeakKeyDictionary()
        self._repeated: set[tuple[str, object]] = set()

    def of(self, records: Sequence[Printed]) -> list[dict[str, Any]]:
        """Return what the records tell of their devices' identities.

        An id or an address that several devices of one poll share tells none of them apart: it is left out until the driver is opened
        again. Where a number repeats, no number is trusted.
        """
        identities = [self._identify(flat(record)) for record in records]
        keys = [keys_of(told) for told in identities]
        self._repeated.update(key for key, times in Counter(key for each in keys for key in each).items() if times > 1)
        numbered = all(part != NUMBER for part, _ in self._repeated)
        for told, each in zip(identities, keys, strict=True):
            for part in [key[0] for key in each if key in self._repeated or (key[0] == NUMBER and not numbered)]:
                del told[part]
        return identities

    def _identify(self, record: DeviceRecord) -> dict[str, Any]:
        """Return what one record tells; one that stays the same object is asked until it has told all."""
        known = self._known.get(record)
        if known is not None:
            return dict(known)
        told: dict[str, Any] = {}
        for attribute, where in self._where.items():
            for place in (where,) if isinstance(where, str) else where:
                said = record.get(place)
                value = said is True if attribute == "unified" else whole(said) if attribute in NUMBERS else text(said)
                if attribute in NAMES and not str(value).strip("0x"):  # zeros name nothing
                    continue
                if value is not None and value is not False and value != "":
                    told[attribute] = value
                    break
        memory = self._table.value("memoryTotalBytes", record)
        if isinstance(memory, int):
            told["memory_total_bytes"] = memory
        if told.keys() >= self._where.keys() and (memory is NOT_READ or isinstance(memory, int)):
            self._known[record] = dict(told)
        return told


def keys_of(told: Mapping[str, Any]) -> list[tuple[str, object]]:
    """Return what a device is found by, the surest first."""
    parts = [(part, told[part]) for part in ("uuid", "pci_bus_id", NUMBER) if part in told]
    return [(part, pci_address(value) if part == "pci_bus_id" else value) for part, value in parts]
