"""The interactive program of ``watch``: its screens, keys and mouse, and signals to processes."""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from abc import ABC, abstractmethod
from argparse import Namespace
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from datetime import datetime
from itertools import count
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

from accelmetrics.backends.kit.processes import DriverNumbers, holds, node_pattern
from accelmetrics.backends.kit.system import sysroot
from accelmetrics.cli.monitoring import Stop, handling, holding_messages, tell
from accelmetrics.cli.output import Stdout, WriteError, writing_to
from accelmetrics.cli.saved_choices import read_choices, write_choices
from accelmetrics.cli.terminal import (
    Background,
    MouseReport,
    Screen,
    ascii_locale,
    environment_theme,
    held_prints,
    in_foreground,
    screen_size,
    terminal_colours,
    whole_screen,
)
from accelmetrics.cli.watch_source import WatchSource
from accelmetrics.schemas.errors import AccelMetricsError, InvalidOptionError, UnknownNameError
from accelmetrics.schemas.identity import DeviceIdentity
from accelmetrics.views.device_view import GROUPS
from accelmetrics.views.terminal.choices import (
    DEVICE_FIELDS,
    DEVICE_ORDERS,
    GRAPHS,
    HIDDEN,
    NODE_FIELDS,
    NODE_ORDERS,
    PROCESS_FIELDS,
    PROCESS_ORDERS,
    Choices,
    InputLine,
    Overlay,
    Pane,
    order_letters,
    parse_filter,
)
from accelmetrics.views.terminal.fleet import fleet_picture
from accelmetrics.views.terminal.picture import Picture, Spot, picture
from accelmetrics.views.terminal.style import SERIES, ScreenStyle, theme_of
from accelmetrics.views.terminal.tables import column_letters
from accelmetrics.views.trails import SCALES, SPANS, graph_metrics

if TYPE_CHECKING:
    from accelmetrics.cli.watch_remote import FleetSource, RemoteSource
    from accelmetrics.views.device_view import WarningLevels
    from accelmetrics.views.node_view import NodeView, ProcessRow

LOOK = 0.1
"""Seconds between two checks for new readings to draw."""
FIRST_LOOK, FIRST_LOOKS = 0.01, 100
"""Seconds between two checks before the first reading, which takes less time than ``LOOK``, and the number of them: it may never come."""
MESSAGE_SECONDS = 10.0
"""Seconds for which a message is shown."""
ANSWER_SECONDS = 0.2
"""Seconds after the start up to which the end of the program waits for the terminal's answer about its background."""
NO_KEYS = "Ctrl-C quits"


# Signals to processes on devices. A signal must reach exactly the process that the user was asked about, or none. A driver reports the
# machine's process ids, and in a container another process may have the same id. So a process is signalled only if it certainly is the
# one that the driver means (`DriverNumbers`) and ``/proc`` shows that it holds a node of the device open. The signal is sent through a
# descriptor of the process (``pidfd_open``), since a process id may be reused by another process and a descriptor never is.

CHOICES = tuple(
    getattr(signal, name)
    for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGSTOP", "SIGCONT", "SIGKILL")
    if hasattr(signal, name)
)
"""Signals that may be sent. The first one is the default."""


class SignalError(AccelMetricsError):
    """A process cannot be sent a signal. The message says why."""


