"""The sources that need no process of their own: the kernel driver's files, and the module ``amdsmi``.

They are merged metric by metric: what the files have is read from them, what they lack is asked of the module, where there is
one that matches, on a thread of its own (:mod:`~accelmetrics.backends.amd.beside`). Opening the library wakes cards, so it is
left alone while one of them sleeps, and tried when all are awake.

A card that sleeps is not read: every metric's reason is ``suspended``. One that its driver let go of is lost; when there is
none left, the driver has gone, and is opened again when it is back.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from accelmetrics.backends.amd.amdsmi_cards import NOT_ASKED, open_cards
from accelmetrics.backends.amd.beside import OVERDUE, BesideCard, Trust
from accelmetrics.backends.amd.card import Card
from accelmetrics.backends.amd.processes import ProcessTable
from accelmetrics.backends.amd.sysfs_identity import cards, identify, partition, partition_mode, shows_values
from accelmetrics.backends.amd.topology import gpu_nodes
from accelmetrics.backends.amd.view import Unit, View
from accelmetrics.backends.clock import SYSTEM_CLOCK, Clock
from accelmetrics.backends.contract import Reading, ReadOptions
from accelmetrics.backends.kit.processes import ProcessTree
from accelmetrics.backends.kit.system import Files
from accelmetrics.schemas.errors import DriverGoneError, SourceError
from accelmetrics.schemas.identity import DeviceIdentity
from accelmetrics.schemas.reasons import Reason

SYSFS, AMDSMI = "sysfs", "amdsmi"
NOT_SHOWN = "the kernel driver's files are not to be seen here"
RELIST = 30.0
"""Seconds between two looks at which cards there are: it reads through the whole PCI bus."""
NOT_DRIVEN = "no GPU is driven by amdgpu here"


class InProcessDriver:
    """The open source.

    Args:
        clock: What intervals are taken from.
        sources: Which of the two to use; one that is not asked for alone may fail to open.

    Raises:
        SourceError: There is no card, or the one source that was asked for cannot be had.
    """

    machine_wide = False
    interval = 0.0

    def __init__(self, clock: Clock = SYSTEM_CLOCK, sources: Sequence[str] = (SYSFS, AMDSMI)) -> None:
        self._clock = clock
        self._files = Files()
        self._addresses = cards()
        self._trust = Trust()
        self.units: list[Unit] = []
        if not self._addresses:
            raise SourceError(Reason.DRIVER_UNAVAILABLE, NOT_DRIVEN, backend="amd")
        self.with_files = SYSFS in sources and any(map(shows_values, self._addresses))
        self._library = open_cards(self._addresses) if AMDSMI in sources else NOT_ASKED
        if not self.with_files and not self._library.found:
            raise self._nothing(alone=SYSFS not in sources)
        self.units = _units(self._addresses, self._files)
        self._join()
        self._devices = tuple(unit.identity for unit in self.units)
        self._listed = _listing()
        self._relist_at = clock.monotonic() + RELIST
        self._looking = threading.Lock()
        self.table = ProcessTable(unit.identity.pci_bus_id for unit in self.units if unit.identity.unified)
        self.table.survey()

    @property
    def source(self) -> str:
        return "+".join(name for name, used in ((SYSFS, self.with_files), (AMDSMI, self._library.found)) if used)

    @property
    def remark(self) -> str:
        """What else there is to know of how it is read, in words, for ``doctor``: why ``amdsmi`` is not used, or that it hangs."""
        if self._library.failure is not None:
            return f"amdsmi is not used: {self._library.failure.message}"
        return OVERDUE.detail if any(beside.hangs for beside in self._beside()) else ""

    @property
    def devices(self) -> Sequence[DeviceIdentity]:
        devices = tuple(unit.identity for unit in self.units)
        if devices != self._devices:
            self._devices = devices
        return self._devices

    def reader(self, options: ReadOptions) -> InProcessReader:
        return InProcessReader(self, options, self._clock)

    def close(self) -> None:
        self._files.close()
        for beside in self._beside():
            beside.close()

    def _beside(self) -> list[BesideCard]:
        return [unit.library for unit in self.units if isinstance(unit.library, BesideCard)]

    def _join(self) -> None:
        """Give each card what the module knows of it."""
        for unit in self.units:
            card = self._library.found.get(unit.card.address) if unit.node is None else None
            unit.library = BesideCard(card, self._trust) if card is not None and self.with_files else card

    def relist(self, now: float) -> None:
        """Look, now and then, whether there is more than was listed: cards, partitions, or a library that waited for a card.

        Raises:
            DriverGoneError: There are new cards or partitions: the driver is to be opened again. One that has gone is lost.
        """
        if now < self._relist_at or not self._looking.acquire(blocking=False):
            return
        try:
            self._relist_at = now + RELIST
            self._look()
        finally:
            self._looking.release()

    def _look(self) -> None:
        (addresses, partitions), (listed, parts) = _listing(), self._listed
        there = {part for part in parts if part[0] in addresses}
        if addresses - listed or {part for part in partitions if part[0] in addresses} != there:
            raise DriverGoneError(Reason.DRIVER_UNAVAILABLE, "there are cards or partitions that were not listed yet", backend="amd")
        if self._library.waiting:
            self._library = open_cards(self._addresses)
            self._join()

    def _nothing(self, alone: bool) -> SourceError:
        failure = self._library.failure
        if alone and failure is not None:
            return failure
        words = "; ".join(filter(None, (f"{NOT_SHOWN}: {', '.join(self._addresses)}", self.remark)))
        return SourceError(Reason.DRIVER_UNAVAILABLE, words, backend="amd", advice="" if failure is None else failure.advice)


class InProcessReader:
    """One consumer."""

    def __init__(self, driver: InProcessDriver, options: ReadOptions, clock: Clock) -> None:
        self._driver = driver
        self._table = driver.table
        self._now = clock.monotonic
        # Memory and engine time are the whole family's by definition, so ``options.children`` changes nothing here.
        family = ProcessTree(options.pid)
        self._views = [View(unit, family, driver.with_files) for unit in driver.units]

    def read(self, unit: int, progress: list[Any]) -> Reading:
        now = self._now()
        self._driver.relist(now)
        return self._views[unit].read(now, self._table, progress)


def _listing() -> tuple[frozenset[str], frozenset[tuple[str, int]]]:
    """Which cards there are, and which partitions."""
    return frozenset(cards()), frozenset((node.address, node.partition) for node in gpu_nodes())


def _units(addresses: Sequence[str], files: Files) -> list[Unit]:
    """The cards in the order of their addresses, each followed by its partitions."""
    nodes = gpu_nodes()
    units = []
    for number, address in enumerate(addresses):
        card = Card(address, files, [other for other in addresses if other != address])
        identity = identify(number, address, nodes)
        units.append(Unit(identity, card))
        parts = [node for node in nodes if node.address == address]
        mode = partition_mode(address)
        if len(parts) > 1:
            units += [Unit(partition(identity, node, mode), card, node) for node in parts]
    return units
