"""``accelmetrics run``: start a command, watch it and its descendants, and say what it used.

While it runs, the terminal's last row shows the devices: ``GPU0 (GB10): 93% │ 45.2/141GB │ 27W │ 48°C``. GB are GiB here, as
every vendor's tools have them.
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from accelmetrics.cli import options as arguments
from accelmetrics.cli.child_process import KILLED, ChildProcess, Signals
from accelmetrics.cli.monitoring import checked, exporters, holding_messages, monitor, tell, tell_losses, tell_sources
from accelmetrics.cli.output import Stdout, WriteError, descriptor_of, sink_of, telling
from accelmetrics.cli.terminal import LastRow, begin_line
from accelmetrics.monitor import settings
from accelmetrics.schemas.record import Exporter
from accelmetrics.schemas.snapshot import Snapshot
from accelmetrics.schemas.text import GIB, MIB, cells, clipped
from accelmetrics.schemas.vitals import Vitals, processors, vitals
from accelmetrics.views.summaries import as_json, of_devices, of_process, of_window, readings

if TYPE_CHECKING:
    from accelmetrics.integrations.compat.feed import NvmlFeed

STOP_SECONDS = 0.85
"""For the last reading, and again for what exporters have queued: the command's status is not kept waiting."""
STATS_VERSION = "1.0"
ENDING = frozenset({signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM})
"""Signals that end a command before it has begun."""
BETWEEN, APART = " │ ", "   "
TURN = 3.0
"""Seconds for which devices are shown on the live line, where there are more than fit."""
NO_VARIABLES: Mapping[str, str] = {}
NOTHING_TO_SHOW = "no device was found to show (`accelmetrics doctor` says why)"
NOT_ATTACHED = (
    "nothing that ran has loaded a Python binding of NVML, so nothing was shown to it: compiled programs, those that call nvidia-smi and "
    "Python with -E or -I are not reached (docs/other-monitors.md)"
)
SHOWN = 60
"""Columns of the command that the summary names."""

EXAMPLES = """\
  accelmetrics run -- python train.py --epochs 3           a live line below its output, a summary at its end
  accelmetrics run --stats stats.json -- ./benchmark       the summary as JSON too
  accelmetrics run --exporter jsonl:run.jsonl -- make      every reading in a file
  accelmetrics run --quiet --stats stats.json -- ./job     not a word beside the command's
  accelmetrics run --as-nvml -- nvitop                     AMD's and others' devices in a program for NVIDIA's (docs/other-monitors.md)

The command has our standard streams, environment and terminal, and is sent every signal that we are sent. The live line is
drawn where standard error is a terminal. GB on it are GiB.

Exit status: the command's; 128 and the signal's number when a signal ended it, 127 when there is no such command, 126 when it
cannot be run; before it was started, 1 when an exporter cannot be made, and 2 for arguments that cannot be used."""
OPTIONS: arguments.Groups = {
    "": {
        "--stats": {"type": settings.path.parse, "metavar": "FILE", "help": "write the summary there as JSON, when the command has ended"},
        "--no-line": {"action": "store_true", "help": "draw no live line"},
        "--no-summary": {"action": "store_true", "help": "print no summary"},
        "--quiet": {"action": "store_true", "help": "neither"},
        "--as-nvml": {
            "nargs": "?",
            "const": "others",
            "choices": ("others", "all"),
            "metavar": "all",
            "help": "show the devices to a program that knows NVIDIA's Python binding alone, such as nvitop, without a line or a summary; "
            "NVIDIA's devices too with `all`",
        },
        "command": {"nargs": argparse.REMAINDER, "metavar": "-- COMMAND …", "help": "the command and its arguments"},
    },
    "the readings": arguments.watching("run"),
    "where they go": arguments.flags(settings.EXPORTING, "run"),
    arguments.READ: arguments.flags(settings.READING, "run"),
}


def run(options: argparse.Namespace, out: Stdout) -> int:
    """Run the command."""
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    folder = Path(options.stats or ".").absolute().parent
    arguments.refuse(
        (not command, "no command: write it behind two dashes, as in `accelmetrics run -- python train.py`"),
        (
            options.stats and (Path(options.stats).is_dir() or not folder.is_dir()),
            f"--stats {options.stats}: name a file in a directory that is there",
        ),
    )
    with Signals() as signals, checked(options), _nvml_feed(options) as feed:  # what cannot be used is told before anything is started
        chosen = exporters(options, out)
        while (early := signals.next()) is not None:
            if early[0] in ENDING:
                return KILLED + early[0]
        if feed is None:
            return _run(options, command, signals, chosen, out)
        descriptor = descriptor_of(sys.stderr)  # of a terminal, it may be one that the command draws on
        with holding_messages() if descriptor is not None and os.isatty(descriptor) else nullcontext():
            status = _run(options, feed.reached(command), signals, [*chosen, feed], out, feed.environment)
        if not feed.attached:
            tell(NOT_ATTACHED, f"accelmetrics run: {NOT_ATTACHED}")
        return status


