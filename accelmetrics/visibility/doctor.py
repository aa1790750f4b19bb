"""What works on this machine, what does not, and what to do about it: the facts behind ``accelmetrics doctor``.

:func:`diagnose` opens everything anew, apart from the samplers of this process, reads it, and puts what came of it into
plain records.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from accelmetrics.backends.built_in import BUILT_IN
from accelmetrics.backends.kit.system import PCI, find_driven, find_pci, link_name, pci_functions, read_text
from accelmetrics.backends.nvidia.kernel_log import unreadable
from accelmetrics.backends.registry import BackendChoice, BrokenBackend, items_of, named, pinned, select
from accelmetrics.sampling.engine import SourceReader, ThreadEngine
from accelmetrics.sampling.options import DEFAULT_OPEN_TIMEOUT, DEFAULT_TIMEOUT, checked
from accelmetrics.sampling.sources import Failure, ManagedSource, SourceRegistry
from accelmetrics.schemas.errors import ADVICE, Reason, Unavailable
from accelmetrics.schemas.identity import BackendStatus, Status, pci_address
from accelmetrics.schemas.snapshot import Device, Snapshot, plain

SETTLE = 0.1
"""Seconds between two readings, where rates need an interval: what is missing after the second is missing."""
AT_REST = frozenset({Reason.NOT_IN_USE, Reason.SUSPENDED})
"""Reasons under which a device that gives nothing is well all the same."""

OWN_DETECTION = frozenset({"0x10de", "0x1002", "0x1ae0", "0x1d0f"})
"""Vendors whose accelerators a backend finds by rules of its own, and reads, or tells why not."""
RECOGNISED: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Intel GPU without the driver i915 or xe", ("8086:*:03",)),
    ("Intel NPU without the driver intel_vpu", ("8086:7d1d", "8086:ad1d", "8086:643e", "8086:b03e")),
    ("FuriosaAI NPU", ("1ed2:*:12",)),
    ("Hailo", ("1e60:*:12",)),
    ("Mobilint", ("209f:*:12",)),
    ("Axelera", ("1f9d:*:12",)),
    ("Sophgo", ("1f1c:*:12", "1e30:*:12")),
    ("Groq", ("1de0:*:12",)),
    ("SambaNova", ("1e0d:*:12",)),
    ("d-Matrix", ("1f82:*:12",)),
    ("Sapeon", ("1f56:*:12",)),
)
"""By name, PCI ids as :func:`find_pci` takes them. Where a vendor makes other things too, or has ids that are not published, the class
decides: display (03) or processing accelerator (12)."""


class Gap(NamedTuple):
    """Metrics that are missing for one reason.

    Attributes:
        reason: The reason, in one word.
        detail: What exactly was said.
        names: The metrics: names below the device's key, whole keys of the host.
        advice: What to do about it; empty when nothing can be done.
    """

    reason: str
    detail: str
    names: tuple[str, ...]
    advice: str = ""


class DeviceFinding(NamedTuple):
    """One device.

    Attributes:
        key: ``gpu.0``.
        name: The product name.
        uuid: The vendor's unique id.
        pci_bus_id: Its PCI address.
        driver_version: The driver's version.
        readable: Whether it can be read; so is one that is at rest and gives nothing for that reason.
        problem: Why it cannot; empty when it can.
        advice: What to do about that.
        metrics: How many metrics it gave.
        gaps: Those that it did not give.
        fabric: How it stands in the fabric that connects several machines' devices; empty when there is none.
    """

    key: str
    name: str
    uuid: str
    pci_bus_id: str
    driver_version: str
    readable: bool
    problem: str
    advice: str
    metrics: int
    gaps: tuple[Gap, ...]
    fabric: str = ""


class BackendFinding(NamedTuple):
    """One backend.

    Attributes:
        name: Its name.
        present: Whether detection found what it is for.
        evidence: What detection found or missed, and what the open driver remarks on how it is read.
        status: How it fared, as in ``snapshot.backends``.
        source: What is read (``nvml``, ``rocm-smi``); empty while nothing is open.
        expected_devices: How many devices detection knows of without the driver.
        reason: The reason of what is wrong; empty when nothing is.
        problem: The same in words.
        advice: What to do about it.
        open_seconds: How long opening took; None when it was not opened.
        read_seconds: How long the reading took; None when there was none.
        devices: Its devices.
        metrics: How many metrics it gave apart from its devices' (the host).
        gaps: Those that it did not give, apart from its devices'.
    """

    name: str
    present: bool
    evidence: str
    status: Status
    source: str
    expected_devices: int
    reason: str
    problem: str
    advice: str
    open_seconds: float | None
    read_seconds: float | None
    devices: tuple[DeviceFinding, ...]
    metrics: int
    gaps: tuple[Gap, ...]

    @property
    def broken(self) -> bool:
        """Whether it is there, or was to be opened, and does not work, or not in full."""
        return self.status not in ("ok", "absent") or self.unreadable > 0

    @property
    def unreadable(self) -> int:
        """How many devices are there and cannot be read.

        Where the driver does not open, they are those that the bus shows. One that no bus shows counts only if the driver
        itself speaks of it: a library that is installed, or a plug-in that does not load, is no device.
        """
        if self.devices:
            return sum(not device.readable for device in self.devices)
        if self.status not in ("failed", "timed_out") or not self.present:
            return 0
        return self.expected_devices or int(self.reason not in ("", Reason.DRIVER_UNAVAILABLE))


class UnreadDevice(NamedTuple):
    """An accelerator that is on the PCI bus and that no backend reads.

    Attributes:
        name: The vendor and what it is; of a vendor that is not known, its PCI id.
        pci_bus_id: Its PCI address.
        pci_id: Vendor and device id: ``1da3:1020``.
    """

    name: str
    pci_bus_id: str
    pci_id: str


class SharedReadings(NamedTuple):
    """Readings that processes of this machine share (docs/sharing.md).

    Attributes:
        path: Their file.
        pid: The process that reads, by its own number.
        epoch: Each process that has read had another one, a higher one than the one before.
        age_seconds: How old the newest reading is; None where there is none, or it is none of this release.
        problem: Why the file cannot be read; empty where it can.
    """

    path: str
    pid: int = 0
    epoch: int = 0
    age_seconds: float | None = None
    problem: str = ""


class Diagnosis(NamedTuple):
    """What was found out.

    Attributes:
        hostname: The machine's name.
        timestamp: When (RFC 3339, UTC).
        backends: The backends, in numbering order.
        unread: Accelerators on the PCI bus that no backend reads; looked for where all backends are asked.
        shared: Readings that processes of this machine share, as far as this user may see them.
        kernel_log: Why Xid errors of NVIDIA's GPUs in the kernel's log cannot be read; empty where they can, or there are no such GPUs.
    """

    hostname: str
    timestamp: str
    backends: tuple[BackendFinding, ...]
    unread: tuple[UnreadDevice, ...] = ()
    shared: tuple[SharedReadings, ...] = ()
    kernel_log: str = ""

    @property
    def unreadable(self) -> int:
        """How many devices are there and cannot be read."""
        return sum(backend.unreadable for backend in self.backends)

    def to_dict(self) -> dict[str, Any]:
        """Return the whole in new plain containers, ready for ``json``."""
        return {**plain(self), "unreadable": self.unreadable}


def unread_devices() -> tuple[UnreadDevice, ...]:
    """List the accelerators on the PCI bus that no built-in backend reads, by address; each once."""
    read = {address for row in BUILT_IN.values() for address in find_pci(row.pci)}
    read |= {link_name(f"{path}/device") for row in BUILT_IN.values() for path in find_driven(row.drivers)}
    found: dict[str, str] = {}
    for name, ids in RECOGNISED:
        for address in find_pci(ids):
            found.setdefault(address, name)
    for vendor in pci_functions().keys() - OWN_DETECTION - {""}:
        for address in find_pci((f"{vendor.removeprefix('0x')}:*:12",)):
            found.setdefault(address, f"an accelerator of vendor {vendor}")

    def pci_id(address: str) -> str:
        return ":".join((read_text(f"{PCI}/{address}/{name}") or "").removeprefix("0x") for name in ("vendor", "device"))

    return tuple(UnreadDevice(name, address, pci_id(address)) for address, name in sorted(found.items()) if address not in read)


def shared_readings() -> tuple[SharedReadings, ...]:
    """List the readings that processes of this user's jobs share, and those of a daemon."""
    if sys.platform == "win32":  # nothing is shared there
        return ()
    from accelmetrics.sampling.election import RING, job_directory
    from accelmetrics.sampling.node import DAEMON, DAEMON_FILES, SHARE_VARIABLE, trusted_in
    from accelmetrics.sampling.shared_ring import SharedRing
    from accelmetrics.sampling.slot_file import NotSharedError

    places = [(Path(os.environ.get(SHARE_VARIABLE, "") or DAEMON), f"{DAEMON_FILES}-*{RING}")]
    with suppress(NotSharedError):
        places.append((job_directory(make=False), f"*{RING}"))
    found = []
    for place, pattern in places:
        for path in sorted(place.glob(pattern)):
            ring = SharedRing(path, trusted_in(place))
            try:
                writer, newest = ring.writer(), ring.newest()
            except (NotSharedError, OSError) as error:
                found.append(SharedReadings(str(path), problem=str(error)))
            else:
                age = None if newest is None else time.monotonic() - newest.ended
                found += [] if writer is None else [SharedReadings(str(path), writer.pid, writer.epoch, age)]
            finally:
                ring.close()
    return tuple(found)


