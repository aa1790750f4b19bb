"""The processes on one device: who they are, what they hold, how busy they keep it."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from accelmetrics.backends.nvidia.calls import ALL_ONES
from accelmetrics.backends.nvidia.errors import INSUFFICIENT_SIZE, NOT_FOUND, NOT_SUPPORTED, check_device
from accelmetrics.backends.nvidia.library import Library, NvmlFunction
from accelmetrics.backends.nvidia.paced import EARLY
from accelmetrics.schemas.identity import DeviceProcess

INTERVAL = 1.0
_ROOM = 64
_SPARE = 16
_MOST = 65536
"""Entries in a list: at first, to spare when it has grown, and the most that is believed."""
_NO_MEMORY = 2**64 - 1

COMPUTE, GRAPHICS, MPS = "Compute", "Graphics", "MPSCompute"
_UTILIZATION = "nvmlDeviceGetProcessUtilization"


class Listed(NamedTuple):
    """One process in one of NVML's lists: bytes held, None where NVML does not say."""

    pid: int
    used: int | None


class Sample(NamedTuple):
    """The newest utilisation sample of one process, in percent; None where the driver answered something impossible."""

    time: int
    gpu: int | None
    memory: int | None


class OldProcess(ctypes.Structure):
    """``nvmlProcessInfo_v1_t``, which ``pynvml`` no longer has."""

    _fields_ = (("pid", ctypes.c_uint), ("usedGpuMemory", ctypes.c_ulonglong))


class _List:
    """A call that fills an array of structures and says how many it filled; its array grows when it is too small."""

    def __init__(self, function: NvmlFunction | None, name: str, handle: Any, structure: type[ctypes.Structure]) -> None:
        self.supported = function is not None
        self._function = function
        self._name = name
        self._handle = handle
        self._structure: Any = structure
        self._entries = (self._structure * _ROOM)()
        self._count = ctypes.c_uint()

    def read(self, steps: list[Any], *, samples_since: int | None = None) -> tuple[int, list[Any]]:
        """The return code and the entries; samples are asked for with the time since which they are wanted."""
        status = self._call(steps, samples_since)
        if status == INSUFFICIENT_SIZE and len(self._entries) < self._count.value <= _MOST:
            self._entries = (self._structure * (self._count.value + _SPARE))()
            status = self._call(steps, samples_since)
        self.supported = status != NOT_SUPPORTED
        check_device(status, self._name)
        return status, self._entries[: self._count.value] if status == 0 else []

    def _call(self, steps: list[Any], since: int | None) -> int:
        assert self._function is not None  # not read unless supported
        self._count.value = len(self._entries)
        count = ctypes.byref(self._count)
        if since is None:
            status = self._function(self._handle, count, self._entries)
        else:
            status = self._function(self._handle, self._entries, count, ctypes.c_ulonglong(since))
        steps.append(status)
        return status


class ProcessTable:
    """The processes of one device, read again once a second.

    Attributes:
        processes: What was found last; None where NVML does not say. The same object while nothing changed.
    """

    def __init__(self, library: Library, handle: Any) -> None:
        self._lists = {kind: _running(library, handle, kind) for kind in (COMPUTE, GRAPHICS, MPS)}
        structure = library.nvml.c_nvmlProcessUtilizationSample_t
        self._samples = _List(library.function(_UTILIZATION), _UTILIZATION, handle, structure)
        self._seen = 0
        self._next = -math.inf
        self.processes: tuple[DeviceProcess, ...] | None = None

    @property
    def due(self) -> float:
        """When it wants to be read next."""
        return self._next

    def read(self, now: float, steps: list[Any]) -> bool:
        """Read the processes if that is due; says whether anything is different from before."""
        if now < self._next:
            return False
        found, failed = self._listed(steps)
        samples, samples_failed = self._sampled(steps) if found and any(found.values()) else ({}, False)
        self._next = -math.inf if failed or samples_failed else now + INTERVAL * EARLY
        processes = None if found is None else tuple(_merged(found, samples))
        if processes == self.processes:
            return False
        self.processes = processes
        return True

    def _listed(self, steps: list[Any]) -> tuple[dict[str, list[Listed]] | None, bool]:
        """NVML's lists by kind, None where it has none to give; and whether one of them failed for now."""
        found: dict[str, list[Listed]] = {}
        failed = False
        for kind, source in self._lists.items():
            if not source.supported:
                continue
            status, entries = source.read(steps)
            if status == 0:
                found[kind] = [Listed(entry.pid, _used(entry.usedGpuMemory)) for entry in entries]
            failed |= status not in (0, NOT_SUPPORTED)
        # Graphics or MPS alone would pass for a device on which nobody computes.
        return (found if COMPUTE in found else None), failed

    def _sampled(self, steps: list[Any]) -> tuple[dict[int, Sample], bool]:
        """The newest sample of each process since the last time; a process without one kept the device idle or is too new."""
        if not self._samples.supported:
            return {}, False
        status, entries = self._samples.read(steps, samples_since=self._seen)
        newest: dict[int, Sample] = {}
        for entry in sorted(entries, key=lambda entry: int(entry.timeStamp)):
            newest[entry.pid] = Sample(entry.timeStamp, _percent(entry.smUtil), _percent(entry.memUtil))
        self._seen = max((sample.time for sample in newest.values()), default=self._seen)
        return newest, status not in (0, NOT_FOUND, NOT_SUPPORTED)


def _running(library: Library, handle: Any, kind: str) -> _List:
    """The list of one kind, in the newest form that the driver has."""
    name = f"nvmlDeviceGet{kind}RunningProcesses"
    for version in ("_v3", "_v2"):
        if (function := library.function(name + version)) is not None:
            return _List(function, name + version, handle, library.nvml.c_nvmlProcessInfo_v2_t)
    return _List(library.function(name), name, handle, OldProcess)


def _merged(lists: Mapping[str, list[Listed]], samples: Mapping[int, Sample]) -> Iterable[DeviceProcess]:
    """One entry per process, in the order of process numbers."""
    held = {kind: _held(entries) for kind, entries in lists.items()}
    for pid in sorted({pid for memory in held.values() for pid in memory} - {0}):
        known = [memory[pid] for memory in held.values() if pid in memory]
        sample = samples.get(pid)
        yield DeviceProcess(
            pid,
            _kind(pid in held.get(COMPUTE, {}) or pid in held.get(MPS, {}), pid in held.get(GRAPHICS, {})),
            # Each list has the whole of what a process holds, so what several lists say is not added up.
            max((used for used in known if used is not None), default=None),
            sample.gpu if sample else None,
            sample.memory if sample else None,
        )


def _held(entries: Iterable[Listed]) -> dict[int, int | None]:
    """Bytes by process in one list. A process appears once per MIG instance that it uses; those are added up."""
    held: dict[int, int | None] = {}
    for pid, used in entries:
        before = held.get(pid)
        held[pid] = used if before is None else before + (used or 0)
    return held


def _kind(compute: bool, graphics: bool) -> str:
    return "+".join(word for word, applies in (("compute", compute), ("graphics", graphics)) if applies)


def _used(answer: int | None) -> int | None:
    return None if answer is None or answer == _NO_MEMORY else answer


def _percent(answer: int) -> int | None:
    return answer if answer <= 100 and answer != ALL_ONES else None
