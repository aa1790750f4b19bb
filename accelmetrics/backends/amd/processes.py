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
to the client; of an APU in the pools that its own memory is counted in. Engine time is that of the graphics and compute rings: what a
runtime submits through queues of its own (ROCm) passes them by, and shows as memory alone.
"""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from accelmetrics.backends.kit import NodeHolders
from accelmetrics.backends.kit.processes import UNSEEN
from accelmetrics.backends.kit.system import read_text
from accelmetrics.schemas.errors import Unavailable
from accelmetrics.schemas.identity import DeviceProcess

UNITS = {"": 1, "ns": 1, "kib": 1024, "mib": 1024**2, "gib": 1024**3}
MEMORY = {"vram": ("drm-memory-vram", "drm-resident-vram"), "gtt": ("drm-memory-gtt", "drm-resident-gtt")}
"""The first is there on every kernel; the second is how newer ones spell it."""
MOST = 2**50
"""Bytes; more is no count."""

_COUNT = re.compile(r"^(drm-[a-z0-9-]+):[ \t]*(\d{1,19})[ \t]*(ns|[kmg]ib|)[ \t]*$", re.MULTILINE | re.IGNORECASE | re.ASCII)
_ADDRESS = re.compile(r"^drm-pdev:[ \t]*([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])[ \t]*$", re.MULTILINE | re.IGNORECASE | re.ASCII)


class DrmClient(NamedTuple):
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
    number: int
    vram: int | None
    gtt: int | None
    graphics: int
    compute: int


def parse(text: str) -> DrmClient | None:
    """Read one file; None when it is not that of a GPU."""
    address = _ADDRESS.search(text)
    counts = {name.lower(): int(digits) * UNITS[unit.lower()] for name, digits, unit in _COUNT.findall(text)}
    if address is None or "drm-client-id" not in counts:
        return None
    vram, gtt = (next((counts[name] for name in names if counts.get(name, MOST + 1) <= MOST), None) for names in MEMORY.values())
    graphics, compute = (counts.get(f"drm-engine-{engine}", 0) for engine in ("gfx", "compute"))
    return DrmClient(address[1].lower(), counts["drm-client-id"], vram, gtt, graphics, compute)


# All clients of all processes

PACE = 0.95
"""Seconds that an answer is kept; a little less than one, so that readings every second find it outdated."""


def is_gpu(node: str) -> bool:
    """Return whether a device node is a GPU's."""
    return node.startswith("/dev/dri/")


class DriverProcesses:
    """The processes on all devices of one driver. Several workers may ask; one looks, the others get what it found last.

    Args:
        pools: By address, the kinds of memory that count, where that is not ``vram`` alone.
        holders: Where the processes are looked for.

    Attributes:
        pools: The same, to which may be added.
    """

    def __init__(self, pools: Mapping[str, Sequence[str]], holders: NodeHolders | None = None) -> None:
        self.pools = dict(pools)
        self._holders = holders or NodeHolders(is_gpu)
        self._looking = threading.Lock()
        self._until = -math.inf
        self._at = 0.0
        self._worked: dict[tuple[str, int], int] = {}
        self._found: dict[str, tuple[DeviceProcess, ...]] = {}

    def survey(self) -> None:
        """Look through all processes for the first time, which takes longer than later passes."""
        self._holders.look([])

    def on(self, address: str, now: float, progress: list[Any]) -> tuple[DeviceProcess, ...] | Unavailable:
        """Return the processes on one device, as of at most a second ago; a reason where none was found, and there may be some."""
        if now >= self._until and self._looking.acquire(blocking=False):
            try:
                self._look(now, progress)
            finally:
                self._looking.release()
        return self._found.get(address, () if self._holders.complete else UNSEEN)

    def _look(self, now: float, progress: list[Any]) -> None:
        self._until = now + PACE
        self._holders.look(progress)
        clients: dict[tuple[str, int], list[DrmClient]] = {}
        seen = set()
        for pid, nodes in self._holders.held().items():
            for node in nodes:
                client = parse(read_text(f"/proc/{pid}/fdinfo/{node}") or "")
                progress.append(node)
                # A client that was handed on shows in every process that holds it: it is counted with the first.
                if client is not None and (client.address, client.number) not in seen:
                    seen.add((client.address, client.number))
                    clients.setdefault((client.address, pid), []).append(client)
        worked: dict[tuple[str, int], int] = {}
        found: dict[str, tuple[DeviceProcess, ...]] = {}
        for (address, pid), held in sorted(clients.items()):
            kinds = self.pools.get(address, ("vram",))
            sizes = [size for each in held for kind, size in (("vram", each.vram), ("gtt", each.gtt)) if kind in kinds and size is not None]
            engines = {"compute": sum(each.compute for each in held), "graphics": sum(each.graphics for each in held)}
            now_worked = worked[address, pid] = sum(engines.values())
            risen, seconds = now_worked - self._worked.get((address, pid), math.inf), now - self._at
            busy = min(100.0, risen / seconds / 1e7) if risen >= 0 and seconds > 0 else None
            words = "+".join(engine for engine, nanoseconds in engines.items() if nanoseconds)
            process = DeviceProcess(pid, words, sum(sizes) if sizes else None, busy)
            found[address] = (*found.get(address, ()), process)
        self._at, self._worked = now, worked
        # The same object while nothing changed.
        kept = self._found
        self._found = {address: kept[address] if kept.get(address) == each else each for address, each in found.items()}
