"""MIG instances: found when the driver is opened, and looked for again every ten seconds.

An instance is a device of its own with memory, processes and GPM metrics. Power, temperature, clocks and memory errors are the
board's and stay with the GPU, so that sums over devices are right. It has no ``gpu.process`` keys: W&B's have room for one number,
and the GPU's hold what is used of all its instances.

An instance is known by its UUID, which the driver derives from the GPU's and the instance's ids: one that is made again is the
same device. Its number below the GPU is NVML's index, which another instance may have after a reconfiguration.
"""

from __future__ import annotations

import ctypes
import math
from typing import Any

from accelmetrics.backends.nvidia.conversion import convert_memory
from accelmetrics.backends.nvidia.driver import FIRST_WAIT, Device, Listed, NvidiaDriver
from accelmetrics.backends.nvidia.fast import FastValues
from accelmetrics.backends.nvidia.gpm import Gpm
from accelmetrics.backends.nvidia.groups import EARLY
from accelmetrics.backends.nvidia.metrics import MEMORY_ROWS
from accelmetrics.backends.nvidia.nvml import (
    BACKEND,
    GONE,
    GPU_NOT_FOUND,
    INVALID_ARGUMENT,
    LOST,
    NOT_FOUND,
    NOT_SUPPORTED,
    SUCCESS,
    Handle,
    Queries,
)
from accelmetrics.backends.nvidia.processes import ProcessTable
from accelmetrics.schemas.errors import SourceError
from accelmetrics.schemas.identity import DeviceIdentity
from accelmetrics.schemas.reasons import Reason

INTERVAL = 10.0
VERIFIED = 1.0
"""Seconds for which a handle is taken to be of the same instance: the driver may give a destroyed one's handle to another."""
USUAL_INSTANCES, MOST_INSTANCES = 7, 64
"""How many instances a GPU can have: the most so far, assumed where the driver does not say, and the most that is believed."""
NO_INSTANCE = frozenset({INVALID_ARGUMENT, NOT_FOUND, GPU_NOT_FOUND})
"""Answers to a call with the handle of an instance that was destroyed."""
_ENABLED = 1


def _gone() -> SourceError:
    return SourceError(Reason.DEVICE_LOST, "the MIG instance no longer exists", backend=BACKEND, advice="see `nvidia-smi mig -lgi`")


class Instance(Listed):
    """One MIG instance in the driver's list: bound to a handle while it exists.

    The GPU's worker binds and loses it while its own reads it: each step is one assignment.

    Args:
        driver: The open driver.
        parent: The GPU's handle.
        gpu_instance: The id that GPM knows it by, None where the driver does not say.
        identity: Its UUID and its GPU.
    """

    def __init__(self, driver: NvidiaDriver, parent: Handle, gpu_instance: int | None, identity: DeviceIdentity) -> None:
        super().__init__(identity, _gone())
        self.opened = True
        self._driver = driver
        self._parent = parent
        self._gpu_instance = gpu_instance
        self._verified = -math.inf

    def bind(self, handle: Handle) -> None:
        """Bind the calls of the instance to a handle, unless they are."""
        if self.device is None or self.device.handle.value != handle.value:
            library = self._driver.library
            fast = FastValues(library, handle, MEMORY_ROWS, convert_memory, NO_INSTANCE, _gone)
            self.device = Device(handle, fast, Gpm(library, self._parent, self._gpu_instance), ProcessTable(library, handle))
            self.due = -math.inf
            self._wait = FIRST_WAIT

    def lose(self, now: float) -> None:
        """Unbind the instance, which is no longer listed."""
        if self.device is not None:
            self.device, self.due = None, -math.inf
            self._again, self._wait = now, FIRST_WAIT

    def refresh(self, now: float, progress: list[Any]) -> None:
        if self.device is None and now >= self._again:
            self._find(now, progress)
        elif self.device is not None and now >= self._verified:
            self._verify(self.device, now, progress)
        device = self.device
        if device is None:
            raise self.failed()
        if now >= device.due:
            device.refresh(now, progress)
        self.due = min(self._verified, device.due)

    def _verify(self, device: Device, now: float, progress: list[Any]) -> None:
        """Check that the handle is still this instance's, and complete the identity."""
        queries = Queries(self._driver.library, progress, LOST)
        uuid = queries.text("nvmlDeviceGetUUID", device.handle)
        if uuid == self.identity.uuid:
            self._describe(queries, device.handle)
            self._verified = now + VERIFIED * EARLY
        elif queries.status in (SUCCESS, *NO_INSTANCE):
            self.lose(now)
            self._find(now, progress)

    def _find(self, now: float, progress: list[Any]) -> None:
        """Look for the instance by its UUID: it may have been made again, or moved to another handle."""
        self._back_off(now)
        handle = Queries(self._driver.library, progress, GONE).handle("nvmlDeviceGetHandleByUUID", self.identity.uuid.encode())
        if handle is not None:
            self.bind(handle)

    def _describe(self, queries: Queries, handle: Handle) -> None:
        """Complete the identity with what listing the instance did not need."""
        if self.identity.memory_total_bytes is None:
            total, architecture = queries.memory_total(handle) or None, queries.architecture(self._parent)
            self.identity = self.identity._replace(memory_total_bytes=total, architecture=architecture)
            self._driver.update()


