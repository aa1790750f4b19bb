"""Summaries of the jobs on this machine: a window of the monitor per job, and a file with the results when the job has ended.

The file exists as soon as the job is noticed, so that an Epilog knows whether to wait for the results. The time for which a device was held
comes from the scheduler (Prolog to Epilog). Use and energy come from readings, and time without readings is reported as not measured.

If the daemon restarts during a job, the results from before are added. The energy of the gap is the rise of the device's energy counter; if
the counter is unknown, a reason is reported with the number.
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
"""Reason why the end of a job, and numbers that depend on it, are only lower bounds."""
KEPT = 200
"""Maximum number of summaries of ended jobs; the oldest are removed."""
HOUR = 3600.0
MEASURES = {
    "utilization_percent_mean": (UTILIZATION, "mean"),
    "memory_used_bytes_max": (MEMORY_USED, "max"),
    "power_watts_mean": (POWER, "mean"),
    "temperature_celsius_max": (TEMPERATURE, "max"),
}
"""Names of the metric, in order of preference, and the statistic of each number in a device's row."""


@dataclass
class Earlier:
    """Results of a job from before a restart of the daemon. Times are in seconds since 1970.

    Attributes:
        began: Start of the job. It distinguishes the job from a later one with the same number.
        noticed: Time at which the daemon first saw the job.
        written: Time up to which it was measured.
        alive: Time at which the daemon was last known to run; None if this process itself restarted its readings.
        interruptions: Number of earlier restarts of the daemon.
        interrupted_seconds: Total time for which the daemon did not run.
        devices: Row of the summary by unique id of the device, and ``counter_joules``, the value of the energy counter at that time.
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
    """A running job.

    Attributes:
        job: The job.
        window: The window that measures it, since this process noticed it.
        noticed: Time of that.
        earlier: Results from before a restart, without devices if there are none.
        gaps: Energy in joules between the last earlier reading and the window's first, by the device's counter.
    """

    job: Job
    window: Window
    noticed: float
    earlier: Earlier
    gaps: dict[str, float] = field(default_factory=dict)


class JobSummaries:
    """Measures the jobs of this machine. It is called repeatedly with the current jobs, from a single thread.

    Args:
        monitor: The monitor that measures.
        folder: Directory for the summaries.
        wall: Function that returns the time in seconds since 1970.
        earlier: Results of an earlier daemon by job id.
    """

    def __init__(
        self, monitor: Monitor, folder: str, wall: Callable[[], float] = time.time, earlier: Mapping[str, Earlier] | None = None
    ) -> None:
        self._monitor = monitor
        self._folder = Path(folder)
        self._wall = wall
        self._earlier = dict(earlier or {})
        self._watched: dict[str, _Watched] = {}  # running jobs by id
        self._failed = ""
        self._looked = self._closed = False
        self._lock = threading.Lock()

    def __call__(self, jobs: Sequence[Job]) -> None:
        """Begin windows for new jobs, and write the summaries of jobs that have ended or are no longer listed."""
        with self._lock:
            if self._closed:  # a call that was already waiting for the lock would begin all windows again
                return
            listed = {job.job_id: job for job in jobs}
            if not self._looked:
                self._looked = True
                self._end_unwatched(listed.keys())
            for job_id, watched in list(self._watched.items()):
                job = listed.get(job_id)
                # The same id with another start time is another job: Slurm requeues a job under its number.
                same = job if job is not None and job.began == watched.job.began else None
                if same is None or same.ended is not None:
                    del self._watched[job_id]
                    watched.window.end()
                    self._write(job_id, self._document(watched, self._wall() if same is None else same.ended))
                    self._prune()
            for job in jobs:
                if job.ended is None and job.job_id not in self._watched and job.devices:
                    now, earlier = self._wall(), self._earlier.pop(job.job_id, None)
                    if earlier is None or earlier.began != job.began:
                        earlier = Earlier(job.began, now, now, None, 0, 0.0, {})
                    watched = _Watched(job, self._monitor.window(f"job {job.job_id}").begin(), now, earlier)
                    self._watched[job.job_id] = watched
                    self._write(job.job_id, self._document(watched, None))

    @property
    def running(self) -> frozenset[str]:
        """Ids of the running jobs."""
        return frozenset(self._watched.copy())

    def totals(self) -> dict[str, Earlier]:
        """Return the results of running jobs up to the latest reading, from which another process may continue."""
        with self._lock:
            latest, now = self._monitor.latest, self._wall()
            metrics = {} if latest is None else latest.metrics
            found = dict(self._earlier)  # earlier jobs that have not been listed yet may still run
            for job_id, watched in self._watched.items():
                document = self._document(watched, None)
                devices = {one["uuid"]: {**one, "counter_joules": metrics.get(f"{one['device']}.{COUNTER}")} for one in document["devices"]}
                found[job_id] = Earlier(
                    watched.job.began, document["noticed"], now, now, document["interruptions"], document["interrupted_seconds"], devices
                )
            return found

    def close(self) -> None:
        """Write the summaries of running jobs, and end their measurement."""
        with self._lock:
            self._closed = True
            for job_id, watched in self._watched.items():
                watched.window.end()
                self._write(job_id, self._document(watched, None))
            self._watched.clear()

    def _document(self, watched: _Watched, ended: float | None) -> dict[str, Any]:
        """Return the summary of a job, including earlier results."""
        latest, earlier, window = self._monitor.latest, watched.earlier, watched.window
        slots = () if latest is None else tuple(latest.identities)
        metrics = {} if latest is None else latest.metrics
        for slot in slots if earlier.devices else ():
            before = earlier.devices.get(slot.unique_id, {}).get("counter_joules")
            now, energy = metrics.get(f"{slot.key}.{COUNTER}"), window.energy_joules.get(slot.key)
            if slot.unique_id in watched.gaps or before is None or now is None or energy is None or energy.source != "counter":
                continue
            if now - energy.joules >= before:  # otherwise the counter was reset
                watched.gaps[slot.unique_id] = now - energy.joules - before
        job = watched.job._replace(ended=ended)
        document = summary(job, window, slots, watched.noticed, self._wall(), earlier, watched.gaps)
        return {**document, "hostname": self._monitor.labels.get("hostname", "")}

    def _write(self, job_id: str, document: Mapping[str, Any]) -> None:
        """Write a summary. A directory that cannot be written to is logged once."""
        try:
            self._folder.mkdir(mode=0o755, parents=True, exist_ok=True)
            replace_file(self._folder / f"{job_id}.json", (json.dumps(document) + "\n").encode())
            self._failed = ""
        except OSError as error:
            if str(error) != self._failed:
                self._failed = str(error)
                log.warning("summaries of jobs cannot be written: %s", error)

    def _end_unwatched(self, listed: Set[str]) -> None:
        """Write final summaries of jobs that ended while no daemon ran."""
        # The files that describe these jobs are gone, so nothing else would complete the summaries.
        for path in sorted(self._folder.glob("*.json")):
            document = _summary_in(path)
            if document is None or document["state"] != STATES[0] or path.stem in listed:
                continue
            known = self._earlier.get(path.stem)
            try:
                if known is None or known.began != document["began"]:
                    devices = {row["uuid"]: row for row in document["devices"]}
                    began, noticed, written = document["began"], document["noticed"], path.stat().st_mtime
                    known = Earlier(began, noticed, written, None, document["interruptions"], document["interrupted_seconds"], devices)
                last = known.written if known.alive is None else max(known.written, known.alive)
                held = max(0.0, last - known.began)
                known = replace(known, devices={name: {**row, "held_seconds": held} for name, row in known.devices.items()})
                job = Job(path.stem, document["scheduler"], document["labels"], (), known.began, last)
                ended = summary(job, self._monitor.window(), (), last, last, known, {}, document["devices_held"])
                self._write(path.stem, {**ended, "ended_reason": UNWATCHED, "hostname": document["hostname"]})
            except (KeyError, TypeError, OSError) as error:  # written by another release, or removed meanwhile
                log.warning("the summary of job %s cannot be completed: %s", path.stem, error)

    def _prune(self) -> None:
        """Remove the oldest summaries. Other files in the directory are not touched."""
        try:
            ended = [path for path in self._folder.glob("*.json") if path.stem not in self._watched and _summary_in(path)]
            for path in sorted(ended, key=lambda path: path.stat().st_mtime)[:-KEPT]:
                path.unlink()
        except OSError as error:  # an Epilog removed a file meanwhile, or the directory is missing: the next call tries again
            log.debug("old summaries cannot be removed: %s", error)


def _summary_in(path: Path) -> dict[str, Any] | None:
    """Return the summary in a file; None if the file has other contents."""
    try:
        document = json.loads(read_small(path))
    except (OSError, ValueError, RecursionError):
        return None
    mine = isinstance(document, dict) and document.get("job_id") == path.stem and document.get("state") in STATES
    return document if mine else None


def _continued(row: Mapping[str, Any], before: Mapping[str, Any] | None, gap: float | None, pause: float) -> dict[str, Any]:
    """Return a device's row combined with its row from before a restart of the daemon.

    Args:
        row: The row since the restart.
        before: The row before it.
        gap: Energy used between the two, in joules; None if unknown.
        pause: Time between the two in seconds, for which there are no results.
    """
    if before is None:
        return dict(row)

    def values(name: str) -> list[tuple[float, float]]:
        return [(one[name], one["measured_seconds"]) for one in (before, row) if one[name] is not None]

    def mean(name: str) -> float | None:
        weight = sum(seconds for _, seconds in values(name))
        return sum(value * seconds for value, seconds in values(name)) / weight if weight else row[name]

    def total(name: str) -> float | None:
        return sum(value for value, _ in values(name)) if values(name) else None

    energy = total("energy_joules")
    unknown = f"not known for {duration(pause)} around a restart of the daemon" if gap is None and pause >= 1 else ""
    return {
        **row,
        "measured_seconds": before["measured_seconds"] + row["measured_seconds"],
        "used_seconds": total("used_seconds"),
        **{
            name: mean(name) if part == "mean" else max((value for value, _ in values(name)), default=None)
            for name, (_, part) in MEASURES.items()
        },
        "energy_joules": None if energy is None else energy + (gap or 0.0),
        "energy_source": row["energy_source"] or before["energy_source"],
        "energy_reason": "; ".join(dict.fromkeys(filter(None, (before["energy_reason"], row["energy_reason"], unknown)))) or None,
    }


def summary(
    job: Job,
    window: Window,
    slots: Sequence[DeviceSlot],
    noticed: float,
    now: float,
    earlier: Earlier,
    gaps: Mapping[str, float],
    devices_held: int = 0,
) -> dict[str, Any]:
    """Return the summary of a job as plain values. Hours are device hours: two devices held for three hours are six.

    Args:
        job: The job; without an end it is still running.
        window: The window that measures it.
        slots: Devices of the machine.
        noticed: Start of the window, in seconds since 1970.
        now: Current time, in seconds since 1970.
        earlier: Results from before a restart of the daemon.
        gaps: Energy between earlier results and the window in joules, by device, as far as known.
        devices_held: Minimum number of devices of the job.
    """
    pause = max(0.0, noticed - earlier.written)
    down = 0.0 if earlier.alive is None else max(0.0, noticed - earlier.alive)
    before = dict(earlier.devices)
    held = max(0.0, (now if job.ended is None else job.ended) - job.began)
    mine = {holder.device for holder in resolve([job.claim], slots)}
    devices: list[dict[str, Any]] = []
    for slot in slots:
        if slot.key not in mine:
            continue
        busy, energy = first(window.summary, slot.key, UTILIZATION), window.energy_joules.get(slot.key)
        measured = 0.0 if busy is None else min(busy.seconds, held)  # readings continue until the end is noticed
        found = {name: (first(window.summary, slot.key, names), part) for name, (names, part) in MEASURES.items()}
        row = {
            "device": slot.key,
            "uuid": slot.unique_id,
            "name": slot.identity.name or slot.identity.vendor,
            "held_seconds": held,
            "measured_seconds": measured,
            # The time during which the device computed: mean utilisation times measured time.
            "used_seconds": None if busy is None else busy.mean / 100.0 * measured,
            **{name: None if one is None else getattr(one, part) for name, (one, part) in found.items()},
            "energy_joules": None if energy is None else energy.joules,
            "energy_source": None if energy is None else energy.source,
            "energy_reason": None if energy is None else energy.reason or None,
        }
        devices.append(_continued(row, before.pop(slot.unique_id, None), gaps.get(slot.unique_id), pause))
    # Devices that are no longer listed keep their earlier results.
    devices += [{name: value for name, value in row.items() if name != "counter_joules"} for row in before.values()]
    count = max(len(job.devices), len(devices), devices_held)  # devices that this daemon does not read are held too

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
        "noticed": earlier.noticed,
        "interruptions": earlier.interruptions + (earlier.alive is not None),
        "interrupted_seconds": earlier.interrupted_seconds + down,
        "devices_held": count,
        "held_hours": count * held / HOUR,
        "used_hours": None if used is None else used / HOUR,
        "wasted_hours": None if used is None else (all_measured - used) / HOUR,
        "unmeasured_hours": (count * held - all_measured) / HOUR,
        "energy_joules": total("energy_joules"),
        "devices": devices,
    }
