"""One device as one consumer sees it: a card, from its files and the module ``amdsmi``, or a partition of one (XCP).

Power, temperature and the like stay on the card, so that sums are right; a partition has memory and activity of its own.
"""

from __future__ import annotations

from typing import Any

from accelmetrics.backends.amd.amdsmi_source import AmdsmiCard
from accelmetrics.backends.amd.beside import OVERDUE, BesideCard
from accelmetrics.backends.amd.card import Card
from accelmetrics.backends.amd.coverage import COVERAGE
from accelmetrics.backends.amd.gpu_metrics import BUSY
from accelmetrics.backends.amd.processes import ProcessTable
from accelmetrics.backends.amd.share import Share
from accelmetrics.backends.amd.sysfs_fields import read_values
from accelmetrics.backends.amd.sysfs_identity import identify
from accelmetrics.backends.amd.table import Form, Value, Values, memory_values, pool
from accelmetrics.backends.amd.throttling import Counts, counts_of
from accelmetrics.backends.amd.topology import Node, gpu_nodes, used_memory
from accelmetrics.backends.contract import Reading
from accelmetrics.backends.kit.processes import ProcessTree
from accelmetrics.schemas.errors import SourceError
from accelmetrics.schemas.identity import DeviceIdentity
from accelmetrics.schemas.reasons import Reason, Unavailable

ALL = tuple(COVERAGE.devices)
OF_PARTITIONS = tuple(COVERAGE.partitions)
NOT_READ = Unavailable(Reason.NOT_SUPPORTED, "the kernel driver's files are not read: another source was asked for")


class Unit:
    """One device of the driver.

    Attributes:
        identity: Who it is.
        card: The files of it, or of the card that it is a partition of.
        library: The card behind the module, where that is open; on a thread of its own where the files are read too.
        node: The partition, None for a whole card.
    """

    def __init__(self, identity: DeviceIdentity, card: Card, node: Node | None = None) -> None:
        self.identity = identity
        self.card = card
        self.library: AmdsmiCard | BesideCard | None = None
        self.node = node
        self._unsure = node is None and identity.memory_total_bytes is None

    def awake(self, table: ProcessTable) -> None:
        """Find out what could not be asked of a card that slept: its memory, and whether that is the host's."""
        if self._unsure:
            self.identity = identify(self.identity.vendor_index, self.card.address, gpu_nodes())
            self._unsure = False
            if self.identity.unified:
                table.unified.add(self.card.address)


class View:
    """One device as one consumer sees it."""

    def __init__(self, unit: Unit, family: ProcessTree, with_files: bool) -> None:
        self._unit = unit
        self._with_files = with_files
        self._form = Form()
        self._share = Share(family)
        self._counts: Counts = {}

    def read(self, now: float, table: ProcessTable, progress: list[Any]) -> Reading:
        """Everything about the device, now.

        Raises:
            SourceError: It has gone.
        """
        unit = self._unit
        if not unit.card.check(progress):
            asleep = Unavailable(Reason.SUSPENDED, f"{unit.card.address} is powered down, and reading it would wake it")
            return self._form.reading(dict.fromkeys(ALL if unit.node is None else OF_PARTITIONS, asleep))
        if unit.node is not None:
            return self._form.reading(_partition_values(unit.node, unit.card, now, progress))
        unit.awake(table)
        values = self._values(now, progress)
        processes = table.on(unit.card.address, now, progress)
        return self._form.reading(values, share=self._share.block(processes, values, now), processes=processes)

    def _values(self, now: float, progress: list[Any]) -> Values:
        values: Values = self._of_files(now, progress) if self._with_files else dict.fromkeys(ALL, NOT_READ)
        missing = {name for name, value in values.items() if isinstance(value, Unavailable) and value.reason != Reason.NEEDS_INTERVAL}
        library = self._unit.library
        if library is None or not missing:
            return values
        try:
            said = library.read(missing, self._unit.identity.unified, progress)
        except SourceError:
            if not self._with_files:
                raise
            return values  # the library lost sight of a card that the kernel still shows
        better = {
            name: value for name, value in said.items() if not self._with_files or not isinstance(value, Unavailable) or value is OVERDUE
        }
        return {**values, **better}

    def _of_files(self, now: float, progress: list[Any]) -> Values:
        card = self._unit.card
        card.refresh(now, progress)
        if not card.shown:
            raise card.lost(f"the kernel driver no longer shows {card.address}")
        values = read_values(card, self._unit.identity.unified, self._counts)
        self._counts = {} if isinstance(card.table, Unavailable) else counts_of(card.table)
        return values


def _partition_values(node: Node, card: Card, now: float, progress: list[Any]) -> Values:
    """A partition's own memory and activity."""
    unsaid = Unavailable(Reason.NOT_SUPPORTED, "the compute driver does not say it of this partition")
    used = used_memory(node)
    progress.append(node.path)
    memory = memory_values(pool(unsaid if used is None else used, unsaid if node.memory is None else node.memory))
    return {**memory, "gpu": _partition_activity(node, card, now, progress)}


def _partition_activity(node: Node, card: Card, now: float, progress: list[Any]) -> Value:
    """How busy the compute dies of a partition are, on average."""
    table = card.table_at(now, progress)
    if isinstance(table, Unavailable):
        return table
    busy = table.get(BUSY.format(node.partition), ())
    if not busy:
        return Unavailable(Reason.NOT_SUPPORTED, "this revision of gpu_metrics says nothing of partitions")
    mean = sum(busy) / len(busy)
    return mean if mean <= 100 else Unavailable(Reason.INVALID_VALUE, f"partition {node.partition} was busy {mean:g} % of the time")
