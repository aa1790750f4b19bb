"""The places of devices in the driver's order: a device that fails to enumerate keeps its own and is tried again."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from accelmetrics.backends.nvidia.device import Device
from accelmetrics.backends.nvidia.enumeration import Questions, System, identify
from accelmetrics.backends.nvidia.library import Library
from accelmetrics.schemas.errors import DriverGoneError, SourceError
from accelmetrics.schemas.identity import DeviceIdentity

FIRST_WAIT = 1.0
LONGEST_WAIT = 60.0
"""Seconds between attempts to enumerate a device again: doubling from the first to the longest."""


class Found(NamedTuple):
    """What the attempts so far came to: a device, or else the failure of the last one."""

    identity: DeviceIdentity
    device: Device | None = None
    failure: SourceError | None = None


class Place:
    """One device's place: enumerated when made, and again until everything that can be known is known."""

    def __init__(self, library: Library, index: int, system: System, now: float) -> None:
        self._library = library
        self._index = index
        self._system = system
        self._wait = FIRST_WAIT
        self._again = math.inf
        self._found = Found(
            DeviceIdentity("gpu", "nvidia", index, driver_version=system.driver_version, runtime_version=system.cuda_version)
        )
        self._attempt(now, [], opening=True)

    @property
    def identity(self) -> DeviceIdentity:
        """Who is there, as far as is known."""
        return self._found.identity

    def device(self, now: float, steps: list[Any]) -> Device:
        """The device, or the error that keeps it from being read."""
        if now >= self._again:
            self._attempt(now, steps)
        device = self._found.device
        if device is None:
            raise self._failure()
        return device

    def _failure(self) -> SourceError:
        """The last attempt's failure, as an error of its own: one that is raised again and again would grow."""
        failure = self._found.failure
        assert failure is not None  # there is a device or a failure
        return SourceError(failure.reason, failure.message, backend=failure.backend, advice=failure.advice)

    def _attempt(self, now: float, steps: list[Any], opening: bool = False) -> None:
        questions = Questions(self._library, steps)
        try:
            self._found = self._enumerate(questions)
        except SourceError as failure:
            if isinstance(failure, DriverGoneError) and not opening:
                raise
            questions.complete = False
            self._found = self._found._replace(failure=failure)
        self._again = math.inf if questions.complete else now + self._wait
        self._wait = min(self._wait * 2, LONGEST_WAIT)

    def _enumerate(self, questions: Questions) -> Found:
        handle = questions.handle(self._index)
        memory = questions.memory(handle)
        identity = _completed(identify(questions, self._index, handle, self._system, memory), self.identity)
        device = self._found.device
        if device is None or device.memory.unified != memory.unified:
            device = Device(self._library, handle, memory)
        return Found(identity, device)


def _completed(new: DeviceIdentity, old: DeviceIdentity) -> DeviceIdentity:
    """The new facts, and the old ones where a new one could not be had."""
    kept: dict[str, Any] = {name: before for name, now, before in zip(new._fields, new, old, strict=True) if now in ("", None)}
    return new._replace(**kept)