class Instances:
    """The instances of one GPU.

    Attributes:
        enabled: Whether the GPU is in MIG mode; it may be without having instances.
        due: When ``look`` is wanted next.
    """

    def __init__(self, driver: NvidiaDriver) -> None:
        self.enabled = False
        self.due = -math.inf
        self._driver = driver
        self._known: dict[str, Instance] = {}

    def look(self, now: float, gpu: Handle, anchor: str, progress: list[Any]) -> bool:
        """Compare the instances with those that the driver lists now. Returns: whether the MIG mode has changed.

        Args:
            now: When, on the driver's clock.
            gpu: The GPU's handle.
            anchor: What the GPU is recognised by.
            progress: Grows with every call.
        """
        before = self.enabled
        self.due = now + INTERVAL * EARLY
        queries = Queries(self._driver.library, progress, LOST)
        modes = (ctypes.c_uint * 2)()  # the present one, and the one after the next reset
        if queries.call("nvmlDeviceGetMigMode", gpu, ctypes.byref(modes), ctypes.byref(modes, 4)):
            self.enabled = modes[0] == _ENABLED
        elif queries.complete:
            self.enabled, self.due = False, math.inf
        else:
            return False
        listed = self._list(queries, gpu) if self.enabled else {}
        if listed is not None:
            self._compare(listed, now, gpu, anchor, queries)
        return self.enabled != before

    def _list(self, queries: Queries, gpu: Handle) -> dict[str, tuple[int, Handle]] | None:
        """List number and handle of each instance by UUID; None where a query failed, so that no instance is taken to be gone."""
        most = queries.number("nvmlDeviceGetMaxMigDeviceCount", gpu)
        found: dict[str, tuple[int, Handle]] = {}
        for number in range(USUAL_INSTANCES if most is None else min(most, MOST_INSTANCES)):
            handle = queries.handle("nvmlDeviceGetMigDeviceHandleByIndex", gpu, number)
            if queries.status in (NOT_FOUND, INVALID_ARGUMENT, NOT_SUPPORTED):
                continue
            uuid = queries.text("nvmlDeviceGetUUID", handle) if handle is not None else ""
            if handle is None or not uuid:
                return None
            found[uuid] = (number, handle)
        return found

    def _compare(self, listed: dict[str, tuple[int, Handle]], now: float, gpu: Handle, anchor: str, queries: Queries) -> None:
        """Bind those that are listed, add the new ones, lose those that are gone."""
        for uuid, (number, handle) in listed.items():
            known = self._known.get(uuid)
            if known is None:
                gpu_instance = queries.number("nvmlDeviceGetGpuInstanceId", handle)
                name = queries.text("nvmlDeviceGetName", handle)
                identity = self._driver.identify(number, name=name, uuid=uuid, parent=anchor)
                known = self._known[uuid] = Instance(self._driver, gpu, gpu_instance, identity)
                known.bind(handle)
                self._driver.add(known)
            else:
                known.bind(handle)
        for uuid, instance in self._known.items():
            if uuid not in listed:
                instance.lose(now)