class ProcessHandle:
    """Handle of one process, which stays valid if its id is reused by another process.

    Args:
        pid: The process id, as the driver reports it.
        devices: The devices that the process uses, according to the driver.
        listed: All process ids that the driver reports.

    Raises:
        SignalError: The process cannot be sent a signal, or may be another one than the driver means.
    """

    def __init__(self, pid: int, devices: Collection[DeviceIdentity], listed: Collection[int]) -> None:
        if pid == os.getpid():
            raise SignalError(f"process {pid} is watch itself: q quits")
        if sysroot():
            raise SignalError(f"process {pid} belongs to the system below {sysroot()}: here, the number may mean another process")
        if not hasattr(os, "pidfd_open") or not hasattr(signal, "pidfd_send_signal"):
            raise SignalError("sending signals needs Linux 5.3 or later")
        try:
            self._descriptor = os.pidfd_open(pid)
        except ProcessLookupError as error:
            why = "has ended" if DriverNumbers(listed).shared else "is not in this PID namespace, or has ended"
            raise SignalError(f"process {pid} {why}") from error
        except OSError as error:
            raise SignalError(f"process {pid} cannot be signalled: {error.strerror or error}") from error
        self.pid = pid
        # Only after the descriptor is open: from now on the checked process and the signalled one are the same.
        try:
            self._check(pid, devices, listed)
        except SignalError:
            os.close(self._descriptor)
            raise

    def close(self) -> None:
        """Close the handle."""
        os.close(self._descriptor)

    @property
    def ended(self) -> bool:
        """Whether the process has ended."""
        return bool(select.select([self._descriptor], [], [], 0)[0])

    def send(self, number: int) -> None:
        """Send a signal.

        Raises:
            SignalError: The process has ended, or this user may not send it signals.
        """
        name = signal.Signals(number).name
        try:
            signal.pidfd_send_signal(self._descriptor, number)
        except ProcessLookupError as error:
            raise SignalError(f"process {self.pid} has ended: {name} was not sent") from error
        except PermissionError as error:
            raise SignalError(f"process {self.pid} belongs to another user: {name} was not sent") from error

    def _check(self, pid: int, devices: Collection[DeviceIdentity], listed: Collection[int]) -> None:
        """Check that the process is the one that the driver means, and holds one of the devices open.

        Raises:
            SignalError: It is not, or this cannot be determined.
        """
        nodes = "|".join(pattern for device in devices if (pattern := node_pattern(device)))
        if not nodes:
            raise SignalError(f"process {pid}: its use of the device cannot be verified, because the device's files are unknown")
        held = holds(pid, nodes)
        if held is None:
            raise SignalError(f"process {pid} belongs to another user: its use of the device cannot be verified")
        if self.ended:
            raise SignalError(f"process {pid} has ended")
        if not held:
            raise SignalError(f"process {pid} does not hold the device: the driver may mean a process outside this container")
        found = DriverNumbers(listed, next(iter(devices)).backend).find(pid, nodes)
        if found != pid:
            raise SignalError(found if isinstance(found, str) else f"the driver's process {pid} has the number {found} here")


# Keys and the mouse as functions from the picture on the screen to new choices, without other effects.

T = TypeVar("T")
OVERLAYS: dict[str, Overlay] = {"?": "help", "h": "help", "f1": "help", "enter": "details", "f": "findings"}
MOVES = {"up": -1, "down": 1, "pageup": -1, "pagedown": 1, "home": 0, "end": 0}
"""Keys that move through a list, with their direction in rows."""
ROWS: Mapping[Pane, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    "devices": ("device", DEVICE_ORDERS, DEVICE_FIELDS),
    "processes": ("process", PROCESS_ORDERS, PROCESS_FIELDS),
    "nodes": ("node", NODE_ORDERS, NODE_FIELDS),
}
"""For each list: the prefix of its fields in ``Choices``, its orders, and the fields of its filter."""
FLEET_KEYS = frozenset({"o", "O", "p", "/", "z", "f6"})
"""Keys that also work in the list of a fleet."""
SAME = {"j": "down", "k": "up", "backtab": "tab"}
"""Keys that are the same as another key."""
SIDEWAYS = 8
"""Columns by which a key moves the list of processes sideways."""
OVERLAY_STEP = 3
"""Lines by which one step of the wheel scrolls an overlay."""
DOUBLE_CLICK = 0.5
"""Seconds within which a second click opens what the first one chose."""
LONGEST_INPUT = 500


