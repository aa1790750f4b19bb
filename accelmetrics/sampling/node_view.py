"""A reading that several processes share, as one of them sees it: its devices, its metrics, and the facts of its own process.

What one process says of itself is read here and never shared: its CPU time and memory, what it uses of each device (from the list of
processes that is shared), and which devices its ``*_VISIBLE_DEVICES`` leave it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from operator import itemgetter
from typing import Any

from accelmetrics.backends.contract import NO_REASONS, Backend, Driver, Number, Reader, Reading
from accelmetrics.backends.guard import guarded
from accelmetrics.backends.kit.processes import BOARD, PACE, DriverNumbers, ProcessTree, node_pattern, process_values
from accelmetrics.backends.registry import BackendChoice, select
from accelmetrics.sampling.devices import VisibilityFilter
from accelmetrics.sampling.options import DeviceSelection, Options, checked
from accelmetrics.sampling.shared_ring import NO_PROCESSES, SharedRow
from accelmetrics.schemas.catalogue.host import MEMORY, PROCESS
from accelmetrics.schemas.errors import Reason, Unavailable
from accelmetrics.schemas.identity import BackendStatus, DeviceProcess, DeviceSlot, Status
from accelmetrics.schemas.metric import device_key
from accelmetrics.schemas.reading import Header, header, standing
from accelmetrics.schemas.record import NO_FINDINGS, Finding, Findings
from accelmetrics.schemas.selection import MetricSelection
from accelmetrics.schemas.snapshot import Snapshot, rfc3339

HOST = "host"
"""The backend whose values each process can read for itself."""
READ_HERE = "read by this process, when somebody looks: the daemon leaves the host out"
OWN = frozenset(row.key for row in (*PROCESS, *MEMORY))
"""Keys that each process reads itself: of the watched process, and of the memory that its control group leaves it."""
_OF_BOARD = ("memoryTotalBytes", *BOARD)
"""What ``gpu.process.…`` is computed from or repeats."""


class OwnFacts:
    """Reads them on the calling thread: unlike a driver, the files behind them answer at once.

    Rates are over the time between two of its own readings. After a fork the child begins anew, with itself.

    Args:
        backends: The selection of backends; without the host there are no own facts.
        options: The watched process, and the metrics that are wanted.
        whole: Whether all of the host is read: no other process does.

    Attributes:
        whole: Whether all of the host is read.
        status: The host's status where all of it is read, else empty.
        read_at: When it was read, on the monotonic clock.
        unread: By key, why there is no value in a reading at which it was not looked.
    """

    def __init__(self, backends: BackendChoice | None, options: Options, whole: bool = False) -> None:
        hosts = [backend for backend in select(backends) if backend.name == HOST]
        owed = [key for host in hosts for key in host.coverage().machine if (whole or key in OWN) and options.metrics.wants(key)]
        self.unread = dict.fromkeys(owed, Unavailable(Reason.STALE, "a process reads its own facts when somebody looks"))
        self._backend = hosts[0] if hosts and (whole or owed) else None
        self._options = options._replace(metrics=MetricSelection(owed)) if owed and not whole else options
        self.whole, self.read_at = whole, 0.0
        self.status = (BackendStatus(HOST, "ok", READ_HERE),) if whole and hosts else ()
        self._driver: Driver | None = None
        self._reader: Reader | None = None
        self._opened_in = 0
        self._latest = Reading()
        self._values: Mapping[str, Number] = {}
        self._reasons: Mapping[str, Unavailable] = NO_REASONS

    def read(self) -> tuple[Mapping[str, Number], Mapping[str, Unavailable]]:
        """Return the values by key, and why others are missing: the same objects until something was read again, once a second."""
        if self._backend is not None:
            outcome = guarded(self._read, self._backend)
            why = outcome.failure
            reading = outcome.value or Reading() if why is None else Reading((), dict.fromkeys(self.unread, why))
            if reading is not self._latest:
                self._latest, wants = reading, self._options.metrics.wants
                blocks = [zip(block.names, block.values, strict=True) for block in reading.blocks]
                self._values = {key: value for block in blocks for key, value in block if wants(key)}
                self._reasons = {key: why for key, why in reading.unavailable.items() if wants(key)}
                if self.status:
                    fared: tuple[Status, str] = ("ok", READ_HERE) if why is None else ("failed", why.detail)
                    at, count = rfc3339(time.time_ns()), self.status[0].sequence + 1
                    self.status, self.read_at = (BackendStatus(HOST, *fared, "", outcome.seconds, at, 0.0, count),), time.monotonic()
        return self._values, self._reasons

    def close(self) -> None:
        """Give the open files back. A later reading begins anew."""
        driver, self._driver, self._reader = self._driver, None, None
        if driver is not None:
            guarded(driver.close)

    def _read(self, backend: Backend) -> Reading:
        if self._reader is None or self._opened_in != os.getpid():
            self.close()
            self._driver, self._opened_in = backend.open(), os.getpid()
            self._reader = self._driver.reader(self._options.read_options())
        return self._reader.read(0, [])


class OwnView:
    """Makes one process's snapshots of shared readings.

    Args:
        options: Those of :class:`~accelmetrics.sampling.sampler.Sampler`.

    Attributes:
        visible: What tells the devices that the process sees from others, once a reading has come.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.visible: tuple[str, ...] = ()
        chosen = ("metrics", "gpus", "visible", "pid", "children", "disk_paths", "timeout", "open_timeout")
        self._options = checked(**{name: options[name] for name in chosen if name in options})
        self._selection = DeviceSelection(self._options.gpus)
        self._filters: dict[str, VisibilityFilter] = {}
        self._backends = options.get("backends")
        self._facts = OwnFacts(self._backends, self._options)
        self._tree = ProcessTree(self._options.pid or os.getpid())
        # The shared header, and the devices of the job, of which the following says what this process sees: the header but for its own
        # facts, the numbers of that header's keys, its devices by the keys that they have in the shared one, and what to know about the
        # selection of each backend's.
        self._seen: tuple[Header | None, Collection[str]] = (None, ())
        self._told: tuple[Findings | None, object, Findings] = (None, None, NO_FINDINGS)  # shared findings, and what it sees of them
        self._header = header("", (), (), {}, (), {})
        self._chosen: Callable[[Sequence[int | float]], tuple[int | float, ...]] = tuple
        self._slots: Mapping[str, DeviceSlot] = {}
        self._caveats: Mapping[str, str] = {}
        # The shared lists of processes, those of the devices shown, and which of these are this process's; looked up again after a second.
        self._listed: tuple[object, Mapping[str, tuple[DeviceProcess, ...]]] = (None, NO_PROCESSES)
        self._members: Mapping[str, list[DeviceProcess]] = {}
        self._looked_at = float("-inf")

    def close(self) -> None:
        """Close what is read of this process."""
        self._facts.close()

    def snapshot(self, reading: SharedRow, job: Collection[str] = (), newest: bool = True) -> Snapshot:
        """Return what this process sees of a reading.

        Args:
            reading: The reading.
            job: What tells the devices that the processes of its job see.
            newest: Whether it is of now. Others are without the facts of this process, which are read when it looks.

        Raises:
            UnknownNameError: ``gpus`` names a device that is not there.
        """
        if reading.header is not self._seen[0] or job != self._seen[1]:
            self._show(reading.header, job)
            self._seen, self._listed = (reading.header, job), (None, NO_PROCESSES)
        numbers, now = self._chosen(reading.numbers), time.monotonic()
        own: dict[str, int | float] = {}
        reasons: Mapping[str, Unavailable] = self._facts.unread
        age = 0.0
        if newest:
            facts, reasons = self._facts.read()
            own, age = {**self._process_values(reading, numbers, now), **facts}, max(0.0, now - reading.ended)
        fared = [self._status(age, status) for status in reading.backends]
        more = [self._status(max(0.0, now - self._facts.read_at), status) for status in self._facts.status]
        keys, stand, head = tuple(own), standing(more), self._header
        parts = head.hostname, head.keys + keys, head.identities
        whole = head.kept(
            ("own", keys, stand, *reasons.items()),
            lambda: header(*parts, {**head.unavailable, **reasons}, head.backends + stand, head.unlisted),
        )
        return Snapshot.of(whole, (*numbers, *own.values()), reading.time_ns, (*fared, *more), self._listed[1])

    def findings(self, shared: Findings) -> Findings:
        """Return what this process sees of findings: those about its devices, by their keys here, and those about no device."""
        if shared is NO_FINDINGS or self._seen[0] is None:
            return shared

        if self._told[0] is shared and self._told[1] is self._seen:
            return self._told[2]

        def own(found: Sequence[Finding]) -> tuple[Finding, ...]:
            return tuple([one._replace(key=key) for one in found if (key := renamed.get(one.key, one.key)) is not None])

        renamed = {slot.key: self._slots[slot.key].key if slot.key in self._slots else None for slot in self._seen[0].identities}
        lacks = []
        for lack in shared.cannot_tell:
            keys = tuple([key for one in lack.keys if (key := renamed.get(one, one)) is not None])
            if keys or not lack.keys:
                lacks.append(lack._replace(keys=keys))
        self._told = shared, self._seen, Findings(own(shared.current), own(shared.ended), tuple(lacks))
        return self._told[2]

    def _show(self, shared: Header, job: Collection[str]) -> None:
        """Decide what this process sees of a shared reading; with ``visible=True``, the devices that any process of the job sees."""
        if (whole := all(one.name != HOST for one in shared.backends)) != self._facts.whole:
            self._facts.close()
            self._facts = OwnFacts(self._backends, self._options, whole)
        shown: dict[str, DeviceSlot] = {}
        for backend in dict.fromkeys(slot.backend for slot in shared.identities):
            known = [slot for slot in shared.identities if slot.backend == backend]
            seen = self._filters.setdefault(backend, VisibilityFilter(self._options)).show(known)
            if self._options.visible is True:
                seen = {slot.key: seen.get(slot.key, slot) for slot in known if slot.key in seen or slot.unique_id in job}
            shown.update(seen)
        if self._options.gpus is not None:
            self._selection.check(shown.values())
        self.visible = tuple([slot.unique_id for slot in shown.values() if slot.visible_index is not None])
        self._slots = slots = {key: slot for key, slot in shown.items() if self._selection.wants(slot)}
        self._caveats = {backend: one.caveat for backend, one in self._filters.items() if one.caveat}
        wants = self._options.metrics.wants
        keys = {own: place for place, key in enumerate(shared.keys) if (own := _own_key(key, slots)) and wants(own)}
        missing = {own: why for key, why in shared.unavailable.items() if (own := _own_key(key, slots)) and wants(own)}
        unlisted = {slots[key].key: why for key, why in shared.unlisted.items() if key in slots}
        stand = tuple([self._status(0.0, one) for one in shared.backends])
        self._header = header(shared.hostname, tuple(keys), tuple(slots.values()), missing, stand, unlisted)
        places = tuple(keys.values())
        self._chosen = itemgetter(*places) if len(places) > 1 else lambda numbers: tuple([numbers[place] for place in places])

    def _process_values(self, reading: SharedRow, numbers: Sequence[int | float], now: float) -> Mapping[str, int | float]:
        """Return what this process uses of each device."""
        if reading.processes is not self._listed[0] or now - self._looked_at >= PACE:
            self._looked_at = now
            listed = {slot.key: reading.processes[key] for key, slot in self._slots.items() if key in reading.processes}
            self._listed = reading.processes, listed
            wholes = [slot for slot in self._slots.values() if not slot.identity.parent]
            self._members = {slot.key: members for slot in wholes if (members := self._users(slot, now))}
        found: dict[str, int | float] = {}
        for slot in self._slots.values() if self._members else ():
            if slot.key in self._members:
                kind, places = slot.identity.kind, self._header.places
                board = {name: numbers[places[key]] for name in _OF_BOARD if (key := f"{slot.key}.{name}") in places}
                device = {"memoryTotalBytes": slot.identity.memory_total_bytes or 0, **board}
                values = process_values(kind, self._members[slot.key], device)
                found.update({f"{kind}.process.{slot.index}.{name}": value for name, value in values.items()})
        return {key: value for key, value in found.items() if self._options.metrics.wants(key)}

    def _users(self, slot: DeviceSlot, now: float) -> list[DeviceProcess]:
        """List the processes of this one's tree on a device."""
        listed = self._listed[1].get(slot.key, ())
        numbers, nodes = DriverNumbers([one.pid for one in listed], slot.backend), node_pattern(slot.identity)
        return [one for one in listed if self._tree.owns(one.pid, now, numbers, nodes)]

    def _status(self, age: float, status: BackendStatus) -> BackendStatus:
        """Return how a source fared, its devices those that are shown, its age that of now."""
        if caveat := self._caveats.get(status.name, ""):
            status = status._replace(detail="; ".join(filter(None, (status.detail, caveat))))
        return status if not age or status.age_seconds is None else status._replace(age_seconds=status.age_seconds + age)


def _own_key(key: str, slots: Mapping[str, DeviceSlot]) -> str:
    """Return a shared key as this process has it; empty where it is of a device that is not shown, or of the process that read it."""
    if key in OWN or ".process." in key:
        return ""
    parts = device_key(key)
    if parts is None:
        return key
    return slots[parts.device].key + key[len(parts.device) :] if parts.device in slots else ""
