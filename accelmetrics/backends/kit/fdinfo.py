"""What programs use of the devices of DRM drivers: GPUs below ``/dev/dri``, NPUs below ``/dev/accel``.

``/proc/PID/fdinfo/FD`` of a descriptor of a device tells it, in the form of all DRM drivers (``drm-usage-stats.rst`` of the kernel)::

    drm-driver:     amdgpu                          drm-driver:     xe
    drm-pdev:       0000:03:00.0                    drm-pdev:       0000:03:00.0
    drm-client-id:  42                              drm-client-id:  7
    drm-memory-vram:        1048576 KiB             drm-resident-vram0:     1048576 KiB
    drm-engine-gfx: 123456789 ns                    drm-cycles-ccs: 28257900
    drm-engine-compute:     987654321 ns            drm-total-cycles-ccs:   7655183225

A client is one opening of the device; descriptors that were duplicated or inherited show the same one. Devices that are not on the PCI bus
have no ``drm-pdev``: the descriptor's device node says which it is. A client that was closed between two looks is not seen in the second
one, and what a new client had done before it was seen first is not counted, so that shares err on the low side.
"""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from accelmetrics.backends.contract import SYSTEM_CLOCK, Clock, Value
from accelmetrics.backends.kit.processes import PACE, UNSEEN, NodeHolders
from accelmetrics.backends.kit.system import is_asleep, link_name, read_text
from accelmetrics.backends.kit.tap import counted_at
from accelmetrics.schemas.errors import Reason, Unavailable
from accelmetrics.schemas.identity import DeviceProcess, pci_address
from accelmetrics.schemas.metric import NOTHING
from accelmetrics.schemas.named_tuple import NamedTuple

UNITS = {"": 1, "ns": 1, "kib": 1024, "mib": 1024**2, "gib": 1024**3}
MOST = 2**50
"""Bytes; more is no count."""
EITHER = "either"
TYPES = ("compute", "graphics", EITHER)
"""Words for engines of which a process's type and its share of the device's time are made; of one that does both its share alone."""
CLASSES = {"/dev/dri/": "drm", "/dev/accel/": "accel"}
"""By directory of device nodes, the class that the devices have below ``/sys/class``."""
FIRST_LOOK = Unavailable(Reason.NEEDS_INTERVAL, "the first look at the programs: a share of time needs two")

_COUNT = re.compile(r"^drm-([a-z0-9_-]+):[ \t]*(\d{1,19})[ \t]*(ns|[kmg]ib|)[ \t]*$", re.MULTILINE | re.IGNORECASE | re.ASCII)
_ADDRESS = re.compile(r"^drm-pdev:[ \t]*([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])[ \t]*$", re.MULTILINE | re.IGNORECASE | re.ASCII)


class DrmKeys(NamedTuple):
    """What a driver calls engines and memory.

    Attributes:
        engines: By a word of ours, the names behind ``drm-engine-`` or ``drm-cycles-``. ``compute`` and ``graphics`` make a process's type
            and share, ``either`` its share; any other word is for rows of the device: ``busy``, say, for all that the driver counts.
        memory: Groups of names behind ``drm-memory-``, ``drm-resident-`` or ``drm-total-``. A client's memory is that of the first group
            of which it has any, added up.
        wakes: Whether the driver may wake a device to say what programs use of it: those of one that sleeps are not looked at then.
    """

    engines: Mapping[str, Sequence[str]]
    memory: Sequence[Sequence[str]] = ()
    wakes: bool = True


class Client(NamedTuple):
    """One opening of one device.

    Attributes:
        device: The device's PCI address, or its name on another bus.
        number: The kernel's number for the client.
        counts: By the key's name behind ``drm-``, bytes, nanoseconds, cycles.
    """

    device: str
    number: int
    counts: Mapping[str, int]

    def memory(self, groups: Sequence[Sequence[str]]) -> int | None:
        """Return the bytes that it holds; None where the driver does not say."""
        for group in groups:
            sizes = []
            for region in group:
                # In what is there, as older kernels and newer ones spell it, else in all that was asked for.
                said = [self.counts.get(f"{kind}-{region}", MOST + 1) for kind in ("memory", "resident", "total")]
                sizes += [size for size in said if size <= MOST][:1]
            if sizes:
                return sum(sizes)
        return None

    def busy(self, before: Client, seconds: float, engine: str) -> float | None:
        """Return the share (0 to 1) of the time since ``before`` in which an engine worked for it; None where that is not counted."""
        worked, cycles, all_cycles = (
            self.counts[key] - before.counts[key] if key in self.counts and key in before.counts else None
            for key in (f"engine-{engine}", f"cycles-{engine}", f"total-cycles-{engine}")
        )
        share = worked / 1e9 / seconds if worked is not None else cycles / all_cycles if cycles is not None and all_cycles else None
        return None if share is None or share < 0 else share / max(1, self.counts.get(f"engine-capacity-{engine}", 1))

    def used(self, engine: str) -> int | None:
        """Return what it ever used of engines of one name, in the driver's unit; None where that is not counted."""
        return self.counts.get(f"engine-{engine}", self.counts.get(f"cycles-{engine}"))