def diagnose(
    backends: BackendChoice | None = None,
    *,
    timeout: float = DEFAULT_TIMEOUT,
    open_timeout: float = DEFAULT_OPEN_TIMEOUT,
    amd_source: str | None = None,
) -> Diagnosis:
    """Detect, open and read everything, and say what came of it. The arguments are those of :func:`examine`.

    Raises:
        InvalidOptionError: An option that cannot be used.
        UnknownNameError: A backend, or a source of one, that does not exist.
    """
    return examine(backends, timeout=timeout, open_timeout=open_timeout, amd_source=amd_source)[0]


def examine(
    backends: BackendChoice | None = None,
    *,
    timeout: float = DEFAULT_TIMEOUT,
    open_timeout: float = DEFAULT_OPEN_TIMEOUT,
    amd_source: str | None = None,
) -> tuple[Diagnosis, Snapshot]:
    """Return what :func:`diagnose` says, and the reading that it says it of.

    Args:
        backends: Names, or backend objects; all that are registered when left out. One named here is opened whatever
            detection says.
        timeout: Seconds within which a reading is answered.
        open_timeout: Seconds to wait for sources that are still opening.
        amd_source: The one source to read AMD's GPUs from.

    Raises:
        InvalidOptionError: An option that cannot be used.
        UnknownNameError: A backend, or a source of one, that does not exist.
    """
    options = checked(timeout=timeout, open_timeout=open_timeout)
    backends = items_of(backends)
    chosen = pinned(select(backends), {"amd": amd_source})
    shared = shared_readings()  # before sources are opened: while a vendor's library hangs in loading, nothing can be imported
    engine = ThreadEngine(SourceRegistry(), chosen, named(backends), options)
    try:
        snapshot = engine.sample()
        if any(why.reason == Reason.NEEDS_INTERVAL for why in snapshot.unavailable.values()):
            time.sleep(SETTLE)
            snapshot = engine.sample()
        pairs = zip(snapshot.backends, engine.readers, strict=True)
        findings = tuple(_backend(snapshot, status, reader) for status, reader in pairs)
        listed = {pci_address(device.pci_bus_id) for device in snapshot.devices}  # by a plug-in, say
        unread = [device for device in unread_devices() if device.pci_bus_id not in listed] if backends is None else ()
        log = unreadable() if any(one.name == "nvidia" and one.status != "absent" for one in findings) else ""
        return Diagnosis(snapshot.hostname, snapshot.timestamp, findings, tuple(unread), shared, log), snapshot
    finally:
        engine.close()


