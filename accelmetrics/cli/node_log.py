"""Log messages for events on a node: devices and sources that stop or resume answering, Xid errors, and findings."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

from accelmetrics.backends.nvidia.kernel_log import KernelError
from accelmetrics.cli.monitoring import DATA
from accelmetrics.schemas.errors import ADVICE, IN_ORDER, Reason, Unavailable
from accelmetrics.schemas.identity import DeviceSlot, pci_address
from accelmetrics.schemas.log import log
from accelmetrics.schemas.record import Finding, Record
from accelmetrics.schemas.snapshot import Snapshot, has_values, rfc3339
from accelmetrics.schemas.text import duration, in_words, printable
from accelmetrics.schemas.xid import KNOWN_XIDS

LEVELS = {"critical": logging.ERROR, "warning": logging.WARNING, "info": logging.INFO}
XID_RULES = "xid"
"""Prefix of the names of rules about Xid errors."""
SILENCE_RULES = frozenset({"device_lost", "device_missing"})
"""Rules about devices that give no values. The device's own message covers their findings."""
EVENTS: Mapping[str, tuple[str, str]] = {
    Reason.DEVICE_LOST: ("device_lost", "lost"),
    Reason.TIMED_OUT: ("device_hung", "does not answer"),
    Reason.RESET_REQUIRED: ("device_silent", "must be reset"),
}
"""Event and words by the reason for which a device gives no values."""
UNLISTED = Unavailable("not_listed", "no longer listed")
"""Reason for a device that is missing from the reading."""


