"""``accelmetrics watch``: every device live, in place; lines where there is no terminal, or rich is not installed."""

from __future__ import annotations

import logging
import os
import signal
import textwrap
import time
from argparse import Namespace
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from itertools import count
from pathlib import Path
from types import FrameType

from accelmetrics.cli import options as arguments
from accelmetrics.cli.monitoring import Stop, checked, console, handling, log, monitor, tell, tell_losses, until_stopped
from accelmetrics.cli.output import Stdout, WriteError, sink_of
from accelmetrics.cli.terminal import capable, in_foreground, keyboard, whole_screen
from accelmetrics.exporters.device_table import HotLimits, Trail, height, table
from accelmetrics.monitor import settings
from accelmetrics.monitor.monitor import Monitor
from accelmetrics.schemas.errors import MissingDependencyError, require
from accelmetrics.schemas.finding import Finding, Findings
from accelmetrics.schemas.snapshot import Snapshot
from accelmetrics.schemas.text import printable

LOOK = 0.1
"""Seconds between two looks at whether there is something new to draw."""
SAID_SECONDS = 10.0
"""For how long a message stays."""
KEPT = 100
"""Messages that wait until the terminal is free again; the oldest go."""
MOST_SAID = 3
"""Rows that a message may have."""
KEYS = ("q quit   s save   r reset history", "q quit  s save  r reset", "q quit s save r", "q quit")
NO_KEYS = ("Ctrl-C ends it", "Ctrl-C")
"""In as many words as there is room for."""
USUAL = os.terminal_size((80, 24))
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

Exit status: 0 when it was ended by q, Ctrl-C or SIGTERM; 1 when a line could not be printed; 2 for arguments that cannot be
used; 141 when the reader of its lines has gone."""
OPTIONS: arguments.Groups = {
    "": arguments.flags(settings.SCREEN),
    "the readings": arguments.watching("watch"),
    arguments.READ: arguments.READING,
}


def run(options: Namespace, out: Stdout) -> int:
    """Show readings until stopped."""
    if not Path(options.save_dir).is_dir():
        raise arguments.UsageError(f"--save-dir {options.save_dir!r} is no directory")
    descriptor = out.descriptor
    if descriptor is not None and not (capable(descriptor) and (os.isatty(0) or in_foreground(descriptor))):
        descriptor = None  # for keys a job in the background waits, for the screen it does not
    if descriptor is not None:
        try:
            require("rich", "rich")
        except MissingDependencyError as error:
            log.warning(f"no table: {error}")
            descriptor = None
    with until_stopped(*(() if descriptor is None else FATAL)) as stopped, checked(options):
        watching = monitor(options, [console(out, stopped)] if descriptor is None else [])
        with watching:
            if descriptor is not None:
                View(options, out, descriptor, stopped).show(watching)
            stopped.wait()
    return int(tell_losses(watching))


class View:
    """The live view.

    Args:
        options: Of the command.
        out: The terminal.
        descriptor: Its own.
        stopped: Asks for its end.

    Attributes:
        said: The message that is on the screen; empty for none.
    """

    def __init__(self, options: Namespace, out: Stdout, descriptor: int, stopped: Stop) -> None:
        from rich.console import Console

        self._options = options
        self._out = out
        self._descriptor = descriptor
        self._stopped = stopped
        self._console = Console(force_terminal=True, highlight=False, markup=False, emoji=False, legacy_windows=False)
        self._limits = HotLimits(options.hot_temperature, options.hot_memory)
        self._trail = Trail()
        self._latest: Snapshot | None = None
        self.said = ""
        self._said_until = 0.0
        self._saved: list[str] = []
        self._changed = False
        self._suspend = False

    def show(self, watching: Monitor) -> None:
        """Draw until stopped."""

        def noted(number: int, _frame: FrameType | None) -> None:
            self._changed = True
            self._suspend = self._suspend or number == signal.SIGTSTP

        with self.holding_messages(), handling(noted, signal.SIGWINCH, signal.SIGTSTP):
            while not self._stopped.signal:
                self._until_suspended(watching)
        for path in self._saved:
            tell(f"saved {path}", f"accelmetrics watch: saved {path}", data={"path": path})

    @contextmanager
    def holding_messages(self) -> Iterator[None]:
        """Show messages on the screen while the block runs, and write them to standard error afterwards; the oldest go."""
        (handler,) = log.handlers
        held: deque[logging.LogRecord] = deque(maxlen=KEPT)

        def hold(record: logging.LogRecord) -> bool:
            held.append(record)
            self._say(record.getMessage())
            return False

        handler.addFilter(hold)
        try:
            yield
        finally:
            handler.removeFilter(hold)
            while held:  # another thread may be adding its last one
                handler.handle(held.popleft())

    def _until_suspended(self, watching: Monitor) -> None:
        # While another job has the screen, wait; with keys this job is stopped as soon as it reads them.
        while not (self._interrupted or os.isatty(0) or in_foreground(self._descriptor)):
            self._take(watching.latest)
            self._stopped.wait(LOOK)
        with ExitStack() as stack:
            pressed = stack.enter_context(keyboard())  # first: this is where a job in the background is stopped
            draw = stack.enter_context(whole_screen(self._out.write))
            self._changed = True
            while not self._interrupted:
                self._take(watching.latest)
                if self._changed:
                    self._changed = False
                    draw(self._picture(watching.error, watching.findings, KEYS if os.isatty(0) else NO_KEYS))
                for key in pressed(min(LOOK, self._options.interval)):
                    if key == "q":
                        self._stopped.ask(signal.SIGINT)
                    elif key == "s" and self._latest is not None:
                        self._save(self._latest)
                    elif key == "r":
                        self._trail.clear()
                        self._say("the history is empty")
                if self.said and time.monotonic() > self._said_until:
                    self._say("")
        if self._suspend:
            self._suspend = False
            handler = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTSTP)  # as Ctrl-Z stops any program; it returns when the program goes on
            signal.signal(signal.SIGTSTP, handler)

    @property
    def _interrupted(self) -> bool:
        return self._stopped.signal > 0 or self._suspend

    def _take(self, latest: Snapshot | None) -> None:
        if latest is not None and latest is not self._latest:
            self._latest = latest
            self._trail.add(latest)
            self._changed = True

    def _picture(self, error: str, findings: Findings, keys: Sequence[str]) -> str:
        """Draw the table and what is below it, cut to the terminal's size as it is now."""
        size = USUAL
        with suppress(OSError):
            columns, lines = os.get_terminal_size(self._descriptor)
            size = os.terminal_size((columns or USUAL.columns, lines or USUAL.lines))
        wanted = 1 if self._latest is None else height(self._latest)
        spare = min(MOST_SAID, size.lines - wanted - 1)
        said = self.said or error or (found_words(findings, size.columns, spare) if spare > 0 else "")
        below = foot(said, keys, size, wanted)
        drawn: object = "reading …"
        if self._latest is not None:
            room, process = size.lines - len(below), self._options.pid is not None
            drawn = table(self._latest, self._limits, self._trail, width=size.columns, rows=room, process=process)
        with self._console.capture() as picture:
            for part in (drawn, *below):
                self._console.print(part, width=size.columns, overflow="ellipsis", no_wrap=True, crop=True)
        return "\n".join(picture.get().split("\n")[: size.lines])

    def _save(self, snapshot: Snapshot) -> None:
        stem = Path(self._options.save_dir).absolute() / f"accelmetrics-{datetime.now().astimezone():%Y%m%d-%H%M%S}"
        names = (f"{stem}-{number}.json" if number > 1 else f"{stem}.json" for number in count(1))
        path = next(name for name in names if not Path(name).exists())
        try:
            sink_of(path, self._out).write(snapshot.to_json() + "\n")
        except WriteError as error:
            self._say(str(error))
        else:
            self._saved.append(path)
            self._say(f"saved {path}")

    def _say(self, text: str) -> None:
        self.said, self._said_until = text, time.monotonic() + SAID_SECONDS
        self._changed = True


