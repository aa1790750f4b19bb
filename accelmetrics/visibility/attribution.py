"""Who holds the devices of this machine: jobs and pods, looked up in the background and joined with the devices of a reading.

A source (:mod:`~accelmetrics.visibility.slurm_jobs`, :mod:`~accelmetrics.visibility.pod_resources`) lists claims: a holder, and the
devices in the words of its scheduler. Those words are resolved here, by UUID, PCI address or minor number; by a driver's number only where
that is what a source's numbers mean. Each source has a thread of its own, so that a kubelet that hangs holds up no reading.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Literal

from accelmetrics.backends.guard import guarded
from accelmetrics.sampling.threads import Flag
from accelmetrics.schemas.frozen import FrozenDict
from accelmetrics.schemas.identity import DeviceSlot, pci_address
from accelmetrics.schemas.log import log
from accelmetrics.schemas.record import Holder, Holders
from accelmetrics.schemas.snapshot import Snapshot

STALE = 6
"""Intervals of a source after which its last answer is not served any more."""
LEAST_STALE = 10.0
ABSENT = 1.0
"""Seconds between two looks for a source that is not there, which costs next to nothing."""
TOLD = 1000
"""Problems that are remembered as told."""


DeviceRef = tuple[str, str]
"""A device in the words of a scheduler: what it is called by, and the UUID, address or number.

It is called by its ``uuid``; by its ``pci`` address; by the number of NVIDIA's device node (``minor``), or the one that the driver gives it
(``index``), with ``.<GPU instance>`` behind either for a MIG instance; by the number of a ``tpu``."""


Claim = tuple[Literal["job", "pod"], Mapping[str, str], tuple[DeviceRef, ...]]
"""A job, or a container of a pod: which of both it is, what it is called, and the devices that it was given."""

Listing = tuple[Sequence[Claim], Sequence[str]]
"""One answer of a source: what it says, and what of it could not be used, in words, which are logged once."""


class ClaimSource:
    """Where claims are read, again and again, and the last answer.

    Args:
        name: What it is called.
        interval: Seconds between two looks.
        read: Looks, within a bounded time; None where there is no such thing on this machine. What it raises is why there is no answer.
    """

    def __init__(self, name: str, interval: float, read: Callable[[], Listing | None]) -> None:
        self.name = name
        self.read = read
        self._interval = interval
        self._latest: tuple[float, Listing | None] = (0.0, None)
        self._failure = ""
        self._told: dict[str, None] = {}

    def run(self, end: Flag) -> None:
        """Look until the end; why there is no answer is logged when it changes, and so is that there is one again."""
        while not end.is_set():
            outcome = guarded(self.read)
            failure = outcome.failure.detail if outcome.failure is not None else ""
            if failure and failure != self._failure:
                log.warning("who holds the devices is not known from %s: %s", self.name, failure)
            elif self._failure and not failure:
                log.warning("%s tells again who holds the devices", self.name)
            self._failure = failure
            if not failure:
                self._latest = (time.monotonic(), outcome.value)
                for problem in outcome.value[1] if outcome.value is not None else ():
                    if problem not in self._told:
                        if len(self._told) >= TOLD:
                            self._told.clear()
                        self._told[problem] = None
                        log.warning("%s: %s", self.name, problem)
            absent = self._latest[1] is None and not failure
            end.wait(min(self._interval, ABSENT) if absent else self._interval)

    def latest(self) -> tuple[Listing | None, str]:
        """Return the last answer, unless it is too old, and why the last look gave none."""
        at, listing = self._latest
        fresh = time.monotonic() - at <= max(LEAST_STALE, STALE * self._interval)
        return listing if fresh else None, self._failure or ("" if fresh or listing is None else "it gives no answer")


class Attribution:
    """Looks up who holds the devices. A context manager; called with a reading, it tells who holds its devices, at once.

    Args:
        sources: Where claims are read. Where two tell of the same job on the same device, the first is believed.
    """

    def __init__(self, sources: Iterable[ClaimSource] = ()) -> None:
        self._sources = list(sources)
        self._end = Flag()

    def add(self, sources: Iterable[ClaimSource]) -> None:
        """Ask these too, from the next start on."""
        self._sources += sources

    def start(self) -> Attribution:
        """Begin to look, each source on a thread of its own."""
        self._end = Flag()
        for source in self._sources:
            threading.Thread(target=source.run, args=(self._end,), name=f"accelmetrics-{source.name}", daemon=True).start()
        return self

    def close(self) -> None:
        """End. A look that is going on is not waited for."""
        self._end.set()

    def __enter__(self) -> Attribution:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __call__(self, snapshot: Snapshot) -> Holders:
        """Tell who holds the devices of a reading."""
        listings = {source.name: source.latest() for source in self._sources}
        claims = [claim for listing, _ in listings.values() if listing is not None for claim in listing[0]]
        failures = {name: failure for name, (listing, failure) in listings.items() if failure or listing is not None}
        return Holders(tuple(resolve(claims, snapshot.identities)), FrozenDict(failures))


def resolve(claims: Iterable[Claim], slots: Sequence[DeviceSlot]) -> Iterator[Holder]:
    """Find the devices of claims; one that is not among those given is passed over.

    Args:
        claims: Who was given what. A job that is told twice of a device counts once.
        slots: The devices.
    """
    known: dict[DeviceRef, tuple[str, ...]] = {}  # by what devices may be called, their keys
    wholes = {slot.identity.uuid: slot for slot in slots if not slot.identity.parent and slot.identity.uuid}
    for slot in slots:
        about = slot.identity
        whole = wholes.get(about.parent) if about.parent else slot
        behind = "" if whole is slot else f".{about.gpu_instance_id}"
        if about.uuid:
            known["uuid", about.uuid] = (slot.key,)
        if about.pci_bus_id and not about.parent:
            address: DeviceRef = ("pci", pci_address(about.pci_bus_id))  # which parts of one card share
            known[address] = (*known.get(address, ()), slot.key)
        if about.kind == "tpu":
            known["tpu", str(about.vendor_index)] = (slot.key,)
        if whole is not None and about.vendor == "nvidia" and (whole is slot or about.gpu_instance_id is not None):
            # The first of several compute instances stands for their GPU instance, as everywhere.
            known.setdefault(("index", f"{whole.identity.vendor_index}{behind}"), (slot.key,))
            if whole.identity.minor_number is not None:
                known.setdefault(("minor", f"{whole.identity.minor_number}{behind}"), (slot.key,))
    seen: set[tuple[str, str, object]] = set()
    for kind, labels, devices in claims:
        called = labels.get("job_id") if kind == "job" else tuple(labels.items())
        for device in dict.fromkeys(key for each in devices for key in known.get(each, ())):
            if (device, kind, called) not in seen:
                seen.add((device, kind, called))
                yield Holder(device, kind, FrozenDict(labels))
