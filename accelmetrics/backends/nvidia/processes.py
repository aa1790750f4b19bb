"""The processes on one device: numbers, memory and utilisation.

NVML's lists are arrays of structures, decoded by columns. While the driver returns the same bytes as a second ago, nothing is
decoded. Decoding is postponed until all calls of a reading were made. The size of a structure differs between drivers under the
same function name, so it is derived from the bytes that were filled.

Most GPUs that compute have neither graphics nor MPS processes: these two lists are read only every ten seconds while they are
empty.
"""

from __future__ import annotations

import ctypes
import math
import re
import struct
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from functools import partial
from operator import itemgetter
from typing import Any, cast

from accelmetrics.backends.contract import Number, Value
from accelmetrics.backends.kit.processes import WHOLE_MACHINE, DriverNumbers, ProcessTree, namespace_of
from accelmetrics.backends.kit.system import read_text
from accelmetrics.backends.nvidia.calls import EARLY, Paced
from accelmetrics.backends.nvidia.metrics import MOST_MEMORY, SECOND, TEN_SECONDS
from accelmetrics.backends.nvidia.nvml import (
    FUNCTION_NOT_FOUND,
    INSUFFICIENT_SIZE,
    MISFIT,
    NOT_FOUND,
    NOT_SUPPORTED,
    Forms,
    Handle,
    Library,
    unavailable,
)
from accelmetrics.schemas.errors import Unavailable
from accelmetrics.schemas.identity import DeviceProcess

_ROOM, _SPARE, _MOST = 64, 16, 65536
"""Entries of a list: initial room, spare room after it grew, and the largest plausible number."""
_GROWTHS = 5
"""Most calls for a list that keeps growing between them."""
_WIDEST, _BEHIND = 64, 1024
"""Bytes reserved for an entry of any form, and spare bytes after the last entry."""
_UNWRITTEN = b"\xc5"
"""Fill byte of an array before a call. It shows how far the driver has written."""
_LATEST = 2**63 - 1
"""Latest plausible time."""
_LARGEST_PID = 2**22 if sys.platform == "linux" else 2**31 - 1
"""Largest process number if the kernel does not report one. Linux has no larger one."""

PROCESS = struct.Struct("=I4xQ8x")
"""``nvmlProcessInfo_v2_t``: pid and used bytes, followed by the ids of the MIG instance."""
PROCESS_SIZES = (24, 16, 32)
"""Bytes of a list's entry: the current form; version 1, without ids; drivers 535.43 to 535.86, with the protected memory."""
_SIZE_OF_FORM = {"_v3": 24, "_v2": 24, "": 16}
_LONG_ENTRIES = ((535, 43), (535, 86))
"""The first and the last driver whose newest form has entries of 32 bytes."""
SAMPLE = struct.Struct("=I4xQII8x")
"""``nvmlProcessUtilizationSample_t``: pid, time, percent of the device's compute time and of its memory controller's time."""
UTILIZATION = "nvmlDeviceGetProcessUtilization"
AGAIN_AFTER = 9.5
"""Seconds after which listed processes that did not belong to a tree are checked again."""
COMPUTE, GRAPHICS, MPS = "Compute", "Graphics", "MPSCompute"


