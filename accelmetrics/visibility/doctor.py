"""What works on this machine, what does not, and what to do about it: the facts behind ``accelmetrics doctor``.

:func:`diagnose` opens everything anew, apart from the samplers of this process, reads it, and puts what came of it into
plain records.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from accelmetrics.backends.contract import Backend
from accelmetrics.backends.registry import BrokenBackend, pinned, select
from accelmetrics.sampling.engine import ThreadEngine
from accelmetrics.sampling.options import DEFAULT_OPEN_TIMEOUT, DEFAULT_TIMEOUT, checked
from accelmetrics.sampling.reader import SourceReader
from accelmetrics.sampling.sources import Failure, ManagedSource, SourceRegistry
from accelmetrics.schemas.errors import ADVICE, Reason, Unavailable
from accelmetrics.schemas.identity import BackendStatus, Status
from accelmetrics.schemas.snapshot import Device, Snapshot, plain
from accelmetrics.visibility.unread import UnreadDevice, unread_devices

SETTLE = 0.1
"""Seconds between two readings, where rates need an interval: what is missing after the second is missing."""
AT_REST = frozenset({Reason.NOT_IN_USE, Reason.SUSPENDED})
"""Reasons under which a device that gives nothing is well all the same."""


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


class Diagnosis(NamedTuple):
    """What was found out.

    Attributes:
        hostname: The machine's name.
        timestamp: When (RFC 3339, UTC).
        backends: The backends, in numbering order.
        unread: Accelerators on the PCI bus that no backend reads; looked for where all backends are asked.
    """

    hostname: str
    timestamp: str
    backends: tuple[BackendFinding, ...]
    unread: tuple[UnreadDevice, ...] = ()

    @property
    def unreadable(self) -> int:
        """How many devices are there and cannot be read."""
        return sum(backend.unreadable for backend in self.backends)

    def to_dict(self) -> dict[str, Any]:
        """Return the whole in new plain containers, ready for ``json``."""
        return {**plain(self), "unreadable": self.unreadable}


def diagnose(
    backends: Sequence[str | Backend] | None = None,
    *,
    timeout: float = DEFAULT_TIMEOUT,
    open_timeout: float = DEFAULT_OPEN_TIMEOUT,
    amd_source: str | None = None,
) -> Diagnosis:
    """Detect, open and read everything, and say what came of it.

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
    chosen = pinned(select(backends), {"amd": amd_source})
    forced = frozenset(backend.name for backend in chosen) if backends is not None else frozenset()
    engine = ThreadEngine(SourceRegistry(), chosen, forced, options)
    try:
        snapshot = engine.sample()
        if any(why.reason == Reason.NEEDS_INTERVAL for why in snapshot.unavailable.values()):
            time.sleep(SETTLE)
            snapshot = engine.sample()
        pairs = zip(snapshot.backends, engine.readers, strict=True)
        findings = tuple(_backend(snapshot, status, reader) for status, reader in pairs)
        listed = {device.pci_bus_id for device in snapshot.devices}  # by a plug-in, say
        unread = [device for device in unread_devices() if device.pci_bus_id not in listed] if backends is None else ()
        return Diagnosis(snapshot.hostname, snapshot.timestamp, findings, tuple(unread))
    finally:
        engine.close()


def _backend(snapshot: Snapshot, status: BackendStatus, reader: SourceReader) -> BackendFinding:
    source = reader.source
    wrong = Unavailable("")  # why there is nothing to read at all; what is wrong with single devices stands with them
    tried = status.status != "absent" or source.open_seconds is not None
    if status.status != "ok" and tried and not source.devices:
        late = status.status == "timed_out"
        wrong = Unavailable(Reason.TIMED_OUT if late else Reason.DRIVER_ERROR, status.detail)
        failure = source.failure or reader.failures.get("")
        if failure is not None:
            wrong = failure.why
    # A driver's ``remark`` says why a better source is not used.
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
    return told if detected in told else f"{detected}; {told}"


def _device(device: Device, failure: Failure | None) -> DeviceFinding:
    gaps = _gaps(device.unavailable)
    wrong = None if failure is None else failure.why
    # A counter whose rate waits for another reading has been read.
    if device.values or any(gap.reason == Reason.NEEDS_INTERVAL for gap in gaps):
        wrong = None
    elif gaps:
        largest = max(gaps, key=lambda gap: len(gap.names))
        wrong = Unavailable(largest.reason, largest.detail)
    if wrong is not None and wrong.reason in AT_REST:
        wrong = None
    advised = failure.advice if failure is not None else ""
    return DeviceFinding(
        key=device.key,
        name=device.name,
        uuid=device.uuid,
        pci_bus_id=device.pci_bus_id,
        driver_version=device.driver_version,
        readable=wrong is None,
        problem="" if wrong is None else ": ".join(filter(None, wrong)),
        advice="" if wrong is None else advised or ADVICE.get(wrong.reason, ""),
        metrics=len(device.values),
        gaps=gaps,
        fabric=device.fabric,
    )


def _gaps(missing: Mapping[str, Unavailable]) -> tuple[Gap, ...]:
    """Put together what is missing by reason and words."""
    names: dict[Unavailable, list[str]] = {}
    for name, why in missing.items():
        names.setdefault(Unavailable(str(why.reason), why.detail), []).append(name)
    ordered = sorted(names.items(), key=lambda item: item[0])
    return tuple(Gap(why.reason, why.detail, tuple(listed), ADVICE.get(why.reason, "")) for why, listed in ordered)
