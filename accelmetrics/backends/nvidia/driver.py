"""The open driver: its list of devices, the state that consumers of one device share, and one consumer's reader.

Details are asked for on request: the peers of NVLinks, supported clocks, the distance to other GPUs.
"""

from __future__ import annotations

import ctypes
import math
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from accelmetrics.backends.contract import NO_REASONS, NOT_NEEDED, Block, Clock, Number, Reading, ReadOptions, Value
from accelmetrics.backends.kit.processes import PACE, ProcessTree, node_pattern
from accelmetrics.backends.kit.system import ASLEEP, KeptFile, parse_meminfo, read_once, upstream
from accelmetrics.backends.nvidia import Maker
from accelmetrics.backends.nvidia.calls import CallGroup, Derive, FastValues, Paced
from accelmetrics.backends.nvidia.gpm import Gpm, SamplePool
from accelmetrics.backends.nvidia.links import MOST_LINKS
from accelmetrics.backends.nvidia.metrics import BOARD_METRICS, POWER_LIMIT, needed_for
from accelmetrics.backends.nvidia.nvml import (
    GONE,
    INSUFFICIENT_SIZE,
    INVALID_ARGUMENT,
    LOST,
    NOT_SUPPORTED,
    Handle,
    Library,
    Queries,
    impossible,
    unavailable,
)
from accelmetrics.backends.nvidia.processes import DeviceProcesses, TreeMembers, add_up
from accelmetrics.backends.nvidia.threads import PcieMeter, XidListener, Xids
from accelmetrics.schemas.errors import PartitionRemovedError, Reason, SourceError, Unavailable
from accelmetrics.schemas.identity import DeviceIdentity, DeviceProcess, pci_address
from accelmetrics.schemas.topology import SWITCH, Details, Link, SupportedClocks

Reasons = Mapping[str, Unavailable]
SLEEPS = "the GPU is powered down, and reading it would wake it"
# NVML does not support utilisation for a GPU in MIG mode.
_OF_INSTANCES = ("gpu", "memory", "encoderUtilization", "decoderUtilization")
_PARTITIONED = Unavailable(
    Reason.NOT_SUPPORTED,
    "the GPU is in MIG mode: it has no utilisation as a whole, see smActive of its instances; without instances, nothing can run on it",
)
REMOTE_GPU, REMOTE_SWITCH = 0, 2
"""``NVML_NVLINK_DEVICE_TYPE_…``"""
LEVELS = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
"""``NVML_TOPOLOGY_…``: same board, at most one switch, several switches, same host bridge, same NUMA node, whole machine."""
# Entries of a list of clocks: the first attempt's room, and the most that is plausible.
USUAL_CLOCKS, MOST_CLOCKS = 256, 4096
NO_LINKS = Unavailable(Reason.NOT_SUPPORTED, "its library is not known to report the peers of links")
OF_INSTANCE = Unavailable(Reason.NOT_SUPPORTED, "a MIG instance has none of its own: see those of its GPU")


class BoundDevice:
    """The bound calls of one device and the state that its consumers share. Only one worker reads it at a time.

    Args:
        handle: NVML's handle of the device.
        fast: The values of every reading.
        gpm: Binds its GPM calls for the needs of one consumer.
        table: The processes on it; None if they are not listed.
        slow: A GPU's values with longer intervals. A MIG instance has none.
        partitioned: Whether it is a GPU in MIG mode.
        shared: The memory values of a device that shares the host's memory.

    Attributes:
        due: Time of the next ``refresh``.
        blocks: The values with longer intervals.
        unavailable: Why others of them are missing; the same object until something changes.
        names: The names of the values.
        limit: The enforced power limit in watts, if it is known.
        whole: Whether it is a GPU and no instance; the watched process's share is reported for GPUs only.
    """

    def __init__(
        self,
        handle: Handle,
        fast: FastValues,
        gpm: Callable[[frozenset[str]], Gpm],
        table: DeviceProcesses | None,
        slow: tuple[Paced, ...] = (),
        partitioned: bool = False,
        shared: CallGroup | None = None,
    ) -> None:
        self.handle = handle
        self.fast = fast
        self.gpm = gpm
        self.table = table
        self.due = -math.inf
        self.blocks: tuple[Block, ...] = ()
        self.unavailable: Reasons = NO_REASONS
        self.names: frozenset[str] = frozenset()
        self.limit: Number | None = None
        self.whole = bool(slow)
        self.partitioned = partitioned
        self._paced = tuple(
            part for part in (*slow, table, shared) if part is not None
        )  # shared comes last: it uses the processes of the table
        self._changed = False
        self._names: list[tuple[tuple[str, ...], Reasons]] = []  # of each part's values, and its reasons

    def refresh(self, now: float, progress: list[Any]) -> None:
        """Read the slower values that are due."""
        for part in self._paced:
            # Kept in an attribute, because a reading may fail after some parts have changed.
            if now >= part.due and part.read(now, progress):
                self._changed = True
        self.due = min([part.due for part in self._paced], default=math.inf)
        if not self._changed:
            return
        self._changed = False
        self.blocks = tuple(part.block for part in self._paced if part.block.names)
        # Mostly only values have changed, and neither names nor reasons.
        names = [(part.block.names, part.unavailable) for part in self._paced]
        if names != self._names:
            self._names = names
            merged = {name: reason for part in self._paced for name, reason in part.unavailable.items()}
            if merged != self.unavailable:
                self.unavailable = merged
            self.names = frozenset(name for block in self.blocks for name in block.names)
        self.limit = next((block.values[block.names.index(POWER_LIMIT)] for block in self.blocks if POWER_LIMIT in block.names), None)
        limit = self.unavailable.get(POWER_LIMIT, NOT_NEEDED) if self.limit is None else self.limit
        self.fast.depend_on(limit, self.names.union(self.unavailable))