class ProcessList:
    """A call that fills an array of structures and returns their number. The array grows when it is too small.

    Args:
        library: The open library.
        handle: The device's handle.
        forms: The function's names, the newest first, each with the possible sizes of an entry, the likeliest first.
        layout: The layout of an entry in ``data``; entries of all sizes begin alike.

    Attributes:
        supported: Whether the driver has the call, as far as is known. A call that has answered once stays supported.
        data: The entries of the last call, as bytes.
        due: When to read it next, if it is read at a longer interval; otherwise always.
    """

    def __init__(self, library: Library, handle: Handle, forms: Mapping[str, tuple[int, ...]], layout: struct.Struct) -> None:
        self._name = next(iter(forms))
        self._library = library
        # The calls do not refer to this object, so it is freed at once when the device is bound again.
        calls = [partial(ProcessList._fill, function=form, sizes=sizes) for name, sizes in forms.items() for form in library.forms(name)]
        self._call = Forms(calls, chosen=library.chosen, key=(handle.value, self._name))
        self.supported = bool(calls)
        self._answered = False
        self.data = b""
        self.due = -math.inf
        self._layout = layout
        self._watched = -math.inf
        self._handle = handle
        self._count = ctypes.c_uint()
        self._reserve(_ROOM)

    def read(self, progress: list[Any], since: int | None = None) -> int:
        """Read the list. Returns the return code.

        Args:
            progress: Grows with every call.
            since: For utilisation samples, the time after which they are wanted.
        """
        self.data = b""
        status = self._call(self, progress, since)
        self._answered = self._answered or status == 0
        self.supported = status != NOT_SUPPORTED or self._answered
        self._library.check(status, self._name)
        return status

    def watch(self, now: float) -> None:
        """Read the list at every opportunity, for at least ten seconds."""
        self._watched = now + TEN_SECONDS * EARLY
        self.due = -math.inf

    def rest(self, now: float) -> None:
        """Read the list again after ten seconds, unless it is being watched."""
        if now >= self._watched:
            self.due = now + TEN_SECONDS * EARLY

    def _reserve(self, room: int) -> None:
        # The room shares no factor with the sizes of entries. Otherwise a fully cleared array could pass for one with other entries.
        self._room = next(each for each in range(room, room + 6) if each % 6 in (1, 5))
        self._bytes = self._room * _WIDEST + _BEHIND
        self._entries = (ctypes.c_ulonglong * (self._bytes // 8))()

    def _fill(self, progress: list[Any], since: int | None, function: Callable[..., int], sizes: tuple[int, ...]) -> int:
        """Call one form, with more room while the list grows, and set ``data``. Returns the return code."""
        for _ in range(_GROWTHS):
            self._count.value = self._room
            ctypes.memset(self._entries, _UNWRITTEN[0], self._bytes)
            if since is None:
                status = function(self._handle, ctypes.byref(self._count), self._entries)
            else:
                status = function(self._handle, self._entries, ctypes.byref(self._count), ctypes.c_ulonglong(since))
            progress.append(status)
            if status != INSUFFICIENT_SIZE or self._count.value > _MOST:
                break
            # Not every library returns the number of entries, so the room is doubled without one.
            wanted = max(self._count.value, 2 * self._room if self._count.value <= self._room else 0)
            self._reserve(2 * wanted if self._room > 2 * _ROOM else wanted + _SPARE)
        if status or not self._count.value:
            return status
        filled = ctypes.string_at(self._entries, self._bytes).rstrip(_UNWRITTEN)
        size = entry_size(filled, min(self._count.value, self._room), self._room, sizes)
        if size is None:
            return MISFIT
        # A driver may report more entries than it filled.
        count = min(self._count.value, self._room, -(-len(filled) // size))
        data, width = filled, self._layout.size
        if len(data) != count * size:
            data = data.ljust(count * size, b"\0")[: count * size]
        if size != width:
            whole = [data[at : at + min(size, width)] for at in range(0, len(data), size)]
            data = b"".join(entry.ljust(width, b"\0") for entry in whole)
        self.data = data
        return status


def entry_size(filled: bytes, count: int, room: int, sizes: tuple[int, ...]) -> int | None:
    """Find the size of an entry from the bytes that a driver has filled.

    Args:
        filled: The array up to the last byte that the driver has written.
        count: The number of entries that it reports.
        room: The number of entries that it was given room for; some drivers clear all of it.
        sizes: The known sizes, the likeliest first.

    Returns:
        Bytes; None if the array was filled with entries of another size.
    """
    words = -(-len(filled) // 8)
    gap = _UNWRITTEN * 8
    if words * 8 == count * sizes[0] and gap not in filled:  # the usual case
        return sizes[0]
    gaps = [place for place in range(words) if filled[8 * place : 8 * place + 8] == gap] if gap in filled else []
    for total in dict.fromkeys((count, room)):
        for size in sizes:
            if words == total * size // 8 and not gaps:
                return size
    for size in sizes:
        # A driver may skip members at an entry's end, but never its number and its memory.
        if (count - 1) * size // 8 + 2 <= words <= count * size // 8 and all(place % (size // 8) >= 2 for place in gaps):
            return size
    # Fewer entries than reported: accepted if they are complete.
    return sizes[0] if words <= count * sizes[0] // 8 and not gaps and not words % (sizes[0] // 8) else None


def entry_sizes(form: str, driver_version: str) -> tuple[int, ...]:
    """List the possible sizes of an entry in a list of processes, the likeliest first.

    Args:
        form: ``_v3``, ``_v2``, or empty for version 1.
        driver_version: The driver's version, empty if unknown.
    """
    numbers = re.match(r"(\d+)\.(\d+)", driver_version)
    branch = (int(numbers.group(1)), int(numbers.group(2))) if numbers else (0, 0)
    usual = 32 if form and _LONG_ENTRIES[0] <= branch <= _LONG_ENTRIES[1] else _SIZE_OF_FORM[form]
    return (usual, *(size for size in PROCESS_SIZES if size != usual))


def largest_pid() -> int:
    """Read the largest number that a process can have."""
    text = read_text("/proc/sys/kernel/pid_max") or ""
    if not text.isdecimal() or not 0 < int(text) <= 2**31 - 1:
        return _LARGEST_PID
    # From Linux 6.14 on, each PID namespace has its own limit. It does not cover the machine's processes, which the driver may list.
    return max(int(text), _LARGEST_PID) if namespace_of("self") not in ("", WHOLE_MACHINE) else int(text)


class DeviceProcesses(Paced):
    """The processes of one device, read every second.

    The lists of graphics and of MPS processes are read every ten seconds while they are empty. They are read together with the list
    of computing processes while they have any, for ten seconds after that, and for ten seconds after a new computing process, which
    may be in them too.

    Attributes:
        processes: The processes, by process number. The tuple and its entries stay the same objects until they change.
        pids: Their numbers; the same object while they are equal.
        refusal: Why NVML does not list them; None if it does.
        pending: Whether the lists have to be decoded, which is postponed until all calls were made.
    """

    def __init__(self, library: Library, handle: Handle, driver_version: str) -> None:
        super().__init__(SECOND)
        self.processes: tuple[DeviceProcess, ...] = ()
        self.pids: frozenset[int] = frozenset()
        self.refusal: Unavailable | None = unavailable(FUNCTION_NOT_FOUND)
        self.pending = False
        names = {kind: f"nvmlDeviceGet{kind}RunningProcesses" for kind in (COMPUTE, GRAPHICS, MPS)}
        sizes = {form: entry_sizes(form, driver_version) for form in _SIZE_OF_FORM}
        self._lists = {
            kind: ProcessList(library, handle, {f"{name}{form}": each for form, each in sizes.items()}, PROCESS)
            for kind, name in names.items()
        }
        self._samples = ProcessList(library, handle, {UTILIZATION: (SAMPLE.size,)}, SAMPLE)
        self._answered: tuple[Mapping[str, bytes], bytes] = ({}, b"")
        self._lists_decoded: Mapping[str, bytes] = {}
        self._computing: frozenset[int] = frozenset()  # ids of the computing processes
        self._status = FUNCTION_NOT_FOUND  # NVML's status for the list of computing processes
        self._seen = 0  # the time of the newest sample, in the driver's microseconds
        self._largest = 0  # the largest possible process id, read once a process is listed
        self._holdings: _Holdings = ([], [], [])
        self._columns: tuple[Sequence[Any], ...] = ([],) * 5

    def ask(self, now: float, progress: list[Any]) -> Mapping[str, Value] | None:
        if self.pending:
            self.decode()  # sets the time after which samples are wanted
        lists: dict[str, bytes] = {}
        failed = False
        for kind, source in self._lists.items():
            if not source.supported:
                continue
            if now < source.due:
                lists[kind] = source.data
                continue
            status = source.read(progress)
            failed |= status != 0 and source.supported
            if status == 0:
                lists[kind] = source.data
            if kind == COMPUTE:
                self._status = status
                if source.data != self._answered[0].get(COMPUTE, b""):
                    before, self._computing = self._computing, frozenset(memoryview(source.data).cast("I")[:: PROCESS.size // 4])
                    if not self._computing <= before:  # a new one may be in the other lists too
                        self._lists[GRAPHICS].watch(now)
                        self._lists[MPS].watch(now)
            elif source.data:
                source.watch(now)
            elif status == 0:
                source.rest(now)
        samples = b""
        if any(lists.values()) and self._samples.supported:
            failed |= self._samples.read(progress, self._seen) not in (0, NOT_FOUND) and self._samples.supported
            samples = self._samples.data
        self.schedule(now, failed)
        self.pending = (lists, samples) != self._answered
        self._answered = (lists, samples)
        # Without the list of computing processes, the device would seem to compute nothing.
        self.refusal = None if COMPUTE in lists else unavailable(self._status)
        return None

    def decode(self) -> None:
        """Decode the latest lists and samples."""
        self.pending = False
        lists, samples = self._answered
        if lists != self._lists_decoded:
            self._lists_decoded, self._holdings = lists, self._merge(lists)
        pids = self._holdings[0]
        # A process without a sample was idle since the last one, or is too new. Of several samples the newest counts.
        entries = sorted((entry for entry in SAMPLE.iter_unpack(samples) if entry[1] <= _LATEST), key=itemgetter(1))
        self._seen = entries[-1][1] if entries else self._seen
        busy = {pid: (share if share <= 100 else None) for pid, _, share, _ in entries}
        busy_memory = {pid: (share if share <= 100 else None) for pid, _, _, share in entries}
        columns = (*self._holdings, [*map(busy.get, pids)], [*map(busy_memory.get, pids)])
        if columns == self._columns:
            return
        same_pids, before = pids == self._columns[0], self.processes
        self._columns = columns
        rows: Iterable[Any] = zip(*columns, strict=True)
        if same_pids:
            self.processes = tuple([old if old == row else _ENTRY(row) for old, row in zip(before, rows, strict=True)])
        else:
            self.pids = frozenset(pids)
            known = dict(zip(before, before, strict=True))
            self.processes = tuple([known.get(row) or _ENTRY(row) for row in rows])

    def _merge(self, lists: Mapping[str, bytes]) -> _Holdings:
        """Merge the lists by process number."""
        held: dict[str, dict[int, int | None]] = {}
        for kind, data in lists.items():
            own = held[kind] = {}
            for pid, answer in PROCESS.iter_unpack(data):
                used = answer if answer <= MOST_MEMORY else None
                before = own.get(pid)
                # A process appears once per MIG instance that it uses.
                own[pid] = used if before is None else before + (used or 0)
        computing, drawing = {*held.get(COMPUTE, ()), *held.get(MPS, ())}, held.get(GRAPHICS, {})
        listed = sorted({*computing, *drawing})
        if listed and listed[-1] > self._largest:  # not known yet, or an administrator has raised it
            self._largest = largest_pid()
        pids = [pid for pid in listed if 0 < pid <= self._largest]
        kinds = ["+".join(word for word, members in (("compute", computing), ("graphics", drawing)) if pid in members) for pid in pids]
        # Each list has all memory of a process, so the values of several lists are not added up.
        known = [[used for memory in held.values() if (used := memory.get(pid)) is not None] for pid in pids]
        return (pids, kinds, [max(each, default=None) for each in known])


_Holdings = tuple[list[int], list[str], Sequence["int | None"]]
"""The processes by number: the numbers, the kinds in words, and the used bytes."""
_ENTRY = cast("Callable[[tuple[Any, ...]], DeviceProcess]", partial(tuple.__new__, DeviceProcess))
"""Makes an entry from its parts like ``_make``, at a third of the cost."""


def add_up(members: Sequence[DeviceProcess], total: int | None) -> dict[str, Number]:
    """Sum up the use by the watched processes, as far as the driver reports it: three values in percent, one in bytes."""
    used, busy, busy_memory = (
        sum(known) if (known := [value for each in members if (value := getattr(each, part)) is not None]) else None
        for part in ("memory_bytes", "utilization", "memory_utilization")
    )
    # The driver rounds each share, so their sum may exceed 100.
    own = {
        "gpu": None if busy is None else min(busy, 100),
        "memory": None if busy_memory is None else min(busy_memory, 100),
        "memoryAllocated": used / total * 100 if used is not None and total and used <= total else None,
        "memoryAllocatedBytes": used,
    }
    return {name: value for name, value in own.items() if value is not None}


class TreeMembers:
    """The processes on one device that belong to a tree. Processes outside the tree cost almost nothing.

    No process can move into a tree, so one that does not belong to it is remembered while the device lists it. All are checked
    again every ``AGAIN_AFTER`` seconds: the system may have given a number to another process between two lists, and a tree that
    changes while it is walked may be seen incompletely.

    Args:
        tree: The tree.
        nodes: A pattern of the device's nodes.
    """

    def __init__(self, tree: ProcessTree, nodes: str) -> None:
        self._tree, self._nodes = tree, nodes
        self._listed: Set[int] = frozenset()
        self._owned: set[int] = set()
        self._again = -math.inf

    def among(self, pids: Set[int], now: float) -> set[int]:
        """Return the listed processes that belong to the tree.

        Args:
            pids: All numbers that the device lists; preferably the same object while the list is the same.
            now: The time in seconds, on any clock.
        """
        if now >= self._again or self._tree.root is None:
            self._again, self._listed = now + AGAIN_AFTER, frozenset()
        asked: Set[int] = self._owned
        if pids is not self._listed:
            asked = (asked | (pids - self._listed)) & pids
            self._listed = pids
        numbers = None if self._tree.shared else DriverNumbers(pids)
        self._owned = {pid for pid in asked if self._tree.owns(pid, now, numbers, self._nodes)}
        return self._owned
