"""``accelmetrics.Monitor``: the monitor with exporters by name, the job's labels and PyTorch's memory."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta

from accelmetrics.backends.contract import Backend
from accelmetrics.exporters.registry import create
from accelmetrics.monitor import monitor
from accelmetrics.monitor.job import job_labels
from accelmetrics.monitor.ticker import MonitorClock
from accelmetrics.monitor.torch import TorchMemory
from accelmetrics.sampling.options import DEFAULT_OPEN_TIMEOUT, DEFAULT_TIMEOUT, Choice, Isolation, Visible
from accelmetrics.schemas.errors import InvalidOptionError
from accelmetrics.schemas.record import Exporter


class Monitor(monitor.Monitor):
    """Reads everything at a steady pace, until it is stopped.

    Nothing it does raises into the program, waits for a driver on the program's threads, or keeps the interpreter from
    exiting. What goes wrong is logged once under ``accelmetrics`` and stands in ``status``. May be stopped and started again,
    by any thread. In the child of a fork it is not running; the child may start it anew, without the exporters and callbacks that
    it was started with in the parent.

    Args:
        interval: Seconds between two readings, from 0.01; 0.1 is a good pace for short steps.
        exporters: Where the readings go: strings such as ``"jsonl:run.jsonl"``, or objects. See docs/exporters.md.
        backends: As for :class:`Sampler`, like ``gpus`` to ``amd_source``.
        gpus: Devices to report, by number, key or UUID; all when left out.
        visible: Report only the devices that the watched process sees.
        pid: The process watched by ``cpu``, ``proc.…`` and ``gpu.process.…``; this one when left out.
        children: Whether its descendants are watched with it.
        disk_paths: Mount points whose usage is reported.
        labels: Travel with every record, besides ``run_id``, ``hostname``, ``rank`` and the job's identity as Slurm,
            Kubernetes, Ray and torchrun tell it; the same name here wins.
        history: How many readings are remembered, or for how long (a ``timedelta``); 0 for none.
        timeout: Seconds within which a reading is answered.
        open_timeout: Seconds that the first reading waits for sources that are still opening.
        isolation: ``"thread"``, or ``"process"`` to read in a child process.
        amd_source: The one source to read AMD's GPUs from.
        clock: Where time is taken from, and what waits; only tests give one.

    Raises:
        InvalidOptionError: An option that cannot be used.
        UnknownNameError: A backend or an exporter that does not exist.
        MissingDependencyError: An exporter needs a package that is not installed.
    """

    def __init__(  # noqa: PLR0913 - every option is a keyword with a default
        self,
        interval: float = 1.0,
        exporters: Sequence[str | Exporter] = (),
        *,
        backends: Sequence[str | Backend] | None = None,
        gpus: Sequence[Choice] | None = None,
        visible: Visible = False,
        pid: int | None = None,
        children: bool = False,
        disk_paths: Sequence[str] = ("/",),
        labels: Mapping[str, str] | None = None,
        history: int | timedelta = 300,
        timeout: float = DEFAULT_TIMEOUT,
        open_timeout: float = DEFAULT_OPEN_TIMEOUT,
        isolation: Isolation = "thread",
        amd_source: str | None = None,
        clock: MonitorClock | None = None,
    ) -> None:
        super().__init__(
            interval,
            [create(exporter) for exporter in _listed(exporters)],
            labels=job_labels() | monitor.checked_labels(labels),
            history=history,
            extras=[TorchMemory()] if pid in {None, os.getpid()} else [],
            timeout=timeout,
            clock=clock,
            backends=backends,
            gpus=gpus,
            visible=visible,
            pid=pid,
            children=children,
            disk_paths=disk_paths,
            open_timeout=open_timeout,
            isolation=isolation,
            amd_source=amd_source,
        )


def _listed(exporters: Sequence[str | Exporter] | str) -> list[str | Exporter]:
    if isinstance(exporters, str):
        return [exporters]
    if not isinstance(exporters, Iterable):
        raise InvalidOptionError(f"exporters is {exporters!r}: it must be a list of strings such as 'jsonl:run.jsonl', or of exporters")
    return list(exporters)