def _backend(snapshot: Snapshot, status: BackendStatus, reader: SourceReader) -> BackendFinding:
    source = reader.source
    wrong = Unavailable("")  # why there is nothing to read at all; what is wrong with single devices stands with them
    tried = status.status != "absent" or source.open_seconds is not None
    if status.status != "ok" and tried and not source.devices:
        failure = source.failure or reader.failures.get("")
        reason = Reason.TIMED_OUT if status.status == "timed_out" else Reason.DRIVER_ERROR
        wrong = Unavailable(reason, status.detail) if failure is None else failure.why
    # A driver's ``remark`` says why a better source is not used, or that it is experimental.
    remark = getattr(source.opened.driver, "remark", "") if source.opened is not None else ""
    own = reader.mappers[""].keys if source.backend.kind is None and "" in reader.mappers else {}
    return BackendFinding(
        name=status.name,
        present=source.detection.present and not isinstance(source.backend, BrokenBackend),
        evidence="; ".join(filter(None, (source.detection.evidence, remark if isinstance(remark, str) else ""))),
        status=status.status,
        source=status.source,
        expected_devices=source.detection.devices,
        reason=str(wrong.reason),
        problem=wrong.detail,
        advice=_advice(wrong, source),
        open_seconds=source.open_seconds,
        read_seconds=status.duration_seconds if status.source else None,
        devices=tuple(_device(snapshot.device(slot.key), reader.failures.get(slot.key)) for slot in reader.slots),
        metrics=len(own.keys() & snapshot.metrics.keys()),
        gaps=_gaps({key: why for key, why in snapshot.unavailable.items() if key in own}),
    )


