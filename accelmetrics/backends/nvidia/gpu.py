"""The GPUs of a machine: found when the driver is opened, described at their first reading, and again until all is known of them.

What listing a GPU needs is asked when the driver is opened, on a thread that is replaced when a call does not return. The rest is asked
at its first reading: there a call that hangs costs no other GPU.
"""

from __future__ import annotations

import ctypes
import math
import threading
from collections import deque
from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any

from accelmetrics.backends.contract import Clock
from accelmetrics.backends.guard import guarded
from accelmetrics.backends.kit.system import read_text
from accelmetrics.backends.nvidia.conversion import convert_gpu
from accelmetrics.backends.nvidia.driver import Device, HostMemory, Listed, NvidiaDriver, host_memory
from accelmetrics.backends.nvidia.fast import FastValues
from accelmetrics.backends.nvidia.gpm import Gpm
from accelmetrics.backends.nvidia.groups import EARLY, Group, Paced
from accelmetrics.backends.nvidia.links import Fabric, Links
from accelmetrics.backends.nvidia.metrics import FAST_ROWS, SLOW_ROWS, TEN_SECONDS
from accelmetrics.backends.nvidia.mig import MIG_ENABLED, Instance, list_instances
from accelmetrics.backends.nvidia.nvml import (
    BACKEND,
    GONE,
    INVALID_ARGUMENT,
    LOST,
    UNINITIALIZED,
    Handle,
    Library,
    Queries,
    no_device,
    open_library,
    source_error,
)
from accelmetrics.backends.nvidia.processes import ProcessTable
from accelmetrics.backends.nvidia.xid import Xids
from accelmetrics.schemas.errors import DriverGoneError, Reason, SourceError

MOST_GPUS = 1024
"""The most GPUs that are believed to be in one machine."""
PATIENCE, LATER_PATIENCE = 4.0, 1.0
"""Seconds without an answer to a single call after which it counts as hung, the first time and after that. Without persistence
mode a GPU that is not in use is initialised by looking up its handle, which takes up to three seconds."""
MOST_CORES, MOST_NODES = 2**24, 1023
"""The most CUDA cores and NUMA nodes that are believed."""
STALE = frozenset({INVALID_ARGUMENT})
"""What every call answers with a handle from before a reload of the driver that something else in this process noticed."""


def open_driver(clock: Clock) -> NvidiaDriver:
    """Initialise NVML and enumerate its devices.

    Raises:
        SourceError: That is not possible, or there are none.
    """
    library = open_library()
    with ExitStack() as on_failure:
        on_failure.callback(library.close)
        count = _count(library)
        queries = Queries(library, [], GONE)
        cuda = queries.number("nvmlSystemGetCudaDriverVersion_v2") or 0
        version = queries.text("nvmlSystemGetDriverVersion")
        driver = NvidiaDriver(library, clock, version, f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else "")
        gpus = [Gpu(driver, index) for index in range(count)]
        on_failure.pop_all()
    driver.listed.extend(gpus)
    open_all(gpus)
    driver.update()
    return driver


def _count(library: Library) -> int:
    queries = Queries(library, [], frozenset())
    count = queries.number("nvmlDeviceGetCount_v2", most=2**32 - 1)
    if count is None:
        raise source_error(queries.status, "the driver does not say how many GPUs there are")
    if count > MOST_GPUS:
        words = f"the driver says that there are {count} GPUs: more than {MOST_GPUS} are not believed"
        raise SourceError(Reason.INVALID_VALUE, words, backend=BACKEND, advice="reload the driver, or reboot")
    if count == 0:
        raise no_device()
    return count


def open_all(gpus: Iterable[Gpu]) -> None:
    """Open GPUs one after the other on a thread, as far as the driver answers.

    When a call has not returned for a while, the thread keeps the GPU that it is stuck with, and another one goes on with the rest. The
    GPU is listed with all that is known of it once the call returns.
    """
    pending = deque(gpus)
    patience = PATIENCE
    while pending:
        progress: list[Any] = []
        done, abandoned = threading.Event(), threading.Event()
        arguments = (pending, progress, done, abandoned)
        threading.Thread(target=_open_pending, args=arguments, name="accelmetrics-nvidia-open", daemon=True).start()
        seen = -1
        while not done.wait(patience):
            if len(progress) == seen:
                abandoned.set()
                patience = LATER_PATIENCE
                break
            seen = len(progress)


def _open_pending(pending: deque[Gpu], progress: list[Any], done: threading.Event, abandoned: threading.Event) -> None:
    while pending and not abandoned.is_set():
        guarded(pending.popleft().open, progress)
    done.set()


def _stale() -> SourceError:
    return source_error(UNINITIALIZED, "the device's handle is no longer valid")