@contextmanager
def _nvml_feed(options: argparse.Namespace) -> Iterator[NvmlFeed | None]:
    """Yield the readings of a program that knows NVIDIA's binding alone, which begin with one of now; None where no such program is run."""
    if options.as_nvml is None:
        yield None
        return
    from accelmetrics.integrations.compat.feed import NvmlFeed
    from accelmetrics.sampling.sampler import Sampler

    options.quiet = True
    with Sampler(**arguments.reading(options)) as sampler:
        first = sampler.sample()
        if options.isolation == "process":
            sampler.close()  # a process that would not be asked again
        with telling("the readings for the command"):
            feed = NvmlFeed(first, options.interval, everything=options.as_nvml == "all")
        if not feed.devices:
            tell(NOTHING_TO_SHOW, f"accelmetrics run: {NOTHING_TO_SHOW}")
        try:
            yield feed
        finally:
            feed.remove()


def _run(
    options: argparse.Namespace,
    command: list[str],
    signals: Signals,
    chosen: list[Exporter],
    out: Stdout,
    more: Mapping[str, str] = NO_VARIABLES,
) -> int:
    """Watch the command, which has more variables in its environment, from its start to its summary; return its exit status."""
    descriptor = descriptor_of(sys.stderr)
    row = LastRow(None if options.quiet or options.no_line else descriptor)

    def draw() -> None:
        latest = watching.latest
        if latest is not None:
            row.draw(latest, partial(live_line, latest, time.monotonic()))

    try:
        row.draw(None, lambda columns: "")
        with out.restored():
            child = ChildProcess(command, signals, {**row.environment, **more})
        watching = monitor(options, chosen, pid=child.pid, children=True).start()
        with watching.window("command") as window:
            status, ended_by, seconds, cpu_seconds = child.attend(signals, draw, row.release)
    finally:
        row.close()
    # The terminal is the user's again: what follows may take a moment.
    watching.stop(STOP_SECONDS)
    stats = {
        "schema_version": STATS_VERSION,
        "command": command,
        "exit_status": status,
        **({"signal": ended_by} if ended_by else {}),
        "duration_seconds": seconds,
        "labels": dict(watching.labels),
        "interval_seconds": watching.status.interval,
        "readings": readings(window.summary),
        "missed_ticks": watching.status.missed_ticks,
        "devices": of_devices(window, watching.latest),
        "process": {"cpu_seconds": cpu_seconds, **of_process(window)},
        "exporters": [one._asdict() for one in watching.status.exporters],
    }
    if options.stats:
        try:
            with closing(sink_of(options.stats, out)) as sink:
                sink.write(as_json(stats))
        except (WriteError, BrokenPipeError) as error:
            tell(str(error), f"accelmetrics run: {error}", error=True)
    tell_sources(watching)
    tell_losses(watching)
    if not (options.quiet or options.no_summary):
        title = f"{clipped(' '.join(shlex.join(command).split()), SHOWN)}: exit status {status}"
        memory = of_process(window).get("memory_bytes")
        most = "" if memory is None else f", at most {memory['max'] / MIB:.0f} MiB of memory"
        if descriptor is not None:
            begin_line(descriptor)
        devices = of_window(window, watching.latest, title, seconds)
        tell("summary", f"{devices}  {cpu_seconds:.1f} s of CPU time{most}", data=stats)
    return status


def live_line(snapshot: Snapshot, now: float, columns: int) -> str:
    """Return a snapshot within so many columns: its devices, without their names and in turns where they do not all fit.

    Where there is no device it is the host's.

    Args:
        snapshot: The reading.
        now: Seconds on the clock that turns are taken by.
        columns: How many there are.
    """
    devices = [one for one in vitals(snapshot) if one.whole]
    pages = _pages([_device(one, f"{one.label} ({one.short_name})") for one in devices] or [_host(snapshot)], columns)
    if len(pages) > 1:
        pages = _pages([_device(one, one.label) for one in devices], columns)
    return clipped(pages[int(now / TURN) % len(pages)], columns)


def _pages(texts: Sequence[str], columns: int) -> list[str]:
    pages = [texts[0]]
    for text in texts[1:]:
        if cells(pages[-1]) + len(APART) + cells(text) <= columns:
            pages[-1] += APART + text
        else:
            pages.append(text)
    return pages


def _device(one: Vitals, title: str) -> str:
    memory = None if one.memory_percent is None else f"{one.memory_percent:.0f}% memory"
    if one.memory_used is not None:
        memory = f"{one.memory_used / GIB:.1f}" + (f"/{one.memory_total / GIB:.0f}" if one.memory_total else "") + "GB"
    parts = [
        None if one.utilization is None else f"{one.utilization:.0f}%",
        memory,
        None if one.power is None else f"{one.power:.0f}W",
        None if one.temperature is None else f"{one.temperature:.0f}°C",
    ]
    return f"{title}: {BETWEEN.join(part for part in parts if part is not None) or one.why or '-'}"


def _host(snapshot: Snapshot) -> str:
    metrics = snapshot.metrics
    measures = (
        ("CPU", processors(metrics), "%"),
        ("memory", metrics.get("memory_percent"), "%"),
        ("command", metrics.get("proc.memory.rssMB"), " MiB"),
    )
    return BETWEEN.join(f"{label} {value:.0f}{unit}" for label, value, unit in measures if value is not None)
