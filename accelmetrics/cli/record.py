"""``accelmetrics record``: watch until stopped, print a line a reading, and hand every reading to exporters."""

from __future__ import annotations

import time
from argparse import Namespace

from accelmetrics.cli import options as arguments
from accelmetrics.cli.monitoring import Stop, checked, console, exporters, log, monitor, tell_losses, until_stopped
from accelmetrics.cli.output import Stdout, WriteError
from accelmetrics.monitor import settings
from accelmetrics.monitor.monitor import Monitor
from accelmetrics.views.summaries import of_window

FAST = 0.5
"""Seconds: an interval below which a source may be unable to keep up."""
LOOK = 1.0
"""Seconds between two looks at whether the sources keep up."""
SETTLED = 3
"""Readings before that is judged: the first ones wait for sources to open."""

EXAMPLES = """\
  accelmetrics record --exporter jsonl:run.jsonl                 a line for people, and a record a second in a file
  accelmetrics record --gpus 0,1 --interval 0.5 --no-console --exporter prometheus
  accelmetrics record --wandb-project training --wandb-run-name gpu-node-3
  accelmetrics record --summary-interval 60 --label team=vision --exporter otlp:http://collector:4317

It runs until Ctrl-C or SIGTERM, delivers what is queued, and prints what the whole time came to.

Exit status: 0 when it was stopped so; 1 when an exporter cannot be made, or something could not be delivered or printed (a line
says what); 2 for arguments that cannot be used; 141 when the reader of its lines has gone."""
OPTIONS: arguments.Groups = {
    "": arguments.flags(settings.LINES),
    "the readings": arguments.watching("record"),
    "where they go": arguments.flags(settings.EXPORTING, "record"),
    arguments.READ: arguments.READING,
}


def run(options: Namespace, out: Stdout) -> int:
    """Watch until stopped."""
    with until_stopped() as stopped, checked(options, stopped):
        lines = [console(out, stopped)] if options.console else []
        watching = monitor(options, [*lines, *exporters(options, out, stopped)])
        whole = watching.window("total").begin()  # until after the last reading: each that is printed is in it
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


def _watch(watching: Monitor, options: Namespace, out: Stdout, stopped: Stop) -> list[WriteError]:
    """Print a summary at each of its intervals, until stopped; return why some could not be printed, which ends nothing."""
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
                log.warning(f"an interval of {options.interval:g} s is shorter than {', '.join(slow)} can be read")
        window.end()
        if time.monotonic() >= due:
            due += every
            try:
                out.show(of_window(window, watching.latest, f"last {every:g} s"))
            except WriteError as error:
                not_printed.append(error)
    return not_printed


def _slow(watching: Monitor, interval: float) -> list[str]:
    """Return the sources that cannot keep up with an interval, by the age of their readings and by how long they take."""
    latest = watching.latest
    if latest is None or watching.status.ticks < SETTLED:
        return []
    return [
        f"{status.name} ({status.source})" if status.source else status.name
        for status in latest.backends
        # What the host gives may be as old as its paces have it.
        if (status.name != "host" and (status.age_seconds or 0.0) > 1.5 * interval) or (status.duration_seconds or 0.0) > interval
    ]