class Gpu(Listed):
    """One GPU's place in the list.

    Args:
        driver: The open driver.
        index: NVML's number of the GPU.
    """

    def __init__(self, driver: NvidiaDriver, index: int) -> None:
        words = f"NVIDIA GPU {index} is being opened: a call has not returned"
        super().__init__(driver.identify(index), SourceError(Reason.TIMED_OUT, words, backend=BACKEND))
        self._driver = driver
        self._index = index
        self._handle: Handle | None = None
        self._recognised = False
        self._partitioned = False
        self._instances: dict[str, Instance] = {}
        self._instances_due = -math.inf

    def open(self, progress: list[Any]) -> None:
        """Find out what the GPU and its MIG instances are listed by; a failure is told when the GPU is read."""
        now = self._driver.clock.monotonic()
        try:
            handle = self._recognise(Queries(self._driver.library, progress, GONE), progress)
            self._look_for_instances(now, handle, progress)
        except SourceError as failure:
            self._failure = failure
            self._back_off(now)
        finally:
            self.opened = True
            self._driver.update()

    def refresh(self, now: float, progress: list[Any]) -> None:
        if self.opened and now >= self._again:
            self._enumerate(now, progress)
        device, handle = self.device, self._handle
        if device is None or handle is None:
            raise self.failed()
        if now >= self._instances_due and self._look_for_instances(now, handle, progress):
            # What a GPU supports depends on the mode: nothing that was remembered holds any more.
            device = self.device = self._bind(handle)
        if now >= device.due:
            device.refresh(now, progress)
        self.due = min(self._again, self._instances_due, device.due)

    def _look_for_instances(self, now: float, handle: Handle, progress: list[Any]) -> bool:
        """List MIG instances that turned up. Returns: whether the MIG mode has changed."""
        before = self._partitioned
        queries = Queries(self._driver.library, progress, LOST)
        self._instances_due = now + TEN_SECONDS * EARLY
        modes = (ctypes.c_uint * 2)()  # the present one, and the one after the next reset
        if queries.call("nvmlDeviceGetMigMode", handle, ctypes.byref(modes), ctypes.byref(modes, 4)):
            self._partitioned = modes[0] == MIG_ENABLED
        elif queries.complete:
            self._partitioned, self._instances_due = False, math.inf
        if self._partitioned:
            list_instances(self._driver, queries, handle, self.identity.anchor, self._instances)
        return self._partitioned != before

    def _enumerate(self, now: float, progress: list[Any]) -> None:
        """Find out what is not known yet, and bind the calls."""
        queries = Queries(self._driver.library, progress, GONE)
        self._back_off(now)
        try:
            handle = self._handle if self._recognised and self._handle is not None else self._recognise(queries, progress)
            self._describe(queries, handle)
            if queries.complete:
                self._again = math.inf
        except DriverGoneError:
            raise
        except SourceError as failure:
            self._failure = failure
        self._driver.update()

    def _recognise(self, queries: Queries, progress: list[Any]) -> Handle:
        """Ask for what a GPU is listed and numbered by."""
        lookup = Queries(self._driver.library, progress, frozenset())
        handle = lookup.handle("nvmlDeviceGetHandleByIndex_v2", self._index)
        if handle is None:
            raise source_error(lookup.status, f"NVIDIA GPU {self._index} cannot be opened")
        self._handle = handle
        address = queries.pci_bus_id(handle)
        name = queries.text("nvmlDeviceGetName", handle)
        self._learn(pci_bus_id=address, name=name, uuid=queries.text("nvmlDeviceGetUUID", handle))
        self._recognised = queries.complete
        return handle

    def _describe(self, queries: Queries, handle: Handle) -> None:
        """Ask for everything else about a GPU that does not change."""
        unified = self.identity.unified
        total = queries.memory_total(handle)
        if total == 0:
            host = host_memory()
            self._learn(unified=True, memory_total_bytes=host[0] if host else None)
        elif total is not None:
            self._learn(unified=False, memory_total_bytes=total)
        self._learn(
            serial=queries.text("nvmlDeviceGetSerial", handle),
            architecture=queries.architecture(handle),
            firmware=queries.text("nvmlDeviceGetVbiosVersion", handle),
            cores=queries.number("nvmlDeviceGetNumGpuCores", handle, most=MOST_CORES) or None,
            numa_node=self._ask_numa_node(queries, handle),
        )
        if self.device is None or self.identity.unified != unified:
            self.device = self._bind(handle)
        self.device.memory_total = self.identity.memory_total_bytes

    def _ask_numa_node(self, queries: Queries, handle: Handle) -> int | None:
        """NVML says it for GPUs that are NUMA nodes themselves; the slot's node is the kernel's to say. -1 is "none"."""
        node = queries.number("nvmlDeviceGetNumaNodeId", handle, most=MOST_NODES)
        if node is not None or not self.identity.pci_bus_id:
            return node
        # NVML writes eight digits of the domain in capitals, sysfs four in small letters.
        text = read_text(f"/sys/bus/pci/devices/{self.identity.pci_bus_id[-12:].lower()}/numa_node")
        return int(text) if text and text.isdecimal() else None

    def _learn(self, **facts: Any) -> None:
        """Take over new facts; what could not be had this time stays as it was."""
        self.identity = self.identity._replace(**{name: fact for name, fact in facts.items() if fact not in ("", None)})

    def _bind(self, handle: Handle) -> Device:
        library = self._driver.library
        slow: list[Paced] = [Group(library, handle, rows, pace) for pace, rows in SLOW_ROWS.items()]
        slow += [Links(library, handle), Fabric(library, handle, self.identity.driver_version, self._note_fabric)]
        slow += [Xids(self._driver.listener, handle), *([HostMemory()] if self.identity.unified else [])]
        fast = FastValues(library, handle, FAST_ROWS, convert_gpu, STALE, _stale)
        device = Device(handle, fast, Gpm(library, handle), ProcessTable(library, handle), tuple(slow), self._partitioned)
        device.memory_total = self.identity.memory_total_bytes
        return device

    def _note_fabric(self, words: str) -> None:
        """Note how the GPU stands in the NVLink fabric."""
        self.identity = self.identity._replace(fabric=words)
        self._driver.update()
