"""The GPUs of a machine: found when the driver is opened, described at their first reading, and asked again until nothing is missing.

Opening the driver asks only for the facts that list a GPU, on a thread that is replaced if a call does not return. The rest is
asked at the GPU's first reading, where a hanging call affects no other GPU.

MIG instances are found when the driver is opened, and looked for again every ten seconds. An instance is a separate device with
memory, processes and GPM metrics. Power, temperature, clocks and memory errors belong to the board and stay with the GPU, so that
sums over devices are right. An instance has no ``gpu.process`` keys: W&B's keys have room for one number, and the GPU's number
covers all its instances. An instance is identified by its UUID. The driver derives it from the ids of the GPU and of the instance,
so an instance that is made again is the same device. Its number below the GPU is NVML's index, which another instance may get after
a reconfiguration.
"""

from __future__ import annotations

import ctypes
import math
import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any

from accelmetrics.backends.built_in import BUILT_IN
from accelmetrics.backends.contract import Clock, Reading, ReadOptions, Value
from accelmetrics.backends.guard import guarded
from accelmetrics.backends.kit.system import PCI, KeptFile, exists, is_asleep, pci_slot, read_text
from accelmetrics.backends.nvidia import Maker
from accelmetrics.backends.nvidia.calls import EARLY, MEMORY_NAMES, CallGroup, FastValues, Paced
from accelmetrics.backends.nvidia.conversion import convert_called, convert_gpu, convert_memory
from accelmetrics.backends.nvidia.driver import SLEEPS, BoundDevice, Listed, NvidiaDriver, host_memory_total, of_unified_memory
from accelmetrics.backends.nvidia.gpm import Gpm
from accelmetrics.backends.nvidia.links import Fabric, Links
from accelmetrics.backends.nvidia.metrics import (
    CALLED_ROWS,
    COLDEST,
    ENERGY_ROWS,
    FAST_ROWS,
    HOTTEST,
    MARGIN,
    MEMORY_ROWS,
    MODULE_ENERGY,
    OF_LINKS,
    OF_XIDS,
    ONCE,
    PCIE_EACH_SECOND,
    PCIE_RATES,
    PROCESSES,
    READING,
    SECOND,
    SLOW_ROWS,
    T_LIMITS,
    TEN_SECONDS,
    NvmlMetric,
    own_rows,
)
from accelmetrics.backends.nvidia.nvml import (
    DECISIVE,
    GONE,
    GPU_NOT_FOUND,
    INVALID_ARGUMENT,
    LOST,
    NOT_FOUND,
    UNINITIALIZED,
    Handle,
    Library,
    Queries,
    impossible,
    is_unsupported,
    no_device,
    open_library,
    unavailable,
)
from accelmetrics.backends.nvidia.processes import DeviceProcesses
from accelmetrics.backends.nvidia.threads import PcieThroughput, Xids
from accelmetrics.schemas.errors import DriverGoneError, PartitionRemovedError, Reason, SourceError, Unavailable
from accelmetrics.schemas.identity import DeviceIdentity, pci_address

MOST_GPUS = 1024
"""Largest plausible number of GPUs in one machine."""
PATIENCE, LATER_PATIENCE = 4.0, 1.0
"""Seconds without an answer to a call after which it counts as hung: until the first one hangs, and after that. Without persistence
mode, looking up the handle of an unused GPU initialises it, which takes up to three seconds.
"""
MOST_CORES, MOST_NODES, MOST_MINOR, MOST_CUDA, MOST_GPU_INSTANCES = 2**24, 1023, 4095, 99_999, 256
"""Largest plausible numbers: CUDA cores, NUMA node, device node, CUDA version, GPU instance."""
FIRST_WAIT, LONGEST_WAIT = 1.0, 10.0
"""Seconds between two attempts to find a GPU, doubled from the first value to the last."""
STALE = frozenset({INVALID_ARGUMENT})
"""Return code of every call with a handle from before a reload of the driver, if something else in this process noticed the reload."""
VERIFIED = 1.0
"""Seconds for which a handle is trusted to be of the same instance: the driver may reuse a destroyed instance's handle for another."""
USUAL_INSTANCES, MOST_INSTANCES = 7, 64
"""Instances of a GPU: the most that exist today, assumed if the driver does not report a number, and the most that is plausible."""
_SHARES_MEMORY = re.compile(r"\b(?:GB10|Thor|Orin|Xavier|Tegra)\b", re.IGNORECASE)
"""Products without their own memory: ``NVIDIA GB10``, ``NVIDIA Thor``, ``Orin (nvgpu)``. GH200 and GB200 do have some."""
_COUNTS_MODULE = re.compile(r"\bGH200\b", re.IGNORECASE)
"""Products with an energy counter for the whole module, with Grace CPU and memory, although power is the GPU's alone. Zeus measured
this (ml-energy/zeus#172). No such report exists for GB200, with two GPUs per module: its counter is compared with its power.
"""
NO_INSTANCE = frozenset({INVALID_ARGUMENT, NOT_FOUND, GPU_NOT_FOUND})
"""Return codes of a call with the handle of a destroyed instance."""


