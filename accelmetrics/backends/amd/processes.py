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
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

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


Client = tuple[str, int, dict[str, int], dict[str, int]]
"""One opening of one device: the device's PCI address, the kernel's number for the client, by kind of memory the bytes, as far as the
kernel says, and by engine the nanoseconds that it has worked for the client."""


def parse(text: str) -> Client | None:
    """Read one file; None when it is not that of a GPU."""
    address = _ADDRESS.search(text)
    counts = {name.lower(): int(digits) * UNITS[unit.lower()] for name, digits, unit in _COUNT.findall(text)}
    if address is None or "drm-client-id" not in counts:
        return None
    memory = {kind: counts[name] for kind, names in MEMORY.items() for name in reversed(names) if counts.get(name, MOST + 1) <= MOST}
    engines = {"compute": counts.get("drm-engine-compute", 0), "graphics": counts.get("drm-engine-gfx", 0)}
    return address[1].lower(), counts["drm-client-id"], memory, engines


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
        self._holders.look([])  # the first pass takes longer than later ones
        self._looking = threading.Lock()
        self._until = -math.inf
        self._at = 0.0
        self._worked: dict[tuple[str, int], int] = {}
        self._found: dict[str, tuple[DeviceProcess, ...]] = {}

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
        clients: dict[tuple[str, int], list[Client]] = {}
        seen = set()
        for pid, nodes in self._holders.held().items():
            for node in nodes:
                client = parse(read_text(f"/proc/{pid}/fdinfo/{node}") or "")
                progress.append(node)
                # A client that was handed on shows in every process that holds it: it is counted with the first.
                if client is not None and client[:2] not in seen:
                    seen.add(client[:2])
                    clients.setdefault((client[0], pid), []).append(client)
        worked: dict[tuple[str, int], int] = {}
        found: dict[str, tuple[DeviceProcess, ...]] = {}
        for (address, pid), held in sorted(clients.items()):
            kinds = self.pools.get(address, ("vram",))
            sizes = [size for _, _, memory, _ in held for kind, size in memory.items() if kind in kinds]
            engines = Counter[str]()
            for _, _, _, nanoseconds in held:
                engines.update(nanoseconds)
            worked[address, pid] = engines.total()
            risen, seconds = worked[address, pid] - self._worked.get((address, pid), math.inf), now - self._at
            busy = min(100.0, risen / seconds / 1e7) if risen >= 0 and seconds > 0 else None
            process = DeviceProcess(pid, "+".join(each for each in engines if engines[each]), sum(sizes) if sizes else None, busy)
            found[address] = (*found.get(address, ()), process)
        self._at, self._worked = now, worked
        # The same object while nothing changed.
        kept = self._found
        self._found = {address: kept[address] if kept.get(address) == each else each for address, each in found.items()}