def chosen_by(key: str, picture: Picture, metrics: Sequence[str]) -> Choices:
    """Return the choices after a key, unchanged for a key that has no effect on them.

    Args:
        key: The key's name.
        picture: The picture on the screen.
        metrics: The metrics that a graph can show.
    """
    choices = picture.choices
    if choices.input is not None:
        return typed(key, choices, choices.input)
    key = meant(key, choices)
    if choices.menu:
        return ordered_by(key, choices) if choices.menu == "order" else with_columns(key, choices)
    name, orders, _ = ROWS[choices.pane]
    order, reverse, words = (getattr(choices, f"{name}_{what}") for what in ("order", "reverse", "filter"))
    if key == "escape":  # one step back: from an overlay, else from the past, else from tags, else from the filter
        if choices.overlay:
            return replace(choices, overlay="", overlay_top=0, unfolded=False)
        if choices.until_ns:
            return replace(choices, until_ns=0)
        dropped: dict[str, Any] = {"tagged": frozenset()} if choices.tagged and name == "process" else {f"{name}_filter": ""}
        return replace(choices, **dropped)
    if key in ("+", "=", "-", "_", "[", "]", "0") and name != "node" and choices.overlay != "help":
        return in_time(key, picture)
    if key in OVERLAYS:
        if key == "enter" and name == "process" and not (choices.overlay or picture.processes):
            return choices  # no process can be opened
        wanted = "process" if key == "enter" and name == "process" else OVERLAYS[key]
        return replace(choices, overlay="" if choices.overlay == wanted else wanted, overlay_top=0, unfolded=False)
    if key == "e" and choices.overlay in ("process", "details"):
        return replace(choices, unfolded=not choices.unfolded)
    if choices.overlay and not (key in ("t", "T") and choices.overlay in ("details", "process")):
        if key not in MOVES:
            return choices
        top = choices.overlay_top + MOVES[key] * (picture.page if key.startswith("page") else 1)
        return replace(choices, overlay_top=max(0, {"home": 0, "end": sys.maxsize}.get(key, top)))
    if key in ("left", "right") and name == "process":
        return replace(choices, process_left=max(0, choices.process_left + (SIDEWAYS if key == "right" else -SIDEWAYS)))
    if key in ("left", "right") and name == "device" and picture.across == 1:
        return in_time({"left": "[", "right": "]"}[key], picture)
    if key in MOVES or key in ("left", "right"):
        return moved(key, picture)
    if key == " " and choices.process:
        return moved("down", replace(picture, choices=replace(choices, tagged=choices.tagged ^ {choices.process})))
    longer = [scale for scale, seconds in SCALES.items() if seconds > SPANS[choices.scale]]
    shorter = [scale for scale, seconds in SCALES.items() if seconds < SPANS[choices.scale]]
    switched: dict[str, dict[str, Any]] = {
        "tab": {"pane": "processes" if name == "device" else "devices"},
        "z": {"menu": "order"},
        "f6": {"menu": "order"},
        "c": {"menu": "columns"},
        "o": {f"{name}_order": _next(orders, order), f"{name}_reverse": False},
        "O": {f"{name}_reverse": not reverse},
        "m": {"metric": _next(metrics or [choices.metric], choices.metric)},
        "M": {"metric": _next(metrics or [choices.metric], choices.metric, -1)},
        "b": with_metric(choices, metrics),
        "B": {"metric": (*choices.beside, choices.metric)[-2:][0], "beside": choices.beside[:-1]},
        "t": {"scale": (longer or [*SCALES])[0]},
        "T": {"scale": (shorter or [*SCALES])[-1]},
        "a": {"graphs": _next(GRAPHS, choices.graphs)},
        "l": {"training": _next(("", *picture.programs[1:], HIDDEN), choices.training)},
        "v": {"form": "list" if picture.across > 1 or choices.form == "map" else "map"},
        "p": {"paused": not choices.paused},
        "/": {"input": InputLine(f"filter {choices.pane}", words, len(words))},
    }
    return replace(choices, **(switched.get(key, {}) if name != "node" or key in FLEET_KEYS else {}))


def meant(key: str, choices: Choices) -> str:
    """Return the main key with the same effect. Space pauses, but in the list of live processes it tags."""
    if key == " " and (choices.pane != "processes" or choices.replay):
        return "p"
    return SAME.get(key, key)


def in_time(key: str, picture: Picture) -> Choices:
    """Return the choices after a key that zooms the graphs, moves them through the history, or returns to the present."""
    choices, (oldest, newest), spans = picture.choices, picture.times, tuple(SPANS)
    if key in "+=-_":
        place = spans.index(choices.scale) + (1 if key in "-_" else -1)
        return replace(choices, scale=spans[min(max(place, 0), len(spans) - 1)])
    if key == "0":
        return replace(choices, until_ns=0)
    span = int(SPANS[choices.scale] * 1e9)
    until = (choices.until_ns or newest) + (span if key == "]" else -span) // 2
    until = max(until, oldest + span)  # graphs end no earlier than a full width after the oldest value
    return replace(choices, until_ns=0 if until >= newest else until)


