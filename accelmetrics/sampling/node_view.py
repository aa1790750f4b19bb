"""A shared reading as one process sees it: its devices, its metrics, and the facts of the process itself.

Facts of the process are read here and never shared: its CPU time and memory, its use of each device (from the shared list of
processes), and the devices that its ``*_VISIBLE_DEVICES`` variables leave visible.
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
from accelmetrics.schemas.reading import Header, header, without_numbers
from accelmetrics.schemas.record import NO_FINDINGS, Finding, Findings
from accelmetrics.schemas.selection import MetricSelection
from accelmetrics.schemas.snapshot import Snapshot, rfc3339

HOST = "host"
"""The backend whose values every process can read itself."""
READ_HERE = "read by this process: the daemon leaves the host out"
OWN = frozenset(row.key for row in (*PROCESS, *MEMORY))
"""Keys that each process reads itself: those of the watched process, and those of the memory available in its control group."""
_OF_BOARD = ("memoryTotalBytes", *BOARD)
"""Device values from which ``gpu.process.…`` is computed, or which it repeats."""


class OwnFacts:
    """Reads the facts of this process on the calling thread: unlike drivers, the files behind them answer at once.

    Rates cover the time between two of its own readings. The child of a fork starts over, with facts of the child.

    Args:
        backends: The selection of backends. Without the host there are no such facts.
        options: The watched process, and the wanted metrics.
        all_of_host: Whether to read everything of the host, because no other process does.

    Attributes:
        all_of_host: Whether everything of the host is read.
        status: The host's status if everything of it is read, else empty.
        read_at: When it was read, on the monotonic clock.
        unread: By key, why a reading has no value if the facts were not read with it.
    """

    def __init__(self, backends: BackendChoice | None, options: Options, all_of_host: bool = False) -> None:
        hosts = [backend for backend in select(backends) if backend.name == HOST]
        expected = [key for host in hosts for key in host.coverage().machine if (all_of_host or key in OWN) and options.metrics.wants(key)]
        self.unread = dict.fromkeys(expected, Unavailable(Reason.STALE, "a process reads its own facts only for its newest reading"))
        self._backend = hosts[0] if hosts and (all_of_host or expected) else None
        self._options = options._replace(metrics=MetricSelection(expected)) if expected and not all_of_host else options
        self.all_of_host, self.read_at = all_of_host, 0.0
        self.status = (BackendStatus(HOST, "ok", READ_HERE),) if all_of_host and hosts else ()
        self._driver: Driver | None = None
        self._reader: Reader | None = None
        self._opened_in = 0
        self._latest = Reading()
        self._values: Mapping[str, Number] = {}
        self._reasons: Mapping[str, Unavailable] = NO_REASONS

    def read(self) -> tuple[Mapping[str, Number], Mapping[str, Unavailable]]:
        """Return the values by key, and the reasons for missing ones.

        The facts are read at most once a second. Until then the same objects are returned.
        """
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
                    result: tuple[Status, str] = ("ok", READ_HERE) if why is None else ("failed", why.detail)
                    at, count = rfc3339(time.time_ns()), self.status[0].sequence + 1
                    self.status, self.read_at = (BackendStatus(HOST, *result, "", outcome.seconds, at, 0.0, count),), time.monotonic()
        return self._values, self._reasons

    def close(self) -> None:
        """Close the open files. A later reading opens them again."""
        driver, self._driver, self._reader = self._driver, None, None
        if driver is not None:
            guarded(driver.close)

    def _read(self, backend: Backend) -> Reading:
        if self._reader is None or self._opened_in != os.getpid():
            self.close()
            self._driver, self._opened_in = backend.open(), os.getpid()
            self._reader = self._driver.reader(self._options.read_options())
        # On the calling thread, with the host's own reader: 0.2 ms. Through a sampler and its worker: 0.9 ms.
        return self._reader.read(0, [])


class OwnView:
    """Turns shared readings into the snapshots of one process.

    Args:
        options: The options of :class:`~accelmetrics.sampling.sampler.Sampler`.

    Attributes:
        visible: Identifiers of the devices that the process sees; empty until a reading has arrived.
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
        # `_seen` is the shared header and the job's devices from which the following is derived: the header of this process without its
        # own facts (`_header`), a function that picks its numbers (`_chosen`), its devices by their shared keys (`_slots`), and a
        # warning about the selection of each backend's devices (`_caveats`).
        self._seen: tuple[Header | None, Collection[str]] = (None, ())
        # The shared findings and `_seen`, from which the third part is derived: the findings that this process sees.
        self._filtered: tuple[Findings | None, object, Findings] = (None, None, NO_FINDINGS)
        self._header = header("", (), (), {}, (), {})
        self._chosen: Callable[[Sequence[int | float]], tuple[int | float, ...]] = tuple
        self._slots: Mapping[str, DeviceSlot] = {}
        self._caveats: Mapping[str, str] = {}
        # `_listed` is the shared lists of processes, and those of the devices shown. `_members` are this process's entries in them, by
        # device; they are looked up again after a second.
        self._listed: tuple[object, Mapping[str, tuple[DeviceProcess, ...]]] = (None, NO_PROCESSES)
        self._members: list[tuple[DeviceSlot, list[DeviceProcess]]] = []
        self._looked_at = float("-inf")

    def close(self) -> None:
        """Close the files that are read for this process."""
        self._facts.close()

    def snapshot(self, reading: SharedRow, job: Collection[str] = (), newest: bool = True) -> Snapshot:
        """Return a shared reading as this process sees it.

        Args:
            reading: The reading.
            job: Identifiers of the devices that the processes of its job see.
            newest: Whether the reading is current. Only then it includes this process's own facts, which are read now.

        Raises:
            UnknownNameError: ``gpus`` names a device that does not exist.
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
        statuses = [self._status(age, status) for status in reading.backends]
        more = [self._status(max(0.0, now - self._facts.read_at), status) for status in self._facts.status]
        keys, states, head = tuple(own), without_numbers(more), self._header
        parts = head.hostname, head.keys + keys, head.identities
        extended = head.kept(
            ("own", keys, states, *reasons.items()),
            lambda: header(*parts, {**head.unavailable, **reasons}, head.backends + states, head.unlisted),
        )
        return Snapshot.of(extended, (*numbers, *own.values()), reading.time_ns, (*statuses, *more), self._listed[1])

    def findings(self, shared: Findings) -> Findings:
        """Return the findings about this process's devices, by their keys here, and the findings about no device."""
        if shared is NO_FINDINGS or self._seen[0] is None:
            return shared

        if self._filtered[0] is shared and self._filtered[1] is self._seen:
            return self._filtered[2]

        def own(found: Sequence[Finding]) -> tuple[Finding, ...]:
            return tuple([one._replace(key=key) for one in found if (key := renamed.get(one.key, one.key)) is not None])

        renamed = {slot.key: self._slots[slot.key].key if slot.key in self._slots else None for slot in self._seen[0].identities}
        undecided = []
        for rule in shared.cannot_tell:
            keys = tuple([key for one in rule.keys if (key := renamed.get(one, one)) is not None])
            if keys or not rule.keys:
                undecided.append(rule._replace(keys=keys))
        self._filtered = shared, self._seen, Findings(own(shared.current), own(shared.ended), tuple(undecided))
        return self._filtered[2]

    def _show(self, shared: Header, job: Collection[str]) -> None:
        """Decide which devices and keys of a shared reading this process sees.

        With ``visible=True`` these are the devices that any process of the job sees.
        """
        if (all_of_host := all(one.name != HOST for one in shared.backends)) != self._facts.all_of_host:
            self._facts.close()
            self._facts = OwnFacts(self._backends, self._options, all_of_host)
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
        states = tuple([self._status(0.0, one) for one in shared.backends])
        self._header = header(shared.hostname, tuple(keys), tuple(slots.values()), missing, states, unlisted)
        places = tuple(keys.values())
        self._chosen = itemgetter(*places) if len(places) > 1 else lambda numbers: tuple([numbers[place] for place in places])

    def _process_values(self, reading: SharedRow, numbers: Sequence[int | float], now: float) -> Mapping[str, int | float]:
        """Return this process's use of each device."""
        if reading.processes is not self._listed[0] or now - self._looked_at >= PACE:
            self._looked_at = now
            listed = {slot.key: reading.processes[key] for key, slot in self._slots.items() if key in reading.processes}
            self._listed = reading.processes, listed
            self._members = []
            for slot in self._slots.values():
                on_device = () if slot.identity.parent else listed.get(slot.key, ())
                pids, nodes = DriverNumbers([one.pid for one in on_device], slot.backend), node_pattern(slot.identity)
                if members := [one for one in on_device if self._tree.owns(one.pid, now, pids, nodes)]:
                    self._members.append((slot, members))
        found: dict[str, int | float] = {}
        for slot, members in self._members:
            kind, places = slot.identity.kind, self._header.places
            board = {name: numbers[places[key]] for name in _OF_BOARD if (key := f"{slot.key}.{name}") in places}
            values = process_values(kind, members, {"memoryTotalBytes": slot.identity.memory_total_bytes or 0, **board})
            found.update({f"{kind}.process.{slot.index}.{name}": value for name, value in values.items()})
        return {key: value for key, value in found.items() if self._options.metrics.wants(key)}

    def _status(self, age: float, status: BackendStatus) -> BackendStatus:
        """Return a source's status, with a warning about its devices if there is one, and with its current age."""
        if caveat := self._caveats.get(status.name, ""):
            status = status._replace(detail="; ".join(filter(None, (status.detail, caveat))))
        return status if not age or status.age_seconds is None else status._replace(age_seconds=status.age_seconds + age)


def _own_key(key: str, slots: Mapping[str, DeviceSlot]) -> str:
    """Return a shared key under this process's numbering.

    It is empty for the key of a hidden device, and for facts of the process that took the reading.
    """
    if key in OWN or ".process." in key:
        return ""
    parts = device_key(key)
    if parts is None:
        return key
    return slots[parts.device].key + key[len(parts.device) :] if parts.device in slots else ""
