"""``accelmetrics record``: watch until stopped, print one line per reading, and send every reading to exporters."""

from __future__ import annotations

import sys
import time
from argparse import Namespace
from collections import Counter

from accelmetrics.cli import options as arguments
from accelmetrics.cli.monitoring import (
    NOTIFY_TEST,
    Stop,
    checked,
    console,
    exporters,
    monitor,
    notify_test,
    tell,
    tell_losses,
    until_stopped,
)
from accelmetrics.cli.output import Stdout, WriteError
from accelmetrics.monitor import settings
from accelmetrics.monitor.monitor import Monitor
from accelmetrics.schemas.errors import without_passwords
from accelmetrics.schemas.log import log
from accelmetrics.schemas.record import Exporter, Record
from accelmetrics.schemas.snapshot import Snapshot
from accelmetrics.schemas.text import counted, printable
from accelmetrics.views.summaries import folded, of_window

FAST = 0.5
"""Interval in seconds below which the command checks whether the sources keep up."""
LOOK = 1.0
"""Seconds between two of these checks."""
SETTLED = 3
"""Readings before the first check. The first readings wait for sources to open."""

EXAMPLES = """\
  accelmetrics record --exporter jsonl:run.jsonl
      a line for people, and a record a second in a file
  accelmetrics record --gpus 0,1 --interval 0.5 --no-console \\
      --exporter prometheus
  accelmetrics record --wandb-project training --wandb-run-name gpu-node-3
  accelmetrics record --summary-interval 60 --label team=vision \\
      --exporter otlp:http://collector:4317

It runs until Ctrl-C or SIGTERM, then delivers queued records and prints a
summary of the whole time.

Exit status: 0; 1 if an exporter cannot be made, or something could not be
delivered or printed (a line says so); 2 for invalid arguments; 141 if the
reader of its output has closed the pipe."""
OPTIONS: arguments.Groups = {
    "": arguments.flags(settings.LINES),
    "the readings": arguments.watching("record"),
    "where they go": {**arguments.flags(settings.EXPORTING, "record"), **NOTIFY_TEST},
    arguments.READ: arguments.READING,
}


def run(options: Namespace, out: Stdout) -> int:
    """Watch until stopped. Return 1 if an exporter lost records.

    Raises:
        WriteError: A summary could not be printed. It is raised at the end, after all records were exported.
    """
    if options.notify_test:
        return notify_test(options)
    with until_stopped() as stopped, checked(options, stopped):
        printing = console(out, stopped) if options.console else None
        watching = monitor(options, [_announced(options, printing), *exporters(options, out, stopped)])
        whole = watching.window("total").begin()  # ends after the last reading, so it includes every printed one
        with watching:
            not_printed = _watch(watching, options, out, stopped)
            seconds = whole.duration
        whole.end()
        lost = tell_losses(watching)
        if options.console:
            out.show(of_window(whole, watching.latest, "total", seconds, watching.status.ticks))
        if not_printed:
            raise not_printed[0]
    return int(lost)


def _announced(options: Namespace, printing: Exporter | None) -> Exporter:
    """Return an exporter that reports the banner with the first record, and then prints each record with ``printing``.

    Args:
        options: The command's options.
        printing: The exporter to the console; None to print only the banner.
    """
    from accelmetrics.exporters.registry import exporting

    announced = False

    def export(record: Record) -> None:
        nonlocal announced
        if not announced:
            announced = True
            words = banner(record.snapshot, options)
            if sys.stderr is not None and sys.stderr.isatty():
                tell(words, "\n".join(folded(f"accelmetrics record: {words}")))
            else:  # standard error is a log, where the log level decides
                log.info("%s", words)
        if printing is not None:
            printing.export(record)

    return exporting("console" if printing is not None else "banner", export, printing)


def banner(snapshot: Snapshot, options: Namespace) -> str:
    """Return one line with the devices, sources, interval, duration and destinations of the records, without secrets."""
    counts = Counter(slot.identity.kind for slot in snapshot.identities if not slot.identity.parent)
    devices = [counted(number, kind.upper()) for kind, number in counts.items()] or ["no device"]
    sources = [status.name for status in snapshot.backends if status.status != "absent"]
    places = [without_passwords(wanted.partition("?")[0]) for wanted in options.exporters]
    places += ["Weights & Biases"] if options.wandb_project or options.wandb_run_name else []
    lasting = "until Ctrl-C" if options.duration is None else f"for {options.duration:g} s"
    where = f"to {', '.join(places)}" if places else "kept nowhere: --exporter jsonl:run.jsonl keeps them"
    return printable(f"{', '.join(devices)} ({', '.join(sources)}), a reading every {options.interval:g} s {lasting}, {where}")


def _watch(watching: Monitor, options: Namespace, out: Stdout, stopped: Stop) -> list[WriteError]:
    """Print a summary at each summary interval until stopped. Return the errors of summaries that could not be printed."""
    not_printed: list[WriteError] = []
    start = time.monotonic()
    end = start + (float("inf") if options.duration is None else options.duration)
    every = (options.console and options.summary_interval) or float("inf")
    due = start + every
    judged = options.interval >= FAST
    while not stopped.signal and time.monotonic() < end:
        window = watching.window("summary").begin()
        while (left := min(due, end) - time.monotonic()) > 0 and not stopped.wait(min(left, LOOK)):
            if not judged and (slow := _slow(watching, options.interval)):
                judged = True
                log.warning(f"{', '.join(slow)} cannot be read every {options.interval:g} s: give a longer --interval")
        window.end()
        if time.monotonic() >= due:
            due += every
            try:
                out.show(of_window(window, watching.latest, f"last {every:g} s"))
            except WriteError as error:
                not_printed.append(error)
    return not_printed


def _slow(watching: Monitor, interval: float) -> list[str]:
    """Return the sources with readings that are too old, or take too long, for an interval in seconds."""
    latest = watching.latest
    if latest is None or watching.status.ticks < SETTLED:
        return []
    return [
        f"{status.name} ({status.source})" if status.source else status.name
        for status in latest.backends
        # Parts of the host are read at slower paces on purpose, so its age says nothing.
        if (status.name != "host" and (status.age_seconds or 0.0) > 1.5 * interval) or (status.duration_seconds or 0.0) > interval
    ]