_OTHERS = frozenset(each.partition(":")[0] for row in BUILT_IN.values() for each in row.pci)
"""PCI vendor ids of the vendors with a backend."""
VARIANTS = ((FAST_ROWS, convert_gpu), (CALLED_ROWS, convert_called))
"""The rows of every reading, and the same rows by call for GPUs that lack the fields, each with its conversion."""


def open_driver(clock: Clock, maker: Maker) -> NvidiaDriver | SleepingDriver:
    """Initialise NVML and list its devices. If all devices are suspended, NVML is left closed, because it would wake them.

    Raises:
        SourceError: NVML cannot be initialised, or lists no device.
    """
    addresses = maker.devices()
    asleep = list(filter(is_asleep, addresses))
    if asleep and asleep == addresses:
        return SleepingDriver(maker, addresses)
    library = open_library(maker)
    with ExitStack() as on_failure:
        on_failure.callback(library.close)
        counting = Queries(library, [], frozenset())
        count = counting.number("nvmlDeviceGetCount_v2", most=2**32 - 1)
        if count is None:
            raise library.error(counting.status, "the driver does not report the number of GPUs")
        if count > MOST_GPUS:
            words = f"the driver reports {count} GPUs: more than {MOST_GPUS} are implausible"
            raise SourceError(Reason.INVALID_VALUE, maker.spell(words), backend=maker.name, advice="reload the driver, or reboot")
        if count == 0:
            raise no_device(maker)
        queries = Queries(library, [], GONE)
        # NVML has the version as 1000 × major + 10 × minor.
        cuda = queries.number("nvmlSystemGetCudaDriverVersion_v2", most=MOST_CUDA) or 0
        version = queries.text("nvmlSystemGetDriverVersion")
        driver = NvidiaDriver(library, clock, version, f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else "")
        on_failure.pop_all()
        on_failure.callback(driver.close)
        gpus = [Gpu(driver, index) for index in range(count)] if not asleep else _list_awake_and_suspended(driver, count, addresses, asleep)
        driver.listed.extend(gpus)
        # If no thread can be started, no call is pending: without entries that wait for one, close() shuts NVML down.
        on_failure.callback(driver.listed.clear)
        open_all(gpus)
        if all(gpu.foreign for gpu in gpus):
            words = f"{maker.paths()[0]} lists no {maker.chip} of {maker.brand}: {gpus[0].foreign}"
            raise SourceError(Reason.DRIVER_UNAVAILABLE, words, backend=maker.name)
        for gpu in gpus:
            if gpu.elsewhere:
                driver.listed.remove(gpu)
        on_failure.pop_all()
    driver.update()
    return driver


def _list_awake_and_suspended(driver: NvidiaDriver, count: int, addresses: list[str], asleep: list[str]) -> list[Gpu]:
    """List GPUs while some are suspended. Awake ones get NVML's number for their address; the others fill the gaps.

    Looking up a suspended GPU by its number would wake it. In a container, the driver may have fewer GPUs than the bus shows.
    """
    queries = Queries(driver.library, [], GONE)
    found: dict[int, str] = {}
    for address in addresses:
        handle = None if address in asleep else queries.handle("nvmlDeviceGetHandleByPciBusId_v2", _as_nvml(address))
        number = queries.number("nvmlDeviceGetIndex", handle) if handle is not None else None
        if number is not None:
            found[number] = address
    left = [address for address in addresses if address not in found.values()]
    numbers = [number for number in range(count) if number not in found]
    found.update(zip(numbers, left, strict=False))
    return [Gpu(driver, number, found.get(number, "")) for number in range(count)]


