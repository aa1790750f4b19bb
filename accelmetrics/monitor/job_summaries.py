"""What each job on this machine came to: a window of the monitor for each, and a file with its results when it has ended.

The file is there from the moment at which the job was noticed, so that an Epilog knows whether to wait for one. How long a device was held
is the scheduler's word (Prolog to Epilog); what it did meanwhile is what was measured, and the rest of the time is told as not measured.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from accelmetrics.exporters.files import replace_file
from accelmetrics.monitor.monitor import Monitor
from accelmetrics.monitor.window import Window
from accelmetrics.schemas.identity import DeviceSlot
from accelmetrics.schemas.log import log
from accelmetrics.schemas.vitals import MEMORY_USED, POWER, TEMPERATURE, UTILIZATION, first
from accelmetrics.visibility.attribution import resolve
from accelmetrics.visibility.slurm_jobs import Job, read_small

VERSION = 1
STATES = ("running", "ended")
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


class JobSummaries:
    """Follows the jobs of this machine. Called with them at each look, from one thread.

    Args:
        monitor: What measures.
        folder: Where summaries are written.
        wall: Tells the time, in seconds since 1970.
    """

    def __init__(self, monitor: Monitor, folder: str, wall: Callable[[], float] = time.time) -> None:
        self._monitor = monitor
        self._folder = Path(folder)
        self._wall = wall
        self._watched: dict[str, tuple[Job, Window, float]] = {}  # jobs that go on, the window since each was noticed, and when that was
        self._failed = ""
        self._closed = False
        self._lock = threading.Lock()

    def __call__(self, jobs: Sequence[Job]) -> None:
        """Begin windows of jobs that are new, and write what those came to that have ended, or are there no more."""
        with self._lock:
            if self._closed:  # a look that was going on meanwhile would begin them all anew
                return
            listed = {job.job_id: job for job in jobs}
            for job_id, (before, window, noticed) in list(self._watched.items()):
                job = listed.get(job_id)
                # The same id with another beginning is another job: Slurm runs a job again under its number.
                same = job if job is not None and job.began == before.began else None
                if same is None or same.ended is not None:
                    del self._watched[job_id]
                    window.end()
                    self._write(before, window, noticed, self._wall() if same is None else same.ended)
                    self._prune()
            for job in jobs:
                if job.ended is None and job.job_id not in self._watched and job.devices:
                    watched = job, self._monitor.window(f"job {job.job_id}").begin(), self._wall()
                    self._watched[job.job_id] = watched
                    self._write(*watched, None)

    def close(self) -> None:
        """Write what the jobs that go on have come to until now: it is measured no further."""
        with self._lock:
            self._closed = True
            for watched in self._watched.values():
                watched[1].end()
                self._write(*watched, None)
            self._watched.clear()

    def _write(self, job: Job, window: Window, noticed: float, ended: float | None) -> None:
        """Write a summary; a folder that cannot be written to is told once."""
        latest = self._monitor.latest
        slots = () if latest is None else tuple(latest.identities)
        document = summary(job._replace(ended=ended), window, slots, noticed, self._wall())
        document["hostname"] = self._monitor.labels.get("hostname", "")
        try:
            self._folder.mkdir(mode=0o755, parents=True, exist_ok=True)
            replace_file(self._folder / f"{job.job_id}.json", (json.dumps(document) + "\n").encode())
            self._failed = ""
        except OSError as error:
            if str(error) != self._failed:
                self._failed = str(error)
                log.warning("no summaries of jobs: %s", error)

    def _prune(self) -> None:
        """Remove the oldest summaries; what else may lie in the folder stays."""
        try:
            ended = [path for path in self._folder.glob("*.json") if path.stem not in self._watched and _is_summary(path)]
            for path in sorted(ended, key=lambda path: path.stat().st_mtime)[:-KEPT]:
                path.unlink()
        except OSError as error:  # removed by an Epilog meanwhile, or no folder: the next one tries again
            log.debug("old summaries stay: %s", error)


def _is_summary(path: Path) -> bool:
    try:
        document = json.loads(read_small(path))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(document, dict) and document.get("job_id") == path.stem and document.get("state") in STATES


def summary(job: Job, window: Window, slots: Sequence[DeviceSlot], noticed: float, now: float) -> dict[str, Any]:
    """Return what a job came to, as plain values. Hours are those of devices: two held for three hours are six.

    Args:
        job: The job; one without an end goes on.
        window: What was measured of it.
        slots: The devices of the machine.
        noticed: When the window began, in seconds since 1970.
        now: The time, likewise.
    """
    held = max(0.0, (now if job.ended is None else job.ended) - job.began)
    mine = {holder.device for holder in resolve([job.claim], slots)}
    devices: list[dict[str, Any]] = []
    for slot in slots:
        if slot.key not in mine:
            continue
        busy, energy = first(window.summary, slot.key, UTILIZATION), window.energy_joules.get(slot.key)
        measured = 0.0 if busy is None else min(busy.seconds, held)  # readings go on for the moment in which the end was noticed
        found = {name: (first(window.summary, slot.key, names), part) for name, (names, part) in MEASURES.items()}
        devices.append(
            {
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
        )
    given = max(len(job.devices), len(devices))  # those that are not read here are held too

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
        "noticed": noticed,
        "devices_held": given,
        "held_hours": given * held / HOUR,
        "used_hours": None if used is None else used / HOUR,
        "wasted_hours": None if used is None else (all_measured - used) / HOUR,
        "unmeasured_hours": (given * held - all_measured) / HOUR,
        "energy_joules": total("energy_joules"),
        "devices": devices,
    }
