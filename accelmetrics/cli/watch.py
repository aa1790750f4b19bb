"""``accelmetrics watch``: the devices live, on a terminal's screen, or as lines if there is no terminal."""

from __future__ import annotations

import math
import os
import select
import signal
import sys
import textwrap
import time
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from accelmetrics.cli import options as arguments
from accelmetrics.cli.monitoring import Stop, checked, claim_sources, console, monitor, tell_losses, until_stopped
from accelmetrics.cli.output import Stdout, descriptor_of
from accelmetrics.cli.terminal import capable, in_foreground, let_go
from accelmetrics.cli.watch_source import LiveSource, WatchSource
from accelmetrics.monitor import settings
from accelmetrics.schemas.errors import require
from accelmetrics.schemas.record import Finding
from accelmetrics.schemas.text import STATE_MARKS, celsius, counted, duration, memory, percent, printable, watts
from accelmetrics.views.device_view import GONE, LAST_SEEN, DeviceView, WarningLevels
from accelmetrics.views.node_view import NodeView, SourceRow
from accelmetrics.views.terminal.fleet import node_note
from accelmetrics.views.terminal.overlays import alike
from accelmetrics.visibility.attribution import Attribution

if TYPE_CHECKING:
    from accelmetrics.cli.watch_remote import FleetSource
    from accelmetrics.views.node_view import NodeAnswer

CHECK_PATIENCE = 0.3
"""Maximum seconds by which the check of the chosen devices may delay the screen, and with it the keys."""
FATAL = (signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGXCPU)
"""Signals that others may send and that end a program by default. The terminal is restored first."""

EXAMPLES = """\
  accelmetrics watch
      every device, once a second
  accelmetrics watch --interval 0.2 --gpus 0,2-3
      some of them, more often
  accelmetrics watch --hot-temperature 70
      hot from 70 degrees on, instead of the devices' own limits
  accelmetrics watch --read-only
      no key sends a signal to a process, not even after a question
  accelmetrics watch --plain
      a line for each change, for screen readers; a summary on Enter
  accelmetrics watch | tee run.log
      a line for each reading, as always without a terminal
  accelmetrics watch --url http://node-1:22235
      another machine, on which accelmetrics serve runs
  accelmetrics watch --fleet http://prometheus:9090
      a line for each machine in a Prometheus, worst first
  accelmetrics watch --fleet hosts
      the same for the machines in a file; enter opens one
  accelmetrics watch run.jsonl
      a growing recording: the last hour, then new readings
  accelmetrics watch --replay run.jsonl --speed 60
      a recording from its beginning, a minute a second

keys: q quit, ? help with all of them, / filter, o order, z sort, m metric,
t time, + - zoom, [ ] past, tab other list, enter details, f findings, p pause,
s summary, S save the latest reading, r reset; of a recording: left right seek,
> < speed, home end, n next host

Exit status: 0; 1 if a line could not be printed; 2 for invalid arguments;
141 if the reader of its output has closed the pipe. docs/watch.md"""
OPTIONS: arguments.Groups = {
    "": {
        "file": {"nargs": "?", "type": settings.path.parse, "metavar": "FILE", "help": "follow a recording while a program writes it"},
        **arguments.flags(settings.SCREEN),
    },
    "in place of this machine": arguments.flags(settings.ELSEWHERE),
    "who holds the devices": arguments.flags(settings.HOLDERS, "watch"),
    "the readings": arguments.watching("watch"),
    arguments.READ: arguments.READING,
}
LOCAL = frozenset(
    option.long_flag
    for option in (*settings.READING, *settings.HOLDERS, *(settings.OPTIONS[name] for name in ("labels", "rules", "read_only")))
)
"""Flags about this machine's readings, which have no meaning for another place."""
NEEDED = {"--speed": ("replay",), "--host": ("file", "replay"), "--fleet-token-file": ("url", "fleet"), "--fleet-ca": ("url", "fleet")}
"""Flags that need one of these places."""


