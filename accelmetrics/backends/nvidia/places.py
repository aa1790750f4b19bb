"""The places of GPUs in the driver's order: one that fails to enumerate keeps its own and is tried again."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from accelmetrics.backends.clock import Clock
from accelmetrics.backends.nvidia.device import Device
from accelmetrics.backends.nvidia.enumeration import Questions, System, completed, describe, recognise
from accelmetrics.backends.nvidia.errors import BACKEND
from accelmetrics.backends.nvidia.instance import Parent
from accelmetrics.backends.nvidia.library import Library
from accelmetrics.backends.nvidia.memory import DeviceMemory
from accelmetrics.backends.nvidia.mig import Partitions
from accelmetrics.backends.nvidia.roster import Roster
from accelmetrics.backends.nvidia.xid import Listener
from accelmetrics.schemas.errors import DriverGoneError, SourceError
from accelmetrics.schemas.identity import DeviceIdentity
from accelmetrics.schemas.reasons import Reason

FIRST_WAIT = 1.0
LONGEST_WAIT = 60.0
"""Seconds between attempts to enumerate a device again: doubling from the first to the longest."""


class Common(NamedTuple):
    """What the places of one driver have in common."""

    library: Library
    system: System
    roster: Roster
    listener: Listener
    clock: Clock


class Place:
    """One GPU's place: recognised when the driver is opened, and described at its first reading; again until all is known.

    Attributes:
        identity: Who is there, as far as is known.
        opened: Whether ``open`` has returned.
    """

    def __init__(self, common: Common, index: int) -> None:
        self._common = common
        self._index = index
        self._wait = FIRST_WAIT
        self._again = -math.inf
        self.opened = False
        self._handle: Any = None
        self._recognised = False
        self._memory: DeviceMemory | None = None
        self._device: Device | None = None
        self._failure: SourceError | None = None
        self._partitions = Partitions(common.library, common.roster)
        system = common.system
        self.identity = DeviceIdentity("gpu", "nvidia", index, driver_version=system.driver_version, runtime_version=system.cuda_version)

    def open(self, steps: list[Any]) -> None:
        """Find out who is there and which MIG instances it has: what the devices are listed by."""
        now = self._common.clock.monotonic()
        questions = Questions(self._common.library, steps)
        try:
            self._recognise(questions)
            self._partitions.look(now, Parent(self._handle, self.identity), steps)
        except SourceError as failure:
            self._failure = failure
            self._again = now + self._next_wait()
        finally:
            self.opened = True
            self._common.roster.note()

    def device(self, now: float, steps: list[Any]) -> Device:
        """The device, or the error that keeps it from being read."""
        if not self.opened:
            raise SourceError(Reason.TIMED_OUT, f"NVIDIA GPU {self._index} is being opened: a call has not returned", backend=BACKEND)
        if now >= self._again:
            self._attempt(now, steps)
        device = self._device
        if device is None:
            raise self._failed()
        if now >= self._partitions.due and self._partitions.look(now, Parent(self._handle, self.identity), steps):
            # What a GPU supports depends on the mode: nothing that was remembered holds any more.
            device = self._device = self._new_device(self._memory or DeviceMemory(None))
        return device

    def _failed(self) -> SourceError:
        """The last attempt's failure, as an error of its own: one that is raised again and again would grow."""
        failure = self._failure
        assert failure is not None  # there is a device or a failure
        return SourceError(failure.reason, failure.message, backend=failure.backend, advice=failure.advice)

    def _attempt(self, now: float, steps: list[Any]) -> None:
        questions = Questions(self._common.library, steps)
        complete = False
        try:
            if not self._recognised:
                self._recognise(questions)
            self._describe(questions)
            complete = self._recognised and questions.complete
        except DriverGoneError:
            raise
        except SourceError as failure:
            self._failure = failure
        self._again = math.inf if complete else now + self._next_wait()
        self._common.roster.note()

    def _next_wait(self) -> float:
        wait, self._wait = self._wait, min(self._wait * 2, LONGEST_WAIT)
        return wait

    def _recognise(self, questions: Questions) -> None:
        self._handle = questions.handle(self._index)
        self.identity = completed(recognise(questions, self._index, self._handle, self._common.system), self.identity)
        self._recognised = questions.complete

    def _describe(self, questions: Questions) -> None:
        memory = questions.memory(self._handle)
        self.identity = completed(describe(questions, self.identity, self._handle, memory), self.identity)
        if self._device is None or self._memory is None or self._memory.unified != memory.unified:
            self._device = self._new_device(memory)
        self._memory = memory

    def _new_device(self, memory: DeviceMemory) -> Device:
        common = self._common
        return Device(common.library, self._handle, memory, common.listener, self._partitions.enabled, self.identity, self._join)

    def _join(self, fabric: str) -> None:
        """Note how the GPU stands in the NVLink fabric."""
        if fabric != self.identity.fabric:
            self.identity = self.identity._replace(fabric=fabric)
            self._common.roster.note()
