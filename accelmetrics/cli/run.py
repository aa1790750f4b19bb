"""``accelmetrics run``: start a command, watch it and its descendants, and say what it used."""

from __future__ import annotations

import argparse
import json
import shlex
import signal
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from accelmetrics.cli import options as arguments
from accelmetrics.cli.child_process import KILLED, ChildProcess, CommandError, Signals
from accelmetrics.cli.monitoring import as_given, exporters, fail, monitor, tell, tell_losses
from accelmetrics.cli.options import UsageError
from accelmetrics.cli.output import WriteError, say, sink_of
from accelmetrics.cli.terminal import MARK, LastRow, begin_line, terminal_number
from accelmetrics.cli.text import clipped

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Mapping

    from accelmetrics.cli.output import Stdout
    from accelmetrics.monitor.named import Monitor
    from accelmetrics.monitor.window import Window
    from accelmetrics.schemas.record import Exporter
    from accelmetrics.schemas.snapshot import Snapshot

STOP_SECONDS = 0.85
"""For the last reading, and again for what exporters have queued: the command's status is not kept waiting."""
STATS_VERSION = "1.0"
ENDING = frozenset({signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM})
"""Signals that end a command before it has begun."""
SHOWN = 60
"""Columns of the command that the summary names."""

EXAMPLES = """\
  accelmetrics run -- python train.py --epochs 3           a live line below its output, a summary at its end
  accelmetrics run --stats stats.json -- ./benchmark       the summary as JSON too
  accelmetrics run --exporter jsonl:run.jsonl -- make      every reading in a file
  accelmetrics run --quiet --stats stats.json -- ./job     not a word beside the command's

The command has our standard streams, environment and terminal, and is sent every signal that we are sent. The live line is
drawn where standard error is a terminal. GB on it are GiB.

Exit status: the command's; 128 and the signal's number when a signal ended it, 127 when there is no such command, 126 when it
cannot be run; before it was started, 1 when an exporter cannot be made, and 2 for arguments that cannot be used."""


def configure(parser: ArgumentParser) -> None:
    """Add the options."""
    add = parser.add_argument
    add("--stats", type=arguments.path, metavar="FILE", help="write the summary there as JSON, when the command has ended")
    add("--no-line", action="store_true", help="draw no live line")
    add("--no-summary", action="store_true", help="print no summary")
    add("--quiet", action="store_true", help="neither")
    arguments.add_group(parser, "the readings", arguments.WATCHING)
    arguments.add_group(parser, "where they go", arguments.EXPORTING)
    arguments.add_reading(parser, *(name for name in arguments.READING if name not in ("--pid", "--children")))
    add("command", nargs=argparse.REMAINDER, metavar="-- COMMAND …", help="the command and its arguments")


def run(options: Namespace, out: Stdout) -> int:
    """Run the command."""
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command:
        raise UsageError("no command: write it behind two dashes, as in `accelmetrics run -- python train.py`")
    _check_stats(options.stats)
    with Signals() as signals:
        chosen = exporters(options, out)
        watched = _Watched(options, command, signals)
        while (early := signals.wait(0)) is not None:
            if early.number in ENDING:
                return KILLED + early.number
        try:
            return watched.run(out, chosen)
        except CommandError as error:
            fail("accelmetrics run", str(error))
            return error.status


