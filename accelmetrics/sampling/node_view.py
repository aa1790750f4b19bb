"""A reading that several processes share, as one of them sees it: its devices, its metrics, and the facts of its own process.

What one process says of itself is read here and never shared: its CPU time and memory, what it uses of each device (from the list of
processes that is shared), and which devices its ``*_VISIBLE_DEVICES`` leave it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from accelmetrics.backends.kit.processes import BOARD, PACE, DriverNumbers, ProcessTree, node_pattern, process_values
from accelmetrics.backends.registry import select
from accelmetrics.sampling.devices import VisibilityFilter
from accelmetrics.sampling.node_wire import OWN, SharedReading
from accelmetrics.sampling.options import DeviceSelection, checked
from accelmetrics.sampling.sampler import Sampler
from accelmetrics.schemas.errors import Unavailable
from accelmetrics.schemas.identity import BackendStatus, DeviceProcess, DeviceSlot
from accelmetrics.schemas.metric import device_key
from accelmetrics.schemas.reading import Header, header, standing
from accelmetrics.schemas.snapshot import Snapshot

HOST = "host"
OWN_PACE = 0.95
"""Seconds between two looks at this process itself, which is how often the host reads anew what they give."""
_OF_BOARD = ("memoryTotalBytes", *BOARD)
"""What ``gpu.process.…`` is computed from or repeats."""


_NOTHING: Mapping[str, int | float] = {}


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
        own = [key for key in OWN if self._options.metrics.wants(key)]
        self._host: Sampler | None = None
        if own and any(backend.name == HOST for backend in select(options.get("backends"))):
            kept = {name: options[name] for name in ("pid", "children", "timeout", "open_timeout") if name in options}
            self._host = Sampler([HOST], metrics=own, **kept)
        self._tree = ProcessTree(self._options.pid or os.getpid())
        self._header: Header | None = None  # the shared one
        self._job: Collection[str] = ()
        # What is seen of the shared header: the devices, and the shared key of each with its own; the keys of values, and where those stand
        # in the shared row; why values and processes are missing; what to know about each backend's selection.
        self._slots: tuple[DeviceSlot, ...] = ()
        self._renamed: Mapping[str, str] = {}
        self._keys: tuple[str, ...] = ()
        self._places: tuple[int, ...] = ()
        self._unavailable: Mapping[str, Unavailable] = {}
        self._unlisted: Mapping[str, Unavailable] = {}
        self._caveats: Mapping[str, str] = {}
        # By device key, the places of what ``gpu.process.…`` is computed from or repeats; looked up when they are needed.
        self._boards: dict[str, Mapping[str, int]] = {}
        self._members: dict[str, list[DeviceProcess]] = {}
        self._processes: tuple[object, Mapping[str, tuple[DeviceProcess, ...]]] = (None, {})
        self._looked_at = float("-inf")
        self._own: Snapshot | None = None
        self._own_due = 0.0

    def close(self) -> None:
        """Close what is read of this process."""
        if self._host is not None:
            self._host.close()

    def snapshot(self, reading: SharedReading, job: Collection[str] = ()) -> Snapshot:
        """Return what this process sees of a reading.

        Args:
            reading: The reading.
            job: What tells the devices that the processes of its job see.

        Raises:
            UnknownNameError: ``gpus`` names a device that is not there.
        """
        if reading.header is not self._header or job != self._job:
            self._show(reading.header, job)
            self._header, self._job = reading.header, job
            self._processes = (None, {})
        now = time.monotonic()
        age = max(0.0, now - reading.ended)
        unavailable = self._unavailable
        own = self._process_values(reading, now)
        if self._host is not None:
            if self._own is None or now >= self._own_due:
                self._own = self._host.sample()
                self._own_due = time.monotonic() + OWN_PACE  # from now on: a little sooner the host would give the same again
            own = {**own, **self._own.metrics} if own else self._own.metrics
            unavailable = {**unavailable, **self._own.unavailable}
        backends = tuple([self._status(status, age) for status in reading.backends])
        head = header(reading.header.hostname, self._keys + tuple(own), self._slots, unavailable, standing(backends), self._unlisted)
        numbers = tuple([reading.numbers[place] for place in self._places])
        return Snapshot.of(head, (*numbers, *own.values()), reading.time_ns, backends, self._processes[1])

    def _show(self, shared: Header, job: Collection[str]) -> None:
        """Decide what this process sees of a shared reading."""
        slots: list[DeviceSlot] = []
        candidates: list[DeviceSlot] = []
        renamed: dict[str, str] = {}
        seen: list[str] = []
        caveats: dict[str, str] = {}
        listed = shared.identities
        for backend in dict.fromkeys(slot.backend for slot in listed):
            known = [slot for slot in listed if slot.backend == backend]
            shown = self._seen(backend, known, job)
            if self._filters[backend].caveat:
                caveats[backend] = self._filters[backend].caveat
            for key, slot in shown.items():
                candidates.append(slot)
                if slot.visible_index is not None:
                    seen.append(slot.unique_id)
                if self._selection.wants(slot):
                    slots.append(slot)
                    renamed[key] = slot.key
        if self._options.gpus is not None:
            self._selection.check(candidates)
        self.visible = tuple(seen)
        wants = self._options.metrics.wants
        keys = [(place, own) for place, key in enumerate(shared.keys) if (own := _own_key(key, renamed)) is not None and wants(own)]
        reasons = {_own_key(key, renamed): why for key, why in shared.unavailable.items()}
        self._slots, self._renamed, self._caveats, self._boards = tuple(slots), renamed, caveats, {}
        self._keys, self._places = tuple([key for _, key in keys]), tuple([place for place, _ in keys])
        self._unavailable = {key: why for key, why in reasons.items() if key is not None and wants(key)}
        self._unlisted = {renamed[key]: why for key, why in shared.unlisted.items() if key in renamed}

    def _seen(self, backend: str, known: Sequence[DeviceSlot], job: Collection[str]) -> Mapping[str, DeviceSlot]:
        """Return the devices of one backend that are reported, by the key that they have in the layout.

        With ``visible=True`` those are the devices that any process of the job sees here.
        """
        if backend not in self._filters:
            self._filters[backend] = VisibilityFilter(self._options)
        shown = self._filters[backend].show(known)
        if self._options.visible is not True:
            return shown
        of_job = {slot.key: slot for slot in known if slot.unique_id in job}
        return {slot.key: {**of_job, **shown}[slot.key] for slot in known if slot.key in shown or slot.key in of_job}

    def _process_values(self, reading: SharedReading, now: float) -> Mapping[str, int | float]:
        """Return what this process uses of each device, found out anew once a second and when the list of processes has changed."""
        renamed = self._renamed
        if reading.processes is not self._processes[0] or now - self._looked_at >= PACE:
            self._looked_at = now
            if reading.processes is not self._processes[0]:
                listed = {renamed[key]: found for key, found in reading.processes.items() if key in renamed}
                self._processes = (reading.processes, listed)
            wholes = [slot for slot in self._slots if not slot.identity.parent]
            self._members = {slot.key: members for slot in wholes if (members := self._users(slot, now))}
        if not self._members:
            return _NOTHING
        wants = self._options.metrics.wants
        found: dict[str, int | float] = {}
        for slot in self._slots:
            if slot.key in self._members:
                kind = slot.identity.kind
                device = self._board(reading, slot.key)
                device.setdefault("memoryTotalBytes", slot.identity.memory_total_bytes or 0)
                for name, value in process_values(kind, self._members[slot.key], device).items():
                    if wants(key := f"{kind}.process.{slot.index}.{name}"):
                        found[key] = value
        return found

    def _users(self, slot: DeviceSlot, now: float) -> list[DeviceProcess]:
        """List the processes of this one's tree on a device."""
        listed = self._processes[1].get(slot.key, ())
        numbers, nodes = DriverNumbers([one.pid for one in listed], slot.backend), node_pattern(slot.identity)
        return [one for one in listed if self._tree.owns(one.pid, now, numbers, nodes)]

    def _board(self, reading: SharedReading, key: str) -> dict[str, int | float]:
        """Return what is shown of a device itself and stands beside what is used of it."""
        places = self._boards.get(key)
        if places is None:
            known = {name: f"{key}.{name}" for name in _OF_BOARD}
            stand = dict(zip(self._keys, self._places, strict=True))
            places = self._boards[key] = {name: stand[own] for name, own in known.items() if own in stand}
        return {name: reading.numbers[place] for name, place in places.items()}

    def _status(self, status: BackendStatus, age: float) -> BackendStatus:
        """Return how a source fared, its devices those that are shown, its age that of now."""
        if caveat := self._caveats.get(status.name, ""):
            status = status._replace(detail="; ".join(filter(None, (status.detail, caveat))))
        return status if status.age_seconds is None else status._replace(age_seconds=status.age_seconds + age)


def _own_key(key: str, renamed: Mapping[str, str]) -> str | None:
    """Return a shared key as this process has it; None where it is of a device that is not shown."""
    parts = device_key(key)
    if parts is None:
        return key
    device = renamed.get(parts.device)
    return key if device == parts.device else device and device + key[len(parts.device) :]