def parse(text: str, node: str = "") -> Client | None:
    """Read one file; None when it is not that of such a device.

    Args:
        text: The file.
        node: The device node that the descriptor leads to, for devices that are not on the PCI bus.
    """
    address = _ADDRESS.search(text)
    counts = {name.lower(): int(digits) * UNITS[unit.lower()] for name, digits, unit in _COUNT.findall(text)}
    device = pci_address(address[1]) if address else device_of(node)
    return Client(device, counts["client-id"], counts) if device and "client-id" in counts else None


def device_of(node: str) -> str:
    """Return what the device of a node is called on its bus; empty where the kernel does not show it."""
    return next((link_name(f"/sys/class/{name}/{node[len(at) :]}/device") for at, name in CLASSES.items() if node.startswith(at)), "")


def is_drm(node: str) -> bool:
    """Return whether a device node is that of a DRM driver's device."""
    return node.startswith(tuple(CLASSES))


class DrmClients:
    """The programs on all devices of one driver. Several workers may ask; one looks, the others get what it found last.

    Args:
        keys: What the driver calls engines and memory.
        pools: By device, the one group of memory that counts, where that is not for all devices the same.
        holders: Where the processes are looked for.
        clock: What shares of time are taken from.

    Attributes:
        pools: The same, to which may be added.
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
        self._holders.look([])  # the first pass takes longer than later ones
        self._looking = threading.Lock()
        self._until = self._at = -math.inf
        self._was_complete = False
        self._found: dict[str, tuple[DeviceProcess, ...]] = {}
        self._clients: dict[tuple[str, int], Client] = {}
        self._shares: dict[tuple[str, int, str], float] = {}
        self._is_second = False

    def on(self, device: str, progress: list[Any]) -> tuple[DeviceProcess, ...] | Unavailable:
        """Return the processes on one device, as of at most a second ago; a reason where none was found, and there may be some."""
        now = self._clock.monotonic()
        if now >= self._until and self._looking.acquire(blocking=False):
            try:
                self._look(now, progress)
            finally:
                self._looking.release()
        return self._found.get(device, () if self._holders.complete else UNSEEN)

    def total(self, device: str, what: str, progress: list[Any]) -> Value:
        """Return what all programs use of a device together; a reason where not all programs can be seen.

        Args:
            device: Its PCI address, or its name on another bus.
            what: ``memory``, in bytes; or a word for engines: the share of time in percent, that of the busiest of them.
            progress: Where each descriptor that was read is noted.
        """
        self.on(device, progress)
        if not self._holders.complete:
            return UNSEEN
        clients = [client for client in self._clients.values() if client.device == device]
        if what == "memory":
            sizes = [size for client in clients if (size := self._memory(client)) is not None]
            return sum(sizes) if sizes or not clients else Unavailable(Reason.NOT_SUPPORTED, "the driver tells no memory of programs")
        engines = self._keys.engines[what]
        if clients and all(client.used(engine) is None for client in clients for engine in engines):
            return Unavailable(Reason.NOT_SUPPORTED, f"the driver counts no time of programs on {', '.join(engines)}")
        shares = {engine: [self._shares.get((device, client.number, engine)) for client in clients] for engine in engines}
        known = [sum(share for share in each if share is not None) for each in shares.values() if any(share is not None for share in each)]
        return FIRST_LOOK if not self._is_second or (clients and not known) else min(100.0, 100 * max(known, default=0.0))

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
                    asleep[node] = self._keys.wakes and is_asleep(device_of(node))
                if asleep[node]:
                    continue
                client = parse(read_text(f"/proc/{pid}/fdinfo/{descriptor}") or "", node)
                progress.append(descriptor)
                # A client that was handed on shows in every process that holds it: it is counted with the first.
                if client is not None and client[:2] not in clients:
                    clients[client[:2]] = client
                    held.setdefault((client.device, pid), []).append(client)
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
        # The same object while nothing changed.
        kept = self._found
        self._found = {device: kept[device] if kept.get(device) == each else each for device, each in found.items()}
        self._is_second, self._was_complete = self._was_complete and seconds > 0, self._holders.complete
        self._at, self._clients = now, clients
