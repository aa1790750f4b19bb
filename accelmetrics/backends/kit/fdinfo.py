"""Memory and engine time of programs on devices of DRM drivers: GPUs below ``/dev/dri``, NPUs below ``/dev/accel``.

For a descriptor of a device, ``/proc/PID/fdinfo/FD`` lists both, in one format for all DRM drivers (the kernel's
``drm-usage-stats.rst``)::

    drm-driver:     amdgpu                          drm-driver:     xe
    drm-pdev:       0000:03:00.0                    drm-pdev:       0000:03:00.0
    drm-client-id:  42                              drm-client-id:  7
    drm-memory-vram:        1048576 KiB             drm-resident-vram0:     1048576 KiB
    drm-engine-gfx: 123456789 ns                    drm-cycles-ccs: 28257900
    drm-engine-compute:     987654321 ns            drm-total-cycles-ccs:   7655183225

A client is one opening of the device. Duplicated or inherited descriptors show the same client. Devices that are not on the PCI bus
have no ``drm-pdev``; the descriptor's device node identifies them.

Shares of time are underestimated rather than overestimated: a client that closes between two looks is missing from the second, and
the time that a new client used before its first look is not counted.
"""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from accelmetrics.backends.contract import SYSTEM_CLOCK, Clock, Value
from accelmetrics.backends.guard import counted_at
from accelmetrics.backends.kit.processes import PACE, UNSEEN, NodeHolders
from accelmetrics.backends.kit.system import is_asleep, link_name, read_text
from accelmetrics.schemas.errors import Reason, Unavailable
from accelmetrics.schemas.identity import DeviceProcess, pci_address
from accelmetrics.schemas.metric import NOTHING
from accelmetrics.schemas.named_tuple import NamedTuple

UNITS = {"": 1, "ns": 1, "kib": 1024, "mib": 1024**2, "gib": 1024**3}
MOST = 2**50
"""Largest plausible number of bytes; a larger number is ignored."""
EITHER = "either"
TYPES = ("compute", "graphics", EITHER)
"""Engine words that determine a process's type and its share of the device's time. ``either`` counts for the share alone."""
CLASSES = {"/dev/dri/": "drm", "/dev/accel/": "accel"}
"""Device class below ``/sys/class`` by directory of device nodes."""

_COUNT = re.compile(r"^drm-([a-z0-9_-]+):[ \t]*(\d{1,19})[ \t]*(ns|[kmg]ib|)[ \t]*$", re.MULTILINE | re.IGNORECASE | re.ASCII)
_ADDRESS = re.compile(r"^drm-pdev:[ \t]*([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])[ \t]*$", re.MULTILINE | re.IGNORECASE | re.ASCII)


class DrmKeys(NamedTuple):
    """A driver's names for its engines and memory.

    Attributes:
        engines: The names after ``drm-engine-`` or ``drm-cycles-``, by a word of this package. ``compute`` and ``graphics``
            determine a process's type and share, ``either`` its share alone. Any other word is for metrics of the device, for
            example ``busy`` for all engines that the driver counts.
        memory: Groups of names after ``drm-memory-``, ``drm-resident-`` or ``drm-total-``. A client's memory is the sum over the
            first group with any value.
        wakes: Whether reading fdinfo may wake a suspended device. If so, the fdinfo of suspended devices is not read.
    """

    engines: Mapping[str, Sequence[str]]
    memory: Sequence[Sequence[str]] = ()
    wakes: bool = True


