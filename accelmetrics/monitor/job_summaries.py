"""What each job on this machine came to: a window of the monitor for each, and a file with its results when it has ended.

The file is there from the moment at which the job was noticed, so that an Epilog knows whether to wait for one. How long a device was held
is the scheduler's word (Prolog to Epilog); what it did meanwhile is what was measured, and the rest of the time is told as not measured.

A job that goes on while the daemon is started anew is one job: what was measured of it before is added. The energy of the time between is
the rise of the device's own counter; where that is not known, it is said beside the number.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from accelmetrics.exporters.files import replace_file
from accelmetrics.monitor.monitor import Monitor
from accelmetrics.monitor.window import Window
from accelmetrics.schemas.identity import DeviceSlot
from accelmetrics.schemas.log import log
from accelmetrics.schemas.statistics import COUNTER
from accelmetrics.schemas.text import duration
from accelmetrics.schemas.vitals import MEMORY_USED, POWER, TEMPERATURE, UTILIZATION, first
from accelmetrics.visibility.attribution import resolve
from accelmetrics.visibility.slurm_jobs import Job, read_small

VERSION = 1
STATES = ("running", "ended")
UNWATCHED = "it ended while no daemon ran: at this time, that of the last reading, or later"
"""The reason beside the end of a job, and beside all that follows from its length."""
KEPT = 200
"""Summaries of jobs that have ended; the oldest go."""
HOUR = 3600.0
MEASURES = {
    "utilization_percent_mean": (UTILIZATION, "mean"),
    "memory_used_bytes_max": (MEMORY_USED, "max"),
    "power_watts_mean": (POWER, "mean"),
    "temperature_celsius_max": (TEMPERATURE, "max"),
}
"""What is told of a device: its metric, by the names that it has, and which statistic."""


@dataclass
class Earlier:
    """What was measured of a job before the daemon was started anew.

    Attributes:
        began: When the job began, in seconds since 1970: another job may have its number.
        noticed: When it was found first.
        written: Until when it was measured.
        alive: When the daemon was last known to run; None where it is this process, which began its readings again.
        interruptions: How often the daemon was started anew before that.
        interrupted_seconds: For how long it did not run, all in all.
        devices: By identity, what its summary said of each device, and ``counter_joules``, what the device's counter said then.
    """

    began: float
    noticed: float
    written: float
    alive: float | None
    interruptions: int
    interrupted_seconds: float
    devices: Mapping[str, Mapping[str, Any]]


@dataclass
class _Watched:
    """A job that goes on.

    Attributes:
        job: The job.
        window: What is measured, since it was noticed by this process.
        noticed: When that was.
        earlier: What was measured before.
        gaps: By device, the joules by its counter from then until the window's first reading.
    """

    job: Job
    window: Window
    noticed: float
    earlier: Earlier | None
    gaps: dict[str, float] = field(default_factory=dict)


class JobSummaries:
    """Follows the jobs of this machine. Called with them at each look, from one thread.

    Args:
        monitor: What measures.
        folder: Where summaries are written.
        wall: Tells the time, in seconds since 1970.
        earlier: By id, jobs that an earlier daemon measured.
    """

    def __init__(
        self, monitor: Monitor, folder: str, wall: Callable[[], float] = time.time, earlier: Mapping[str, Earlier] | None = None
    ) -> None:
        self._monitor = monitor
        self._folder = Path(folder)
        self._wall = wall
        self._earlier = dict(earlier or {})
        self._watched: dict[str, _Watched] = {}  # by id, jobs that go on
        self._failed = ""
        self._looked = self._closed = False
        self._lock = threading.Lock()

    def __call__(self, jobs: Sequence[Job]) -> None:
        """Begin windows of jobs that are new, and write what those came to that have ended, or are there no more."""
        with self._lock:
            if self._closed:  # a look that was going on meanwhile would begin them all anew
                return
            listed = {job.job_id: job for job in jobs}
            if not self._looked:
                self._looked = True
                self._end_unwatched(listed.keys())
            for job_id, watched in list(self._watched.items()):
                job = listed.get(job_id)
                # The same id with another beginning is another job: Slurm runs a job again under its number.
                same = job if job is not None and job.began == watched.job.began else None
                if same is None or same.ended is not None:
                    del self._watched[job_id]
                    watched.window.end()
                    self._write(watched, self._wall() if same is None else same.ended)
                    self._prune()
            for job in jobs:
                if job.ended is None and job.job_id not in self._watched and job.devices:
                    earlier = self._earlier.pop(job.job_id, None)
                    if earlier is not None and earlier.began != job.began:
                        earlier = None
                    watched = _Watched(job, self._monitor.window(f"job {job.job_id}").begin(), self._wall(), earlier)
                    self._watched[job.job_id] = watched
                    self._write(watched, None)

    @property
    def running(self) -> frozenset[str]:
        """The ids of the jobs that go on."""
        return frozenset(self._watched.copy())

    def totals(self) -> dict[str, Earlier]:
        """Return what the jobs that go on have come to until the latest reading: another process may go on from there."""
        with self._lock:
            latest, found = self._monitor.latest, {}
            metrics = {} if latest is None else latest.metrics
            for job_id, watched in self._watched.items():
                document = self._document(watched, None)
                devices = {one["uuid"]: {**one, "counter_joules": metrics.get(f"{one['device']}.{COUNTER}")} for one in document["devices"]}
                interrupted = document["interruptions"], document["interrupted_seconds"]
                now = self._wall()
                found[job_id] = Earlier(watched.job.began, document["noticed"], now, now, *interrupted, devices)
            return {**self._earlier, **found}  # those whose file was not found yet may still be

    def close(self) -> None:
        """Write what the jobs that go on have come to until now: it is measured no further."""
        with self._lock:
            self._closed = True
            for watched in self._watched.values():
                watched.window.end()
                self._write(watched, None)
            self._watched.clear()

    def _document(self, watched: _Watched, ended: float | None) -> dict[str, Any]:
        """Return the summary of a job, with what was measured of it before."""
        latest, earlier, window = self._monitor.latest, watched.earlier, watched.window
        slots = () if latest is None else tuple(latest.identities)
        if latest is not None and earlier is not None:
            for slot in slots:
                before = earlier.devices.get(slot.unique_id, {}).get("counter_joules")
                now, energy = latest.metrics.get(f"{slot.key}.{COUNTER}"), window.energy_joules.get(slot.key)
                if slot.unique_id in watched.gaps or before is None or now is None or energy is None or energy.source != "counter":
                    continue
                if now - energy.joules >= before:  # else it began anew
                    watched.gaps[slot.unique_id] = now - energy.joules - before
        job = watched.job._replace(ended=ended)
        document = summary(job, window, slots, watched.noticed, self._wall(), earlier, watched.gaps)
        return {**document, "hostname": self._monitor.labels.get("hostname", "")}

    def _write(self, watched: _Watched, ended: float | None) -> None:
        """Write a summary; a folder that cannot be written to is told once."""
        self._write_file(watched.job.job_id, self._document(watched, ended))

    def _write_file(self, job_id: str, document: Mapping[str, Any]) -> None:
        try:
            self._folder.mkdir(mode=0o755, parents=True, exist_ok=True)
            replace_file(self._folder / f"{job_id}.json", (json.dumps(document) + "\n").encode())
            self._failed = ""
        except OSError as error:
            if str(error) != self._failed:
                self._failed = str(error)
                log.warning("no summaries of jobs: %s", error)

    def _end_unwatched(self, listed: Set[str]) -> None:
        """Write the end of the jobs that ended while no daemon ran: their files are gone, and nobody else ends their summaries."""
        for path in sorted(self._folder.glob("*.json")):
            document = _summary_in(path)
            if document is None or document["state"] != STATES[0] or path.stem in listed:
                continue
            known = self._earlier.get(path.stem)
            try:
                if known is None or known.began != document["began"]:
                    devices = {row["uuid"]: row for row in document["devices"]}
                    past = document["interruptions"], document["interrupted_seconds"]
                    known = Earlier(document["began"], document["noticed"], path.stat().st_mtime, None, *past, devices)
                last = known.written if known.alive is None else max(known.written, known.alive)
                held = max(0.0, last - known.began)
                known = replace(known, devices={name: {**row, "held_seconds": held} for name, row in known.devices.items()})
                job = Job(path.stem, document["scheduler"], document["labels"], (), known.began, last)
                ended = summary(job, self._monitor.window(), (), last, last, known, devices_held=document["devices_held"])
                self._write_file(path.stem, {**ended, "ended_reason": UNWATCHED, "hostname": document["hostname"]})
            except (KeyError, TypeError, OSError) as error:  # of another release, or removed meanwhile
                log.warning("the summary of job %s stays as it is: %s", path.stem, error)

    def _prune(self) -> None:
        """Remove the oldest summaries; what else may lie in the folder stays."""
        try:
            ended = [path for path in self._folder.glob("*.json") if path.stem not in self._watched and _summary_in(path)]
            for path in sorted(ended, key=lambda path: path.stat().st_mtime)[:-KEPT]:
                path.unlink()
        except OSError as error:  # removed by an Epilog meanwhile, or no folder: the next one tries again
            log.debug("old summaries stay: %s", error)


def _summary_in(path: Path) -> dict[str, Any] | None:
    """Return the summary in a file; None for a file of somebody else."""
    try:
        document = json.loads(read_small(path))
    except (OSError, ValueError, RecursionError):
        return None
    mine = isinstance(document, dict) and document.get("job_id") == path.stem and document.get("state") in STATES
    return document if mine else None


def _continued(row: Mapping[str, Any], was: Mapping[str, Any] | None, gap: float | None, pause: float) -> dict[str, Any]:
    """Return what is told of a device, with what was told before the daemon was started anew.

    Args:
        row: What was measured since.
        was: What was told before.
        gap: The joules of the time between; None where they are not known.
        pause: How long that was, in seconds: the daemon did not run, or what it measured was not kept.
    """
    if was is None:
        return dict(row)
    both = (was, row)

    def values(name: str) -> list[tuple[float, float]]:
        return [(one[name], one["measured_seconds"]) for one in both if one[name] is not None]

    def mean(name: str) -> float | None:
        weight = sum(seconds for _, seconds in values(name))
        return sum(value * seconds for value, seconds in values(name)) / weight if weight else row[name]

    def total(name: str) -> float | None:
        return sum(value for value, _ in values(name)) if values(name) else None

    energy = total("energy_joules")
    lacking = f"not known for {duration(pause)} around a restart of the daemon" if gap is None and pause >= 1 else ""
    return {
        **row,
        "measured_seconds": was["measured_seconds"] + row["measured_seconds"],
        "used_seconds": total("used_seconds"),
        **{
            name: mean(name) if part == "mean" else max((value for value, _ in values(name)), default=None)
            for name, (_, part) in MEASURES.items()
        },
        "energy_joules": None if energy is None else energy + (gap or 0.0),
        "energy_source": row["energy_source"] or was["energy_source"],
        "energy_reason": "; ".join(dict.fromkeys(filter(None, (was["energy_reason"], row["energy_reason"], lacking)))) or None,
    }


def summary(
    job: Job,
    window: Window,
    slots: Sequence[DeviceSlot],
    noticed: float,
    now: float,
    earlier: Earlier | None = None,
    gaps: Mapping[str, float] | None = None,
    devices_held: int = 0,
) -> dict[str, Any]:
    """Return what a job came to, as plain values. Hours are those of devices: two held for three hours are six.

    Args:
        job: The job; one without an end goes on.
        window: What was measured of it.
        slots: The devices of the machine.
        noticed: When the window began, in seconds since 1970.
        now: The time, likewise.
        earlier: What was measured before the daemon was started anew.
        gaps: By device, the joules of the time between, where they are known.
        devices_held: How many devices the job has at least.
    """
    pause = 0.0 if earlier is None else max(0.0, noticed - earlier.written)
    alive = None if earlier is None else earlier.alive
    down = 0.0 if alive is None else max(0.0, noticed - alive)
    before = {} if earlier is None else dict(earlier.devices)
    held = max(0.0, (now if job.ended is None else job.ended) - job.began)
    mine = {holder.device for holder in resolve([job.claim], slots)}
    devices: list[dict[str, Any]] = []
    for slot in slots:
        if slot.key not in mine:
            continue
        busy, energy = first(window.summary, slot.key, UTILIZATION), window.energy_joules.get(slot.key)
        measured = 0.0 if busy is None else min(busy.seconds, held)  # readings go on for the moment in which the end was noticed
        found = {name: (first(window.summary, slot.key, names), part) for name, (names, part) in MEASURES.items()}
        row = {
            "device": slot.key,
            "uuid": slot.unique_id,
            "name": slot.identity.name or slot.identity.vendor,
            "held_seconds": held,
            "measured_seconds": measured,
            # During which it computed: its utilisation over the time that this was read.
            "used_seconds": None if busy is None else busy.mean / 100.0 * measured,
            **{name: None if one is None else getattr(one, part) for name, (one, part) in found.items()},
            "energy_joules": None if energy is None else energy.joules,
            "energy_source": None if energy is None else energy.source,
            "energy_reason": None if energy is None else energy.reason or None,
        }
        devices.append(_continued(row, before.pop(slot.unique_id, None), (gaps or {}).get(slot.unique_id), pause))
    devices += [{name: value for name, value in row.items() if name != "counter_joules"} for row in before.values()]  # not there now
    given = max(len(job.devices), len(devices), devices_held)  # those that are not read here are held too

    def total(name: str) -> float | None:
        values = [device[name] for device in devices if device[name] is not None]
        return sum(values) if values else None

    all_measured, used = total("measured_seconds") or 0.0, total("used_seconds")
    return {
        "version": VERSION,
        "job_id": job.job_id,
        "scheduler": job.scheduler,
        "labels": dict(job.labels),
        "state": STATES[job.ended is not None],
        "began": job.began,
        "ended": job.ended,
        "ended_reason": None,
        "noticed": noticed if earlier is None else earlier.noticed,
        "interruptions": 0 if earlier is None else earlier.interruptions + (alive is not None),
        "interrupted_seconds": 0.0 if earlier is None else earlier.interrupted_seconds + down,
        "devices_held": given,
        "held_hours": given * held / HOUR,
        "used_hours": None if used is None else used / HOUR,
        "wasted_hours": None if used is None else (all_measured - used) / HOUR,
        "unmeasured_hours": (given * held - all_measured) / HOUR,
        "energy_joules": total("energy_joules"),
        "devices": devices,
    }