def with_metric(choices: Choices, metrics: Sequence[str]) -> dict[str, Any]:
    """Return the changes that add the next metric to the graph; empty if it is full or shows all metrics."""
    shown = {*choices.beside, choices.metric}
    start = metrics.index(choices.metric) if choices.metric in metrics else 0
    more = next((name for name in (*metrics[start:], *metrics[:start]) if name not in shown), "")
    return {"beside": (*choices.beside, choices.metric), "metric": more} if more and len(shown) < SERIES else {}


def ordered_by(key: str, choices: Choices) -> Choices:
    """Return the choices after a key in the menu of orders. A letter chooses an order, or reverses it if it is the current one."""
    name, letters = ROWS[choices.pane][0], order_letters(choices.pane)
    now, reverse = choices.order
    if key in ("left", "up", "right", "down"):
        now, reverse = _next(tuple(letters.values()), now, 1 if key in ("right", "down") else -1), False
    elif key in letters:
        now, reverse = letters[key], letters[key] == now and not reverse
    elif key in ("z", "O"):
        reverse = not reverse
    given: dict[str, Any] = {f"{name}_order": now, f"{name}_reverse": reverse}
    if key in {*letters, "enter", "escape", "f6"}:
        given["menu"] = ""
    return replace(choices, **given)


def with_columns(key: str, choices: Choices) -> Choices:
    """Return the choices after a key in the menu of columns. A letter hides its column, or shows it again."""
    name, title = ROWS[choices.pane][0], column_letters(choices.pane).get(key)
    if title is None:
        return replace(choices, menu="" if key in ("enter", "escape", "c") else choices.menu)
    hidden: dict[str, Any] = {f"{name}_hidden": getattr(choices, f"{name}_hidden") ^ {title}}
    return replace(choices, **hidden)


def spot_at(report: MouseReport, picture: Picture) -> Spot | None:
    """Return the spot of the picture under the mouse; None if nothing there can be chosen."""
    return next((spot for spot in picture.spots if spot.line == report.row and spot.left <= report.column < spot.right), None)


def pointed(report: MouseReport, picture: Picture) -> Choices:
    """Return the choices after the mouse: a click chooses a row or an order, and the wheel moves through a list."""
    choices, spot = picture.choices, spot_at(report, picture)
    if choices.overlay:
        step = {"up": -OVERLAY_STEP, "down": OVERLAY_STEP, "click": 0}[report.kind]
        return replace(choices, overlay_top=max(0, choices.overlay_top + step))
    if spot is None:
        return choices if report.kind == "click" else moved(report.kind, picture)
    choices = replace(choices, pane=spot.pane, menu="")
    name = ROWS[spot.pane][0]
    if report.kind != "click":
        return moved(report.kind, replace(picture, choices=choices))
    if spot.name is None:
        now, reverse = choices.order
        given: dict[str, Any] = {f"{name}_order": spot.order, f"{name}_reverse": now == spot.order and not reverse}
    else:
        given = {name: spot.name}
    return replace(choices, **given)


def _next(items: Sequence[T], now: T, step: int = 1) -> T:
    """Return the item that is ``step`` places after the current one, in a circle; the first if the current one is not listed."""
    return items[(items.index(now) + step) % len(items)] if now in items else items[0]


def moved(key: str, picture: Picture) -> Choices:
    """Return the choices after a key that moves to another row."""
    choices = picture.choices
    rows: Sequence[object] = {"devices": picture.devices, "processes": picture.processes, "nodes": picture.nodes}[choices.pane]
    name, _, _ = ROWS[choices.pane]
    now = getattr(choices, name)
    across = picture.across if choices.pane == "devices" else 1
    if not rows or (key in ("left", "right") and across == 1):
        return choices
    place = rows.index(now) if now in rows else 0
    steps = {"left": -1, "right": 1, "up": -across, "down": across, "pageup": -across * picture.page, "pagedown": across * picture.page}
    place = {"home": 0, "end": len(rows) - 1}.get(key, place + steps.get(key, 0))
    given: dict[str, Any] = {name: rows[min(max(place, 0), len(rows) - 1)]}
    return replace(choices, **given)


def typed(key: str, choices: Choices, line: InputLine) -> Choices:
    """Return the choices after a key in the input of a filter. Enter applies the filter, and Escape keeps the former one."""
    if key == "escape":
        return replace(choices, input=None)
    if key != "enter":
        return replace(choices, input=edited(key, line))
    name, _, fields = ROWS[choices.pane]
    try:
        parse_filter(line.text, fields)
    except (UnknownNameError, InvalidOptionError) as error:
        return replace(choices, input=replace(line, problem=str(error)))
    given: dict[str, Any] = {f"{name}_filter": line.text.strip()}
    return replace(choices, input=None, **given)