def _as_nvml(address: str) -> bytes:
    """Format a PCI address as NVML does."""
    domain, _, rest = address.partition(":")
    return f"{domain:0>8}:{rest}".upper().encode()


def _suspended_facts(maker: Maker, address: str) -> dict[str, Any]:
    """Return the parts of a GPU's identity that the kernel knows without waking it."""
    printed = read_text(f"/proc/driver/{maker.name}/gpus/{address}/information") or ""
    model, uuid = (re.search(form, printed, re.MULTILINE) for form in (r"^Model:\s+(\S.*)$", r"^GPU UUID:\s+(GPU-[0-9a-f-]+)$"))
    name = model[1] if model else f"{maker.brand} {maker.chip} ({read_text(f'{PCI}/{address}/device') or 'of an unknown model'})"
    # The kernel prints question marks as the UUID until the GPU was first used. The pattern does not match them.
    return {"name": name, "uuid": uuid[1] if uuid else "", "pci_bus_id": _as_nvml(address).decode()}


class SleepingDriver:
    """A driver for GPUs that are all suspended, listed from the kernel's data. NVML is opened once one of them is awake.

    Args:
        maker: Their maker.
        addresses: Their PCI addresses.

    Attributes:
        devices: Their identities.
    """

    source = "sysfs"
    machine_wide = False

    def __init__(self, maker: Maker, addresses: list[str]) -> None:
        version = maker.module_version()
        self._maker = maker
        self.devices = tuple(
            DeviceIdentity(maker.kind, maker.name, number, driver_version=version, **_suspended_facts(maker, address))
            for number, address in enumerate(addresses)
        )
        self._addresses = addresses

    def reader(self, _options: ReadOptions) -> SleepingDriver:
        return self

    def read(self, _unit: int, _progress: list[Any]) -> Reading:
        if all(map(is_asleep, self._addresses)):
            raise SourceError(Reason.SUSPENDED, SLEEPS, backend=self._maker.name)
        raise DriverGoneError(Reason.SUSPENDED, "a GPU has woken up: the driver is opened", backend=self._maker.name)

    details = read

    def close(self) -> None:
        """Do nothing: nothing is open."""


def open_all(gpus: Iterable[Gpu]) -> None:
    """Open GPUs one after the other on a thread, as far as the driver answers.

    If a call does not return for a while, that thread is left with its GPU, and a new thread continues with the rest. Once the call
    returns, the GPU's identity is completed.
    """
    pending, patience, finished = iter(gpus), PATIENCE, False
    while not finished:
        progress: list[Any] = []
        thread = threading.Thread(target=_open_pending, args=(pending, progress), name="accelmetrics-nvidia-open", daemon=True)
        thread.start()
        seen = -1
        # While calls return, the thread is slow and not stuck.
        while thread.is_alive() and len(progress) > seen:
            seen = len(progress)
            thread.join(patience)
        finished, patience = not thread.is_alive(), LATER_PATIENCE


def _open_pending(pending: Iterator[Gpu], progress: list[Any]) -> None:
    for gpu in pending:
        guarded(gpu.open, progress)


_NOW = tuple(row._replace(name=f"{row.name} now") for row in (*FAST_ROWS, MARGIN) if row.name in ("temp", MARGIN.name))
"""Temperature and margin, read together with the margins of the limits."""
_T_LIMIT_ROWS = {name: NvmlMetric(f"{name} T.Limit", field, minimum=COLDEST, maximum=HOTTEST) for name, field in T_LIMITS.items()}


