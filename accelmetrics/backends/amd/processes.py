"""Who uses the GPUs: the processes that hold one open, once a second, at a bounded cost.

The kernel lets a user see the descriptors of his own processes alone, so others' are not even looked at. A process is looked
through when it turns up, and again in turn with all others, a few at a time: one that opens a GPU late in its life is found
within some seconds. Between two looks, only the descriptors that are known to be a GPU's are read.

Memory is what the kernel accounts to the client; of an APU with the GTT. Engine time is that of the graphics and compute
rings: what a runtime submits through queues of its own (ROCm) passes them by, and shows as memory alone.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from accelmetrics.backends.amd.fdinfo import Client, parse
from accelmetrics.backends.sysroot import list_directory, read_text, system_path
from accelmetrics.schemas.identity import DeviceProcess

PACE = 0.95
"""Seconds that an answer is kept; a little less than one, so that readings every second find it outdated."""
NEWCOMERS, OLD = 256, 32
"""How many processes are looked through in one pass: of those not seen before, and of the others in turn."""
DESCRIPTORS = 1024
"""How many of one process's descriptors are looked at."""
NODES = "/dev/dri/"

Found = Mapping[str, tuple[DeviceProcess, ...]]


class Use(NamedTuple):
    """What one process uses of one device: bytes, None where not said, and nanoseconds of engine time."""

    vram: int | None
    gtt: int | None
    graphics: int
    compute: int

    def plus(self, client: Client) -> Use:
        """With one more client."""
        return Use(_sum(self.vram, client.vram), _sum(self.gtt, client.gtt), self.graphics + client.graphics, self.compute + client.compute)


NOTHING = Use(None, None, 0, 0)
Uses = dict[tuple[str, int], Use]
"""By device and process."""


class ProcessTable:
    """The processes on all devices of one driver. Several lanes may ask; one looks, the others get what it found last.

    Args:
        unified: Addresses of the devices that share the host's memory.
    """

    def __init__(self, unified: frozenset[str]) -> None:
        self._unified = unified
        self._looking = threading.Lock()
        self._until = -math.inf
        self._at = 0.0
        self._uses: Uses = {}
        self._nodes: dict[int, list[str]] = {}
        self._turn: list[int] = []
        self._found: Found = {}

    def on(self, address: str, now: float, steps: list[Any]) -> tuple[DeviceProcess, ...]:
        """The processes on one device, as of at most a second ago."""
        if now >= self._until and self._looking.acquire(blocking=False):
            try:
                self._look(now, steps)
            finally:
                self._looking.release()
        return self._found.get(address, ())

    def _look(self, now: float, steps: list[Any]) -> None:
        self._until = now + PACE
        self._discover(steps)
        uses = self._collect(steps)
        seconds, before = now - self._at, self._uses
        self._at, self._uses = now, uses
        found: dict[str, list[DeviceProcess]] = {}
        for (address, pid), use in sorted(uses.items()):
            earlier = before.get((address, pid))
            memory = _sum(use.vram, use.gtt) if address in self._unified else use.vram
            found.setdefault(address, []).append(DeviceProcess(pid, _type(use), memory, _busy(use, earlier, seconds)))
        latest = {address: tuple(processes) for address, processes in found.items()}
        self._found = {address: _kept(self._found.get(address), processes) for address, processes in latest.items()}

    def _discover(self, steps: list[Any]) -> None:
        present = {int(entry) for entry in list_directory("/proc") if entry.isdecimal() and len(entry) < 10}
        known = {pid: nodes for pid, nodes in self._nodes.items() if pid in present}
        self._turn = [pid for pid in self._turn if pid in known] or list(known)
        turn, self._turn = self._turn[:OLD], self._turn[OLD:]
        for pid in [*sorted(present - known.keys())[:NEWCOMERS], *turn]:
            known[pid] = list(_nodes(pid))
            steps.append(pid)
        self._nodes = known

    def _collect(self, steps: list[Any]) -> Uses:
        seen: set[tuple[str, str]] = set()
        uses: Uses = {}
        for pid in sorted(pid for pid, nodes in self._nodes.items() if nodes):
            for node in self._nodes[pid]:
                client = parse(read_text(f"/proc/{pid}/fdinfo/{node}") or "")
                steps.append(node)
                # A client that was handed on shows in every process that holds it: it is counted with the first.
                if client is None or (client.address, client.number) in seen:
                    continue
                seen.add((client.address, client.number))
                uses[client.address, pid] = uses.get((client.address, pid), NOTHING).plus(client)
        return uses


def _nodes(pid: int) -> Iterator[str]:
    """Descriptors of a GPU among those of one of our processes."""
    directory = f"/proc/{pid}/fd"
    try:
        if os.geteuid() not in (0, system_path(f"/proc/{pid}").stat().st_uid):
            return
    except OSError:
        return
    for descriptor in list_directory(directory)[:DESCRIPTORS]:
        try:
            target = os.readlink(system_path(f"{directory}/{descriptor}"))  # noqa: PTH115  the link's text is wanted
        except OSError:
            continue
        if target.startswith(NODES):
            yield descriptor


def _sum(one: int | None, other: int | None) -> int | None:
    known = [size for size in (one, other) if size is not None]
    return sum(known) if known else None


def _type(use: Use) -> str:
    return "+".join(word for word, worked in (("compute", use.compute), ("graphics", use.graphics)) if worked)


def _busy(use: Use, earlier: Use | None, seconds: float) -> float | None:
    """Share of the time since the last look during which engines worked for it; None at the first look."""
    if earlier is None or seconds <= 0:
        return None
    worked = use.graphics + use.compute - earlier.graphics - earlier.compute
    return min(100.0, worked / seconds / 1e7) if worked >= 0 else None


def _kept(before: tuple[DeviceProcess, ...] | None, now: tuple[DeviceProcess, ...]) -> tuple[DeviceProcess, ...]:
    """The same object while nothing changed."""
    return before if before is not None and before == now else now