def edited(key: str, line: InputLine) -> InputLine:
    """Return the input line after a key."""
    text, at = line.text, line.at
    places = {"left": at - 1, "right": at + 1, "home": 0, "ctrl-a": 0, "end": len(text), "ctrl-e": len(text)}
    match key:
        case "backspace" if at > 0:
            text, at = text[: at - 1] + text[at:], at - 1
        case "delete":
            text = text[:at] + text[at + 1 :]
        case "ctrl-u":
            text, at = text[at:], 0
        case "ctrl-k":
            text = text[:at]
        case "ctrl-w":
            kept = text[: text[:at].rstrip().rfind(" ") + 1]
            text, at = kept + text[at:], len(kept)
        case _ if len(key) == 1 and len(text) < LONGEST_INPUT:
            text, at = text[:at] + key + text[at:], at + 1
        case _:
            at = places.get(key, at)
    return replace(line, text=text, at=min(max(at, 0), len(text)), problem="")


# The programs


class ScreenProgram(ABC):
    """Full-screen program: its loop, its messages, and Ctrl-Z.

    Args:
        options: The command's options.
        out: The terminal, for output.
        descriptor: The terminal's descriptor.
        stopped: The request to end.

    Attributes:
        options: The command's options.
        out: The terminal, for output.
        stopped: The request to end.
        style: The capabilities of the terminal.
        choices: The user's choices of what is shown.
        saved: The files that keys have written.
        changed: Whether the picture has to be drawn again.
    """

    def __init__(self, options: Namespace, out: Stdout, descriptor: int, stopped: Stop) -> None:
        self.options = options
        self.out = out
        self.stopped = stopped
        self.descriptor = descriptor
        ascii_alone = options.ascii or not out.shows_unicode or ascii_locale(os.environ)
        drawn = terminal_colours(os.environ) if options.colour else "none"
        console = os.environ.get("TERM") == "linux"  # the Linux console has no Braille and prints OSC sequences as text
        self.saved: list[str] = []
        self._picture: Picture | None = None
        self.changed = False
        self._message = ("", 0.0)
        self._suspend = False
        self._clicked: tuple[Spot | None, float] = None, 0.0
        self.choices = Choices()
        try:
            self.choices = read_choices(self.choices)
        except AccelMetricsError as error:
            self.say(str(error))
        # The option overrides a saved theme. An explicit `--theme auto` does too.
        if options.theme != "auto" or "--theme" in options.flags_given:
            self.choices = replace(self.choices, theme=options.theme)
        wanted = self.choices.theme
        theme = environment_theme(os.environ) if wanted == "auto" else wanted
        self.style = ScreenStyle(drawn, ascii_alone, braille=not (ascii_alone or console), theme=theme)
        self._asks = wanted == "auto" and drawn != "none" and not console

    @abstractmethod
    def look(self) -> bool:
        """Take new readings. Return whether the picture has changed."""

    @property
    def patience(self) -> float:
        """Seconds between two looks."""
        return LOOK

    @abstractmethod
    def draw(self, screen: Screen) -> None:
        """Draw the current picture."""

    @abstractmethod
    def press(self, key: str) -> None:
        """Handle a key."""

    def point(self, report: MouseReport) -> None:
        """Handle the mouse. A second click on the same row opens the row, like Enter."""
        shown = self._picture
        if shown is None or self.choices.input is not None or self.choices.dialog:
            return
        shown = replace(shown, choices=self.choices)
        spot, now = spot_at(report, shown), time.monotonic()
        self.choices = pointed(report, shown)
        if report.kind == "click" and not self.choices.overlay:
            before, when = self._clicked
            twice = spot is not None and spot.name is not None and spot == before and now - when <= DOUBLE_CLICK
            self._clicked = (None if twice else spot), now
            if twice:
                self.press("enter")

    @abstractmethod
    def leave(self) -> None:
        """Cancel open questions and close sources, since the program ends."""

    @property
    def message(self) -> str:
        """The message on the screen; empty for none."""
        return self._message[0]

    def say(self, text: str) -> None:
        """Show a message for some seconds. Any thread may call this."""
        self._message = (text, time.monotonic() + MESSAGE_SECONDS)
        self.changed = True

    def clear_message(self) -> None:
        """Remove the message. A pressed key shows that the user has read it."""
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

    def _show(self, screen: Screen, drawn: Picture, size: os.terminal_size) -> None:
        self._picture, self.choices = drawn, drawn.choices
        screen.show(drawn.ansi(self.style), drawn.place, size)

    def _keep(self) -> None:
        """Save the choices for the next start, and show a message."""
        try:
            self.say(f"saved orders, columns, graphs and theme in {write_choices(self.choices)}")
        except AccelMetricsError as error:
            self.say(str(error))

    def _choose(self, key: str, metrics: Sequence[str]) -> None:
        """Change the choices by a key."""
        # Several keys may come before the next picture, so the picture gets the choices of now.
        if self._picture is not None:
            self.choices = chosen_by(key, replace(self._picture, choices=self.choices), metrics)
        if self.choices.input is not None and self.choices.input.problem:
            self.say(self.choices.input.problem)

    def _until_suspended(self) -> None:
        # Wait while another job has the screen. With a terminal at standard input the system stops this job when it reads keys.
        while not (self._interrupted or os.isatty(0) or in_foreground(self.descriptor)):
            self.look()
            self.stopped.wait(LOOK)
        with ExitStack() as stack:
            stack.enter_context(held_prints())
            screen, pressed = stack.enter_context(whole_screen(self.out.write, self.descriptor, self.options.mouse, self._asks))
            self.changed, asked = True, time.monotonic() if self._asks else 0.0
            while not self._interrupted:
                self.changed = self.look() or self.changed
                if self.message and time.monotonic() > self._message[1]:
                    self.say("")
                if self.changed:
                    self.changed = False
                    self.draw(screen)
                for key in pressed(min(self.patience, self.options.interval)):
                    self.changed = True
                    if key == "ctrl-l":
                        screen.forget()
                    elif isinstance(key, Background):
                        self.style, asked = replace(self.style, theme=theme_of(*key)), 0.0
                    elif isinstance(key, MouseReport):
                        self.point(key)
                    else:
                        self.clear_message()
                        self.press(key)
            if asked and (left := asked + ANSWER_SECONDS - time.monotonic()) > 0:
                pressed(left)  # an answer that comes later would be typed into the shell
        if self._suspend:
            self._suspend = False
            handler = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTSTP)  # stops the process here, until its shell continues it
            signal.signal(signal.SIGTSTP, handler)

    @property
    def _interrupted(self) -> bool:
        return self.stopped.signal > 0 or self._suspend


