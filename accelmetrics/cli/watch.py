"""``accelmetrics watch``: the devices live, on a terminal; lines where there is none."""

from __future__ import annotations

import math
import os
import signal
from argparse import Namespace
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

from accelmetrics.cli import options as arguments
from accelmetrics.cli.monitoring import Stop, checked, claim_sources, console, monitor, tell_losses, until_stopped
from accelmetrics.cli.output import Stdout
from accelmetrics.cli.terminal import capable, in_foreground, let_go
from accelmetrics.cli.watch_source import LiveSource, WatchSource
from accelmetrics.monitor import settings
from accelmetrics.schemas.errors import require
from accelmetrics.views.device_view import WarningLevels
from accelmetrics.visibility.attribution import Attribution

CHECK_PATIENCE = 0.3
"""Seconds for which the look at the chosen devices may hold the screen up, and with it the keys."""
FATAL = (signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGXCPU)
"""Signals that end a program unless it says otherwise, and that something outside may send: the terminal is put right first."""

EXAMPLES = """\
  accelmetrics watch                                  every device, once a second
  accelmetrics watch --interval 0.2 --gpus 0,2-3      some of them, more often
  accelmetrics watch --hot-temperature 70             hot from there on, whatever limit the devices state
  accelmetrics watch --allow-signals                  with a key that ends the chosen process, after a question
  accelmetrics watch --plain                          a line for each change, for screen readers; a summary on Enter
  accelmetrics watch | tee run.log                    a line a reading, as everywhere that is no terminal
  accelmetrics watch --url http://node-1:22235        another machine, on which accelmetrics serve runs
  accelmetrics watch --fleet http://prometheus:9090   a line for each machine that a Prometheus has, the worst first
  accelmetrics watch --fleet hosts                    the same of the machines of a file, asked themselves; enter opens one
  accelmetrics watch --replay run.jsonl --speed 60    a recording, a minute a second

keys: q quit, ? help with all of them, / filter, o order, m metric, t time, tab other list, enter details, f findings, space pause,
  s summary, S save the latest reading, r reset; of a recording: left right seek, + - speed, home end, n next host

Exit status: 0 when it was ended by q, Ctrl-C or SIGTERM; 1 when a line could not be printed; 2 for arguments that cannot be
used; 141 when the reader of its lines has gone. docs/watch.md"""
OPTIONS: arguments.Groups = {
    "": arguments.flags(settings.SCREEN),
    "in place of this machine": arguments.flags(settings.ELSEWHERE),
    "who holds the devices": arguments.flags(settings.HOLDERS, "watch"),
    "the readings": arguments.watching("watch"),
    arguments.READ: arguments.READING,
}
LOCAL = frozenset(
    option.long_flag
    for option in (*settings.READING, *settings.HOLDERS, *(settings.OPTIONS[name] for name in ("labels", "rules", "allow_signals")))
)
"""Flags about what this machine reads."""
NEEDED = {"--speed": ("replay",), "--host": ("replay",), "--fleet-token-file": ("url", "fleet"), "--fleet-ca": ("url", "fleet")}
"""Flags that are for some of the places alone."""


def run(options: Namespace, out: Stdout) -> int:
    """Show readings until stopped."""
    if not Path(options.save_dir).is_dir():
        raise arguments.UsageError(f"--save-dir {options.save_dir!r} is no directory")
    place = _place(options)
    levels = WarningLevels(options.hot_temperature, options.hot_memory)
    descriptor = None if options.plain else out.descriptor
    if descriptor is not None and not (capable(descriptor) and (os.isatty(0) or in_foreground(descriptor))):
        descriptor = None  # for keys a job in the background waits, for the screen it does not
    with ExitStack() as stack:
        stopped = stack.enter_context(until_stopped() if descriptor is None else until_stopped(*FATAL, then=partial(let_go, descriptor)))
        if not place:
            return _show_live(options, out, descriptor, stopped, levels, stack)
        if place == "replay":
            from accelmetrics.cli.watch_replay import ReplaySource

            replay = ReplaySource(options.replay, levels, options.host or "", options.speed, stepwise=descriptor is None)
            _show(options, out, descriptor, stopped, stack.enter_context(closing(replay)))
            return 0
        require("tornado", "serve")
        from accelmetrics.cli.watch_remote import FleetSource, remote_source

        if place == "url":
            _show(options, out, descriptor, stopped, stack.enter_context(closing(remote_source(options, levels))))
            return 0
        fleet = stack.enter_context(closing(FleetSource(options)))
        if descriptor is None:
            from accelmetrics.cli.watch_plain import show_fleet

            show_fleet(fleet, out, stopped)
        else:
            from accelmetrics.cli.watch_screen import FleetScreen

            FleetScreen(options, out, descriptor, stopped, fleet, levels).show()
    return 0


def _place(options: Namespace) -> str:
    """Return which option says that something else than this machine is shown, a flag before the file; empty for this machine.

    Raises:
        UsageError: There are two, or options that have no meaning with it.
    """
    views = [name for name in settings.VIEWS if getattr(options, name)]
    given = [name for name in views if f"--{name}" in options.flags_given] or views
    if len(given) > 1:
        raise arguments.UsageError(f"{' and '.join(f'--{name}' for name in given)} exclude each other: one place is shown at a time")
    place = given[0] if given else ""
    for flag in options.flags_given:
        if place and flag in LOCAL:
            raise arguments.UsageError(f"{flag} is about what this machine reads: with --{place} it has no meaning")
        if place not in NEEDED.get(flag, (place,)):
            raise arguments.UsageError(f"{flag} is for {' and '.join(f'--{name}' for name in NEEDED[flag])}")
    return place


def _show(options: Namespace, out: Stdout, descriptor: int | None, stopped: Stop, source: WatchSource) -> None:
    """Show what a source gives, on the screen or in lines."""
    if descriptor is None:
        from accelmetrics.cli.watch_plain import show

        show(source, out, stopped)
    else:
        from accelmetrics.cli.watch_screen import WatchScreen

        WatchScreen(options, out, descriptor, stopped, source).show()


def _show_live(options: Namespace, out: Stdout, descriptor: int | None, stopped: Stop, levels: WarningLevels, stack: ExitStack) -> int:
    seen = options.plain or descriptor is not None
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
        watching.stop(0.0)  # there is nothing to deliver, and a driver may hang
    return 0