def read_once(library: Library, handle: Handle, rows: tuple[NvmlMetric, ...]) -> CallGroup:
    """Read constant rows. A temperature limit without a threshold is computed from margins.

    Up to Hopper, NVML has thresholds in degrees. Ada and later may refuse these. They report how far the GPU is from a reference
    (``nvmlDeviceGetMarginTemperature``), and how far each limit is from the same reference (the T.Limit fields, negative above it).
    A limit is then the temperature plus the margin, minus the limit's own margin.
    """
    limits = [_T_LIMIT_ROWS[row.name] for row in rows if row.name in T_LIMITS]

    def derive(found: Mapping[str, Value]) -> Mapping[str, Value]:
        answers = {row.name: found[row.name] for row in rows}
        for name in [name for name in answers if name in T_LIMITS and is_unsupported(answers[name])]:
            parts = [found[row.name] for row in (_T_LIMIT_ROWS[name], *_NOW)]
            missing = next((part for part in parts if isinstance(part, Unavailable)), None)
            if missing is None:
                own, temperature, margin = (part for part in parts if not isinstance(part, Unavailable))
                limit = temperature + margin - own
                answers[name] = limit if 1 <= limit <= HOTTEST else impossible(MARGIN.source.function)
            elif not is_unsupported(missing):
                answers[name] = missing
        return answers

    return CallGroup(library, handle, (*rows, *(_NOW if limits else ()), *limits), ONCE, derive)


def _lost_instance(backend: str) -> SourceError:
    return SourceError(Reason.DEVICE_LOST, "the MIG instance does not answer, nor does its GPU", backend=backend)