class _Watched:
    """A command and what is measured of it.

    Args:
        options: Of the command line.
        command: What is started.
        signals: What is passed on to it.

    Raises:
        InvalidOptionError: An option has a value that cannot be used.
        UnknownNameError: There is no such source or device.
    """

    def __init__(self, options: Namespace, command: list[str], signals: Signals) -> None:
        self._options = options
        self._command = command
        self._signals = signals
        self._checked = monitor(options, [])  # what cannot be used is told before anything is started
        self._descriptor = descriptor = _number(sys.stderr)
        self._row = None if options.quiet or options.no_line or descriptor is None else LastRow(descriptor)
        self._mark = {} if descriptor is None else {MARK: terminal_number(descriptor)}
        self._drawn: Snapshot | None = None

    def run(self, out: Stdout, chosen: list[Exporter]) -> int:
        """From start to summary; gives the exit status."""
        with self._row or nullcontext():
            with as_given(out):
                child = ChildProcess.start(self._command, self._signals, self._mark if self._row and self._row.there else {})
            watching = monitor(self._options, chosen, child.pid)
            watching.start()
            window = watching.window("command").begin()
            status = child.attend(self._signals, lambda: self._draw(watching), self._give_back)
            window.end()
        # The terminal is the user's again: what follows may take a moment.
        watching.stop(STOP_SECONDS)
        stats = _stats(self._command, child, watching, window)
        if self._options.stats:
            _write(self._options.stats, stats, out)
        self._tell(child, watching, window, stats)
        return status

    def _draw(self, watching: Monitor) -> None:
        latest = watching.latest
        if self._row is None or latest is None or (latest is self._drawn and not self._row.stale):
            return
        from accelmetrics.cli.live_line import live_line

        self._drawn = latest
        self._row.draw(lambda columns: live_line(latest, columns))

    def _give_back(self) -> None:
        if self._row is not None:
            self._row.release()
        self._drawn = None

    def _tell(self, child: ChildProcess, watching: Monitor, window: Window, stats: dict[str, Any]) -> None:
        from accelmetrics.cli.summaries import of_window

        tell_losses(watching)
        if self._options.quiet or self._options.no_summary:
            return
        if self._options.log_format == "json":
            tell("summary", stats)
        else:
            if self._descriptor is not None:
                begin_line(self._descriptor)
            title = f"{clipped(' '.join(shlex.join(self._command).split()), SHOWN)}: exit status {child.status}"
            say(of_window(window, watching.latest, title, child.seconds) + _of_command(stats["process"]))


def _number(stream: TextIO | None) -> int | None:
    """The descriptor of a stream that has one."""
    try:
        return None if stream is None else stream.fileno()
    except (OSError, ValueError):
        return None


def _of_command(process: Mapping[str, Any]) -> str:
    memory = process.get("memory_bytes")
    most = "" if memory is None else f", at most {memory['max'] / 2**20:.0f} MiB of memory"
    return f"  {process['cpu_seconds']:.1f} s of CPU time{most}"


def _stats(command: list[str], child: ChildProcess, watching: Monitor, window: Window) -> dict[str, Any]:
    """The summary as plain values; what was not measured is not there."""
    from accelmetrics.cli.summaries import of_devices, of_process, readings

    latest, status = watching.latest, watching.status
    return {
        "schema_version": STATS_VERSION,
        "command": command,
        "exit_status": child.status,
        **({"signal": child.ended_by} if child.ended_by else {}),
        "duration_seconds": child.seconds,
        "labels": dict(watching.labels),
        "interval_seconds": status.interval,
        "readings": readings(window.summary),
        "missed_ticks": status.missed_ticks,
        "devices": of_devices(window, latest),
        "process": {"cpu_seconds": child.cpu_seconds, **of_process(window)},
        "exporters": [one._asdict() for one in status.exporters],
    }


def _check_stats(path: str | None) -> None:
    if path is None:
        return
    if Path(path).is_dir():
        raise UsageError(f"--stats {path} is a directory: name a file in it")
    if not Path(path).absolute().parent.is_dir():
        raise UsageError(f"--stats {path}: there is no directory {Path(path).absolute().parent}")


def _write(path: str, stats: dict[str, Any], out: Stdout) -> None:
    try:
        sink = sink_of(path, out)
        sink.write(json.dumps(stats, indent=2) + "\n")
        sink.close()
    except (WriteError, BrokenPipeError) as error:
        fail("accelmetrics run", str(error))
