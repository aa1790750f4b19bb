"""What the processes that hold a GPU open use of it, once a second.

``/proc/PID/fdinfo/FD`` of a descriptor of a GPU tells it, in the form that all DRM drivers share::

    drm-driver:     amdgpu
    drm-pdev:       0000:03:00.0
    drm-client-id:  42
    drm-memory-vram:        1048576 KiB
    drm-memory-gtt:         2048 KiB
    drm-engine-gfx: 123456789 ns
    drm-engine-compute:     987654321 ns

A client is one opening of the device; descriptors that were duplicated or inherited show the same one. Memory is what the kernel accounts
to the client; of an APU with the GTT. Engine time is that of the graphics and compute rings: what a runtime submits through queues of its
own (ROCm) passes them by, and shows as memory alone.
"""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from accelmetrics.backends.kit.holders import NodeHolders
from accelmetrics.backends.kit.system import read_text
from accelmetrics.schemas.identity import DeviceProcess

UNITS = {"": 1, "kib": 1024, "mib": 1024**2, "gib": 1024**3}
MEMORY = {"vram": ("drm-memory-vram", "drm-resident-vram"), "gtt": ("drm-memory-gtt", "drm-resident-gtt")}
"""The first is there on every kernel; the second is how newer ones spell it."""
MOST = 2**50
"""Bytes, and nanoseconds of an engine: thirteen days of a thousand engines; more is no count."""

_LINE = re.compile(r"^(drm-[a-z0-9-]+):[ \t]*(\S{1,64})[ \t]*([a-z]*)[ \t]*$", re.MULTILINE | re.IGNORECASE | re.ASCII)
_COUNT = re.compile(r"\d{1,19}", re.ASCII)
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.ASCII)


class Client(NamedTuple):
    """One opening of one device.

    Attributes:
        address: The device's PCI address.
        number: The kernel's number for the client.
        vram: Bytes of the device's memory, None where the kernel does not say.
        gtt: Bytes of the host's memory that the device uses.
        graphics: Nanoseconds that the graphics engine has worked for it; 0 where it never has.
        compute: The same of the compute engines.
    """

    address: str
    number: str
    vram: int | None
    gtt: int | None
    graphics: int
    compute: int


def parse(text: str) -> Client | None:
    """Read one file; None when it is not that of a GPU."""
    found = {name.lower(): (value, unit.lower()) for name, value, unit in _LINE.findall(text)}
    address, number = found.get("drm-pdev", ("", ""))[0].lower(), found.get("drm-client-id", ("", ""))[0]
    if _ADDRESS.fullmatch(address) is None or _COUNT.fullmatch(number) is None:
        return None
    vram, gtt = (next((size for name in names if (size := _bytes(found.get(name))) is not None), None) for names in MEMORY.values())
    return Client(address, number, vram, gtt, _nanoseconds(found.get("drm-engine-gfx")), _nanoseconds(found.get("drm-engine-compute")))


def _bytes(said: tuple[str, str] | None) -> int | None:
    if said is None or said[1] not in UNITS or _COUNT.fullmatch(said[0]) is None:
        return None
    size = int(said[0]) * UNITS[said[1]]
    return size if size <= MOST else None


def _nanoseconds(said: tuple[str, str] | None) -> int:
    if said is None or said[1] != "ns" or _COUNT.fullmatch(said[0]) is None:
        return 0
    return int(said[0])


# All clients of all processes

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
