"""``accelmetrics watch``: every device live, in place; lines where there is no terminal."""

from __future__ import annotations

import os
import queue
import signal
import time
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from accelmetrics.cli import options as arguments
from accelmetrics.cli.options import UsageError
from accelmetrics.cli.terminal import Screen, capable, ours
from accelmetrics.cli.watching import as_given, monitor, until_stopped, wait

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Iterator
    from types import FrameType

    from accelmetrics.backends.flag import Flag
    from accelmetrics.cli.output import Stdout
    from accelmetrics.exporters.device_table import Limits
    from accelmetrics.monitor.named import Monitor
    from accelmetrics.schemas.snapshot import Snapshot

LOOK = 0.1
"""Seconds between two looks at whether there is something new to draw."""
SAID_SECONDS = 10.0
"""For how long a message stays."""
KEYS = ("q quit   s save   r reset history", "q quit  s save  r reset", "q quit s save r", "q quit")
NO_KEYS = ("Ctrl-C ends it", "Ctrl-C")
"""In as many words as there is room for."""
FATAL = (signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGXCPU)
"""Signals that end a program unless it says otherwise, and that something outside may send: the terminal is put right first."""

EXAMPLES = """\
  accelmetrics watch                                  every device, once a second
  accelmetrics watch --interval 0.2 --gpus 0,2-3      some of them, more often
  accelmetrics watch --pid 4711 --children            with a job's CPU and memory in the host's line
  accelmetrics watch --hot-temperature 70 --hot-memory 95
  accelmetrics watch | tee run.log                    a line a reading, as everywhere that is no terminal

keys:
  q   quit
  s   save the latest reading as a document, as `accelmetrics dump --json` prints it, in accelmetrics-YYYYMMDD-HHMMSS.json
  r   reset the history

Exit status: 0 when it was ended by q, Ctrl-C or SIGTERM; 1 when a package is missing; 2 for arguments that cannot be used;
141 when whoever read its lines has gone."""


def configure(parser: ArgumentParser) -> None:
    """Add the options."""
    add = parser.add_argument
    add(
        "--hot-temperature",
        type=arguments.number,
        default=80.0,
        metavar="C",
        help="degrees Celsius above which a device is drawn as hot (default: 80)",
    )
    add(
        "--hot-memory",
        type=arguments.number,
        default=90.0,
        metavar="PERCENT",
        help="memory in use above which it is hot (default: 90)",
    )
    add("--save-dir", default=".", metavar="DIRECTORY", help="where s saves (default: the working directory)")
    arguments.add_group(parser, "the readings", arguments.WATCHING)
    arguments.add_reading(parser)


def run(options: Namespace, out: Stdout) -> int:
    """Show readings until stopped."""
    if not Path(options.save_dir).is_dir():
        raise UsageError(f"--save-dir {options.save_dir!r} is no directory")
    with until_stopped() as stopped:
        with as_given(out):
            descriptor = os.dup(1) if capable(1) and (os.isatty(0) or ours(1)) else None  # keys are waited for, the screen is not
        if descriptor is None:
            _lines(options, out, stopped)
        else:
            View(options, out, descriptor, stopped).show()
    return 0


def _lines(options: Namespace, out: Stdout, stopped: Flag) -> None:
    from accelmetrics.exporters.console import line

    with _following(options) as (_, arrived):
        while not stopped.is_set():
            for snapshot in _news(arrived):
                out.write(line(snapshot) + "\n")
            wait(stopped, min(LOOK, options.interval))


@contextmanager
def _following(options: Namespace) -> Iterator[tuple[Monitor, queue.SimpleQueue[Snapshot]]]:
    """A monitor, and where its snapshots arrive."""
    arrived: queue.SimpleQueue[Snapshot] = queue.SimpleQueue()
    watching = monitor(options, [])
    watching.subscribe(arrived.put)
    with watching:
        yield watching, arrived


def _news(arrived: queue.SimpleQueue[Snapshot]) -> Iterator[Snapshot]:
    while not arrived.empty():
        yield arrived.get()