class WatchScreen(ScreenProgram):
    """Screen of one node.

    Args:
        options: The command's options.
        out: The terminal, for output.
        descriptor: The terminal's descriptor.
        stopped: The request to end.
        source: The source of the readings.
    """

    def __init__(self, options: Namespace, out: Stdout, descriptor: int, stopped: Stop, source: WatchSource) -> None:
        super().__init__(options, out, descriptor, stopped)
        self.choices = replace(self.choices, replay=source.replay, signals=source.local and not options.read_only)
        self._source = source
        self._view: NodeView | None = None
        self._looks = 0
        self._asked: list[tuple[ProcessHandle, ProcessRow]] = []
        self._refused: list[str] = []
        self._signal = CHOICES[0]

    def look(self) -> bool:
        """Take new readings. Return whether the picture has changed, which it does not while paused."""
        self._looks += 1
        news = self._source.look()
        if news:
            self._follow()  # saved choices may name metrics that no key has asked for
        return news and not self.choices.paused

    @property
    def patience(self) -> float:
        """Seconds between two looks."""
        return FIRST_LOOK if self._view is None and self._looks < FIRST_LOOKS else LOOK

    def leave(self) -> None:
        """Cancel an open question about a signal."""
        self._answer(None)

    @property
    def at_rest(self) -> bool:
        """Whether Escape would have no effect: no overlay, input, menu, question, filter or tag."""
        chosen = self.choices
        kept = chosen.device_filter if chosen.pane == "devices" else chosen.process_filter or chosen.tagged
        return not (self._asked or chosen.input or chosen.overlay or chosen.menu or kept)

    def draw(self, screen: Screen) -> None:
        """Draw the current picture of the node."""
        source = self._source
        if not self.choices.paused or self._view is None:
            self._view = source.view
        source.trails.until_ns = self.choices.until_ns or (self._view.time_ns if self.choices.paused and self._view is not None else None)
        size = screen_size(self.descriptor)
        usual = source.notice or (source.error if self._view is None else "" if os.isatty(0) else NO_KEYS)
        given = replace(
            self.choices,
            label=source.label,
            message=self.message or usual,
            dialog=self._dialog() if self._asked else (),
            summary=tuple(source.summary().splitlines()) if self.choices.overlay == "summary" else (),
            details=source.details(self.choices.process, self.choices.unfolded) if self.choices.overlay == "process" else None,
        )
        self._show(screen, picture(self._view, source.trails, given, size, self.style), size)

    def press(self, key: str) -> None:
        """Handle a key."""
        source = self._source
        if self._asked:
            self._answer(key)
        elif self.choices.menu or self.choices.input:
            self._choose(key, ())
        elif key in ("q", "Q", "f10"):
            self.stopped.ask(signal.SIGINT)
        elif key == "S":
            if source.record is not None:
                self._save("", source.record.snapshot.to_json() + "\n")
        elif key == "W":
            self._keep()
        elif key == "s" and self.choices.overlay == "summary":
            self._save("-summary", source.summary())
        elif key == "s":
            self.choices = replace(self.choices, overlay="summary", overlay_top=0)
        elif key == "r":
            source.reset()
            self.say("the history was cleared and the summary restarted")
        elif key in ("x", "f9"):
            self._ask()
        elif not self.choices.overlay and (answer := source.press(meant(key, self.choices), self.choices.scale)) is not None:
            self.say(answer)
        else:
            before, graphs = self.choices.until_ns, self.choices.graphs
            self._choose(key, [] if self._view is None else [row.name for row in graph_metrics(self._view)])
            if key == "[" and self.choices.until_ns == before:
                self.say("no earlier history")
            if key == "a" and self.choices.graphs != graphs and self.choices.beside:
                self.say("a graph of several metrics shows one device: B removes a metric")
            self._follow()

    def _follow(self) -> None:
        """Keep a history of the metrics in the graph, and of the metrics in the groups of an opened device."""
        metrics = [*self.choices.beside, self.choices.metric]
        if self.choices.overlay == "details":
            metrics += [name for number, names in GROUPS.values() for name in names[:number]]
        for metric in metrics:
            self._source.follow(metric)

    def _ask(self) -> None:
        """Ask whether to send a signal to the tagged processes, or to the chosen one if none is tagged."""
        if self.options.read_only:
            self.say("no signals: watch was started with --read-only")
            return
        view, tagged = self._view, self.choices.tagged
        wanted = tagged or ({self.choices.process} if self.choices.pane == "processes" else frozenset())
        rows = [] if view is None else [one for one in view.processes if one.pid in wanted]
        if view is None or not rows or not self._source.local:
            self.say("select a process first: tab goes to their list" if self._source.local else "these processes are not on this machine")
            return
        self._refused, self._signal = [], CHOICES[0]
        for row in rows:
            devices = [device.identity for device in view.devices if device.key in row.devices]
            try:
                self._asked.append((ProcessHandle(row.pid, devices, [one.pid for one in view.processes]), row))
            except SignalError as error:
                self._refused.append(str(error))
        if not self._asked:
            self.say("; ".join(self._refused))

    def _dialog(self) -> tuple[str, ...]:
        """Return the lines of the question whether to send the signal."""
        name, rows = self._signal.name, [row for _, row in self._asked]
        to = f"process {rows[0].pid}" if len(rows) == 1 else f"{len(rows)} processes"
        lines = []
        for row in rows:
            whose = f"user {row.user or 'unknown'}, on {', '.join(row.devices)}"
            command = row.command or "command unknown"
            lines += [whose, command] if len(rows) == 1 else [f"{row.pid}, {whose}: {command}"]
        return (
            f"send {name} to {to}?",
            *lines,
            *(f"no signal: {why}" for why in self._refused),
            f"y sends {name}   left right: another signal   any other key cancels",
        )

    def _answer(self, key: str | None) -> None:
        """Handle the answer to an open question: y sends the signal, arrows choose another one, any other key cancels."""
        step = {"right": 1, "down": 1, "tab": 1, "left": -1, "up": -1, "backtab": -1}.get(key or "", 0)
        self._signal = CHOICES[(CHOICES.index(self._signal) + step) % len(CHOICES)]
        if not self._asked or step:
            return
        asked, self._asked = self._asked, []
        sent: list[int] = []
        failed: list[str] = []
        for handle, _ in asked:
            with closing(handle):
                try:
                    if key in ("y", "Y"):
                        handle.send(self._signal)
                        sent.append(handle.pid)
                except SignalError as error:
                    failed.append(str(error))
        self.choices = replace(self.choices, tagged=self.choices.tagged - set(sent))
        if key is not None:
            if sent:
                failed.append(f"{self._signal.name} was sent to process {', '.join(map(str, sent))}")
            self.say("; ".join(failed) or "no signal was sent")

    def _save(self, kind: str, text: str) -> None:
        """Write a document into the chosen directory, under an unused name with the current time."""
        ending = "txt" if kind else "json"
        stem = Path(self.options.save_dir).absolute() / f"accelmetrics{kind}-{datetime.now().astimezone():%Y%m%d-%H%M%S}"
        names = (f"{stem}-{number}.{ending}" if number > 1 else f"{stem}.{ending}" for number in count(1))
        path = next(name for name in names if not Path(name).exists())
        try:
            with writing_to(path, self.out) as write:
                write(text)
        except WriteError as error:
            self.say(str(error))
        else:
            self.saved.append(path)
            # The name comes first: a narrow terminal cuts the end.
            self.say(f"saved {Path(path).name} in {Path(path).parent}")


