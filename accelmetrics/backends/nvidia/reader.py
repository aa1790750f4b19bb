"""One consumer's view of the devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from accelmetrics.backends.clock import Clock
from accelmetrics.backends.contract import NO_REASONS, Block, Reading, ReadOptions
from accelmetrics.backends.family import Family
from accelmetrics.backends.nvidia.device import Device
from accelmetrics.backends.nvidia.errors import check_device, unavailable
from accelmetrics.backends.nvidia.gpm import NO_GPM, Cursor, Result, none_of
from accelmetrics.backends.nvidia.memory import unified_block
from accelmetrics.backends.nvidia.places import Place
from accelmetrics.backends.nvidia.samples import SamplePool
from accelmetrics.backends.nvidia.share import Share
from accelmetrics.schemas.identity import DeviceProcess
from accelmetrics.schemas.reasons import Unavailable

Reasons = Mapping[str, Unavailable]


class View:
    """One device as one consumer sees it: its GPM samples, its processes, and the reasons as they were last put together."""

    def __init__(self, device: Device, samples: SamplePool, family: Family) -> None:
        self.device = device
        self._samples = samples
        self._cursor: Cursor | None = None
        self._share = Share(family, device.memory.total)
        self._parts: tuple[Reasons, Reasons, Reasons] = (NO_REASONS, NO_REASONS, NO_REASONS)
        self._merged: Reasons = NO_REASONS

    def read(self, now: float, steps: list[Any]) -> Reading:
        """Everything about the device, now."""
        device, cursor = self.device, self._cursor
        if now >= device.due:
            device.refresh(now, steps)
        layout, values, throttle = device.fast.read(steps)
        profiled, no_profile = self._profile(now, steps) if cursor is None else cursor.read(now, steps)
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

    def _profile(self, now: float, steps: list[Any]) -> Result:
        """The GPM metrics before there is a cursor: the one reason why there are none, or the first sample."""
        support = self.device.gpm_support
        if support is not True:
            return none_of(support if isinstance(support, Unavailable) else NO_GPM)
        lent = self._samples.lend(self, steps)
        if isinstance(lent, int):
            check_device(lent, "nvmlGpmSampleAlloc")
            return none_of(unavailable(lent))
        self._cursor = Cursor(self.device.gpm, lent)
        return self._cursor.read(now, steps)


def _with_host_memory(blocks: list[Block], reasons: Reasons, processes: tuple[DeviceProcess, ...] | None) -> Reading:
    """The reading of a device that shares the host's memory."""
    shared, missing = unified_block()
    return Reading([*blocks, shared], {**reasons, **missing} if missing else reasons, processes)


class NvidiaReader:
    """One consumer: what it watches, and what its rates are taken from."""

    def __init__(self, places: Sequence[Place], samples: SamplePool, clock: Clock, options: ReadOptions) -> None:
        self._places = places
        self._samples = samples
        self._now = clock.monotonic
        # Memory and utilisation are the whole family's by definition, so ``options.children`` changes nothing here.
        self._family = Family(options.pid)
        self._views: list[View | None] = [None] * len(places)

    def read(self, unit: int, steps: list[Any]) -> Reading:
        now = self._now()
        device = self._places[unit].device(now, steps)
        view = self._views[unit]
        if view is None or view.device is not device:
            view = self._views[unit] = View(device, self._samples, self._family)
        return view.read(now, steps)
