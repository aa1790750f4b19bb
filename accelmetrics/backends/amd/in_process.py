"""The sources that need no process of their own: the kernel driver's files, and the module ``amdsmi``.

They are merged metric by metric: what the files have is read from them, what they lack is asked of the module, where there is
one that matches. Opening the library wakes cards, so it is left alone while one of them sleeps.

A card that sleeps is not read: every metric's reason is ``suspended``. A partition of a card (XCP) is a device below it, with
memory and activity of its own; power, temperature and the like stay on the card, so that sums are right.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from accelmetrics.backends.amd import amdsmi_library, sysfs
from accelmetrics.backends.amd.amdsmi_source import AmdsmiCard
from accelmetrics.backends.amd.card import Card
from accelmetrics.backends.amd.gpu_metrics import BUSY
from accelmetrics.backends.amd.processes import ProcessTable
from accelmetrics.backends.amd.share import Share
from accelmetrics.backends.amd.sysfs_fields import read_values
from accelmetrics.backends.amd.sysfs_identity import cards, identify, partition, partition_mode, shows_values
from accelmetrics.backends.amd.table import Form, Value, Values, memory_values, pool
from accelmetrics.backends.amd.throttling import Counts, counts_of
from accelmetrics.backends.amd.topology import Node, gpu_nodes, used_memory
from accelmetrics.backends.clock import SYSTEM_CLOCK, Clock
from accelmetrics.backends.contract import Reading, ReadOptions
from accelmetrics.backends.family import Family
from accelmetrics.backends.host.files import Files
from accelmetrics.schemas.catalogue import expected_names
from accelmetrics.schemas.errors import DriverGoneError, SourceError
from accelmetrics.schemas.identity import DeviceIdentity
from accelmetrics.schemas.reasons import Reason, Unavailable

SYSFS, AMDSMI = "sysfs", "amdsmi"
NOT_SHOWN = "the kernel driver's files are not to be seen here"
RELIST = 30.0
"""Seconds between two looks at which cards there are: it reads through the whole PCI bus."""
NOT_DRIVEN = "no GPU is driven by amdgpu here"
ALL = tuple(expected_names("amd"))
OF_PARTITIONS = tuple(expected_names("amd", partition=True))


class Unit:
    """One device of the driver.

    Attributes:
        identity: Who it is.
        card: The files of it, or of the card that it is a partition of.
        library: The card behind the module, where that is open.
        node: The partition, None for a whole card.
    """

    def __init__(self, identity: DeviceIdentity, card: Card, library: AmdsmiCard | None, node: Node | None = None) -> None:
        self.identity = identity
        self.card = card
        self.library = library
        self.node = node


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
        addresses = cards()
        if not addresses:
            raise SourceError(Reason.DRIVER_UNAVAILABLE, NOT_DRIVEN, backend="amd")
        self.with_files = SYSFS in sources and any(map(shows_values, addresses))
        library = _library(addresses, alone=SYSFS not in sources) if AMDSMI in sources else {}
        if not self.with_files and not library:
            raise SourceError(Reason.DRIVER_UNAVAILABLE, f"{NOT_SHOWN}: {', '.join(addresses)}", backend="amd")
        self.source = "+".join(name for name, used in ((SYSFS, self.with_files), (AMDSMI, library)) if used)
        self.units = _units(addresses, library, self._files)
        self._devices = tuple(unit.identity for unit in self.units)
        self._listed = _listing()
        self._relist_at = clock.monotonic() + RELIST
        self.table = ProcessTable(frozenset(unit.identity.pci_bus_id for unit in self.units if unit.identity.unified))

    @property
    def devices(self) -> Sequence[DeviceIdentity]:
        return self._devices

    def reader(self, options: ReadOptions) -> InProcessReader:
        return InProcessReader(self, options, self._clock)

    def close(self) -> None:
        self._files.close()

    def relist(self, now: float) -> None:
        """Look, now and then, whether there are cards or partitions besides those that were listed. One that has gone is lost.

        Raises:
            DriverGoneError: There are: the driver is to be opened again.
        """
        if now < self._relist_at:
            return
        self._relist_at = now + RELIST
        addresses, partitions = _listing()
        if addresses - self._listed[0] or partitions != self._listed[1]:
            raise DriverGoneError(Reason.DRIVER_UNAVAILABLE, "there are cards or partitions that were not listed yet", backend="amd")


class View:
    """One device as one consumer sees it."""

    def __init__(self, unit: Unit, family: Family, with_files: bool) -> None:
        self._unit = unit
        self._with_files = with_files
        self._form = Form()
        self._share = Share(family)
        self._counts: Counts = {}

    def read(self, now: float, table: ProcessTable, steps: list[Any]) -> Reading:
        """Everything about the device, now.

        Raises:
            SourceError: It has gone.
        """
        unit = self._unit
        if not unit.card.check(steps):
            asleep = Unavailable(Reason.SUSPENDED, f"{unit.card.address} is powered down, and reading it would wake it")
            return self._form.reading(dict.fromkeys(ALL if unit.node is None else OF_PARTITIONS, asleep))
        if unit.node is not None:
            return self._form.reading(_partition_values(unit.node, unit.card, steps))
        values = self._values(now, steps)
        processes = table.on(unit.card.address, now, steps)
        return self._form.reading(values, share=self._share.block(processes, values, now), processes=processes)

    def _values(self, now: float, steps: list[Any]) -> Values:
        unit = self._unit
        values: Values = dict.fromkeys(ALL, NOT_READ)
        if self._with_files:
            unit.card.refresh(now, steps)
            if not unit.card.record:
                raise DriverGoneError(Reason.DRIVER_UNAVAILABLE, f"the kernel driver no longer shows {unit.card.address}", backend="amd")
            values = read_values(unit.card, unit.identity.unified, self._counts)
            self._counts = {} if isinstance(unit.card.table, Unavailable) else counts_of(unit.card.table)
        missing = {name for name, value in values.items() if isinstance(value, Unavailable) and value.reason != Reason.NEEDS_INTERVAL}
        if unit.library is None or not missing:
            return values
        try:
            said = unit.library.read(missing, unit.identity.unified, steps)
        except SourceError:
            if not self._with_files:
                raise
            return values  # the library lost sight of a card that the kernel still shows
        better = {name: value for name, value in said.items() if not self._with_files or not isinstance(value, Unavailable)}
        return {**values, **better}


NOT_READ = Unavailable(Reason.NOT_SUPPORTED, "the kernel driver's files are not read: another source was asked for")


class InProcessReader:
    """One consumer."""

    def __init__(self, driver: InProcessDriver, options: ReadOptions, clock: Clock) -> None:
        self._driver = driver
        self._table = driver.table
        self._now = clock.monotonic
        # Memory and engine time are the whole family's by definition, so ``options.children`` changes nothing here.
        family = Family(options.pid)
        self._views = [View(unit, family, driver.with_files) for unit in driver.units]

    def read(self, unit: int, steps: list[Any]) -> Reading:
        now = self._now()
        if unit == 0:
            self._driver.relist(now)
        return self._views[unit].read(now, self._table, steps)


def _listing() -> tuple[frozenset[str], frozenset[tuple[str, int]]]:
    """Which cards there are, and which partitions."""
    return frozenset(cards()), frozenset((node.address, node.partition) for node in gpu_nodes())


def _units(addresses: Sequence[str], library: Mapping[str, AmdsmiCard], files: Files) -> list[Unit]:
    """The cards in the order of their addresses, each followed by its partitions."""
    nodes = gpu_nodes()
    units = []
    for number, address in enumerate(addresses):
        card, identity = Card(address, files), identify(number, address, nodes)
        units.append(Unit(identity, card, library.get(address)))
        parts = [node for node in nodes if node.address == address]
        mode = partition_mode(address)
        if len(parts) > 1:
            units += [Unit(partition(identity, node, mode), Card(address, files), None, node) for node in parts]
    return units


def _library(addresses: Sequence[str], alone: bool) -> dict[str, AmdsmiCard]:
    """The cards behind the module, by address; none where it is not needed and cannot be had."""
    asleep = [address for address in addresses if sysfs.is_suspended(address)]
    try:
        if asleep:
            raise SourceError(
                Reason.SUSPENDED, f"amdsmi is not opened while {', '.join(asleep)} is suspended: it would wake it", backend="amd"
            )
        return _open_library()
    except SourceError:
        if alone:
            raise
        return {}


def _open_library() -> dict[str, AmdsmiCard]:
    module = amdsmi_library.load()
    try:
        module.amdsmi_init()
        handles = module.amdsmi_get_processor_handles()
        return {module.amdsmi_get_gpu_device_bdf(handle).lower(): AmdsmiCard(module, handle) for handle in handles}
    except module.AmdSmiException as error:
        words = " ".join(str(error).split())
        kind = DriverGoneError if getattr(error, "err_code", 0) == DRIVER_NOT_LOADED else SourceError
        raise kind(Reason.DRIVER_UNAVAILABLE, f"amdsmi does not start: {words}", backend="amd") from error


DRIVER_NOT_LOADED = 34


def _partition_values(node: Node, card: Card, steps: list[Any]) -> Values:
    """A partition's own memory and activity."""
    unsaid = Unavailable(Reason.NOT_SUPPORTED, "the compute driver does not say it of this partition")
    used = used_memory(node)
    steps.append(node.path)
    memory = memory_values(pool(unsaid if used is None else used, unsaid if node.memory is None else node.memory))
    return {**memory, "gpu": _partition_activity(node, card, steps)}


def _partition_activity(node: Node, card: Card, steps: list[Any]) -> Value:
    """How busy the compute dies of a partition are, on average."""
    table = card.read_table(steps)
    if isinstance(table, Unavailable):
        return table
    busy = table.get(BUSY.format(node.partition), ())
    if not busy:
        return Unavailable(Reason.NOT_SUPPORTED, "this revision of gpu_metrics says nothing of partitions")
    mean = sum(busy) / len(busy)
    return mean if mean <= 100 else Unavailable(Reason.INVALID_VALUE, f"partition {node.partition} was busy {mean:g} % of the time")