def run(options: Namespace, out: Stdout) -> int:
    """Show readings until stopped. Return 1 if lines could not be printed."""
    if not Path(options.save_dir).is_dir():
        raise arguments.UsageError(f"--save-dir {options.save_dir!r} is not a directory")
    place = _place(options)
    levels = WarningLevels(options.hot_temperature, options.hot_memory)
    descriptor = None if options.plain else out.descriptor
    if descriptor is not None and not (capable(descriptor) and (os.isatty(0) or in_foreground(descriptor))):
        # A background job without a terminal at standard input is not stopped by reading keys, and must not take the screen.
        descriptor = None
    with ExitStack() as stack:
        # After Ctrl-S a write to the screen blocks, and this thread could not react to a signal: so let_go resumes the terminal.
        stopped = stack.enter_context(until_stopped() if descriptor is None else until_stopped(*FATAL, then=partial(let_go, descriptor)))
        if not place:
            return _show_live(options, out, descriptor, stopped, levels, stack)
        if place in ("file", "replay"):
            from accelmetrics.cli.watch_replay import ReplaySource

            path, follow = options.file or options.replay, place == "file"
            replay = ReplaySource(path, levels, options.host or "", options.speed, stepwise=descriptor is None, follow=follow)
            _show(options, out, descriptor, stopped, stack.enter_context(closing(replay)))
            return 0
        require("tornado", "serve")
        from accelmetrics.cli.watch_remote import FleetSource, remote_source

        if place == "url":
            _show(options, out, descriptor, stopped, stack.enter_context(closing(remote_source(options, levels))))
            return 0
        fleet = stack.enter_context(closing(FleetSource(options)))
        if descriptor is None:
            show_plain_fleet(fleet, out, stopped)
        else:
            from accelmetrics.cli.watch_screen import FleetScreen

            FleetScreen(options, out, descriptor, stopped, fleet, levels).show()
    return 0


def _place(options: Namespace) -> str:
    """Return the option that names a place other than this machine, such as ``url``; empty for this machine.

    A place on the command line takes precedence over places in the environment or the configuration file.

    Raises:
        UsageError: There are two places, or a flag has no meaning with the place.
    """
    views = [name for name in settings.VIEWS if getattr(options, name)]
    given = [name for name in views if f"--{name}" in options.flags_given]
    given = [*(["file"] if options.file else []), *given] or views
    words = ["a file" if name == "file" else f"--{name}" for name in given]
    if len(given) > 1:
        raise arguments.UsageError(f"{' and '.join(words)} exclude each other: choose one")
    place = given[0] if given else ""
    for flag in options.flags_given:
        if place and flag in LOCAL:
            raise arguments.UsageError(f"{flag} is for readings of this machine: leave it out with {words[0]}")
        if place not in NEEDED.get(flag, (place,)):
            needed = " or ".join("a file" if name == "file" else f"--{name}" for name in NEEDED[flag])
            raise arguments.UsageError(f"{flag} needs {needed}")
    return place


def _show(options: Namespace, out: Stdout, descriptor: int | None, stopped: Stop, source: WatchSource) -> None:
    """Show a source on the screen, or as lines."""
    if descriptor is None:
        show_plain(source, out, stopped)
    else:
        from accelmetrics.cli.watch_screen import WatchScreen

        WatchScreen(options, out, descriptor, stopped, source).show()


def _show_live(options: Namespace, out: Stdout, descriptor: int | None, stopped: Stop, levels: WarningLevels, stack: ExitStack) -> int:
    seen = options.plain or descriptor is not None
    # Without a screen or typed lines there is nothing to delay, so the check may take its time.
    stack.enter_context(checked(options, stopped, CHECK_PATIENCE if seen else math.inf))
    watching = monitor(options, [] if seen else [console(out, stopped)])
    if not seen:
        with watching:
            stopped.wait()
        return int(tell_losses(watching))
    attribution = stack.enter_context(Attribution(claim_sources(options)))
    watching.start()
    try:
        _show(options, out, descriptor, stopped, LiveSource(watching, levels, attribution, own=options.pid is None))
    finally:
        watching.stop(0.0)  # no wait: there are no exporters to deliver to, and a driver may hang
    return 0