class FleetScreen(ScreenProgram):
    """Screen of a fleet, and of an opened node.

    Args:
        options: The command's options.
        out: The terminal, for output.
        descriptor: The terminal's descriptor.
        stopped: The request to end.
        fleet: The source of the nodes' states.
        levels: Levels above which values of an opened node are warnings.
    """

    def __init__(self, options: Namespace, out: Stdout, descriptor: int, stopped: Stop, fleet: FleetSource, levels: WarningLevels) -> None:
        super().__init__(options, out, descriptor, stopped)
        self.choices = replace(self.choices, pane="nodes")
        self._fleet = fleet
        self._levels = levels
        self._shown = fleet.answers
        self._node: tuple[RemoteSource, WatchScreen] | None = None

    def look(self) -> bool:
        """Take new answers, and readings of an opened node. Return whether the picture has changed."""
        news = self._fleet.look() and not self.choices.paused
        if news:
            self._shown = self._fleet.answers
        if self._node is None:
            return news
        screen = self._node[1]
        changed, screen.changed = screen.look() or screen.changed, False
        return changed

    def draw(self, screen: Screen) -> None:
        """Draw the fleet or the opened node."""
        if self._node is not None:
            self._node[1].style = self.style
            self._node[1].draw(screen)
            return
        size = screen_size(self.descriptor)
        self._show(screen, fleet_picture(self._shown, replace(self.choices, message=self.message), size, self.style), size)
        self.choices = replace(self.choices, message="")

    def press(self, key: str) -> None:
        """Handle a key. Escape returns from an opened node to the fleet."""
        if self._node is not None:
            if key == "escape" and self._node[1].at_rest:
                self.leave()
            else:
                self._node[1].clear_message()
                self._node[1].press(key)
        elif self.choices.menu or self.choices.input:
            self._choose(key, ())
        elif key in ("q", "Q", "f10"):
            self.stopped.ask(signal.SIGINT)
        elif key == "W":
            self._keep()
        elif key == "enter" and self._fleet.opens and not self.choices.overlay:
            self._open()
        else:
            self._choose(key, ())

    def leave(self) -> None:
        """Close an opened node and return to the fleet."""
        if self._node is not None:
            source, screen = self._node
            screen.leave()
            source.close()
            self._node = None

    def point(self, report: MouseReport) -> None:
        """Handle the mouse, in the opened node if there is one."""
        (super().point if self._node is None else self._node[1].point)(report)

    def say(self, text: str) -> None:
        """Show a message for some seconds."""
        super().say(text)
        if self._node is not None:
            self._node[1].say(text)

    def _open(self) -> None:
        name = self.choices.node
        source = self._fleet.opened(name, self._levels) if name else None
        if source is None:
            self.say("this node is no longer listed" if name else "no node to open")
            return
        screen = WatchScreen(self.options, self.out, self.descriptor, self.stopped, source)
        screen.saved = self.saved
        self._node = source, screen