class Client(NamedTuple):
    """A single opening of a device by a program.

    Attributes:
        device: The device's PCI address, or its name on another bus.
        number: The kernel's number for the client.
        counts: Bytes, nanoseconds or cycles, by the part of the key after ``drm-``.
    """

    device: str
    number: int
    counts: Mapping[str, int]

    def memory(self, groups: Sequence[Sequence[str]]) -> int | None:
        """Return the memory that the client holds, in bytes; None if the driver does not report it."""
        for group in groups:
            sizes = []
            for region in group:
                # Memory in use comes first: "memory" is its key on older kernels, "resident" on newer. "total" is all that was allocated.
                known = [self.counts.get(f"{kind}-{region}", MOST + 1) for kind in ("memory", "resident", "total")]
                sizes += [size for size in known if size <= MOST][:1]
            if sizes:
                return sum(sizes)
        return None

    def busy(self, before: Client, seconds: float, engine: str) -> float | None:
        """Return the share (0 to 1) of the time since ``before`` in which an engine worked for this client; None if not counted."""
        worked, cycles, all_cycles = (
            self.counts[key] - before.counts[key] if key in self.counts and key in before.counts else None
            for key in (f"engine-{engine}", f"cycles-{engine}", f"total-cycles-{engine}")
        )
        share = worked / 1e9 / seconds if worked is not None else cycles / all_cycles if cycles is not None and all_cycles else None
        # Engines of one name are counted together; the capacity is their number.
        return None if share is None or share < 0 else share / max(1, self.counts.get(f"engine-capacity-{engine}", 1))

    def used(self, engine: str) -> int | None:
        """Return the engine time since the client opened, in the driver's unit (ns or cycles); None if not counted."""
        return self.counts.get(f"engine-{engine}", self.counts.get(f"cycles-{engine}"))


def parse(text: str, node: str = "") -> Client | None:
    """Parse one fdinfo file. Returns None if it does not belong to a DRM device.

    Args:
        text: The file's text.
        node: The device node that the descriptor leads to. It identifies devices that are not on the PCI bus.
    """
    address = _ADDRESS.search(text)
    counts = {name.lower(): int(digits) * UNITS[unit.lower()] for name, digits, unit in _COUNT.findall(text)}
    device = pci_address(address[1]) if address else device_of(node)
    return Client(device, counts["client-id"], counts) if device and "client-id" in counts else None


def device_of(node: str) -> str:
    """Return the bus name of a device node's device; empty if the kernel does not show it."""
    return next((link_name(f"/sys/class/{name}/{node[len(at) :]}/device") for at, name in CLASSES.items() if node.startswith(at)), "")


def is_drm(node: str) -> bool:
    """Return whether a path is the device node of a DRM driver."""
    return node.startswith(tuple(CLASSES))