class Listed:
    """An entry of the list: a GPU, or a MIG instance of one.

    Attributes:
        identity: Its identity, as far as it is known.
        opened: Whether the first calls that identify it have returned.
        device: Its bound calls; None while it cannot be read.
        needed: The metrics for which it was bound.
        due: Time of the next ``refresh``.
        xids: Its Xid errors; None if they are not read.
        power: The file with the GPU's power state; None if the kernel has none.
    """

    xids: Xids | None = None

    def __init__(self, identity: DeviceIdentity, failure: SourceError) -> None:
        self.identity = identity
        self.opened = False
        self.device: BoundDevice | None = None
        self.needed: frozenset[str] = frozenset()
        self.due = -math.inf
        self.power: KeptFile | None = None
        self._failure = failure
        self._again = -math.inf

    def let_sleep(self) -> None:
        """Make sure that the GPU is not suspended, because any call about it would wake it.

        Raises:
            SourceError: It is suspended (``suspended``).
        """
        try:
            asleep = self.power is not None and self.power.read().decode().strip() in ASLEEP
        except OSError:  # it is off the bus: the driver's error says more
            return
        if asleep:
            raise SourceError(Reason.SUSPENDED, SLEEPS, backend=self.identity.vendor)

    def refresh(self, now: float, progress: list[Any]) -> BoundDevice:
        """Do everything that is due: find the device if it was lost, read the slower values.

        Raises:
            SourceError: It cannot be read.
        """
        due = self.find(now, progress)
        if self.device is None:
            raise self.failure()
        if now >= self.device.due:
            self.device.refresh(now, progress)
        self.due = min(due, self.device.due)
        return self.device

    def failure(self) -> SourceError:
        """Return why it cannot be read, as a new error each time."""
        # An error that is raised repeatedly grows with each traceback.
        why = self._failure
        kind = PartitionRemovedError if isinstance(why, PartitionRemovedError) else SourceError
        return kind(why.reason, why.message, backend=why.backend, advice=why.advice)

    def find(self, now: float, progress: list[Any]) -> float:
        """Set ``device`` and complete ``identity``, as far as that is due. Returns the time of the next call."""
        raise NotImplementedError

    def bind(self, handle: Handle, needed: frozenset[str]) -> None:
        """Bind the calls for the needed metrics to a handle, and set ``device``."""
        self.needed = needed
        # Slow values are due again, even if the first attempt fails.
        self.due = -math.inf
        self.device = self.bound(handle, needed)

    def bound(self, handle: Handle, needed: frozenset[str]) -> BoundDevice:
        """Return the calls for the needed metrics, bound to a handle."""
        raise NotImplementedError