class View:
    """The live view.

    Args:
        options: Of the command.
        out: The terminal.
        descriptor: Its own.
        stopped: Set when it is to end.

    Raises:
        MissingDependencyError: What draws it is not installed.
    """

    def __init__(self, options: Namespace, out: Stdout, descriptor: int, stopped: Flag) -> None:
        from accelmetrics.cli.pictures import Painter
        from accelmetrics.exporters.device_table import Limits, Trail

        self._options = options
        self._out = out
        self._stopped = stopped
        self._painter = Painter(descriptor)
        self._limits: Limits = Limits(options.hot_temperature, options.hot_memory)
        self._trail = Trail()
        self._latest: Snapshot | None = None
        self._said = ""
        self._said_until = 0.0
        self._saved: list[str] = []
        self._changed = False
        self._suspend = False
        self._fatal: int | None = None
        self._descriptor = descriptor

    def show(self) -> None:
        """Draw until stopped."""
        self._show()
        from accelmetrics.cli.logs import announce

        for path in self._saved:
            announce("accelmetrics watch", f"saved {path}", f"saved {path}", {"path": path})
        if self._fatal is not None:
            os.kill(os.getpid(), self._fatal)

    def _show(self) -> None:
        with _following(self._options) as (watching, arrived):
            from accelmetrics.cli.logs import set_up
            from accelmetrics.cli.pictures import Kept

            kept = Kept(self._say)
            set_up(self._options.log_format, watching.labels, kept)
            try:
                with self._signals():
                    while not self._stopped.is_set():
                        self._until_suspended(watching, arrived)
            finally:
                set_up(self._options.log_format, watching.labels)
                kept.tell()

    def _until_suspended(self, watching: Monitor, arrived: queue.SimpleQueue[Snapshot]) -> None:
        from accelmetrics.cli.keys import Keyboard

        self._until_in_front(arrived)
        with ExitStack() as stack:
            keyboard = stack.enter_context(Keyboard())  # first: this is where a job in the background is stopped
            screen = stack.enter_context(Screen(self._out.write))
            self._changed = True
            while not self._interrupted:
                self._take(arrived)
                if self._changed:
                    self._changed = False
                    screen.draw(self._picture(watching, keyboard.there))
                self._obey(keyboard.pressed(LOOK))
                if self._said and time.monotonic() > self._said_until:
                    self._say("")
        if self._suspend:
            self._suspend = False
            _stop_as_asked()

    def _until_in_front(self, arrived: queue.SimpleQueue[Snapshot]) -> None:
        """Wait while another job has the screen; with keys we are stopped as soon as we want them."""
        while not (self._interrupted or os.isatty(0) or ours(self._descriptor)):
            self._take(arrived)
            wait(self._stopped, LOOK)

    @property
    def _interrupted(self) -> bool:
        return self._stopped.is_set() or self._suspend

    def _take(self, arrived: queue.SimpleQueue[Snapshot]) -> None:
        for snapshot in _news(arrived):
            self._latest = snapshot
            self._trail.add(snapshot)
            self._changed = True

    def _picture(self, watching: Monitor, keys: bool) -> str:
        size = self._painter.size
        from accelmetrics.cli.pictures import foot

        said = self._said or watching.error
        if self._latest is None:
            return self._painter.paint(["reading …", *foot(said, KEYS if keys else NO_KEYS, size, 1)], size)
        from accelmetrics.exporters.device_table import height, table

        below = foot(said, KEYS if keys else NO_KEYS, size, height(self._latest))
        drawn = table(
            self._latest,
            self._limits,
            self._trail,
            width=size.columns,
            rows=size.lines - len(below),
            process=self._options.pid is not None,
        )
        return self._painter.paint([drawn, *below], size)

    def _obey(self, keys: str) -> None:
        for key in keys:
            if key == "q":
                self._stopped.set()
            elif key == "s":
                self._save()
            elif key == "r":
                self._trail.clear()
                self._say("the history is empty")

    def _save(self) -> None:
        from accelmetrics.cli.files import WholeFile
        from accelmetrics.cli.output import WriteError

        if self._latest is None:
            self._say("nothing was read yet")
            return
        path = _free_name(Path(self._options.save_dir).absolute())
        try:
            WholeFile(str(path)).write(self._latest.to_json() + "\n")
        except WriteError as error:
            self._say(str(error))
        else:
            self._saved.append(str(path))
            self._say(f"saved {path}")

    def _say(self, text: str) -> None:
        self._said, self._said_until = text, time.monotonic() + SAID_SECONDS
        self._changed = True

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """While the block runs: a window of another size is drawn anew, Ctrl-Z and what ends us give the terminal back first."""

        def resized(number: int, frame: FrameType | None) -> None:
            del number, frame
            self._changed = True

        def suspended(number: int, frame: FrameType | None) -> None:
            del number, frame
            self._suspend = True

        def ended(number: int, frame: FrameType | None) -> None:
            del frame
            self._fatal = number
            signal.signal(number, signal.SIG_DFL)  # the second one does not wait
            self._stopped.set()

        before = {signal.SIGWINCH: signal.signal(signal.SIGWINCH, resized)}
        for fatal in FATAL:
            if signal.getsignal(fatal) == signal.SIG_DFL:
                before[fatal] = signal.signal(fatal, ended)
        if signal.getsignal(signal.SIGTSTP) != signal.SIG_IGN:
            before[signal.SIGTSTP] = signal.signal(signal.SIGTSTP, suspended)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _stop_as_asked() -> None:
    """Stop as Ctrl-Z stops any program; returns when it goes on."""
    handler = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTSTP)
    signal.signal(signal.SIGTSTP, handler)


def _free_name(directory: Path) -> Path:
    """A file that is not there yet, by the time of the day."""
    stem = f"accelmetrics-{datetime.now().astimezone():%Y%m%d-%H%M%S}"
    path, again = directory / f"{stem}.json", 1
    while path.exists():
        again += 1
        path = directory / f"{stem}-{again}.json"
    return path
