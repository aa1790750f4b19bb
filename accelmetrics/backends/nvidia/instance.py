"""One MIG instance: a device of its own with memory, processes and GPM metrics.

Power, temperature, clocks and memory errors are the board's and stay with the GPU, so that sums over devices are right. An
instance has no ``gpu.process`` keys: W&B's have room for one number, and the GPU's hold what is used of all its instances.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from accelmetrics.backends.contract import NO_REASONS, Block
from accelmetrics.backends.nvidia.calls import GPM_SUPPORT, LARGEST, MEMORY
from accelmetrics.backends.nvidia.enumeration import ARCHITECTURES, Questions
from accelmetrics.backends.nvidia.errors import (
    BACKEND,
    FUNCTION_NOT_FOUND,
    GPU_IS_LOST,
    GPU_NOT_FOUND,
    INVALID_ARGUMENT,
    NOT_FOUND,
    check_device,
    impossible,
    source_error,
    unavailable,
)
from accelmetrics.backends.nvidia.gpm import Gpm, Result
from accelmetrics.backends.nvidia.layouts import MEMORY_NAMES
from accelmetrics.backends.nvidia.library import Library
from accelmetrics.backends.nvidia.paced import EARLY, Group
from accelmetrics.backends.nvidia.processes import ProcessTable
from accelmetrics.backends.nvidia.slots import Slots
from accelmetrics.schemas.errors import SourceError
from accelmetrics.schemas.identity import DeviceIdentity
from accelmetrics.schemas.reasons import Reason

NO_INSTANCE = frozenset({INVALID_ARGUMENT, NOT_FOUND, GPU_NOT_FOUND})
"""Answers to a call with the handle of an instance that was destroyed."""
VERIFIED = 1.0
"""Seconds for which a handle is taken to be of the same instance: the driver may give a destroyed one's handle to another."""
FIRST_WAIT, LONGEST_WAIT = 1.0, 60.0
"""Seconds between two looks for an instance that is gone: doubling from the first to the longest."""


class Parent(NamedTuple):
    """The GPU that an instance is a part of."""

    handle: Any
    identity: DeviceIdentity


class Instance:
    """An instance's bound calls. Only ever read by one lane at a time.

    Attributes:
        table: The processes in it.
        gpm: Its GPM calls.
        support: Whether the GPU has GPM, as its group's only value.
    """

    def __init__(self, library: Library, handle: Any, parent: Any, gpu_instance: int | None) -> None:
        self.handle = handle
        slots = Slots(library, handle, (MEMORY,))
        self._memory = slots.bound[0]
        self._unpack = slots.decoder()
        self.table = ProcessTable(library, handle)
        self.gpm = Gpm(library, parent, gpu_instance)
        self.support = Group(library, parent, (GPM_SUPPORT,), math.inf)

    def read_memory(self, steps: list[Any]) -> Result:
        """The memory metrics now, or why they are missing."""
        status = FUNCTION_NOT_FOUND if self._memory is None else self._memory()
        steps.append(status)
        check_device(status, MEMORY.function)
        if status in NO_INSTANCE:
            raise _gone()
        if status:
            return _NOTHING, dict.fromkeys(MEMORY_NAMES, unavailable(status))
        total, free, used = self._unpack()
        if not (0 < total <= LARGEST and used <= total and free <= total):
            return _NOTHING, dict.fromkeys(MEMORY_NAMES, impossible(MEMORY.function))
        return Block(MEMORY_NAMES, (used / total * 100, used, total, free)), NO_REASONS


_NOTHING = Block((), ())


class InstancePlace:
    """An instance's place in the driver's list: bound to a handle while the instance exists.

    Bound and lost by the GPU's lane, read by its own: each step is one assignment.

    Args:
        library: The open library.
        parent: The GPU.
        number: NVML's index of the instance.
        uuid: What it is recognised by.
        gpu_instance: The id that GPM knows it by, None where the driver does not say.
        note: To be called when the identity has changed.
    """

    opened = True

    def __init__(
        self, library: Library, parent: Parent, number: int, uuid: str, gpu_instance: int | None, note: Callable[[], None]
    ) -> None:
        self._library = library
        self._parent = parent.handle
        self._gpu_instance = gpu_instance
        self._note = note
        whole = parent.identity
        self.identity = DeviceIdentity(
            "gpu",
            "nvidia",
            number,
            uuid=uuid,
            driver_version=whole.driver_version,
            runtime_version=whole.runtime_version,
            parent=whole.anchor,
        )
        self._instance: Instance | None = None
        self._verified = -math.inf
        self._again = -math.inf
        self._wait = FIRST_WAIT

    def bind(self, handle: Any, name: str = "") -> None:
        """The instance exists, with this handle."""
        if name:
            self.identity = self.identity._replace(name=name)
        if self._instance is None or _address(self._instance.handle) != _address(handle):
            self._instance = Instance(self._library, handle, self._parent, self._gpu_instance)
            self._wait = FIRST_WAIT

    def lose(self, now: float) -> None:
        """The instance is no longer listed."""
        if self._instance is not None:
            self._instance = None
            self._again, self._wait = now + FIRST_WAIT, FIRST_WAIT

    def device(self, now: float, steps: list[Any]) -> Instance:
        """The instance, or the error that it no longer exists."""
        if self._instance is None and now >= self._again:
            self._find(now, steps)
        elif self._instance is not None and now >= self._verified:
            self._verify(self._instance, now, steps)
        instance = self._instance
        if instance is None:
            raise _gone()
        return instance

    def _verify(self, instance: Instance, now: float, steps: list[Any]) -> None:
        """See that the handle is still this instance's, and ask for what is not known of it yet."""
        questions = Questions(self._library, steps)
        uuid = questions.text("nvmlDeviceGetUUID", instance.handle)
        if uuid == self.identity.uuid:
            self._learn(questions, instance)
            self._verified = now + VERIFIED * EARLY
        elif isinstance(uuid, str) or uuid in NO_INSTANCE:
            self.lose(now)
            self._find(now, steps)
        elif uuid == GPU_IS_LOST:
            raise source_error(uuid, f"MIG instance {self.identity.uuid}")

    def _find(self, now: float, steps: list[Any]) -> None:
        """Look for the instance by its UUID: it may have been made again, or moved to another handle."""
        self._again, self._wait = now + self._wait, min(self._wait * 2, LONGEST_WAIT)
        handle = Questions(self._library, steps).ask("nvmlDeviceGetHandleByUUID", self.identity.uuid, otherwise=None)
        if handle is not None:
            self.bind(handle)

    def _learn(self, questions: Questions, instance: Instance) -> None:
        """What listing it did not need."""
        if self.identity.memory_total_bytes is None:
            memory = questions.ask("nvmlDeviceGetMemoryInfo", instance.handle, otherwise=None)
            architecture = questions.ask("nvmlDeviceGetArchitecture", self._parent, otherwise=0)
            self.identity = self.identity._replace(
                memory_total_bytes=int(memory.total) if memory is not None and memory.total else None,
                architecture=ARCHITECTURES.get(architecture, ""),
            )
            self._note()


def _address(handle: Any) -> int | None:
    import ctypes

    return ctypes.cast(handle, ctypes.c_void_p).value


def _gone() -> SourceError:
    return SourceError(Reason.DEVICE_LOST, "the MIG instance no longer exists", backend=BACKEND, advice="see `nvidia-smi mig -lgi`")
