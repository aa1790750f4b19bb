"""``accelmetrics watch``: the devices live, on a terminal; lines where there is none, or rich is not installed."""

from __future__ import annotations

import math
import os
import signal
import time
from argparse import Namespace
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime
from functools import partial
from itertools import count
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from accelmetrics.cli import options as arguments
from accelmetrics.cli.monitoring import (
    Stop,
    checked,
    claim_sources,
    console,
    handling,
    holding_messages,
    log,
    monitor,
    tell,
    tell_losses,
    until_stopped,
)
from accelmetrics.cli.output import Stdout, WriteError, sink_of
from accelmetrics.cli.process_signals import CHOICES, ProcessHandle, SignalError
from accelmetrics.cli.terminal import Screen, capable, held_prints, in_foreground, let_go, screen_size, terminal_colours, whole_screen
from accelmetrics.cli.watch_source import LiveSource
from accelmetrics.monitor import settings
from accelmetrics.schemas.errors import MissingDependencyError, require
from accelmetrics.views.device_view import WarningLevels
from accelmetrics.views.trails import graph_metrics
from accelmetrics.visibility.attribution import Attribution

if TYPE_CHECKING:
    from accelmetrics.views.node_view import NodeView, ProcessRow
    from accelmetrics.views.terminal.choices import Dialog
    from accelmetrics.views.terminal.picture import Picture

LOOK = 0.1
"""Seconds between two looks at whether there is something new to draw."""
CHECK_PATIENCE = 0.3
"""Seconds for which the look at the chosen devices may hold the screen up, and with it the keys."""
SAID_SECONDS = 10.0
"""For how long a message stays."""
NO_KEYS = "Ctrl-C ends it"
FATAL = (signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGXCPU)
"""Signals that end a program unless it says otherwise, and that something outside may send: the terminal is put right first."""

EXAMPLES = """\
  accelmetrics watch                                  every device, once a second
  accelmetrics watch --interval 0.2 --gpus 0,2-3      some of them, more often
  accelmetrics watch --hot-temperature 70             hot from there on, whatever limit the devices state
  accelmetrics watch --allow-signals                  with a key that ends the chosen process, after a question
  accelmetrics watch --plain                          a line for each change, for screen readers; a summary on Enter
  accelmetrics watch | tee run.log                    a line a reading, as everywhere that is no terminal

keys: q quit, ? help with all of them, / filter, o order, m metric, t time, tab other list, enter details, f findings, space pause,
  s summary, S save the latest reading, r reset

Exit status: 0 when it was ended by q, Ctrl-C or SIGTERM; 1 when a line could not be printed; 2 for arguments that cannot be
used; 141 when the reader of its lines has gone. docs/watch.md"""
OPTIONS: arguments.Groups = {
    "": arguments.flags(settings.SCREEN),
    "who holds the devices": arguments.flags(settings.HOLDERS, "watch"),
    "the readings": arguments.watching("watch"),
    arguments.READ: arguments.READING,
}


def run(options: Namespace, out: Stdout) -> int:
    """Show readings until stopped."""
    if not Path(options.save_dir).is_dir():
        raise arguments.UsageError(f"--save-dir {options.save_dir!r} is no directory")
    descriptor = None if options.plain else _screen(out)
    seen = options.plain or descriptor is not None
    with ExitStack() as stack:
        stopped = stack.enter_context(until_stopped() if descriptor is None else until_stopped(*FATAL, then=partial(let_go, descriptor)))
        stack.enter_context(checked(options, stopped, CHECK_PATIENCE if seen else math.inf))
        watching = monitor(options, [] if seen else [console(out, stopped)])
        if not seen:
            with watching:
                stopped.wait()
            return int(tell_losses(watching))
        attribution = stack.enter_context(Attribution(claim_sources(options)))
        watching.start()
        try:
            levels = WarningLevels(options.hot_temperature, options.hot_memory)
            source = LiveSource(watching, levels, attribution, own=options.pid is None)
            if descriptor is None:
                from accelmetrics.cli.watch_plain import show

                show(source, out, stopped)
            else:
                WatchScreen(options, out, descriptor, stopped).show(source)
        finally:
            watching.stop(0.0)  # there is nothing to deliver, and a driver may hang
    return 0


