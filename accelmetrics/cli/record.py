"""``accelmetrics record``: watch until stopped, print a line a reading, and hand every reading to exporters."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from accelmetrics.cli import parsing
from accelmetrics.cli.output import say
from accelmetrics.cli.summaries import of_window
from accelmetrics.cli.watching import add_exporters, add_monitor_options, monitor, until_stopped, wait

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from accelmetrics.cli.output import Stdout
    from accelmetrics.integrations.monitor import Monitor
    from accelmetrics.schemas.record import Exporter, Record

DEFAULT_SUMMARY = 30.0
FAST = 0.5
"""Seconds: an interval below which a source may be unable to keep up."""

EXAMPLES = """\
  accelmetrics record --exporter jsonl:run.jsonl                 a line for people, and a record a second in a file
  accelmetrics record --gpus 0,1 --interval 0.5 --no-console --exporter prometheus
  accelmetrics record --wandb-project training --wandb-run-name gpu-node-3
  accelmetrics record --summary-interval 60 --label team=vision --exporter otlp:http://collector:4317

It runs until Ctrl-C or SIGTERM, delivers what is queued, and prints what the whole time came to.

Exit status: 0 when it was stopped so; 1 when an exporter cannot be made; 2 for arguments that cannot be used."""


def configure(parser: ArgumentParser) -> None:
    """Add the options."""
    add_monitor_options(parser)
    add_exporters(parser)
    add = parser.add_argument
    add("--no-console", action="store_true", help="print no line a reading, and no summaries")
    add("--summary-interval", type=parsing.span, default=DEFAULT_SUMMARY, metavar="S", help=SUMMARY_HELP)
    add("--duration", type=parsing.pause, metavar="S", help="stop after so many seconds")
    add("--wandb-project", metavar="NAME", help="log to Weights & Biases, into this project")
    add("--wandb-run-name", metavar="NAME", help="the name of that run")


SUMMARY_HELP = f"seconds from one summary of every device to the next (default: {DEFAULT_SUMMARY:g}; 0: only at the end)"


class ConsoleLines:
    """The exporter that prints: lines through the command's own output, which nobody else writes to."""

    name = "console"

    def __init__(self, out: Stdout) -> None:
        self._out = out

    def open(self) -> None:
        """Nothing is needed."""

    def export(self, record: Record) -> None:
        """Print a line."""
        from accelmetrics.exporters.console import line

        self._out.write(line(record.snapshot) + "\n")

    def flush(self) -> None:
        """Every line is written at once."""

    def close(self) -> None:
        """Nothing is held."""


def run(options: Namespace, out: Stdout) -> int:
    """Watch until stopped."""
    with until_stopped() as stopped:
        watching = monitor(options, _exporters(options, out))
        with watching:
            whole = watching.window("total").begin()
            _watch(watching, options, out, stopped)
            whole.end()
            summary = of_window(whole, watching.latest, "total")
        if not options.no_console:
            out.write(summary)
    _tell_losses(watching)
    return 0


def _exporters(options: Namespace, out: Stdout) -> list[str | Exporter]:
    chosen: list[str | Exporter] = [] if options.no_console else [ConsoleLines(out)]
    chosen += options.exporter
    if options.wandb_project or options.wandb_run_name:
        from accelmetrics.exporters.wandb import WandbExporter

        chosen.append(WandbExporter(project=options.wandb_project, name=options.wandb_run_name))
    return chosen


def _watch(watching: Monitor, options: Namespace, out: Stdout, stopped: threading.Event) -> None:
    end = float("inf") if options.duration is None else time.monotonic() + options.duration
    every = options.summary_interval or float("inf")
    warned = False
    while not stopped.is_set() and time.monotonic() < end:
        window = watching.window("summary").begin()
        due = time.monotonic() + every
        while not wait(stopped, min(due, end, time.monotonic() + 1.0) - time.monotonic()) and time.monotonic() < min(due, end):
            warned = warned or _warn(watching, options.interval)
        window.end()
        if time.monotonic() >= due and not options.no_console:
            out.write(of_window(window, watching.latest, f"last {every:g} s"))


def _warn(watching: Monitor, interval: float) -> bool:
    """Say once that a source cannot keep up with a short interval; whether it was said."""
    latest = watching.latest
    if interval >= FAST or latest is None or watching.status.ticks < 3:
        return False
    slow = [f"{status.name} ({status.source})" for status in latest.backends if (status.age_seconds or 0.0) > 1.5 * interval]
    slow += [f"{status.name} ({status.source})" for status in latest.backends if (status.duration_seconds or 0.0) > interval]
    if slow:
        say(f"accelmetrics record: an interval of {interval:g} s is shorter than {', '.join(dict.fromkeys(slow))} can be read")
    return bool(slow)


def _tell_losses(watching: Monitor) -> None:
    for status in watching.status.exporters:
        if status.failed or status.dropped:
            said = f"; the last error: {status.error}" if status.error else ""
            say(f"accelmetrics record: {status.name}: {status.sent} records sent, {status.failed} failed, {status.dropped} dropped{said}")