class NvidiaDriver:
    """The initialised NVML with its devices: GPUs in NVML's order, then MIG instances in the order of discovery.

    A unit is a position in this list and never changes. An instance that is gone keeps its position and reports whether it was
    removed or is lost; a new one is added at the end. Workers of several units change the list, so a lock guards it. Two drivers
    may be open at a time (NVML counts its users), each with its own devices, intervals and buffers.

    Args:
        library: The open library.
        clock: Clock for intervals.
        driver_version: The driver's version, empty if unknown.
        runtime_version: The newest CUDA version that it supports, empty if unknown.

    Attributes:
        maker: The library's maker.
        source: The library in one word.
        listener: Counts Xid errors.
        samples: Lends GPM sample buffers.
        meter: Measures PCIe throughput.
        listed: The list.
        devices: The identities in it; the same object until one changes.
        needed: The metrics that any consumer has needed so far. It only grows, because calls are bound again for new ones.
    """

    machine_wide = False

    def __init__(self, library: Library, clock: Clock, driver_version: str, runtime_version: str) -> None:
        self.library = library
        self.maker = library.maker
        self.source = self.maker.source
        self.clock = clock
        self.listener = XidListener(library)
        self.samples = SamplePool(library)
        self.meter = PcieMeter(library, clock)
        self.listed: list[Listed] = []
        self.devices: tuple[DeviceIdentity, ...] = ()
        self.needed: frozenset[str] = frozenset()
        self._blank = DeviceIdentity(self.maker.kind, self.maker.name, 0, driver_version=driver_version, runtime_version=runtime_version)
        self._lock = threading.Lock()

    def reader(self, options: ReadOptions) -> NvidiaReader:
        needed = needed_for(options.metrics, self.maker)
        with self._lock:
            self.needed |= needed
        return NvidiaReader(self, options.pid, needed)

    def details(self, unit: int, progress: list[Any]) -> Details:
        listed = self.listed[unit]
        listed.let_sleep()
        listed.find(self.clock.monotonic(), progress)
        if listed.device is None:
            raise listed.failure()
        if listed.identity.parent:
            return Details(OF_INSTANCE, OF_INSTANCE)
        handle, queries = listed.device.handle, Queries(self.library, progress, LOST)
        paths = {}
        if not upstream(pci_address(listed.identity.pci_bus_id)):  # the kernel's tree is preferred: this call needs two GPUs to answer
            pairs = Queries(self.library, progress, GONE)
            for other in self.listed:
                if other is not listed and other.device is not None and not other.identity.parent:
                    level = pairs.number("nvmlDeviceGetTopologyCommonAncestor", handle, other.device.handle)
                    if level in LEVELS:
                        paths[pci_address(other.identity.pci_bus_id)] = LEVELS[level]
        maker = self.maker
        # Other vendors number the peers of links differently, so links are counted only if the maker's row covers NVML's links.
        links = _links(queries, handle) if maker.covers("nvlink.0.state") else NO_LINKS
        clocks = _clocks(queries, handle)
        return Details(
            maker.reason(links) if isinstance(links, Unavailable) else links,
            maker.reason(clocks) if isinstance(clocks, Unavailable) else clocks,
            paths,
        )

    def close(self) -> None:
        if not all([self.listener.close(), self.meter.close()]) or not all(entry.opened for entry in self.listed):
            return  # a hanging call still uses the library
        self.samples.close()
        self.library.close()
        for entry in self.listed:  # entries, calls and driver refer to one another: this frees them without the garbage collector
            entry.device = None
        self.listed.clear()

    def identify(self, number: int, **facts: Any) -> DeviceIdentity:
        """Make a device's identity from its NVML number, the driver's versions and further facts."""
        return self._blank._replace(vendor_index=number, **facts)

    def add(self, entry: Listed) -> None:
        """Add a new device to the list."""
        with self._lock:
            self.listed.append(entry)
        self.update()

    def update(self) -> None:
        """Rebuild ``devices`` after an identity may have changed; keep the object if equal."""
        with self._lock:
            devices = tuple([entry.identity for entry in self.listed])
            if devices != self.devices:
                self.devices = devices


def _links(queries: Queries, handle: Handle) -> tuple[Link, ...] | Unavailable:
    """Count the NVLinks that are up, by peer."""
    found: Counter[str] = Counter()
    for link in range(MOST_LINKS):
        up = queries.number("nvmlDeviceGetNvLinkState", handle, link)
        if queries.status == INVALID_ARGUMENT:  # there are no more links
            break
        if up is None and queries.status != NOT_SUPPORTED:
            return unavailable(queries.status)
        if up:
            kind = queries.number("nvmlDeviceGetNvLinkRemoteDeviceType", handle, link)
            address = queries.remote_pci(handle, link) if kind == REMOTE_GPU else ""
            found[SWITCH if kind == REMOTE_SWITCH else pci_address(address) if address else ""] += 1
    return tuple(Link("nvlink", to, count, 2 if to == SWITCH else 1) for to, count in found.items())


