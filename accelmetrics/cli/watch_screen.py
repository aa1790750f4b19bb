"""The interactive program of ``watch``: what is on the terminal, and what keys do."""

from __future__ import annotations

import os
import signal
import time
from abc import ABC, abstractmethod
from argparse import Namespace
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime
from itertools import count
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from accelmetrics.cli.monitoring import Stop, handling, holding_messages, tell
from accelmetrics.cli.output import Stdout, WriteError, sink_of
from accelmetrics.cli.process_signals import CHOICES, ProcessHandle, SignalError
from accelmetrics.cli.terminal import Screen, held_prints, in_foreground, screen_size, terminal_colours, whole_screen
from accelmetrics.cli.watch_controls import chosen_by
from accelmetrics.cli.watch_source import WatchSource
from accelmetrics.views.terminal.choices import Choices, Dialog
from accelmetrics.views.terminal.picture import Picture, picture
from accelmetrics.views.terminal.style import ScreenStyle
from accelmetrics.views.trails import graph_metrics

if TYPE_CHECKING:
    from accelmetrics.views.node_view import NodeView, ProcessRow

LOOK = 0.1
"""Seconds between two looks at whether there is something new to draw."""
SAID_SECONDS = 10.0
"""For how long a message stays."""
NO_KEYS = "Ctrl-C ends it"


class ScreenProgram(ABC):
    """A program that has a terminal to itself until it is ended: its loop, its messages, and Ctrl-Z.

    Args:
        options: Of the command.
        out: The terminal.
        descriptor: Its own.
        stopped: Asks for its end.

    Attributes:
        options: Of the command.
        out: The terminal.
        stopped: Asks for its end.
        style: What the terminal can show.
        choices: What is to be seen.
        saved: The files that keys have written.
        changed: Whether the picture is another one now.
    """

    def __init__(self, options: Namespace, out: Stdout, descriptor: int, stopped: Stop) -> None:
        self.options = options
        self.out = out
        self.stopped = stopped
        self.descriptor = descriptor
        ascii_alone = options.ascii or not out.shows_unicode
        drawn = terminal_colours(os.environ) if options.colour else "none"
        self.style = ScreenStyle(drawn, ascii_alone, braille=not ascii_alone and os.environ.get("TERM") != "linux")
        self.choices = Choices(signals=options.allow_signals)
        self.saved: list[str] = []
        self.changed = False
        self._message = ("", 0.0)
        self._suspend = False

    @abstractmethod
    def look(self) -> bool:
        """Take what is new; return whether there is another picture to draw."""

    @abstractmethod
    def draw(self, screen: Screen) -> None:
        """Put the picture of what there is now on the screen."""

    @abstractmethod
    def press(self, key: str) -> None:
        """Do what a key asks for."""

    @abstractmethod
    def leave(self) -> None:
        """Give up what is begun: the program ends."""

    @property
    def said(self) -> str:
        """The message that is on the screen; empty for none."""
        return self._message[0]

    def say(self, text: str) -> None:
        """Show a message for a while; another thread may say something too."""
        self._message = (text, time.monotonic() + SAID_SECONDS)
        self.changed = True

    def hush(self) -> None:
        """Leave the message behind: a key was pressed, so it has been read."""
        self._message = ("", 0.0)

    def show(self) -> None:
        """Draw until stopped."""

        def noted(number: int, _frame: FrameType | None) -> None:
            self.changed = True
            self._suspend = self._suspend or number == signal.SIGTSTP

        with holding_messages(self.say), handling(noted, signal.SIGWINCH, signal.SIGTSTP):
            try:
                while not self.stopped.signal:
                    self._until_suspended()
            finally:
                self.leave()
        for path in self.saved:
            tell(f"saved {path}", f"accelmetrics watch: saved {path}", data={"path": path})

    def _until_suspended(self) -> None:
        # While another job has the screen, wait; with keys this job is stopped as soon as it reads them.
        while not (self._interrupted or os.isatty(0) or in_foreground(self.descriptor)):
            self.look()
            self.stopped.wait(LOOK)
        with ExitStack() as stack:
            stack.enter_context(held_prints())
            screen, pressed = stack.enter_context(whole_screen(self.out.write, self.descriptor))
            self.changed = True
            while not self._interrupted:
                self.changed = self.look() or self.changed
                if self.said and time.monotonic() > self._message[1]:
                    self.say("")
                if self.changed:
                    self.changed = False
                    self.draw(screen)
                for key in pressed(min(LOOK, self.options.interval)):
                    self.changed = True
                    if key == "ctrl-l":
                        screen.forget()
                    else:
                        self.hush()
                        self.press(key)
        if self._suspend:
            self._suspend = False
            handler = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTSTP)  # as Ctrl-Z stops any program; it returns when the program goes on
            signal.signal(signal.SIGTSTP, handler)

    @property
    def _interrupted(self) -> bool:
        return self.stopped.signal > 0 or self._suspend


