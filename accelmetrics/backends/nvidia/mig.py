"""MIG instances: found when the driver is opened, and looked for again every ten seconds.

An instance is a device of its own with memory, processes and GPM metrics. Power, temperature, clocks and memory errors are the
board's and stay with the GPU, so that sums over devices are right. It has no ``gpu.process`` keys: W&B's have room for one number,
and the GPU's hold what is used of all its instances.

An instance is known by its UUID, which the driver derives from the GPU's and the instance's ids: one that is made again is the
same device. Its number below the GPU is NVML's index, which another instance may have after a reconfiguration.
"""

from __future__ import annotations

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
    SUCCESS,
    Handle,
    Queries,
)
from accelmetrics.backends.nvidia.processes import ProcessTable
from accelmetrics.schemas.errors import Reason, SourceError
from accelmetrics.schemas.identity import DeviceIdentity

VERIFIED = 1.0
"""Seconds for which a handle is taken to be of the same instance: the driver may give a destroyed one's handle to another."""
USUAL_INSTANCES, MOST_INSTANCES = 7, 64
"""How many instances a GPU can have: the most so far, assumed where the driver does not say, and the most that is believed."""
MIG_ENABLED = 1
NO_INSTANCE = frozenset({INVALID_ARGUMENT, NOT_FOUND, GPU_NOT_FOUND})
"""Answers to a call with the handle of an instance that was destroyed."""


def _gone() -> SourceError:
    return SourceError(Reason.DEVICE_LOST, "the MIG instance no longer exists", backend=BACKEND, advice="see `nvidia-smi mig -lgi`")


class Instance(Listed):
    """One MIG instance in the driver's list: bound to a handle while it exists.

    Args:
        driver: The open driver.
        parent: The GPU's handle.
        handle: Its own, when it was listed.
        gpu_instance: The id that GPM knows it by, None where the driver does not say.
        identity: Its UUID and its GPU.
    """

    def __init__(self, driver: NvidiaDriver, parent: Handle, handle: Handle, gpu_instance: int | None, identity: DeviceIdentity) -> None:
        super().__init__(identity, _gone())
        self.opened = True
        self._driver = driver
        self._parent = parent
        self._gpu_instance = gpu_instance
        self._verified = -math.inf
        self._bind(handle)

    def _bind(self, handle: Handle) -> None:
        """Bind the calls of the instance to a handle."""
        library = self._driver.library
        fast = FastValues(library, handle, MEMORY_ROWS, convert_memory, NO_INSTANCE, _gone)
        self.device = Device(handle, fast, Gpm(library, self._parent, self._gpu_instance), ProcessTable(library, handle))
        self._wait = FIRST_WAIT

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
            self.device, self.due = None, -math.inf
            self._find(now, progress)

    def _find(self, now: float, progress: list[Any]) -> None:
        """Look for the instance by its UUID: it may have been made again, or moved to another handle."""
        self._back_off(now)
        handle = Queries(self._driver.library, progress, GONE).handle("nvmlDeviceGetHandleByUUID", self.identity.uuid.encode())
        if handle is not None:
            self._bind(handle)

    def _describe(self, queries: Queries, handle: Handle) -> None:
        """Complete the identity with what listing the instance did not need."""
        if self.identity.memory_total_bytes is None:
            total, architecture = queries.memory_total(handle) or None, queries.architecture(self._parent)
            self.identity = self.identity._replace(memory_total_bytes=total, architecture=architecture)
            self._driver.update()


def list_instances(driver: NvidiaDriver, queries: Queries, gpu: Handle, anchor: str, known: dict[str, Instance]) -> None:
    """List the instances of a GPU that turned up; those that are gone find out by themselves.

    Args:
        driver: The open driver.
        queries: Asks it.
        gpu: The GPU's handle.
        anchor: What the GPU is recognised by.
        known: Its instances by UUID, to which new ones are added.
    """
    most = queries.number("nvmlDeviceGetMaxMigDeviceCount", gpu)
    for number in range(USUAL_INSTANCES if most is None else min(most, MOST_INSTANCES)):
        handle = queries.handle("nvmlDeviceGetMigDeviceHandleByIndex", gpu, number)
        uuid = queries.text("nvmlDeviceGetUUID", handle) if handle is not None else ""
        if handle is not None and uuid and uuid not in known:
            gpu_instance = queries.number("nvmlDeviceGetGpuInstanceId", handle)
            identity = driver.identify(number, name=queries.text("nvmlDeviceGetName", handle), uuid=uuid, parent=anchor)
            known[uuid] = Instance(driver, gpu, handle, gpu_instance, identity)
            driver.add(known[uuid])