# Lines instead of the screen, for screen readers, Braille displays and logs: one line per change. Printed text is never moved or changed.

LOOK = 0.1
"""Seconds between two checks for new readings and input."""
CHUNK = 256
WIDEST = 79
"""Maximum width of a line in columns. Only a longer word exceeds it."""


def show_plain(source: WatchSource, out: Stdout, stopped: Stop) -> None:
    """Print one line per change until stopped, and an overview after Enter. ``q`` and Enter end the command."""
    typed = line_input()
    before: NodeView | None = None
    notice = ""
    while not (stopped.signal or source.ended):
        while not stopped.wait(0) and source.look() and source.view is not None:
            for line in changes(before, source.view):
                out.show(folded(f"{datetime.fromtimestamp(source.view.time_ns / 1e9).astimezone():%H:%M:%S} {line}"))
            before = source.view
        if bool(source.notice) != bool(notice):
            out.show(folded(f"{now()} {source.notice or 'answers again'}"))
        notice = source.notice
        for line in typed(LOOK):
            if line.strip().lower() == "q":
                stopped.ask(signal.SIGINT)
            elif source.view is not None:
                out.show("".join(map(folded, overview(source.view))))


def show_plain_fleet(fleet: FleetSource, out: Stdout, stopped: Stop) -> None:
    """Print one line per change until stopped, and one per node after Enter. ``q`` and Enter end the command."""
    typed = line_input()
    reported: dict[str, object] = {}
    while not stopped.signal:
        if fleet.look():
            for answer in fleet.answers:
                summary = answer.summary
                state: object = bool(answer.failure)
                if summary is not None:
                    worst = summary.worst and summary.worst.key
                    counts = summary.lost, summary.unanswered, summary.failed
                    state = answer.state, worst, tuple(summary.kinds.items()), summary.findings, counts
                if state != reported.get(answer.name):
                    out.show(folded(f"{now()} {node_words(answer)}"))
                reported[answer.name] = state
            for name in reported.keys() - {answer.name for answer in fleet.answers}:
                out.show(f"{now()} {name}: no longer listed\n")
                del reported[name]
        for line in typed(LOOK):
            if line.strip().lower() == "q":
                stopped.ask(signal.SIGINT)
            else:
                out.show("".join(folded(node_words(answer)) for answer in fleet.answers))


