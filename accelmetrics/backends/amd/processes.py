"""Who uses the GPUs: what the processes that hold one open use of it, once a second.

Memory is what the kernel accounts to the client; of an APU with the GTT. Engine time is that of the graphics and compute
rings: what a runtime submits through queues of its own (ROCm) passes them by, and shows as memory alone.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from accelmetrics.backends.amd.fdinfo import Client, parse
from accelmetrics.backends.kit.holders import NodeHolders
from accelmetrics.backends.kit.system import read_text
from accelmetrics.schemas.identity import DeviceProcess

PACE = 0.95
"""Seconds that an answer is kept; a little less than one, so that readings every second find it outdated."""

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


class Seen(NamedTuple):
    """What a pass came to: by device, its processes, and whether there can be no other."""

    found: Found
    complete: bool


def is_gpu(node: str) -> bool:
    """Whether a device node is a GPU's."""
    return node.startswith("/dev/dri/")


class ProcessTable:
    """The processes on all devices of one driver. Several lanes may ask; one looks, the others get what it found last.

    Args:
        unified: Addresses of the devices that share the host's memory.
        holders: Where the processes are looked for.

    Attributes:
        unified: The same, to which may be added.
    """

    def __init__(self, unified: Iterable[str], holders: NodeHolders | None = None) -> None:
        self.unified = set(unified)
        self._holders = holders or NodeHolders(is_gpu)
        self._looking = threading.Lock()
        self._until = -math.inf
        self._at = 0.0
        self._uses: Uses = {}
        self._seen = Seen({}, False)

    def survey(self) -> None:
        """The first pass, which takes longer than later ones."""
        self._holders.look([])

    def on(self, address: str, now: float, progress: list[Any]) -> tuple[DeviceProcess, ...] | None:
        """The processes on one device, as of at most a second ago; None where none was found, and there may be some."""
        if now >= self._until and self._looking.acquire(blocking=False):
            try:
                self._look(now, progress)
            finally:
                self._looking.release()
        seen = self._seen
        return seen.found.get(address, () if seen.complete else None)

    def _look(self, now: float, progress: list[Any]) -> None:
        self._until = now + PACE
        self._holders.look(progress)
        uses = self._collect(progress)
        seconds, before = now - self._at, self._uses
        self._at, self._uses = now, uses
        found: dict[str, list[DeviceProcess]] = {}
        for (address, pid), use in sorted(uses.items()):
            earlier = before.get((address, pid))
            memory = _sum(use.vram, use.gtt) if address in self.unified else use.vram
            found.setdefault(address, []).append(DeviceProcess(pid, _type(use), memory, _busy(use, earlier, seconds)))
        latest = {address: tuple(processes) for address, processes in found.items()}
        kept = {address: _kept(self._seen.found.get(address), processes) for address, processes in latest.items()}
        self._seen = Seen(kept, self._holders.complete)

    def _collect(self, progress: list[Any]) -> Uses:
        seen: set[tuple[str, str]] = set()
        uses: Uses = {}
        for pid, nodes in self._holders.held().items():
            for node in nodes:
                client = parse(read_text(f"/proc/{pid}/fdinfo/{node}") or "")
                progress.append(node)
                # A client that was handed on shows in every process that holds it: it is counted with the first.
                if client is None or (client.address, client.number) in seen:
                    continue
                seen.add((client.address, client.number))
                uses[client.address, pid] = uses.get((client.address, pid), NOTHING).plus(client)
        return uses


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
