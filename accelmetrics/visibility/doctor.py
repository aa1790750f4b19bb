"""The facts behind ``accelmetrics doctor``: backends and devices that work or fail on this machine, with reasons and advice.

:func:`diagnose` opens all sources independently of the samplers of this process, reads them, and returns plain records.
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

# Seconds between two readings, since rates need an interval. A metric that is still missing after the second reading is reported.
SETTLE = 0.1
AT_REST = frozenset({Reason.NOT_IN_USE, Reason.SUSPENDED})
"""Reasons with which a device without values still counts as readable."""

# NVIDIA, AMD, Google and Annapurna Labs (AWS). Their backends detect devices by their own rules and report the ones that they cannot read.
OWN_DETECTION = frozenset({"0x10de", "0x1002", "0x1ae0", "0x1d0f"})
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
"""Known accelerators without a backend: a name, and PCI ids as :func:`find_pci` takes them.

For a vendor with other products too, or with unpublished ids, the PCI class decides: display (03) or processing accelerator (12)."""


class DeviceFinding(NamedTuple):
    """A device and its state.

    Attributes:
        key: Its key: ``gpu.0``.
        name: The product name.
        uuid: The vendor's unique id.
        pci_bus_id: Its PCI address.
        driver_version: The driver's version.
        readable: Whether it can be read. True also for an idle or suspended device that has no values for that reason.
        problem: Why it cannot be read. Empty if it can.
        advice: The remedy for the problem.
        metrics: Number of metrics with a value.
        gaps: Metrics that are missing for the same reason, as dicts: ``reason`` in one word, ``detail`` (the exact message), ``names``
            (without the device's key; full keys of the host) and ``advice``.
        fabric: Its state in the fabric that connects devices of several machines. Empty if there is none.
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
    gaps: tuple[Mapping[str, Any], ...]
    fabric: str = ""


class BackendFinding(NamedTuple):
    """A backend and its state.

    Attributes:
        name: Its name.
        present: Whether detection found its hardware or software.
        evidence: The findings of detection, and the open driver's remark about the way it reads.
        status: Its status, as in ``snapshot.backends``.
        source: The source that is read (``nvml``, ``rocm-smi``). Empty if none is open.
        expected_devices: Number of devices that detection finds without the driver.
        reason: The reason of a problem, in one word. Empty if there is none.
        problem: The problem in words.
        advice: The remedy.
        open_seconds: Duration of opening. None if it was not opened.
        read_seconds: Duration of the reading. None if there was none.
        devices: Its devices.
        metrics: Number of metrics with a value that belong to no device (the host).
        gaps: Missing metrics that belong to no device, as those of a device.
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
    gaps: tuple[Mapping[str, Any], ...]

    @property
    def broken(self) -> bool:
        """Whether it is present or requested, but does not work fully."""
        return self.status not in ("ok", "absent") or self.unreadable > 0

    @property
    def unreadable(self) -> int:
        """Number of devices that exist and cannot be read.

        If the driver does not open, these are the devices on the bus.
        """
        if self.devices:
            return sum(not device.readable for device in self.devices)
        if self.status not in ("failed", "timed_out") or not self.present:
            return 0
        # A device that no bus shows counts if the driver itself failed. An installed library or a broken plug-in is no device.
        return self.expected_devices or int(self.reason not in ("", Reason.DRIVER_UNAVAILABLE))


class Diagnosis(NamedTuple):
    """The result of :func:`diagnose`.

    Attributes:
        hostname: The machine's name.
        timestamp: Time of the reading (RFC 3339, UTC).
        backends: The backends, in numbering order.
        unread: Accelerators on the PCI bus that no backend reads (see ``unread_devices``). Empty unless all backends were examined.
        shared: Readings that processes of this machine share (see ``shared_readings``), as far as this user may see them.
        kernel_log: Why Xid errors of NVIDIA's GPUs cannot be read from the kernel's log. Empty if they can, or without GPUs of NVIDIA.
        snapshot: The reading behind the diagnosis. It is not a part of ``to_dict``.
    """

    hostname: str
    timestamp: str
    backends: tuple[BackendFinding, ...]
    unread: tuple[Mapping[str, str], ...]
    shared: tuple[Mapping[str, Any], ...]
    kernel_log: str
    snapshot: Snapshot

    @property
    def unreadable(self) -> int:
        """Number of devices that exist and cannot be read."""
        return sum(backend.unreadable for backend in self.backends)

    def to_dict(self) -> dict[str, Any]:
        """Return the diagnosis as new plain containers, ready for ``json``."""
        facts = {name: value for name, value in self._asdict().items() if name != "snapshot"}
        return {**plain(facts), "unreadable": self.unreadable}


def unread_devices() -> tuple[Mapping[str, str], ...]:
    """Return the accelerators on the PCI bus that no built-in backend reads, in order of address.

    Returns:
        The ``name`` of each (for an unknown vendor, its PCI id), its ``pci_bus_id``, and its ``pci_id``: vendor and device (``1da3:1020``).
    """
    read = {address for row in BUILT_IN.values() for address in find_pci(row.pci)}
    read |= {link_name(f"{path}/device") for row in BUILT_IN.values() for path in find_driven(row.drivers)}
    found: dict[str, str] = {}
    for name, ids in RECOGNISED:
        for address in find_pci(ids):
            found.setdefault(address, name)
    for vendor in pci_functions().keys() - OWN_DETECTION - {""}:
        for address in find_pci((f"{vendor.removeprefix('0x')}:*:12",)):
            found.setdefault(address, f"an accelerator of vendor {vendor}")
    return tuple(
        {
            "name": name,
            "pci_bus_id": address,
            "pci_id": ":".join((read_text(f"{PCI}/{address}/{part}") or "").removeprefix("0x") for part in ("vendor", "device")),
        }
        for address, name in sorted(found.items())
        if address not in read
    )


def shared_readings() -> tuple[Mapping[str, Any], ...]:
    """Return the shared readings (docs/sharing.md) of this user's jobs and of the daemon ``serve --share``.

    Returns:
        The ``path`` of each file, the ``pid`` of the process that reads the devices (in its own namespace), its ``epoch`` (each new
        reading process has a higher one), ``age_seconds`` of the newest reading (None if there is none, or it comes from another
        release), and the ``problem`` for which the file cannot be read, else empty.
    """
    if sys.platform == "win32":  # there is no sharing on Windows
        return ()
    # Imported here, because these modules need fcntl, which Windows does not have.
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
                found.append({"path": str(path), "pid": 0, "epoch": 0, "age_seconds": None, "problem": str(error)})
            else:
                age = None if newest is None else time.monotonic() - newest.ended
                if writer is not None:
                    found.append({"path": str(path), "pid": writer.pid, "epoch": writer.epoch, "age_seconds": age, "problem": ""})
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
    """Detect, open and read all backends, and return a diagnosis.

    Args:
        backends: Names or objects of the backends. By default all registered ones. A named backend is opened even if
            detection finds nothing.
        timeout: Seconds within which a reading is answered.
        open_timeout: Seconds to wait for sources that are still opening.
        amd_source: The only source to read AMD's GPUs from.

    Raises:
        InvalidOptionError: An option is invalid.
        UnknownNameError: A backend, or a source of a backend, does not exist.
    """
    options = checked(timeout=timeout, open_timeout=open_timeout)
    backends = items_of(backends)
    chosen = pinned(select(backends), {"amd": amd_source})
    # Before sources are opened: this imports modules, and no import works while a vendor's library hangs in loading.
    shared = shared_readings()
    engine = ThreadEngine(SourceRegistry(), chosen, named(backends), options)
    try:
        snapshot = engine.sample()
        if any(why.reason == Reason.NEEDS_INTERVAL for why in snapshot.unavailable.values()):
            time.sleep(SETTLE)
            snapshot = engine.sample()
        pairs = zip(snapshot.backends, engine.readers, strict=True)
        findings = tuple(_backend(snapshot, status, reader) for status, reader in pairs)
        listed = {pci_address(device.pci_bus_id) for device in snapshot.devices}  # also by plug-ins, which have no row in BUILT_IN
        unread = [device for device in unread_devices() if device["pci_bus_id"] not in listed] if backends is None else ()
        log = unreadable() if any(one.name == "nvidia" and one.status != "absent" for one in findings) else ""
        return Diagnosis(snapshot.hostname, snapshot.timestamp, findings, tuple(unread), shared, log, snapshot)
    finally:
        engine.close()


def _backend(snapshot: Snapshot, status: BackendStatus, reader: SourceReader) -> BackendFinding:
    source = reader.source
    wrong = Unavailable("")  # a problem of the whole backend. Problems of single devices are in their findings.
    tried = status.status != "absent" or source.open_seconds is not None
    if status.status != "ok" and tried and not source.devices:
        failure = source.failure or reader.failures.get("")
        reason = Reason.TIMED_OUT if status.status == "timed_out" else Reason.DRIVER_ERROR
        wrong = Unavailable(reason, status.detail) if failure is None else failure.why
    # A driver's optional ``remark`` says why a better source is not used, or that the backend is experimental.
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
    """Return the advice of detection, then the advice for the failure.

    Detection's advice (about devices missing in a container, for example) applies whether or not the driver works.
    """
    detected = source.detection.advice
    advice = source.failure.advice if source.failure is not None else ""
    if not advice and (not detected or wrong.reason == Reason.TIMED_OUT):
        advice = ADVICE.get(wrong.reason, "")
    if not advice or advice in detected:
        return detected
    return "; ".join((*(each for each in detected.split("; ") if each not in advice), advice))


def _device(device: Device, failure: Failure | None) -> DeviceFinding:
    gaps = _gaps(device.unavailable)
    wrong, advice = (None, "") if failure is None else (failure.why, failure.advice)
    # A rate without a value needs another reading, but its counter was read. So the device is readable. A lost device is not, although
    # it still has its counts from the kernel's log.
    lost = failure is not None and failure.why.reason == Reason.DEVICE_LOST
    if not lost and (device.values or any(gap["reason"] == Reason.NEEDS_INTERVAL for gap in gaps)):
        wrong = None
    elif gaps:
        largest = max(gaps, key=lambda gap: len(gap["names"]))
        wrong = Unavailable(largest["reason"], largest["detail"])
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


def _gaps(missing: Mapping[str, Unavailable]) -> tuple[Mapping[str, Any], ...]:
    """Group missing metrics by reason and message."""
    names: dict[tuple[str, str], list[str]] = {}
    for name, why in missing.items():
        names.setdefault((str(why.reason), why.detail), []).append(name)
    return tuple(
        {"reason": reason, "detail": detail, "names": tuple(listed), "advice": ADVICE.get(reason, "")}
        for (reason, detail), listed in sorted(names.items())
    )