def found_words(findings: Findings, columns: int, rows: int) -> str:
    """Return what rules find now, in as many words as there is room for: the gravest first, each rule once; empty for nothing."""
    by_rule: dict[str, list[Finding]] = {}
    for finding in findings:
        by_rule.setdefault(finding.rule, []).append(finding)
    about = {rule: f"{rule} {', '.join(one.key or 'the run' for one in found)}" for rule, found in by_rule.items()}
    number = f"! {len(findings)} finding{'' if len(findings) == 1 else 's'}"
    whole = "; ".join(f"{about[rule]}: {printable(found[0].message)}" for rule, found in by_rule.items())
    forms = (f"{number}: {whole}", f"{number}: {'; '.join(about.values())}", f"{number}: {', '.join(about)}", number)
    fitting = (words for words in forms if len(textwrap.wrap(words, columns, break_on_hyphens=False)) <= rows)
    return next(fitting, "") if about else ""


def foot(said: str, keys: Sequence[str], size: os.terminal_size, wanted: int) -> list[str]:
    """Return the rows below the table: what was said, and the keys.

    Args:
        said: A message; empty: none, and an empty row where there is room for one.
        keys: The same in fewer and fewer words.
        size: Of the terminal.
        wanted: Rows that the table would take.
    """
    fitting = next((words for words in keys if len(words) <= size.columns), keys[-1])
    if not said and size.lines < wanted + 2:
        return [fitting]
    most = max(1, min(MOST_SAID, size.lines - wanted - 1))
    room = most * size.columns
    if len(said) > room:  # the middle is left out: at the end are a file's name and a reason
        said = f"{said[: room // 4]}…{said[room // 4 + 1 - room :]}"
    return [*(textwrap.wrap(said, size.columns, break_on_hyphens=False)[-most:] or [""]), fitting]
