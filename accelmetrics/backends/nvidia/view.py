"""One device as one consumer sees it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from accelmetrics.backends.contract import NO_REASONS, Block, Reading
from accelmetrics.backends.kit.processes import ProcessTree
from accelmetrics.backends.nvidia.device import Device
from accelmetrics.backends.nvidia.gpm import Profile
from accelmetrics.backends.nvidia.instance import Instance
from accelmetrics.backends.nvidia.memory import unified_block
from accelmetrics.backends.nvidia.samples import SamplePool
from accelmetrics.backends.nvidia.share import Share
from accelmetrics.schemas.identity import DeviceProcess
from accelmetrics.schemas.reasons import Reason, Unavailable

Reasons = Mapping[str, Unavailable]
_OF_INSTANCES = ("gpu", "memory", "encoderUtilization", "decoderUtilization")
_PARTITIONED = Unavailable(Reason.NOT_SUPPORTED, "the GPU is in MIG mode: it has no utilisation as a whole, see smActive of its instances")


class View:
    """A GPU: the consumer's GPM samples, its processes, and the reasons as they were last put together."""

    def __init__(self, device: Device, samples: SamplePool, family: ProcessTree) -> None:
        self.device = device
        self._profile = Profile(device.gpm, device.support, samples)
        self._share = Share(family, device.memory.total)
        self._parts: tuple[Reasons, Reasons, Reasons] = (NO_REASONS, NO_REASONS, NO_REASONS)
        self._merged: dict[str, Unavailable] = {}

    def read(self, now: float, steps: list[Any]) -> Reading:
        """Everything about the device, now."""
        device, cursor = self.device, self._profile.cursor
        if now >= device.due:
            device.refresh(now, steps)
        layout, values, throttle = device.fast.read(steps)
        profiled, no_profile = self._profile.begin(now, steps) if cursor is None else cursor.read(now, steps)
        fast, slow, profile = self._parts
        if layout.unavailable is not fast or device.unavailable is not slow or no_profile is not profile:
            self._merge(layout.unavailable, device.unavailable, no_profile)
        blocks = [Block(layout.names, values), throttle, profiled, *device.blocks]
        processes = device.table.processes
        if processes and self._share.is_used(processes, now):
            blocks.append(self._share.block(layout, values, device.limit))
        if device.memory.unified:
            return _with_host_memory(blocks, self._merged, processes)
        return Reading(blocks, self._merged, processes)

    def _merge(self, fast: Reasons, slow: Reasons, profile: Reasons) -> None:
        """All reasons in one mapping, which stays while its parts are the same objects."""
        self._parts = (fast, slow, profile)
        self._merged = {**fast, **slow, **profile}
        if self.device.partitioned:
            missing = [name for name in _OF_INSTANCES if name in self._merged and self._merged[name].reason == Reason.NOT_SUPPORTED]
            self._merged.update(dict.fromkeys(missing, _PARTITIONED))


class InstanceView:
    """A MIG instance: the consumer's GPM samples of it."""

    def __init__(self, device: Instance, samples: SamplePool) -> None:
        self.device = device
        self._profile = Profile(device.gpm, device.support, samples)
        self._parts: tuple[Reasons, Reasons] = (NO_REASONS, NO_REASONS)
        self._merged: dict[str, Unavailable] = {}

    def read(self, now: float, steps: list[Any]) -> Reading:
        """Memory, processes and shares, now."""
        device, cursor = self.device, self._profile.cursor
        memory, no_memory = device.read_memory(steps)
        device.table.read(now, steps)
        profiled, no_profile = self._profile.begin(now, steps) if cursor is None else cursor.read(now, steps)
        before = self._parts
        if no_memory != before[0] or no_profile is not before[1]:
            self._parts = (no_memory, no_profile)
            self._merged = {**no_memory, **no_profile}
        return Reading((memory, profiled), self._merged, device.table.processes)


def _with_host_memory(blocks: list[Block], reasons: Reasons, processes: tuple[DeviceProcess, ...] | None) -> Reading:
    """The reading of a device that shares the host's memory."""
    shared, missing = unified_block()
    return Reading([*blocks, shared], {**reasons, **missing} if missing else reasons, processes)