def _advice(wrong: Unavailable, source: ManagedSource) -> str:
    """Say what to do: first what detection advises, which holds however the driver fares (a container's missing devices), then the rest."""
    detected = source.detection.advice
    told = source.failure.advice if source.failure is not None else ""
    if not told and (not detected or wrong.reason == Reason.TIMED_OUT):
        told = ADVICE.get(wrong.reason, "")
    if not told or told in detected:
        return detected
    return "; ".join((*(each for each in detected.split("; ") if each not in told), told))


def _device(device: Device, failure: Failure | None) -> DeviceFinding:
    gaps = _gaps(device.unavailable)
    wrong, advice = (None, "") if failure is None else (failure.why, failure.advice)
    # A lost device still has its counts from the kernel's log. A counter whose rate waits for another reading has been read.
    lost = failure is not None and failure.why.reason == Reason.DEVICE_LOST
    if not lost and (device.values or any(gap.reason == Reason.NEEDS_INTERVAL for gap in gaps)):
        wrong = None
    elif gaps:
        largest = max(gaps, key=lambda gap: len(gap.names))
        wrong = Unavailable(largest.reason, largest.detail)
    if wrong is not None and wrong.reason in AT_REST:
        wrong = None
    return DeviceFinding(
        key=device.key,
        name=device.name,
        uuid=device.uuid,
        pci_bus_id=device.pci_bus_id,
        driver_version=device.driver_version,
        readable=wrong is None,
        problem="" if wrong is None else ": ".join(filter(None, wrong)),
        advice="" if wrong is None else advice or ADVICE.get(wrong.reason, ""),
        metrics=len(device.values),
        gaps=gaps,
        fabric=device.fabric,
    )


def _gaps(missing: Mapping[str, Unavailable]) -> tuple[Gap, ...]:
    """Put together what is missing by reason and words."""
    names: dict[tuple[str, str], list[str]] = {}
    for name, why in missing.items():
        names.setdefault((str(why.reason), why.detail), []).append(name)
    return tuple(Gap(reason, detail, tuple(listed), ADVICE.get(reason, "")) for (reason, detail), listed in sorted(names.items()))