class NodeLog:
    """Logger of a node's events. It compares each record with the previous one, and logs findings at their severity's level."""

    def __init__(self) -> None:
        self._began_ns = time.time_ns()
        self._slots: dict[str, DeviceSlot] = {}
        self._silent: dict[str, tuple[str, int]] = {}  # by device without values: the reason, and since when
        self._sources: dict[str, int] = {}  # by source that does not answer: since when
        self._reported: set[str] = set()  # sources whose first failure the monitor has logged; it logs no later ones
        self._xids: dict[str, int | float] = {}  # by device: its count of Xid errors
        self._findings: dict[tuple[str, str], Finding] = {}
        self._unlogged: set[tuple[str, str]] = set()  # current findings that the device's own message covers

    def take(self, record: Record) -> None:
        """Log the differences between this record and the previous one."""
        taken = record.snapshot
        known, self._slots = self._slots, {slot.key: slot for slot in taken.identities}
        for slot in taken.identities:
            self._device(slot, _why_silent(taken, slot.key), taken.time_ns)
        for key, slot in known.items():
            if key not in self._slots and not slot.identity.parent:  # partitions are created and deleted by command
                self._slots[key] = slot  # kept, so that its return is logged
                self._device(slot, UNLISTED, taken.time_ns)
        self._of_sources(taken)
        self._of_xids(taken, {finding.key for finding in self._of_findings(record) if finding.rule.startswith(XID_RULES)})

    def _device(self, slot: DeviceSlot, why: Unavailable | None, now_ns: int) -> None:
        before, since = self._silent.get(slot.key, ("", now_ns))
        data = {"device": slot.key, "uuid": slot.unique_id}
        name = slot.key if slot.unique_id == slot.key else f"{slot.key} ({slot.unique_id})"
        if why is None:
            if self._silent.pop(slot.key, None):
                seconds = _seconds(since, now_ns)
                _log(logging.INFO, f"{name}: back, after {duration(seconds)}", "device_back", seconds=seconds, **data)
        elif why.reason != before:
            self._silent[slot.key] = str(why.reason), since
            event, words = EVENTS.get(why.reason, ("device_silent", ""))
            problem = ": ".join(filter(None, (words, in_words(why.detail) or ("" if words else why.reason.replace("_", " ")))))
            advice = f" ({ADVICE[why.reason]})" if why.reason in ADVICE else ""
            _log(logging.ERROR, f"{name}: {problem}{advice}", event, reason=str(why.reason), **data)

    def _of_sources(self, taken: Snapshot) -> None:
        for status in taken.backends:
            data = {"source": status.name}
            if status.silent and status.name not in self._sources:
                self._sources[status.name] = taken.time_ns
                if status.name in self._reported:
                    _log(logging.WARNING, f"source {status.name}: {printable(status.detail)}", "source_silent", **data)
                self._reported.add(status.name)
            elif not status.silent and status.name in self._sources:
                seconds = _seconds(self._sources.pop(status.name), taken.time_ns)
                _log(
                    logging.INFO, f"source {status.name}: answers again, after {duration(seconds)}", "source_back", seconds=seconds, **data
                )

    def _of_findings(self, record: Record) -> list[Finding]:
        """Log findings that begin and end, and return the new ones. A finding that the device's message covers is not logged."""
        before, self._findings = self._findings, {(one.rule, one.key): one for one in record.findings}
        begun = [one for which, one in self._findings.items() if which not in before]
        self._unlogged |= {(one.rule, one.key) for one in begun if one.rule in SILENCE_RULES and one.key in self._silent}
        for one in begun:
            if (one.rule, one.key) in self._unlogged:
                continue
            lasts = one.since_ns < self._began_ns  # it began before a restart, and was logged then
            words = printable(f"{'still: ' if lasts else ''}{one} ({one.advice})")
            _log(logging.INFO if lasts else LEVELS[one.severity], words, "finding", finding=one.to_dict())
        for which, one in before.items():
            if which in self._findings:
                continue
            if which in self._unlogged:
                self._unlogged.discard(which)
            else:
                seconds = _seconds(one.since_ns, record.snapshot.time_ns)
                words = f"over: {one.severity} {one.rule} {one.key}".rstrip() + f", after {duration(seconds)}"
                _log(logging.INFO, words, "finding_over", seconds=seconds, finding=one.to_dict())
        return begun

    def _of_xids(self, taken: Snapshot, logged: set[str]) -> None:
        """Log new Xid errors. Errors of a device are skipped if a finding about them has just been logged."""
        for key, slot in self._slots.items():
            count = taken.metrics.get(f"{key}.xidErrors")
            if count is None:
                continue
            # Errors from before the start of this process are not new. The kernel's log has their number.
            earlier = sum(KNOWN_XIDS.before.get(pci_address(slot.identity.pci_bus_id), {}).values())
            more = count - self._xids.get(key, earlier)
            self._xids[key] = count
            if more > 0 and key not in logged:
                code = taken.metrics.get(f"{key}.lastXid")
                number = "without a code" if code is None else f"{code:.0f}"
                words = f"{key} ({slot.unique_id}): Xid {number}{f', the last of {more:.0f}' if more > 1 else ''}"
                _log(logging.WARNING, words, "xid", device=key, uuid=slot.unique_id, code=code, count=more)

    def of_kernel(self, errors: Sequence[KernelError]) -> None:
        """Log errors in the kernel's log of devices that are not listed: NVSwitches, and GPUs that the driver has lost.

        Equal errors of one device are one message.
        """
        listed = {pci_address(slot.identity.pci_bus_id) for slot in self._slots.values()}
        found: dict[tuple[str, int], list[KernelError]] = {}
        for error in errors:
            if error.switch or error.address not in listed:
                found.setdefault((error.address, error.code), []).append(error)
        for (address, code), alike in found.items():
            last = alike[-1]
            subject = f"NVSwitch {address}: SXid {code}" if last.switch else f"GPU {address}, which is not listed: Xid {code}"
            many = f", the last of {len(alike)}" if len(alike) > 1 else ""
            words = printable(f"{subject}: {last.words}, at {rfc3339(int(last.time * 1e9))}{many}")
            level = logging.ERROR if last.words.startswith("Fatal") else logging.WARNING
            _log(level, words, "sxid" if last.switch else "xid", address=address, code=code, count=len(alike))


def _why_silent(taken: Snapshot, key: str) -> Unavailable | None:
    """Return the reason why a device gives no values. None if it gives some, or if it is expected to give none."""
    if has_values(taken, key):
        return None
    return next((why for why in taken.reasons_of(key).values() if why.reason not in IN_ORDER), None)


def _seconds(since_ns: int, now_ns: int) -> float:
    return max(0.0, (now_ns - since_ns) / 1e9)


def _log(level: int, words: str, event: str, **data: Any) -> None:
    log.log(level, "%s", words, extra={DATA: {"event": event, **data}})