class Gpu(Listed):
    """A GPU's entry in the list.

    Args:
        driver: The open driver.
        index: NVML's number of the GPU.
        address: Its PCI address, if it is to be looked up by it.

    Attributes:
        foreign: Why it is not the vendor's, for example because a container has another vendor's stand-in for NVML; empty
            otherwise.
        elsewhere: Why another backend lists it; empty if none does.
    """

    foreign = elsewhere = ""

    def __init__(self, driver: NvidiaDriver, index: int, address: str = "") -> None:
        self._label = f"{driver.maker.brand} {driver.maker.chip}"
        words = f"{self._label} {index} is being opened: a call has not returned"
        super().__init__(driver.identify(index), SourceError(Reason.TIMED_OUT, words, backend=driver.maker.name))
        self._driver = driver
        self._index = index
        self._address = address
        if address:
            self._add_facts(**_suspended_facts(driver.maker, address))
        self._handle: Handle | None = None
        self._wait = FIRST_WAIT
        self._partitioned = False
        self._instances: dict[str, Instance] = {}
        self._instances_due = -math.inf

    def open(self, progress: list[Any]) -> None:
        """Identify the GPU and its MIG instances. A failure is kept, and raised when the GPU is read."""
        now = self._driver.clock.monotonic()
        try:
            self.let_sleep()
            handle = self._recognise(Queries(self._driver.library, progress, GONE), progress)
            self._look_for_instances(now, handle, progress)
        except SourceError as failure:
            self._failure = failure
            self._back_off(now)
        finally:
            self.opened = True
            self._driver.update()

    def find(self, now: float, progress: list[Any]) -> float:
        if self.opened and now >= self._again:
            queries = Queries(self._driver.library, progress, GONE)
            self._back_off(now)
            try:
                self._describe(queries, self._handle or self._recognise(queries, progress))
                if queries.complete:
                    self._again = math.inf
            except DriverGoneError:
                raise
            except SourceError as failure:
                self._failure = failure
            self._driver.update()
        if self.device is not None and now >= self._instances_due and self._look_for_instances(now, self.device.handle, progress):
            # The supported calls depend on the MIG mode, so everything remembered about them is dropped.
            self.bind(self.device.handle, self._driver.needed)
        return min(self._again, self._instances_due)

    def _back_off(self, now: float) -> None:
        """Schedule the next attempt to find the GPU."""
        self._again, self._wait = now + self._wait, min(self._wait * 2, LONGEST_WAIT)

    def _look_for_instances(self, now: float, handle: Handle, progress: list[Any]) -> bool:
        """List new MIG instances; removed ones notice it themselves. Returns whether the MIG mode has changed."""
        before = self._partitioned
        queries = Queries(self._driver.library, progress, LOST)
        self._instances_due = now + TEN_SECONDS * EARLY
        modes = (ctypes.c_uint * 2)()  # the current mode, and the mode after the next reset
        if queries.call("nvmlDeviceGetMigMode", handle, ctypes.byref(modes), ctypes.byref(modes, 4)):
            self._partitioned = modes[0] == 1  # NVML_DEVICE_MIG_ENABLE
        elif queries.complete:
            # The answer is final: the GPU has no MIG mode, and is not asked again.
            self._partitioned, self._instances_due = False, math.inf
        else:
            # The call failed for now, so the mode is kept and no instance counts as removed.
            self._instances_due = now + FIRST_WAIT
        most = queries.number("nvmlDeviceGetMaxMigDeviceCount", handle) if self._partitioned else 0
        for number in range(USUAL_INSTANCES if most is None else min(most, MOST_INSTANCES)):
            found = queries.handle("nvmlDeviceGetMigDeviceHandleByIndex", handle, number)
            uuid = queries.text("nvmlDeviceGetUUID", found) if found is not None else ""
            name = queries.text("nvmlDeviceGetName", found) if found is not None and uuid else ""
            if found is not None and uuid and uuid not in self._instances:
                identity = self._driver.identify(number, name=name, uuid=uuid, parent=self.identity.anchor)
                self._instances[uuid] = instance = Instance(self._driver, handle, found, _ask_gpu_instance(queries, found), identity)
                # Not the GPU's file: other threads read the GPU and its other instances.
                instance.power = None if self.power is None else KeptFile(self.power.path)
                self._driver.add(instance)
            elif name and name != self._instances[uuid].identity.name:
                # An instance made again with the same ids has the same UUID, but may have another profile.
                self._instances[uuid].identity = self._instances[uuid].identity._replace(name=name, memory_total_bytes=None)
                self._driver.update()
        return self._partitioned != before

    def _recognise(self, queries: Queries, progress: list[Any]) -> Handle:
        """Ask for the facts that list and number a GPU."""
        lookup = Queries(self._driver.library, progress, frozenset())
        where: bytes | int = self._index
        names = ("nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetHandleByIndex")
        if self._address:
            names, where = ("nvmlDeviceGetHandleByPciBusId_v2", "nvmlDeviceGetHandleByPciBusId"), _as_nvml(self._address)
        handle, status = lookup.handle(names[0], where), lookup.status
        if handle is None and status not in DECISIVE:
            handle = lookup.handle(names[1], where)
            # The older form numbers only the GPUs that it can open, so the number may mean another GPU.
            numbered = handle is not None and not self._address and self._driver.library.forms("nvmlDeviceGetIndex")
            if numbered and lookup.number("nvmlDeviceGetIndex", handle) != self._index:
                handle = None
        if handle is None:
            raise self._driver.library.error(status, f"{self._label} {self._index} cannot be opened")
        if self._address:
            self._add_facts(vendor_index=queries.number("nvmlDeviceGetIndex", handle))
        address, identifier = queries.pci(handle)
        name = queries.text("nvmlDeviceGetName", handle)
        other = next((each for each in _OTHERS if each in identifier.split(":") and each != self._driver.maker.vendor_id), "")
        self.elsewhere = self._driver.maker.listed_elsewhere(name)
        self.foreign = f"its devices are those of the PCI vendor 0x{other}" if other else self.elsewhere
        if self.foreign:
            raise SourceError(Reason.DRIVER_UNAVAILABLE, self.foreign, backend=self._driver.maker.name)
        if not name and not queries.status and identifier:  # the name is garbled
            name = f"{self._label} {identifier}"
        self._add_facts(pci_bus_id=address, name=name, uuid=queries.text("nvmlDeviceGetUUID", handle))
        if queries.complete:
            self._handle = handle
        return handle

    def _describe(self, queries: Queries, handle: Handle) -> None:
        """Ask for the GPU's other constant facts."""
        unified = self.identity.unified
        architecture = queries.architecture(handle) or self.identity.architecture
        shared = architecture == "Orin" or _SHARES_MEMORY.search(self.identity.name) is not None
        total = queries.memory_total(handle)
        self._add_facts(unified=shared, memory_total_bytes=host_memory_total() if shared and total is None else total)
        self._add_facts(
            serial=queries.text("nvmlDeviceGetSerial", handle),
            architecture=architecture,
            firmware=queries.text("nvmlDeviceGetVbiosVersion", handle),
            cores=queries.number("nvmlDeviceGetNumGpuCores", handle, most=MOST_CORES) or None,
            minor_number=queries.number("nvmlDeviceGetMinorNumber", handle, most=MOST_MINOR),
            numa_node=queries.number("nvmlDeviceGetNumaNodeId", handle, most=MOST_NODES),  # only of GPUs that are NUMA nodes themselves
            part_number=queries.text("nvmlDeviceGetBoardPartNumber", handle),
            compute_capability=queries.compute_capability(handle),
            # The kernel's list of CPUs is preferred and added to the identity later. A container may hide it.
            cpu_affinity="" if pci_slot(self.identity.pci_bus_id)[1] else queries.cpu_affinity(handle),
            **queries.platform(handle),
        )
        # Whether the memory is the host's is known only now, and it decides which calls are bound.
        if self.device is None or self.identity.unified != unified:
            self.bind(handle, self._driver.needed)

    def _add_facts(self, **facts: Any) -> None:
        """Add facts to the identity; a fact that is missing this time keeps its value."""
        status = f"{PCI}/{pci_address(facts.get('pci_bus_id', ''))}/power/runtime_status"
        if self.power is None and facts.get("pci_bus_id") and exists(status):
            self.power = KeptFile(status)
        self.identity = self.identity._replace(**{name: fact for name, fact in facts.items() if fact not in ("", None)})

    def bound(self, handle: Handle, needed: frozenset[str]) -> BoundDevice:
        library, maker = self._driver.library, self._driver.maker
        used = {pace: tuple(row for row in own_rows(rows, maker) if not needed.isdisjoint(row.names)) for pace, rows in SLOW_ROWS.items()}
        slow: list[Paced] = [CallGroup(library, handle, rows, pace) for pace, rows in used.items() if rows and pace != ONCE]
        if used[ONCE]:
            slow.append(read_once(library, handle, used[ONCE]))
        if not needed.isdisjoint(PCIE_RATES):
            slow.append(PcieThroughput(library, self._driver.meter, handle, SECOND if PCIE_EACH_SECOND in needed else TEN_SECONDS))
        # The fabric is part of the GPU's identity, so it is read in any case.
        slow.append(Fabric(library, handle, self.identity.driver_version, self._set_fabric))
        if not needed.isdisjoint(OF_LINKS):
            slow.append(Links(library, handle, needed))
        if not needed.isdisjoint(OF_XIDS):
            self.xids = Xids(self._driver.listener, handle, pci_address(self.identity.pci_bus_id))
            slow.append(self.xids)
        shares = self.identity.unified and not needed.isdisjoint(MEMORY_NAMES)
        table = DeviceProcesses(library, handle, self.identity.driver_version) if shares or PROCESSES in needed else None
        memory = CallGroup(library, handle, MEMORY_ROWS, READING, of_unified_memory(table)) if shares and table is not None else None
        # Memory that is shared with the host has its own group of calls.
        by_call = needed.difference(MEMORY_NAMES) if shares else needed
        if _COUNTS_MODULE.search(self.identity.name) and not needed.isdisjoint({ENERGY_ROWS[0].name, MODULE_ENERGY}):
            slow.append(CallGroup(library, handle, ENERGY_ROWS, READING, _as_module_energy))
            by_call = by_call.difference({ENERGY_ROWS[0].name})
        stale = partial(library.error, UNINITIALIZED, "the device's handle is no longer valid")
        fast = FastValues(library, handle, tuple((own_rows(rows, maker), convert) for rows, convert in VARIANTS), STALE, stale, by_call)
        gpm = partial(Gpm, library, self._driver.samples, handle, None)
        return BoundDevice(handle, fast, gpm, table, tuple(slow), self._partitioned, memory)

    def _set_fabric(self, words: str) -> None:
        """Set the GPU's state in the NVLink fabric."""
        self.identity = self.identity._replace(fabric=words)
        self._driver.update()