class WatchScreen(ScreenProgram):
    """One node on a terminal: draws what a source gives, and does what keys ask for.

    Args:
        options: Of the command.
        out: The terminal.
        descriptor: Its own.
        stopped: Asks for its end.
        source: Gives what is shown.
    """

    def __init__(self, options: Namespace, out: Stdout, descriptor: int, stopped: Stop, source: WatchSource) -> None:
        super().__init__(options, out, descriptor, stopped)
        self.choices = replace(self.choices, replay=source.replay)
        self._source = source
        self._view: NodeView | None = None
        self._picture: Picture | None = None
        self._asked: SignalQuestion | None = None

    def look(self) -> bool:
        """Take what is new; return whether there is another picture to draw."""
        return self._source.look() and not self.choices.paused

    def leave(self) -> None:
        """Send no signal that is asked about."""
        self._answer(None)

    @property
    def at_rest(self) -> bool:
        """Whether nothing is open that Escape would leave."""
        chosen = self.choices
        words = chosen.device_filter if chosen.pane == "devices" else chosen.process_filter
        return not (self._asked or chosen.input or chosen.overlay or words)

    def draw(self, screen: Screen) -> None:
        """Put the picture of what there is now on the screen."""
        source = self._source
        if not self.choices.paused or self._view is None:
            self._view = source.view
        source.trails.until_ns = self._view.time_ns if self.choices.paused and self._view is not None else None
        size = screen_size(self.descriptor)
        usual = source.notice or (source.error if self._view is None else "" if os.isatty(0) else NO_KEYS)
        given = replace(
            self.choices,
            label=source.label,
            message=self.said or usual,
            dialog=None if self._asked is None else self._asked.dialog,
            summary=tuple(source.summary().splitlines()) if self.choices.overlay == "summary" else (),
        )
        self._picture = picture(self._view, source.trails, given, size, self.style)
        self.choices = self._picture.choices
        screen.show(self._picture.ansi(self.style), self._picture.place, size)

    def press(self, key: str) -> None:
        """Do what a key asks for."""
        if self._asked is not None:
            self._answer(key)
        elif self.choices.input is None and key in ("q", "Q", "f10"):
            self.stopped.ask(signal.SIGINT)
        elif self.choices.input is None and key in ("s", "S", "r", "x", "f9"):
            self._act(key)
        elif not (self.choices.input or self.choices.overlay) and (answer := self._source.press(key, self.choices.scale)) is not None:
            self.say(answer)
        elif self._picture is not None:
            metrics = [] if self._view is None else [row.name for row in graph_metrics(self._view)]
            # A key may follow another before there is a new picture.
            self.choices = chosen_by(key, replace(self._picture, choices=self.choices), metrics)
            self._source.follow(self.choices.metric)
            if self.choices.input is not None and self.choices.input.problem:
                self.say(self.choices.input.problem)

    def _act(self, key: str) -> None:
        """Do what does more than to change what is seen."""
        source = self._source
        if key == "S" and source.record is not None:
            self._save("", source.record.snapshot.to_json() + "\n")
        elif key == "s" and self.choices.overlay == "summary":
            self._save("-summary", f"{source.summary()}")
        elif key == "s":
            self.choices = replace(self.choices, overlay="summary", overlay_top=0)
        elif key == "r":
            source.reset()
            self.say("the history is empty, and the summary begins anew")
        elif key in ("x", "f9"):
            self._ask()

    def _ask(self) -> None:
        """Ask whether a signal is to be sent to the chosen process."""
        if not self.options.allow_signals:
            self.say("no signals are sent: accelmetrics watch --allow-signals lets a key do it")
            return
        view = self._view
        row = None if view is None else next((one for one in view.processes if one.pid == self.choices.process), None)
        if view is None or row is None or self.choices.pane != "processes" or not self._source.local:
            self.say("choose a process first: tab goes to their list" if self._source.local else "these processes are not on this machine")
            return
        try:
            devices = [device.identity for device in view.devices if device.key in row.devices]
            handle = ProcessHandle(row.pid, devices, [one.pid for one in view.processes])
        except SignalError as error:
            self.say(str(error))
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
                    self.say(str(error))
                else:
                    self.say(f"{asked.number.name} was sent to process {asked.handle.pid}")
            elif key is not None:
                self.say(f"nothing was sent to process {asked.handle.pid}")

    def _save(self, kind: str, text: str) -> None:
        """Write a document into the chosen directory, under a name with the time that no file has."""
        ending = "txt" if kind else "json"
        stem = Path(self.options.save_dir).absolute() / f"accelmetrics{kind}-{datetime.now().astimezone():%Y%m%d-%H%M%S}"
        names = (f"{stem}-{number}.{ending}" if number > 1 else f"{stem}.{ending}" for number in count(1))
        path = next(name for name in names if not Path(name).exists())
        try:
            sink_of(path, self.out).write(text)
        except WriteError as error:
            self.say(str(error))
        else:
            self.saved.append(path)
            self.say(f"saved {Path(path).name} in {Path(path).parent}")  # the end is what a narrow terminal leaves out


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
        row = self._row
        return Dialog(
            f"send {self.number.name} to process {row.pid}?",
            (f"user {row.user or 'unknown'}, on {', '.join(row.devices)}", row.command or "its command is not known"),
            f"y sends {self.number.name}   left right: another signal   any other key sends nothing",
        )