class DrmClients:
    """The programs on all devices of one driver. Any thread may ask: one thread scans, others get the latest result.

    Args:
        keys: The driver's names for engines and memory.
        pools: By device, the group of memory names that counts, if it differs between devices.
        holders: Finds the processes that hold device nodes.
        clock: Clock for shares of time.

    Attributes:
        pools: As above; entries may be added later.
    """

    def __init__(
        self,
        keys: DrmKeys,
        pools: Mapping[str, Sequence[str]] = NOTHING,
        holders: NodeHolders | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.pools = dict(pools)
        self._keys = keys
        self._clock = clock or SYSTEM_CLOCK
        self._holders = holders or NodeHolders(is_drm)
        # The first pass takes longer than later ones, so it is done here and not within a reading.
        self._holders.look([])
        self._looking = threading.Lock()
        self._until = self._at = -math.inf
        self._was_complete = False
        self._found: dict[str, tuple[DeviceProcess, ...]] = {}
        self._clients: dict[tuple[str, int], Client] = {}
        self._shares: dict[tuple[str, int, str], float] = {}
        self._is_second = False

    def on(self, device: str, progress: list[Any]) -> tuple[DeviceProcess, ...] | Unavailable:
        """Return the processes on one device, at most a second old; a reason if none was found but some may be hidden."""
        now = self._clock.monotonic()
        # A thread that finds another one looking does not wait for it: the last result is at most a second old.
        if now >= self._until and self._looking.acquire(blocking=False):
            try:
                self._look(now, progress)
            finally:
                self._looking.release()
        # "No process" is an answer only if every process was looked into.
        return self._found.get(device, () if self._holders.complete else UNSEEN)

    def total(self, device: str, what: str, progress: list[Any]) -> Value:
        """Return the use of a device by all programs together; a reason if not all programs are visible.

        Args:
            device: Its PCI address, or its name on another bus.
            what: ``memory``, in bytes; or an engine word, for the share of time of the busiest of its engines, in percent.
            progress: Grows with each descriptor that is read.
        """
        self.on(device, progress)
        if not self._holders.complete:
            return UNSEEN
        clients = [client for client in self._clients.values() if client.device == device]
        if what == "memory":
            sizes = [size for client in clients if (size := self._memory(client)) is not None]
            return (
                sum(sizes)
                if sizes or not clients
                else Unavailable(Reason.NOT_SUPPORTED, "the driver does not report the memory of programs")
            )
        engines = self._keys.engines[what]
        if clients and all(client.used(engine) is None for client in clients for engine in engines):
            return Unavailable(Reason.NOT_SUPPORTED, f"the driver does not count the time of programs on {', '.join(engines)}")
        shares = {engine: [self._shares.get((device, client.number, engine)) for client in clients] for engine in engines}
        known = [sum(share for share in each if share is not None) for each in shares.values() if any(share is not None for share in each)]
        if self._is_second and (known or not clients):
            return min(100.0, 100 * max(known, default=0.0))
        return Unavailable(Reason.NEEDS_INTERVAL, "the first look at the programs: a share of time needs two")

    def _memory(self, client: Client) -> int | None:
        return client.memory([self.pools[client.device]] if client.device in self.pools else self._keys.memory)

    def _look(self, now: float, progress: list[Any]) -> None:
        self._until = now + PACE
        self._holders.look(progress)
        held: dict[tuple[str, int], list[Client]] = {}
        clients: dict[tuple[str, int], Client] = {}
        asleep: dict[str, bool] = {}
        for pid, nodes in self._holders.held().items():
            for descriptor, node in nodes.items():
                if node not in asleep:
                    # Some drivers wake a device to fill in its fdinfo.
                    asleep[node] = self._keys.wakes and is_asleep(device_of(node))
                client = None if asleep[node] else parse(read_text(f"/proc/{pid}/fdinfo/{descriptor}") or "", node)
                progress.append(descriptor)
                # A client that was passed to other processes appears in each of them. It is counted once, for the first.
                if client is not None and client[:2] not in clients:
                    clients[client[:2]] = client
                    held.setdefault((client.device, pid), []).append(client)
        # In a replayed recording all looks have the same time: no shares can be computed.
        now = counted_at(now)
        seconds, every = now - self._at, {engine for engines in self._keys.engines.values() for engine in engines}
        pairs = ((client, before) for key, client in clients.items() if seconds > 0 and (before := self._clients.get(key)) is not None)
        measured = ((client, engine, client.busy(before, seconds, engine)) for client, before in pairs for engine in every)
        self._shares = {(*client[:2], engine): share for client, engine, share in measured if share is not None}
        found: dict[str, tuple[DeviceProcess, ...]] = {}
        for (device, pid), own in sorted(held.items()):
            sizes = [size for client in own if (size := self._memory(client)) is not None]
            engines = [(word, client, name) for word in TYPES for client in own for name in self._keys.engines.get(word, ())]
            types = dict.fromkeys(word for word, client, name in engines if word != EITHER and client.used(name))
            shares = [share for _, client, name in engines if (share := self._shares.get((device, client.number, name))) is not None]
            busy = min(100.0, 100 * sum(shares)) if shares else None
            found[device] = (*found.get(device, ()), DeviceProcess(pid, "+".join(types), sum(sizes) if sizes else None, busy))
        # Unchanged lists stay the same object, so that consumers notice without comparing.
        kept = self._found
        self._found = {device: kept[device] if kept.get(device) == each else each for device, each in found.items()}
        # A share over all programs needs two complete looks.
        self._is_second, self._was_complete = self._was_complete and seconds > 0, self._holders.complete
        self._at, self._clients = now, clients
