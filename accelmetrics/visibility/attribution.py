"""Jobs and pods that hold the devices of this machine, looked up in the background and joined with the devices of a reading.

A source (:mod:`~accelmetrics.visibility.slurm_jobs`, :mod:`~accelmetrics.visibility.pod_resources`) lists claims. A claim is a holder with
references to devices in its scheduler's terms. This module resolves the references by UUID, PCI address or minor number. It uses the
driver's index only for a source that counts in it. Each source has its own thread, so a kubelet that hangs delays no reading.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
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
"""Intervals of a source after which its last answer is no longer used."""
LEAST_STALE = 10.0
"""Seconds for which an answer is used at least, also of a source with a short interval."""
ABSENT = 1.0
"""Seconds between two looks for a source that does not exist yet. Such a look only checks for a path."""
# Bounds the memory for a source with ever new problems. At the bound all are forgotten and logged again.
MOST_LOGGED = 1000


DeviceRef = tuple[str, str]
"""A scheduler's reference to a device: the kind of reference, and its value.

Kinds are ``uuid``, ``pci`` (the address), ``minor`` (the number of NVIDIA's device node), ``index`` (the driver's number) and ``tpu`` (its
number). For a MIG instance, ``.<GPU instance>`` follows a minor number or an index."""


Claim = tuple[Literal["job", "pod"], Mapping[str, str], tuple[DeviceRef, ...]]
"""A job, or a container of a pod: its kind, its labels and the devices that it was given."""

Listing = tuple[Sequence[Claim], Sequence[str]]
"""A source's answer: its claims, and problems in words. Each problem is logged once."""


class ClaimSource:
    """A source of claims that is read repeatedly, with its last answer.

    Args:
        name: Its name in logs and threads.
        interval: Seconds between two reads.
        read: Reads the claims within a bounded time. It returns None if the scheduler does not exist on this machine. Its
            exception is logged as the reason why there is no answer.
    """

    def __init__(self, name: str, interval: float, read: Callable[[], Listing | None]) -> None:
        self.name = name
        self.read = read
        self._interval = interval
        self._latest: tuple[float, Listing | None] = (0.0, None)
        self._failure = ""
        self._logged: dict[str, None] = {}

    def run(self, end: Flag) -> None:
        """Read until ``end`` is set. Log a failure when it is new or changes, and the recovery from it."""
        while not end.is_set():
            outcome = guarded(self.read)
            failure = outcome.failure.detail if outcome.failure is not None else ""
            if failure and failure != self._failure:
                log.warning("%s does not report who holds the devices: %s", self.name, failure)
            elif self._failure and not failure:
                log.warning("%s reports the holders of the devices again", self.name)
            self._failure = failure
            if not failure:
                self._latest = (time.monotonic(), outcome.value)
                for problem in outcome.value[1] if outcome.value is not None else ():
                    if problem not in self._logged:
                        if len(self._logged) >= MOST_LOGGED:
                            self._logged.clear()
                        self._logged[problem] = None
                        log.warning("%s: %s", self.name, problem)
            absent = self._latest[1] is None and not failure
            end.wait(min(self._interval, ABSENT) if absent else self._interval)

    def latest(self) -> tuple[Listing | None, str]:
        """Return the last answer, or None if it is too old, and the reason why the last read failed."""
        read_at, listing = self._latest
        fresh = time.monotonic() - read_at <= max(LEAST_STALE, STALE * self._interval)
        return listing if fresh else None, self._failure or ("" if fresh or listing is None else "it does not answer")


class Attribution:
    """A lookup of the holders of devices. Use it as a context manager; call it with a reading to get the holders at once.

    Args:
        sources: Sources of claims. If two report the same job on the same device, the first one counts.

    Attributes:
        sources: The sources. Each is read by its own thread within the ``with`` block.
    """

    def __init__(self, sources: Iterable[ClaimSource] = ()) -> None:
        self.sources = list(sources)
        self._end = Flag()

    def __enter__(self) -> Attribution:
        self._end = Flag()
        for source in self.sources:
            threading.Thread(target=source.run, args=(self._end,), name=f"accelmetrics-{source.name}", daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._end.set()  # a read in progress is not waited for

    def __call__(self, snapshot: Snapshot) -> Holders:
        """Return the holders of a reading's devices, from the last answers of the sources."""
        listings = {source.name: source.latest() for source in self.sources}
        claims = [claim for listing, _ in listings.values() if listing is not None for claim in listing[0]]
        failures = {name: failure for name, (listing, failure) in listings.items() if failure or listing is not None}
        return Holders(tuple(resolve(claims, snapshot.identities)), FrozenDict(failures))


def resolve(claims: Iterable[Claim], slots: Sequence[DeviceSlot]) -> list[Holder]:
    """Return a holder for each device of the claims. A device that is not in ``slots`` is skipped.

    Args:
        claims: The claims. A job that several of them name for a device yields one holder.
        slots: The devices of the reading.
    """
    known: dict[DeviceRef, tuple[str, ...]] = {}  # keys of devices by each reference to them
    whole_devices = {slot.identity.uuid: slot for slot in slots if not slot.identity.parent and slot.identity.uuid}
    for slot in slots:
        identity = slot.identity
        whole = whole_devices.get(identity.parent) if identity.parent else slot
        if identity.uuid:
            known["uuid", identity.uuid] = (slot.key,)
        if identity.pci_bus_id and not identity.parent:
            address: DeviceRef = ("pci", pci_address(identity.pci_bus_id))  # the devices of one card share an address
            known[address] = (*known.get(address, ()), slot.key)
        if identity.kind == "tpu":
            known["tpu", str(identity.vendor_index)] = (slot.key,)
        if whole is not None and identity.vendor == "nvidia" and (whole is slot or identity.gpu_instance_id is not None):
            # These references end at the GPU instance. Of several compute instances in it, the first one gets the holder.
            instance = "" if whole is slot else f".{identity.gpu_instance_id}"
            for kind, number in ("index", whole.identity.vendor_index), ("minor", whole.identity.minor_number):
                if number is not None:
                    known.setdefault((kind, f"{number}{instance}"), (slot.key,))
    found: dict[tuple[str, str, object], Holder] = {}
    for holder_kind, labels, devices in claims:
        # Two sources may report a job with different labels, so a job is known by its id. A container has no id.
        holder = labels.get("job_id") if holder_kind == "job" else tuple(labels.items())
        for device in (key for each in devices for key in known.get(each, ())):
            found.setdefault((device, holder_kind, holder), Holder(device, holder_kind, FrozenDict(labels)))
    return list(found.values())
