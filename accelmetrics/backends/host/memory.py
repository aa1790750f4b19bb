"""Memory and swap: the host's, on Linux from ``/proc/meminfo``, against the cgroup's limit where one is tighter.

``memory_percent`` is what stands against the tightest limit, caches included, as the kernel counts it there.
``proc.memory.availableMB`` is what can still be had: the least that any level with a limit, or the host, has left.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from accelmetrics.backends.host.numbers import MIB, count
from accelmetrics.backends.host.part import Moment, Source
from accelmetrics.backends.kit.system import reason_of
from accelmetrics.schemas.reasons import Reason, Unavailable

_FIELD = re.compile(rb"^(MemTotal|MemFree|MemAvailable|Cached|SReclaimable|SwapTotal|SwapFree):[ \t]*(\d+) kB", re.MULTILINE)
_KEYS = ("memory_percent", "proc.memory.availableMB")
_NO_SWAP = Unavailable(Reason.NOT_SUPPORTED, "no swap is configured")


class MemoryLevel(NamedTuple):
    """One level of cgroups that limits memory: its limit in bytes, and where its use in bytes is read."""

    limit: int
    current: Source[int]


class Memory(NamedTuple):
    """The host's memory in bytes. Swap is None where the kernel says nothing of it."""

    total: int
    available: int
    swap_total: int | None
    swap_free: int | None


def parse_meminfo(data: bytes) -> Memory:
    """Read ``/proc/meminfo``.

    Raises:
        ValueError: Total or free memory is missing or impossible.
    """
    fields = {name: count(value) * 1024 for name, value in _FIELD.findall(data)}
    total = fields.get(b"MemTotal", 0)
    if not total:
        raise ValueError("MemTotal is missing")
    available = fields.get(b"MemAvailable")
    if available is None:
        # Kernels before 3.14 leave the estimate to the reader.
        if b"MemFree" not in fields:
            raise ValueError("neither MemAvailable nor MemFree is given")
        available = fields[b"MemFree"] + fields.get(b"Cached", 0) + fields.get(b"SReclaimable", 0)
    return Memory(total, min(available, total), fields.get(b"SwapTotal"), fields.get(b"SwapFree"))


class MemoryPart:
    """Memory in use and memory left, for the host or within the cgroup's limit, and swap.

    Args:
        source: The host's memory.
        levels: The levels of cgroups that limit memory.
    """

    def __init__(self, source: Source[Memory], levels: Callable[[], Sequence[MemoryLevel]]) -> None:
        self._source = source
        self._levels = levels

    def read(self, moment: Moment) -> None:
        memory = why = None
        moment.memory_total = moment.memory_limit = None
        try:
            memory = self._source.read()
        except (OSError, ValueError) as error:
            why = reason_of(error, self._source.what)
            moment.reasons["swap.used_percent"] = why
        else:
            moment.memory_total = memory.total
            self._swap(moment, memory)
        # A limit above what the host has limits nothing.
        levels = [level for level in self._levels() if memory is None or level.limit < memory.total]
        if levels:
            self._limited(moment, levels, memory)
        elif memory is not None:
            moment.values["memory_percent"] = 100.0 * (memory.total - memory.available) / memory.total
            moment.values["proc.memory.availableMB"] = memory.available / MIB
        elif why is not None:
            moment.miss(_KEYS, why)

    @staticmethod
    def _limited(moment: Moment, levels: list[MemoryLevel], memory: Memory | None) -> None:
        tightest = min(levels, key=lambda level: level.limit)
        moment.memory_limit = tightest.limit
        currents = []
        for level in levels:
            try:
                currents.append(level.current.read())
            except (OSError, ValueError) as error:
                moment.miss(_KEYS, reason_of(error, level.current.what))
                return
        left = min(max(level.limit - current, 0) for level, current in zip(levels, currents, strict=True))
        moment.values["memory_percent"] = 100.0 * currents[levels.index(tightest)] / tightest.limit
        moment.values["proc.memory.availableMB"] = (left if memory is None else min(left, memory.available)) / MIB

    @staticmethod
    def _swap(moment: Moment, memory: Memory) -> None:
        total, free = memory.swap_total, memory.swap_free
        if not total or free is None:
            moment.reasons["swap.used_percent"] = _NO_SWAP
        else:
            moment.values["swap.used_percent"] = 100.0 * max(total - free, 0) / total
