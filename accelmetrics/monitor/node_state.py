"""The state of the node's daemon that survives its restarts, in a file: running jobs, current findings and counts of Xid errors.

The file is written every half minute, every five seconds while a job runs, when a finding or a job begins or ends, and at the end. Its
modification time is the time of the last reading, up to which a killed daemon ran. The state is valid until the machine reboots.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, NonNegativeInt, ValidationError

from accelmetrics.backends.kit.system import read_text
from accelmetrics.backends.nvidia.kernel_log import ABSENT, PATH, KernelError, KernelLog
from accelmetrics.exporters.files import replace_file
from accelmetrics.monitor.job_summaries import Earlier, JobSummaries
from accelmetrics.schemas.document import describe, recorded
from accelmetrics.schemas.identity import pci_address
from accelmetrics.schemas.identity_models import FindingEntry
from accelmetrics.schemas.log import log
from accelmetrics.schemas.record import Finding, Record
from accelmetrics.schemas.snapshot import Snapshot
from accelmetrics.schemas.xid import KNOWN_XIDS, MOST_RECENT
from accelmetrics.visibility.slurm_jobs import read_small, reason_of

EVERY, EVERY_OF_JOBS = 30.0, 5.0
"""Seconds between two writes; shorter while jobs run, because a killed daemon loses the results since the last write."""
LARGEST = 8 << 20
BOOT = "/proc/sys/kernel/random/boot_id"


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


class _Xids(_Part):
    counts: list[tuple[NonNegativeInt, NonNegativeInt]]
    recent: list[tuple[NonNegativeFloat, NonNegativeInt]] = Field(max_length=MOST_RECENT)


class _Device(_Part):
    device: str
    uuid: str
    name: str
    held_seconds: NonNegativeFloat
    measured_seconds: NonNegativeFloat
    used_seconds: float | None
    utilization_percent_mean: float | None
    memory_used_bytes_max: float | None
    power_watts_mean: float | None
    temperature_celsius_max: float | None
    energy_joules: float | None
    energy_source: Literal["counter", "integrated"] | None
    energy_reason: str | None
    counter_joules: float | None


class _Job(_Part):
    began: float
    noticed: float
    written: float
    alive: float | None
    interruptions: NonNegativeInt
    interrupted_seconds: NonNegativeFloat
    devices: dict[str, _Device]


class _State(_Part):
    version: Literal[1]
    boot_id: str
    sequence: int = Field(ge=-1)
    xids: dict[str, _Xids]
    findings: list[tuple[str, FindingEntry]]
    jobs: dict[str, _Job]


def _begin_counts(xids: Mapping[str, _Xids]) -> None:
    """Initialise the counts of Xid errors, by PCI address."""
    KNOWN_XIDS.begin(
        {address: dict(known.counts) for address, known in xids.items()},
        {address: deque(known.recent, maxlen=MOST_RECENT) for address, known in xids.items()},
    )


class NodeState:
    """The state of a daemon and its file.

    Args:
        path: The file; None to keep no state.
        before: State of this process before it reloaded its configuration. It replaces the contents of the file.

    Attributes:
        jobs: Results of jobs from before this start, by job id.
        findings: Findings that were current then, each with the unique id of its device.
    """

    def __init__(self, path: str | None, before: NodeState | None = None) -> None:
        self._path = None if path is None else Path(path)
        self.jobs: dict[str, Earlier] = {}
        self.findings: Sequence[tuple[str, Finding]] = ()
        self._summaries: JobSummaries | None = None
        self._boot = read_text(BOOT) or ""
        self._latest: Record | None = None
        self._lasting: tuple[Finding, ...] = ()
        self._running: frozenset[str] = frozenset()
        self._counted: dict[str, Mapping[int, int]] = {}  # Xid errors of the last record, by PCI address
        self._due = 0.0
        self._failed = ""
        self._alive = 0.0  # modification time of the file, set by the previous daemon
        self._sequence = -1  # of the kernel's log, while it is not followed
        if before is not None:
            self.jobs, self.findings, self._sequence = before.jobs, before.findings, before._sequence
            _begin_counts(before._xids())
        elif self._path is not None and (state := self._read()) is not None:
            self.jobs = {
                name: Earlier(**dict(job) | {"alive": max(job.written, self._alive), "devices": job.model_dump()["devices"]})
                for name, job in state.jobs.items()
            }
            self.findings = [(device, recorded(entry)) for device, entry in state.findings]
            self._sequence = state.sequence
            _begin_counts(state.xids)
        self._log: KernelLog | None = None
        self._unreported: list[KernelError] = []
        self._lock = threading.Lock()  # records and the close come from different threads

    def follow_kernel_log(self) -> None:
        """Begin to follow the kernel's log, if permitted, and count the errors since it was followed last."""
        try:
            self._log = KernelLog(self._sequence if KNOWN_XIDS.sequence is None else KNOWN_XIDS.sequence)
        except OSError as error:
            if error.errno not in ABSENT:
                log.info("Xid errors are not read from the kernel's log: %s: %s", PATH, error.strerror)
            return
        self._unreported += self._log.count_all()

    def keep(self, summaries: JobSummaries) -> None:
        """Include the jobs of these summaries in the state."""
        self._summaries = summaries

    def take(self, record: Record) -> list[KernelError]:
        """Take over a record, and write the file if it is due. Return the kernel log's errors since the previous record."""
        with self._lock:
            if self._log is not None:
                self._unreported += self._log.count()
            self._latest = record
            self._note_xids(record.snapshot)
            before = self._lasting, self._running
            self._lasting = tuple(record.findings)
            self._running = frozenset() if self._summaries is None else self._summaries.running
            if time.monotonic() >= self._due or before != (self._lasting, self._running):
                self.write()
            elif self._running and self._path is not None:
                with suppress(OSError):  # the file was removed: the next write creates it again
                    os.utime(self._path)
            errors, self._unreported = self._unreported, []
            return errors

    def close(self) -> None:
        """Write the file a last time, and keep the state for a successor in this process."""
        with self._lock:
            self.write()
            if self._latest is not None:
                self.findings = self._identified()
            if self._summaries is not None:
                self.jobs = {name: replace(job, alive=None) for name, job in self._summaries.totals().items()}
            self._sequence = self._sequence if KNOWN_XIDS.sequence is None else KNOWN_XIDS.sequence
            self._path = None
            if self._log is not None:
                self._log.close()
                self._log = None

    def write(self) -> None:
        """Write the file. An error is logged once."""
        if self._path is None or self._latest is None:
            return
        self._due = time.monotonic() + (EVERY_OF_JOBS if self._running else EVERY)
        state = {
            "version": 1,
            "boot_id": self._boot,
            "sequence": self._sequence if KNOWN_XIDS.sequence is None else KNOWN_XIDS.sequence,
            "xids": {address: known.model_dump() for address, known in self._xids().items()},
            "findings": [(device, one.to_dict()) for device, one in self._identified()],
            "jobs": {} if self._summaries is None else {name: asdict(job) for name, job in self._summaries.totals().items()},
        }
        try:
            replace_file(self._path, json.dumps(state).encode(), 0o600)
            self._failed = ""
        except OSError as error:
            why = error.strerror or str(error)
            if why != self._failed:
                self._failed = why
                log.warning("the state cannot be written, and a restart will lose it: %s: %s", self._path, why)

    def _xids(self) -> dict[str, _Xids]:
        """Return the Xid errors so far by PCI address: from the kernel's log, from NVML, and from earlier daemons."""
        found = {}
        for address in sorted(KNOWN_XIDS.addresses | self._counted.keys()):
            known, counted = KNOWN_XIDS.total(address, {}), self._counted.get(address, {})
            counts = [(code, max(known.get(code, 0), counted.get(code, 0))) for code in {**known, **counted}]
            found[address] = _Xids(counts=counts, recent=list(KNOWN_XIDS.recent.get(address, ())))
        return found

    def _identified(self) -> list[tuple[str, Finding]]:
        """Return the current findings, each with the unique id of its device."""
        assert self._latest is not None
        devices = {slot.key: slot.unique_id for slot in self._latest.snapshot.identities}
        return [(devices.get(one.key, ""), one) for one in self._lasting]

    def _read(self) -> _State | None:
        """Return the state in the file; None if there is none. An invalid file is logged, and a file that is not ours is not replaced."""
        assert self._path is not None
        try:
            text = read_small(self._path, trusted=True, largest=LARGEST)
            self._alive = self._path.stat().st_mtime
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            log.warning("%s is not used, and no state survives a restart: %s", self._path, reason_of(error))
            self._path = None
            return None
        try:
            state = _State.model_validate_json(text)
        except (ValidationError, RecursionError) as error:
            why = describe(error) if isinstance(error, ValidationError) else "it is nested too deeply"
            log.warning("%s is not used, and will be replaced: it is not a state file of this release: %s", self._path, why)
            return None
        return state if state.boot_id == self._boot else None  # counters and the kernel's log restart with a boot

    def _note_xids(self, taken: Snapshot) -> None:
        """Take over the counts of a reading. If the kernel's log is not followed, also record the times of new errors."""
        for slot in taken.identities:
            counts = {
                int(name.split(".")[1]): int(value)
                for name, value in taken.values_of(slot.key).items()
                if name.startswith("xid.") and name.endswith(".errors")
            }
            address = pci_address(slot.identity.pci_bus_id)
            known = self._counted.get(address) or KNOWN_XIDS.total(address, {})
            if counts and KNOWN_XIDS.sequence is None:
                for code, count in counts.items():
                    if count > known.get(code, 0):
                        KNOWN_XIDS.note(address, taken.time_ns / 1e9, code)
            if counts:
                self._counted[address] = counts