def _screen(out: Stdout) -> int | None:
    """Return the terminal to draw on; None where there is none, or another job has it and there are no keys, or rich is missing."""
    descriptor = out.descriptor
    if descriptor is None or not (capable(descriptor) and (os.isatty(0) or in_foreground(descriptor))):
        return None  # for keys a job in the background waits, for the screen it does not
    try:
        require("rich", "rich")
    except MissingDependencyError as error:
        log.warning(f"no screen: {error}")
        return None
    return descriptor


class WatchScreen:
    """The interactive program on a terminal: draws what a source gives, and does what keys ask for.

    Args:
        options: Of the command.
        out: The terminal.
        descriptor: Its own.
        stopped: Asks for its end.
    """

    def __init__(self, options: Namespace, out: Stdout, descriptor: int, stopped: Stop) -> None:
        from accelmetrics.views.terminal.choices import Choices
        from accelmetrics.views.terminal.style import ScreenStyle

        self._options = options
        self._out = out
        self._descriptor = descriptor
        self._stopped = stopped
        ascii_alone = options.ascii or not out.shows_unicode
        drawn = terminal_colours(os.environ) if options.colour else "none"
        self._style = ScreenStyle(drawn, ascii_alone, braille=not ascii_alone and os.environ.get("TERM") != "linux")
        self._choices = Choices(signals=options.allow_signals)
        self._view: NodeView | None = None
        self._picture: Picture | None = None
        self._asked: SignalQuestion | None = None
        self._message = ("", 0.0)
        self._saved: list[str] = []
        self._changed = False
        self._suspend = False

    @property
    def said(self) -> str:
        """The message that is on the screen; empty for none."""
        return self._message[0]

    def show(self, source: LiveSource) -> None:
        """Draw until stopped."""

        def noted(number: int, _frame: FrameType | None) -> None:
            self._changed = True
            self._suspend = self._suspend or number == signal.SIGTSTP

        with holding_messages(self._say), handling(noted, signal.SIGWINCH, signal.SIGTSTP):
            try:
                while not self._stopped.signal:
                    self._until_suspended(source)
            finally:
                self._answer(None)
        for path in self._saved:
            tell(f"saved {path}", f"accelmetrics watch: saved {path}", data={"path": path})

    def _until_suspended(self, source: LiveSource) -> None:
        # While another job has the screen, wait; with keys this job is stopped as soon as it reads them.
        while not (self._interrupted or os.isatty(0) or in_foreground(self._descriptor)):
            source.look()
            self._stopped.wait(LOOK)
        with ExitStack() as stack:
            stack.enter_context(held_prints())
            screen, pressed = stack.enter_context(whole_screen(self._out.write, self._descriptor))
            self._changed = True
            while not self._interrupted:
                if source.look() and not self._choices.paused:
                    self._changed = True
                if self.said and time.monotonic() > self._message[1]:
                    self._say("")
                if self._changed:
                    self._changed = False
                    self._draw(source, screen)
                for key in pressed(min(LOOK, self._options.interval)):
                    self._changed = True
                    if key == "ctrl-l":
                        screen.forget()
                    else:
                        self._press(key, source)
        if self._suspend:
            self._suspend = False
            handler = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTSTP)  # as Ctrl-Z stops any program; it returns when the program goes on
            signal.signal(signal.SIGTSTP, handler)

    @property
    def _interrupted(self) -> bool:
        return self._stopped.signal > 0 or self._suspend

    def _draw(self, source: LiveSource, screen: Screen) -> None:
        """Put the picture of what there is now on the screen."""
        from accelmetrics.views.terminal.picture import picture

        if not self._choices.paused or self._view is None:
            self._view = source.view
        source.trails.until_ns = self._view.time_ns if self._choices.paused and self._view is not None else None
        size = screen_size(self._descriptor)
        usual = source.error if self._view is None else "" if os.isatty(0) else NO_KEYS
        given = replace(
            self._choices,
            label=source.label,
            message=self.said or usual,
            dialog=None if self._asked is None else self._asked.dialog,
            summary=tuple(source.summary().splitlines()) if self._choices.overlay == "summary" else (),
        )
        self._picture = picture(self._view, source.trails, given, size, self._style)
        self._choices = self._picture.choices
        screen.show(self._picture.ansi(self._style), self._picture.place, size)

    def _press(self, key: str, source: LiveSource) -> None:
        """Do what a key asks for; what was said before has been read."""
        from accelmetrics.cli.watch_controls import chosen_by

        self._message = ("", 0.0)
        if self._asked is not None:
            self._answer(key)
        elif self._choices.input is None and key in ("q", "Q", "f10"):
            self._stopped.ask(signal.SIGINT)
        elif self._choices.input is None and key in ("s", "S", "r", "x", "f9"):
            self._act(key, source)
        elif self._picture is not None:
            metrics = [] if self._view is None else [row.name for row in graph_metrics(self._view)]
            # A key may follow another before there is a new picture.
            self._choices = chosen_by(key, replace(self._picture, choices=self._choices), metrics)
            source.follow(self._choices.metric)
            if self._choices.input is not None and self._choices.input.problem:
                self._say(self._choices.input.problem)

    def _act(self, key: str, source: LiveSource) -> None:
        """Do what does more than to change what is seen."""
        if key == "S" and source.record is not None:
            self._save("", source.record.snapshot.to_json() + "\n")
        elif key == "s" and self._choices.overlay == "summary":
            self._save("-summary", f"{source.summary()}")
        elif key == "s":
            self._choices = replace(self._choices, overlay="summary", overlay_top=0)
        elif key == "r":
            source.reset()
            self._say("the history is empty, and the summary begins anew")
        elif key in ("x", "f9"):
            self._ask(source)

    def _ask(self, source: LiveSource) -> None:
        """Ask whether a signal is to be sent to the chosen process."""
        if not self._options.allow_signals:
            self._say("no signals are sent: accelmetrics watch --allow-signals lets a key do it")
            return
        view = self._view
        row = None if view is None else next((one for one in view.processes if one.pid == self._choices.process), None)
        if view is None or row is None or self._choices.pane != "processes" or not source.local:
            self._say("choose a process first: tab goes to their list" if source.local else "these processes are not on this machine")
            return
        try:
            handle = ProcessHandle(row.pid, [device.identity for device in view.devices if device.key in row.devices])
        except SignalError as error:
            self._say(str(error))
        else:
            self._asked = SignalQuestion(handle, row)

    def _answer(self, key: str | None) -> None:
        """Take the answer to an open question: y sends the signal, arrows choose another one, all else sends none."""
        asked = self._asked
        if asked is None or (key is not None and asked.turned(key)):
            return
        self._asked = None
        with asked.handle:
            if key in ("y", "Y"):
                try:
                    asked.handle.send(asked.number)
                except SignalError as error:
                    self._say(str(error))
                else:
                    self._say(f"{asked.number.name} was sent to process {asked.handle.pid}")
            elif key is not None:
                self._say(f"nothing was sent to process {asked.handle.pid}")

    def _save(self, kind: str, text: str) -> None:
        """Write a document into the chosen directory, under a name with the time that no file has."""
        ending = "txt" if kind else "json"
        stem = Path(self._options.save_dir).absolute() / f"accelmetrics{kind}-{datetime.now().astimezone():%Y%m%d-%H%M%S}"
        names = (f"{stem}-{number}.{ending}" if number > 1 else f"{stem}.{ending}" for number in count(1))
        path = next(name for name in names if not Path(name).exists())
        try:
            sink_of(path, self._out).write(text)
        except WriteError as error:
            self._say(str(error))
        else:
            self._saved.append(path)
            self._say(f"saved {Path(path).name} in {Path(path).parent}")  # the end is what a narrow terminal leaves out

    def _say(self, text: str) -> None:
        """Show a message for a while; another thread may say something too."""
        self._message = (text, time.monotonic() + SAID_SECONDS)
        self._changed = True


class SignalQuestion:
    """The question whether a signal is to be sent to a process.

    Args:
        handle: The process.
        row: What is known of it.

    Attributes:
        handle: The process.
        number: The signal.
    """

    def __init__(self, handle: ProcessHandle, row: ProcessRow) -> None:
        self.handle = handle
        self.number = CHOICES[0]
        self._row = row

    def turned(self, key: str) -> bool:
        """Choose another signal where the key asks for that; return whether it did."""
        step = {"right": 1, "down": 1, "tab": 1, "left": -1, "up": -1, "backtab": -1}.get(key, 0)
        self.number = CHOICES[(CHOICES.index(self.number) + step) % len(CHOICES)]
        return step != 0

    @property
    def dialog(self) -> Dialog:
        """The question in words."""
        from accelmetrics.views.terminal.choices import Dialog

        row = self._row
        return Dialog(
            f"send {self.number.name} to process {row.pid}?",
            (f"user {row.user or 'unknown'}, on {', '.join(row.devices)}", row.command or "its command is not known"),
            f"y sends {self.number.name}   left right: another signal   any other key sends nothing",
        )
