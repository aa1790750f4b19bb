"""Sources that need no process of their own: the kernel driver's files, and the module ``amdsmi``.

They are merged metric by metric: a value comes from the files, and a value that the files do not have from the module, if one matches
(:mod:`~accelmetrics.backends.amd.amdsmi`). The module is called on its own thread. Opening its library wakes cards, so it is opened only
when no card sleeps. While opening takes too long, the files are read, and the other metrics are ``timed_out``; the module is used once it
is open.

A sleeping card is not read: every metric has the reason ``suspended``. A card that its driver released is lost. If the driver releases all
cards, the driver is gone, and it is opened again when it is back.

For a card with partitions (XCP), power, temperature and similar metrics belong to the card, so that sums are correct. A partition has its
own memory and utilisation.

The use by processes is read once a second (:mod:`~accelmetrics.backends.kit.fdinfo`). Engine time is that of the graphics and compute
rings. Work that a runtime submits through its own queues (ROCm) does not pass through these rings, so only its memory is visible.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from accelmetrics.backends.amd.amdsmi import ATTEMPTS, METRICS, OVERDUE, AmdsmiCard, AmdsmiWorker, Attempt, Trust, open_cards
from accelmetrics.backends.amd.cards import AMD, Maker, TopologyNode, device_path, gpu_nodes, gpus, is_driven, xgmi_links
from accelmetrics.backends.amd.sysfs import CARDS, PARTITIONS, SHOWN, Card, identify, partition, pools
from accelmetrics.backends.contract import NOT_NEEDED, SYSTEM_CLOCK, Clock, Processes, Reading, ReadOptions, Value
from accelmetrics.backends.kit.fdinfo import DrmClients, DrmKeys
from accelmetrics.backends.kit.fields import Chosen, Counters, Table, make_reading
from accelmetrics.backends.kit.processes import ProcessTree, process_values
from accelmetrics.backends.kit.system import Files, exists
from accelmetrics.schemas.catalogue import coverage_of
from accelmetrics.schemas.errors import DriverGoneError, Reason, SourceError, Unavailable
from accelmetrics.schemas.identity import DeviceIdentity
from accelmetrics.schemas.topology import Details

SYSFS, AMDSMI = "sysfs", "amdsmi"
RELIST = 30.0
"""Seconds between two searches for new cards. A search reads the whole PCI bus."""
ASLEEP = "{} is powered down, and reading it would wake it"
OF_PARTITION = Unavailable(Reason.NOT_SUPPORTED, "a partition has none of its own: those of its card hold")
NO_ANSWER = Unavailable(Reason.NOT_SUPPORTED, "amdsmi gives nothing")
KEYS = DrmKeys({"compute": ("compute",), "graphics": ("gfx",)}, (("vram",),))
"""The driver's names of engines and memory. An APU's memory is counted in the pools of the device."""
FIRST_OPENING, LATER_OPENING = 4.0, 0.4
"""Seconds to wait for the module if there are files too: when the driver is opened, and during a reading."""


class DriverUnit:
    """A device of the driver.

    Attributes:
        identity: Its identity.
        card: Its files, or the files of the card that it is a partition of.
        library: The card in the module, if the module is open; on its own thread if the files are read too.
        node: The partition; None for a whole card.
        table: The rows that are read.
        chosen: Where each metric was read first. It keeps this place until the driver is opened again or the card returns.
    """

    def __init__(self, identity: DeviceIdentity, card: Card, node: TopologyNode | None = None) -> None:
        self.identity = identity
        self.card = card
        self.library: AmdsmiCard | AmdsmiWorker | None = None
        self.node = node
        self.table: Table = CARDS if node is None else PARTITIONS
        self.unsure = node is None and identity.memory_total_bytes is None
        self.chosen: Chosen = {}


class InProcessDriver:
    """The open source.

    Args:
        clock: Clock for intervals.
        sources: The sources to use. If there are two, one of them may fail to open.
        maker: The maker of the cards.

    Attributes:
        failure: Why the module is not used, or not yet.

    Raises:
        SourceError: There is no card, or the only source cannot be opened.
    """

    machine_wide = False
    interval = 0.0

    def __init__(self, clock: Clock = SYSTEM_CLOCK, sources: Sequence[str] = (SYSFS, AMDSMI), maker: Maker = AMD) -> None:
        self.clock = clock
        self._maker = maker
        self._files = Files()
        self._listed = _list(maker)
        self._addresses = sorted(self._listed[0])
        self._trust = Trust()
        self._library: Mapping[str, AmdsmiCard] = {}
        self.units: list[DriverUnit] = []
        if not self._addresses:
            raise SourceError(Reason.DRIVER_UNAVAILABLE, f"no GPU is driven by {' or '.join(maker.drivers)} here", backend=maker.name)
        nodes = gpu_nodes()
        for number, address in enumerate(self._addresses):
            card = Card(address, self._files, [other for other in self._addresses if other != address])
            identity = identify(number, address, nodes)
            parts = [node for node in nodes if node.address == address]
            self.units += [DriverUnit(identity, card, node) for node in (None, *(parts if len(parts) > 1 else ()))]
        shown = any(exists(f"{device_path(address)}/{name}") for address in self._addresses for name in SHOWN)
        self.with_files = SYSFS in sources and shown
        self._attempt: Attempt | None = None
        self.failure = self._open_library(FIRST_OPENING) if AMDSMI in sources else None
        if not self.with_files and not self._library:
            if SYSFS not in sources and self.failure is not None:
                raise self.failure
            words = f"the kernel driver's files are not to be seen here: {', '.join(self._addresses)}"
            advice = "" if self.failure is None else self.failure.advice
            raise SourceError(Reason.DRIVER_UNAVAILABLE, "; ".join(filter(None, (words, self.remark))), backend=maker.name, advice=advice)
        self._name_units()
        self.devices: Sequence[DeviceIdentity] = tuple(unit.identity for unit in self.units)
        self._relist_at = clock.monotonic() + RELIST
        self._relist_lock = threading.Lock()
        shared = {unit.card.address: pools(unit.card.address) for unit in self.units if unit.identity.unified}
        self.processes = DrmClients(KEYS, shared, clock=clock)

    @property
    def source(self) -> str:
        return "+".join(name for name, used in ((SYSFS, self.with_files), (AMDSMI, self._library)) if used)

    @property
    def remark(self) -> str:
        """A remark for ``doctor``: why ``amdsmi`` is not used, or that it hangs; empty if all is well."""
        if self.failure is not None:
            return f"amdsmi is not used: {self.failure.message}"
        return OVERDUE.detail if any(worker.hangs for worker in self._workers()) else ""

    def reader(self, options: ReadOptions) -> InProcessReader:
        return InProcessReader(self, options)

    def details(self, unit: int, progress: list[Any]) -> Details:
        device = self.units[unit]
        if not device.card.is_awake(progress):
            raise SourceError(Reason.SUSPENDED, ASLEEP.format(device.card.address), backend=self._maker.name)
        if device.node is not None:
            return Details(OF_PARTITION, OF_PARTITION)
        return Details(xgmi_links(device.card.address), device.card.clocks(progress))

    def close(self) -> None:
        self._files.close()
        for worker in self._workers():
            worker.close()

    def _workers(self) -> list[AmdsmiWorker]:
        return [unit.library for unit in self.units if isinstance(unit.library, AmdsmiWorker)]

    def _open_library(self, seconds: float) -> SourceError | None:
        """Open the module and assign its cards to the units.

        Args:
            seconds: How long to wait for it if the files are read too.

        Returns:
            Why it cannot be opened, or is not open yet; None if it is open.
        """
        try:
            if self.with_files:
                # A second attempt would hang at the same place.
                if self._attempt is None and ATTEMPTS:
                    raise SourceError(Reason.TIMED_OUT, "an earlier attempt to open it has not returned", backend="amd")
                self._attempt = self._attempt or Attempt(self._addresses)
                self._library = self._attempt.cards(seconds)
            else:
                self._library = open_cards(self._addresses)
        except SourceError as error:
            return error.with_traceback(None)  # its frames would keep this driver alive
        finally:
            if self._attempt is not None and self._attempt.outcome is not None:
                self._attempt = None
        for unit in self.units:
            # The module knows whole cards only. With files, it is called on a thread, so that a call that hangs delays
            # no file.
            card = self._library.get(unit.card.address) if unit.node is None else None
            unit.library = AmdsmiWorker(card, self._trust) if card is not None and self.with_files else card
        return None

    def _name_units(self) -> None:
        """Set the UUIDs: from the files, else from the module. Set the identities of partitions from their card's."""
        cards = {unit.card.address: unit for unit in self.units if unit.node is None}
        known = {address: card.uuid for address, card in self._library.items()}
        uuids = {address: card.identity.uuid or known.get(address, "") for address, card in cards.items()}
        ids = Counter(uuids.values())
        for address, card in cards.items():  # an id of two cards identifies neither
            card.identity = card.identity._replace(uuid=uuids[address] if ids[uuids[address]] == 1 else "")
        for unit in self.units:
            if unit.node is not None:
                unit.identity = partition(cards[unit.card.address].identity, unit.node)

    def relist(self, now: float) -> None:
        """Search for new cards and partitions every :data:`RELIST` seconds, and use the module when it has been opened.

        Raises:
            DriverGoneError: There are new cards or partitions, so the driver must be opened again. A missing card only gets lost.
        """
        opened = self._attempt is not None and self._attempt.outcome is not None
        # Only one reader searches at a time. The others do not wait for it.
        if (now < self._relist_at and not opened) or not self._relist_lock.acquire(blocking=False):
            return
        try:
            if opened:
                self.failure = self._open_library(0.0)
                return
            self._relist_at = now + RELIST
            (addresses, partitions), (listed, parts) = _list(self._maker), self._listed
            remaining = {part for part in parts if part[0] in addresses}
            if addresses - listed or {part for part in partitions if part[0] in addresses} != remaining:
                raise DriverGoneError(
                    Reason.DRIVER_UNAVAILABLE, "there are cards or partitions that were not listed yet", backend=self._maker.name
                )
            # The module was not opened because a card slept, or because an earlier attempt took too long.
            if self.failure is not None and self.failure.reason in (Reason.SUSPENDED, Reason.TIMED_OUT):
                self.failure = self._open_library(LATER_OPENING)
        finally:
            self._relist_lock.release()

    def identify_awake(self, unit: DriverUnit) -> None:
        """Complete the identity of a card that slept when it was listed: its memory, and whether the memory is the host's."""
        found = identify(unit.identity.vendor_index, unit.card.address, gpu_nodes())
        unit.identity = found._replace(uuid=unit.identity.uuid)
        unit.unsure = False
        if unit.identity.unified:
            self.processes.pools[unit.card.address] = pools(unit.card.address)
        devices = tuple(each.identity for each in self.units)
        if devices != self.devices:
            self.devices = devices