def _clocks(queries: Queries, handle: Handle) -> SupportedClocks | Unavailable:
    memory = _numbers(queries, "nvmlDeviceGetSupportedMemoryClocks", handle)
    if isinstance(memory, Unavailable):
        return memory
    by_memory = {}
    for clock in memory:
        graphics = _numbers(queries, "nvmlDeviceGetSupportedGraphicsClocks", handle, clock)
        if isinstance(graphics, Unavailable):
            return graphics
        by_memory[clock] = graphics
    return SupportedClocks(memory, tuple(sorted({clock for clocks in by_memory.values() for clock in clocks}, reverse=True)), by_memory)


def _numbers(queries: Queries, name: str, *arguments: Any) -> tuple[int, ...] | Unavailable:
    """Ask for a list of numbers, sorted from the largest. If the room is too small, ask again with the size that the driver reports."""
    room = USUAL_CLOCKS
    while True:
        count, answer = ctypes.c_uint(room), (ctypes.c_uint * room)()
        if queries.call(name, *arguments, ctypes.byref(count), answer):
            return tuple(sorted({*answer[: min(count.value, room)]} - {0}, reverse=True))
        if queries.status != INSUFFICIENT_SIZE or not room < count.value <= MOST_CLOCKS:
            return unavailable(queries.status)
        room = count.value


class NvidiaReader:
    """A consumer's reader, with its watched process and the state of its rates.

    Args:
        driver: The open driver.
        pid: The watched process. Memory and utilisation always include its descendants.
        needed: The metrics that are read for it.
    """

    def __init__(self, driver: NvidiaDriver, pid: int, needed: frozenset[str]) -> None:
        self._driver = driver
        self._now = driver.clock.monotonic
        self._tree = ProcessTree(pid)
        self._needed = needed
        self._readers: dict[int, DeviceReader] = {}

    def read(self, unit: int, progress: list[Any]) -> Reading:
        now = self._now()
        listed = self._driver.listed[unit]
        if listed.power is not None:
            listed.let_sleep()
        device = listed.device
        if device is None or now >= listed.due:
            device = listed.refresh(now, progress)
        reader = self._readers.get(unit)
        if reader is None or reader.device is not device:
            # The device's calls were bound again, so this consumer needs a reader for them.
            # Bound for the needs of all consumers, so that two of them do not bind in turns.
            if not self._needed <= listed.needed:
                listed.bind(device.handle, self._driver.needed)
                device = listed.refresh(now, progress)
            reader = self._readers[unit] = DeviceReader(self._driver.maker, listed, device, self._tree, self._needed, reader)
        return reader.read(now, progress)

    def events(self, unit: int) -> Mapping[str, Number]:
        """Return the known counts of a GPU's Xid errors, without calling the driver."""
        xids = self._driver.listed[unit].xids
        return {} if xids is None else xids.known()