def _as_module_energy(answers: Mapping[str, Value]) -> Mapping[str, Value]:
    """Report the energy counter of a GPU under the module's name, for products where it counts the module."""
    joules, why = answers[ENERGY_ROWS[0].name], "the driver counts the energy of the module, CPU and memory included: moduleEnergyJoules"
    return {MODULE_ENERGY: joules, ENERGY_ROWS[0].name: Unavailable(Reason.NOT_SUPPORTED, why)}


def _ask_gpu_instance(queries: Queries, handle: Handle) -> int | Unavailable:
    """Ask for the id of a MIG instance's GPU instance. Returns the id, or why it is not known."""
    function = "nvmlDeviceGetGpuInstanceId"
    answer = queries.number(function, handle, most=MOST_GPU_INSTANCES)
    if answer is None:
        return unavailable(queries.status) if queries.status else impossible(function)
    return answer


class Instance(Listed):
    """A MIG instance in the driver's list, bound to a handle while it exists.

    Args:
        driver: The open driver.
        parent: The GPU's handle.
        handle: The instance's handle when it was listed.
        gpu_instance: The id of its GPU instance, which GPM needs, or why it is not known.
        identity: Its UUID and its GPU.
    """

    def __init__(
        self, driver: NvidiaDriver, parent: Handle, handle: Handle, gpu_instance: int | Unavailable, identity: DeviceIdentity
    ) -> None:
        super().__init__(identity, _lost_instance(identity.vendor))
        self.opened = True
        self._driver = driver
        self._parent = parent
        self._gpu_instance = gpu_instance
        self.bind(handle, driver.needed)

    def bound(self, handle: Handle, needed: frozenset[str]) -> BoundDevice:
        library, gpu_instance = self._driver.library, self._gpu_instance
        if isinstance(gpu_instance, int):
            self.identity = self.identity._replace(gpu_instance_id=gpu_instance)
        fast = FastValues(library, handle, ((MEMORY_ROWS, convert_memory),), NO_INSTANCE, self._stale_handle_error, needed)
        gpm = partial(Gpm, library, self._driver.samples, self._parent, gpu_instance)
        table = DeviceProcesses(library, handle, self.identity.driver_version) if PROCESSES in needed else None
        return BoundDevice(handle, fast, gpm, table)

    def find(self, now: float, progress: list[Any]) -> float:
        """Look the instance up by its UUID: it may be gone, have been made again, or have another handle.

        Raises:
            PartitionRemovedError: Its GPU answers, and does not have it.
        """
        if now >= self._again:
            queries = Queries(self._driver.library, progress, LOST)
            handle = queries.handle("nvmlDeviceGetHandleByUUID", self.identity.uuid.encode())
            self._again = now + VERIFIED * EARLY
            if handle is not None:
                # GPM needs the id, so it is asked for again after a failure.
                unknown = isinstance(self._gpu_instance, Unavailable) and self._gpu_instance.reason != Reason.NOT_SUPPORTED
                known = _ask_gpu_instance(queries, handle) if unknown else self._gpu_instance
                if self.device is None or self.device.handle.value != handle.value or known != self._gpu_instance:
                    self._gpu_instance = known
                    self.bind(handle, self._driver.needed)
                    self._driver.update()
                # These facts were not needed to list the instance.
                if self.identity.memory_total_bytes is None:
                    total, architecture = queries.memory_total(handle), queries.architecture(self._parent)
                    self.identity = self.identity._replace(memory_total_bytes=total, architecture=architecture)
                    self._driver.update()
            elif queries.status in NO_INSTANCE:
                self.device = None
                modes = (ctypes.c_uint * 2)()
                # An instance counts as removed only if its GPU still answers. With a lost GPU it is lost, too.
                answers = queries.call("nvmlDeviceGetMigMode", self._parent, ctypes.byref(modes), ctypes.byref(modes, 4))
                gone = "the MIG instance no longer exists: its GPU answers, and does not have it"
                backend = self.identity.vendor
                self._failure = PartitionRemovedError(Reason.DEVICE_LOST, gone, backend=backend) if answers else _lost_instance(backend)
        return self._again

    def _stale_handle_error(self) -> SourceError:
        """Return the error for a handle that is no longer the instance's."""
        self._again = -math.inf
        self.find(self._driver.clock.monotonic(), [])
        if self.device is None:
            return self.failure()
        return SourceError(Reason.DRIVER_ERROR, "the MIG instance was made again just now", backend=self.identity.vendor)