def _list(maker: Maker) -> tuple[frozenset[str], frozenset[tuple[str, int]]]:
    """Return the cards with values in the kernel's files, and the partitions."""
    return frozenset(filter(is_driven, gpus(maker))), frozenset((node.address, node.partition) for node in gpu_nodes())


class InProcessReader:
    """A consumer's view: the last counters for its rates, and its needs from the module and of processes."""

    def __init__(self, driver: InProcessDriver, options: ReadOptions) -> None:
        self._driver = driver
        # GPU memory and engine time always cover the whole process tree, so `options.children` has no effect.
        self._tree = ProcessTree(options.pid)
        self._counters: dict[int, Counters] = {}
        metrics = options.metrics
        of_process = any(metrics.wants_some(f"gpu.process.{{i}}.{name}") for name in coverage_of("amd")["processes"])
        self._lists = of_process or metrics.processes
        self._needed = CARDS.needed(
            lambda name: of_process or metrics.wants_some(f"gpu.{{i}}.{name}") or metrics.wants_some(f"gpu.{{i}}.mig.{{i}}.{name}")
        )

    def read(self, unit: int, progress: list[Any]) -> Reading:
        driver = self._driver
        if not self._needed and not self._lists:
            return Reading(processes=NOT_NEEDED)
        now = driver.clock.monotonic()
        driver.relist(now)
        device = driver.units[unit]
        counters = self._counters.setdefault(unit, {})
        card, table = device.card, device.table
        try:
            awake = card.is_awake(progress)
        except SourceError:
            device.chosen.clear()  # a card that returns may have other files
            raise
        if not awake:
            asleep = Unavailable(Reason.SUSPENDED, ASLEEP.format(card.address))
            return make_reading(dict.fromkeys(table.words, asleep))
        processes: Processes = None
        used = None
        if device.node is not None:
            found = table.read(card.partition(device.node, now, progress), counters, now, chosen=device.chosen)
            table.derive(found, device.chosen)
        else:
            if device.unsure:
                driver.identify_awake(device)
            found = self._card(device, now, counters, progress)
            table.derive(found, device.chosen)
            processes = driver.processes.on(card.address, progress) if self._lists else NOT_NEEDED
            owned = [each for each in processes if self._tree.owns(each.pid, now)] if not isinstance(processes, Unavailable) else []
            used = process_values("gpu", owned, found) if owned else None
        named = {name: value for metric, value in found.items() for name in table.names(metric)}
        return make_reading(named, processes, used=used)

    def _card(self, unit: DriverUnit, now: float, counters: Counters, progress: list[Any]) -> dict[str, Value]:
        """Return the values of a card: from the files, and from the module if the files have none."""
        driver, library, unified = self._driver, unit.library, unit.identity.unified
        found: dict[str, Value] = {}
        if driver.with_files:
            record = unit.card.record(now, unified, progress, unit.chosen)
            found = CARDS.read(record, counters, now, chosen=unit.chosen)
        # A metric keeps its source. If the files miss a value for a moment, the module does not replace it, nor the other way round.
        wanted = {name for name in METRICS & self._needed if unit.chosen.get(name, (AMDSMI,))[0] == AMDSMI}
        if library is None or not wanted:
            failure = driver.failure
            is_late = driver.with_files and failure is not None and failure.reason == Reason.TIMED_OUT
            return {**found, **dict.fromkeys(wanted, failure.unavailable)} if failure is not None and is_late else found
        # Metrics that the module gave before stay the module's even if it fails now.
        owned = {name: NO_ANSWER for name in wanted if name in unit.chosen}
        try:
            answers = library.read(wanted, unified, progress, unit.chosen)
        except SourceError as error:
            if not driver.with_files:
                raise
            # The library no longer finds a card that the kernel still shows, so the files are used.
            return {**dict.fromkeys(owned, error.unavailable), **found}
        if not driver.with_files:
            return answers
        better = {name: value for name, value in answers.items() if not isinstance(value, Unavailable) or name in owned or value is OVERDUE}
        return {**owned, **found, **better}