def folded(text: str) -> str:
    """Return a text wrapped to 79 columns, with its second and later lines indented."""
    return "".join(
        f"{part}\n" for part in textwrap.wrap(text, WIDEST, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    )


def node_words(answer: NodeAnswer) -> str:
    """Return a node's state as one sentence."""
    summary = answer.summary
    devices = [] if summary is None else [", ".join(f"{count} {kind}" for kind, count in summary.kinds.items()) or "no device"]
    words = ", ".join(filter(None, [*devices, node_note(answer)]))
    return " ".join(filter(None, (STATE_MARKS[answer.state], f"{answer.name}: {words}")))


def line_input() -> Callable[[float], list[str]]:
    """Return a function that waits for typed lines, at most a number of seconds, and returns them.

    If standard input is no terminal, it returns no lines.
    """
    descriptor = descriptor_of(sys.stdin)
    typing = descriptor is not None and os.isatty(descriptor)

    def lines(seconds: float) -> list[str]:
        nonlocal typing
        if descriptor is None or not typing or not in_foreground(descriptor):
            time.sleep(seconds)
            return []
        try:
            data = os.read(descriptor, CHUNK) if select.select([descriptor], [], [], seconds)[0] else None
        except OSError:  # the terminal is closed
            data = b""
        typing = data != b""  # an empty read is the end of input, by Ctrl-D or a closed terminal
        return (data or b"").decode("utf-8", "replace").splitlines()

    return lines


def changes(before: NodeView | None, view: NodeView) -> Iterator[str]:
    """Yield one sentence per change: devices and sources that stop or resume answering, findings that begin or end.

    Args:
        before: The previous view; None for the first one, for which all current problems are reported.
        view: The current view.
    """
    if before is None:
        yield _head(view)
    known = {} if before is None else {device.key: device for device in before.devices}
    for device in view.devices:
        former = known.pop(device.key, None)
        was, now = former.silent if former is not None else None, device.silent
        if now is not None and (was is None or was.reason != now.reason):
            yield f"{device.label}: {'; '.join(filter(None, (now.word, now.detail, now.advice)))}"
        elif was is not None and now is None:
            yield f"{device.label}: back"
    yield from (f"{device.label}: no longer listed" for device in known.values())
    was_silent = {} if before is None else {source.name: source for source in before.silent}
    silent = {source.name: source for source in view.silent}
    yield from (_source(source) for name, source in silent.items() if name not in was_silent)
    yield from (f"source {name}: answers again" for name in was_silent if name not in silent)
    begun = {} if before is None else {(one.rule, one.key): one for one in before.findings}
    active = {(one.rule, one.key): one for one in view.findings}
    for one in alike(_without_silent(view, [one for which, one in active.items() if which not in begun])):
        yield _finding(one) + (f"; {printable(one.advice)}" if one.advice else "")
    for one in alike([one for which, one in begun.items() if which not in active and one.rule not in GONE]):
        seconds = max(0.0, (view.time_ns - one.since_ns) / 1e9)
        yield f"over: {one.severity} {one.rule} {one.key}".rstrip() + f", after {duration(seconds)}"


def overview(view: NodeView) -> Iterator[str]:
    """Yield one sentence each for the node, its silent sources, its devices and its findings."""
    yield _head(view)
    yield from map(_source, view.silent)
    yield from (f"{device.label} {device.name}: {_device(device)}" for device in view.devices)
    yield from map(_finding, alike(_without_silent(view, view.findings)))


def _without_silent(view: NodeView, findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings without the ones about a silent device, which its own line covers."""
    silent = {device.key for device in view.devices if device.silent is not None}
    return [one for one in findings if one.rule not in GONE or one.key not in silent]


def _head(view: NodeView) -> str:
    totals = view.summary
    number = sum(totals.findings.values())
    parts = [
        ", ".join(f"{count} {kind}" for kind, count in totals.kinds.items()) or "no device",
        "" if totals.utilization is None else f"util {percent(totals.utilization)}",
        "" if totals.power_watts is None else watts(totals.power_watts, totals.power_limit_watts),
        f"cpu {percent(view.host['cpu_percent'])}" if "cpu_percent" in view.host else "",
        f"memory {percent(view.host['memory_percent'])}" if "memory_percent" in view.host else "",
        f"{totals.lost} lost" if totals.lost else "",
        f"{totals.unanswered} no answer" if totals.unanswered else "",
        "no finding" if not number else counted(number, "finding"),
    ]
    return f"{view.hostname}: {', '.join(filter(None, parts))}"


def _device(device: DeviceView) -> str:
    values = device.values
    # Findings have separate lines, so their messages are not repeated here.
    findings = {f"{begin}{printable(one.message)}" for one in device.findings for begin in ("", LAST_SEEN)}
    used, total = values.get("memory_used_bytes"), values.get("memory_total_bytes")
    parts = [
        f"util {percent(values['utilization'])}" if "utilization" in values else "",
        "" if used is None else f"memory {memory(used, total)}",
        watts(values["power_watts"], values.get("power_limit_watts")) if "power_watts" in values else "",
        celsius(values["temperature_celsius"]) if "temperature_celsius" in values else "",
        *(note for note in device.notes if note not in findings),
    ]
    return ", ".join(filter(None, parts)) or "no values"


def _source(source: SourceRow) -> str:
    return f"source {source.name}: {'; '.join(filter(None, (source.status.replace('_', ' '), source.detail, source.advice)))}"


def _finding(one: Finding) -> str:
    return f"{one.severity} {one.rule} {one.key}".rstrip() + f": {printable(one.message)}"


def now() -> str:
    """Return the local time of day as ``HH:MM:SS``."""
    return f"{datetime.now().astimezone():%H:%M:%S}"