class DeviceReader:
    """A consumer's readings of one device.

    Args:
        maker: The device's maker.
        listed: The device's entry in the list.
        device: Its bound calls.
        tree: The watched process and its descendants.
        needed: The metrics that are read for it.
        before: This consumer's reader of the calls that were bound before; None for a new device.
    """

    def __init__(
        self,
        maker: Maker,
        listed: Listed,
        device: BoundDevice,
        tree: ProcessTree,
        needed: frozenset[str],
        before: DeviceReader | None,
    ) -> None:
        self.device = device
        self._maker = maker
        self._listed = listed
        # If the calls were bound again only because another consumer wants more, this one's GPM samples stay valid.
        same = before is not None and before.device.handle is device.handle and before.device.partitioned == device.partitioned
        self._gpm: Gpm = before._gpm if before is not None and same else device.gpm(needed)
        self._members = TreeMembers(tree, node_pattern(listed.identity))
        self._processes: tuple[DeviceProcess, ...] | None = None
        self._until = -math.inf
        self._own: dict[str, Number] | None = None  # None while none of the watched processes uses the device
        self._share_names: tuple[str, ...] = ()
        self._parts: tuple[Reasons, ...] = (NO_REASONS,) * 3
        self._merged: dict[str, Unavailable] = {}

    def read(self, now: float, progress: list[Any]) -> Reading:
        """Read the device now."""
        device, gpm, maker = self.device, self._gpm, self._maker
        values, flags = device.fast.read(progress)
        if now >= gpm.due:
            gpm.read(now, progress)
        # Later parts override GPM's reasons: without PCIe rates in GPM, they may be measured.
        parts = (gpm.unavailable, device.fast.unavailable, device.unavailable)
        if parts != self._parts:
            self._parts = parts
            # A slower part may have a value that a faster one lacks.
            self._merged = {name: reason for part in parts for name, reason in part.items() if name not in device.names}
            if device.partitioned:
                # "Not supported" alone would not tell a person why.
                missing = [name for name in _OF_INSTANCES if name in self._merged and self._merged[name].reason == Reason.NOT_SUPPORTED]
                self._merged.update(dict.fromkeys(missing, _PARTITIONED))
            self._merged = {name: maker.reason(reason) for name, reason in self._merged.items() if maker.covers(name)}
        blocks = [values, flags, gpm.block, *device.blocks]
        if device.table is None:
            return Reading(blocks, self._merged, NOT_NEEDED)
        # All calls of the reading were made, so decoding delays none of them.
        if device.table.pending:
            device.table.decode()
        if device.table.refusal is not None:
            return Reading(blocks, self._merged, maker.reason(device.table.refusal))
        processes = device.table.processes
        if processes and device.whole:
            self._add_share(blocks, device.table, now)
        return Reading(blocks, self._merged, processes)

    def _add_share(self, blocks: list[Block], table: DeviceProcesses, now: float) -> None:
        """Add the use of the device by the watched process and its descendants, if they use it: ``gpu.process.{i}.…``.

        It is computed when the processes were read again, and once a second, because process trees change too. The board's values
        are added at every reading.
        """
        if table.processes is not self._processes or now >= self._until:
            pids = self._members.among(table.pids, now)
            self._processes, self._until = table.processes, now + PACE
            members = [process for process in table.processes if process.pid in pids]
            own = add_up(members, self._listed.identity.memory_total_bytes) if members else None
            self._own = None if own is None else {self._maker.called(name): value for name, value in own.items()}
        if self._own is None:
            return
        fast, limit = blocks[0], self.device.limit
        found = dict(zip(fast.names, fast.values, strict=True))
        share = {**self._own, **{name: found[name] for name in BOARD_METRICS if name in found}}
        if limit is not None:
            share[POWER_LIMIT] = limit
        names = tuple(share)
        if names != self._share_names:
            self._share_names = names
        blocks.append(Block(self._share_names, tuple(share.values()), process=True))


def host_memory_total() -> int | None:
    """Return the host's memory in bytes, without swap; None if ``/proc/meminfo`` does not list it."""
    try:
        return parse_meminfo(read_once("/proc/meminfo")).total
    except (OSError, ValueError):
        return None


def _unreported(what: str) -> Unavailable:
    return Unavailable(Reason.NOT_SUPPORTED, f"the device shares the host's memory, and the driver does not say what {what} of it")


def of_unified_memory(table: DeviceProcesses) -> Derive:
    """Make the function that computes the memory values of a device that shares the host's memory.

    The driver's own values come first. Without them, the total is the host's memory, which the device can address, and the used
    memory is the sum over the processes on the device. Memory used by the rest of the host does not count.
    """

    def derive(answers: Mapping[str, Value]) -> Mapping[str, Value]:
        total, free, used = (answers[name] for name in ("memoryTotalBytes", "memoryFreeBytes", "memoryAllocatedBytes"))
        if isinstance(total, Unavailable):
            unread = Unavailable(Reason.NOT_SUPPORTED, "the device shares the host's memory, and /proc/meminfo cannot be read")
            total, free = host_memory_total() or unread, _unreported("is free")
        if isinstance(used, Unavailable):
            if table.pending:
                table.decode()
            held = [process.memory_bytes for process in table.processes if process.memory_bytes is not None]
            # A sum is not reported if the memory of one process is unknown.
            used = table.refusal or (sum(held) if len(held) == len(table.processes) else _unreported("its processes hold"))
        if isinstance(used, Unavailable) or isinstance(total, Unavailable):
            share: Value = used if isinstance(used, Unavailable) else total
        else:
            share = used / total * 100 if used <= total else impossible("the sum over the processes")
        return {"memoryTotalBytes": total, "memoryFreeBytes": free, "memoryAllocatedBytes": used, "memoryAllocated": share}

    return derive
