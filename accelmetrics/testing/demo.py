"""Simulated GPUs that behave as in a training run, for ``accelmetrics demo``."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import Any

from accelmetrics.backends.contract import Reading
from accelmetrics.schemas.identity import DeviceIdentity
from accelmetrics.testing.fake import FakeBackend, FakeDevice

MEMORY = 80 << 30
LIMIT, IDLE_WATTS = 700.0, 70.0
EPOCH, EVALUATION = 60.0, 10.0
"""Seconds of training and evaluation together, and of the evaluation at their end."""
WARMING = 20.0
"""Time constant of the temperature, in seconds: two thirds of a change happen within it."""
HOT, IDLE = 1, 3
"""Roles within each group of four GPUs: one is cooled badly and one is idle."""


class DemoBackend(FakeBackend):
    """Simulated GPUs: each trains in phases of a minute, one of four is hot and lowers its clock, one of four is idle.

    Args:
        devices: Number of GPUs.
        clock: Returns monotonic seconds.
    """

    def __init__(self, devices: int = 4, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__("demo", devices=devices, vendor="demo")
        self._devices = [_TrainingDevice(device.identity, number, clock) for number, device in enumerate(self._devices)]


class _TrainingDevice(FakeDevice):
    """A simulated GPU. Its energy is the integral of its power."""

    def __init__(self, identity: DeviceIdentity, number: int, clock: Callable[[], float]) -> None:
        super().__init__(identity._replace(name="Simulated GPU 80GB", memory_total_bytes=MEMORY))
        self._role = number % 4
        self._phase = 0.37 * number
        self._clock = clock
        self._began = self._at = clock()
        self._watts, self._heat, self._joules = IDLE_WATTS, 35.0, 0.0
        self._lock = threading.Lock()

    def read(self, progress: list[Any]) -> Reading:
        """Advance the simulation to the present and return its values."""
        with self._lock:
            self.set(**self._now())
            return super().read(progress)

    def _now(self) -> dict[str, int | float]:
        """Return the present metrics, advanced from the last reading."""
        now = self._clock()
        passed, self._at = now - self._at, now
        load = self._load(now - self._began)
        # The hot GPU lowers its clock, as a real one does.
        throttled = self._role == HOT and self._heat > 82
        watts = IDLE_WATTS + (LIMIT - IDLE_WATTS) * 0.9 * load * (0.8 if throttled else 1.0)
        self._joules += passed * (watts + self._watts) / 2
        self._watts = watts
        aim = 33 + watts * (0.095 if self._role == HOT else 0.055)
        self._heat += (aim - self._heat) * (1 - math.exp(-passed / WARMING))
        used = (1 << 30) if self._role == IDLE else int(MEMORY * (0.62 + 0.04 * load))
        return {
            "gpu": round(100 * load),
            "memory": round(55 * load),
            "memoryAllocatedBytes": used,
            "memoryTotalBytes": MEMORY,
            "memoryAllocated": used / MEMORY * 100,
            "temp": round(self._heat),
            "powerWatts": round(watts, 1),
            "enforcedPowerLimitWatts": LIMIT,
            "powerPercent": round(watts / LIMIT * 100, 2),
            "energyJoules": round(self._joules, 3),
            "smClock": 345 if load == 0 else 1410 if throttled else 1980,
            "memoryClock": 2619,
        }

    def _load(self, seconds: float) -> float:
        """Return the load from 0 to 1: training steps with occasional waits for data, and an evaluation at the end of each epoch."""
        if self._role == IDLE:
            return 0.0
        at = seconds % EPOCH
        if at > EPOCH - EVALUATION:
            return 0.45 + 0.1 * math.sin(seconds + self._phase)
        waits = math.sin(0.9 * seconds + self._phase) > 0.97
        return 0.35 if waits else 0.94 + 0.04 * math.sin(2.3 * seconds + self._phase)
