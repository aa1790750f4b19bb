"""One consumer's view of the devices."""

from __future__ import annotations

from typing import Any

from accelmetrics.backends.clock import Clock
from accelmetrics.backends.contract import Reading, ReadOptions
from accelmetrics.backends.kit.processes import ProcessTree
from accelmetrics.backends.nvidia.device import Device
from accelmetrics.backends.nvidia.instance import Instance
from accelmetrics.backends.nvidia.roster import Roster
from accelmetrics.backends.nvidia.samples import SamplePool
from accelmetrics.backends.nvidia.view import InstanceView, View


class NvidiaReader:
    """One consumer: what it watches, and what its rates are taken from."""

    def __init__(self, roster: Roster, samples: SamplePool, clock: Clock, options: ReadOptions) -> None:
        self._places = roster.places
        self._samples = samples
        self._now = clock.monotonic
        # Memory and utilisation are the whole family's by definition, so ``options.children`` changes nothing here.
        self._family = ProcessTree(options.pid)
        self._views: dict[int, View | InstanceView] = {}

    def read(self, unit: int, steps: list[Any]) -> Reading:
        now = self._now()
        device = self._places[unit].device(now, steps)
        view = self._views.get(unit)
        if view is None or view.device is not device:
            view = self._views[unit] = self._view_of(device)
        return view.read(now, steps)

    def _view_of(self, device: Device | Instance) -> View | InstanceView:
        if isinstance(device, Instance):
            return InstanceView(device, self._samples)
        return View(device, self._samples, self._family)
