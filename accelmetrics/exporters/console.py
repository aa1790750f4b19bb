"""Prints a line for every record: ``GPU Monitor - GPU0: 85%/76% | GPU1: 0%/3%`` (utilisation/memory in use).

Current findings follow: ``| ! 2 findings: hot gpu.0, hot gpu.1``. On a terminal, a table with a row per device and bars can be drawn in
place instead.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, TextIO, get_args

from accelmetrics.schemas.errors import InvalidOptionError, require
from accelmetrics.schemas.selection import ALL, MetricChoice, MetricSelection
from accelmetrics.schemas.text import bar, cells, celsius, clipped, counted, fixed, memory, percent, printable, watts
from accelmetrics.schemas.vitals import FULL_MEMORY, HOT, Vitals, processors, silent_sources, vitals

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live
    from rich.text import Text

    from accelmetrics.schemas.record import Finding, Record
    from accelmetrics.schemas.snapshot import Snapshot

Style = Literal["line", "table"]
STYLES = get_args(Style)
MOST_FINDINGS = 3
"""Maximum number of findings in a line; further ones are only counted."""
LINE = 80
"""Width of a line if the terminal's width is unknown."""


class ConsoleExporter:
    """Prints records to a stream.

    Args:
        style: ``line``: a line per record. ``table``: a table drawn in place on a terminal (extra ``rich``), otherwise lines.
        stderr: Print to standard error instead of standard output.
        stream: Stream to print to, instead of a standard stream.
        metrics: Metrics to print: see :class:`~accelmetrics.schemas.selection.MetricSelection`.

    Attributes:
        stderr: Whether it prints to standard error.
        stream: Stream to print to; None for a standard stream. Set it before ``open``.

    Raises:
        InvalidOptionError: The style is unknown.
        MissingDependencyError: The table needs a package that is not installed.
    """

    name = "console"

    def __init__(self, style: Style = "line", *, stderr: bool = False, stream: TextIO | None = None, metrics: MetricChoice = ALL) -> None:
        self._style = style
        self.stderr = stderr
        self.stream = stream
        self._live: Any = None
        self._table: RenderableType | None = None
        self._above: dict[str, StreamAbove] = {}  # by name in ``sys``
        # Rich reads where the last picture began before it writes the next one: two threads that write at once overwrite lines.
        # A signal handler that prints may interrupt a ``write``, so the lock is reentrant.
        self._lock = threading.RLock()
        self.metrics = MetricSelection(metrics)
        if style not in STYLES:
            raise InvalidOptionError(f"style is {style!r}: it must be one of {', '.join(STYLES)}")
        if style == "table":
            require("rich", "rich")

    def open(self) -> None:
        """Start the table, if the stream is a terminal."""
        stream = self._stream()
        if self._style == "table" and stream is not None and stream.isatty():
            from rich.console import Console
            from rich.live import Live

            # Rich's own streams would print each state of a progress bar on a line above the table.
            self._live = live = Live(
                console=Console(file=stream), get_renderable=self._picture, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
            )
            live.start()
            for name in ("stdout", "stderr"):
                before = getattr(sys, name)
                if before is not None and before.isatty():
                    self._above[name] = StreamAbove(before, live, self._lock)
                    setattr(sys, name, self._above[name])

    def export(self, record: Record) -> None:
        """Print a record, or draw the table for it."""
        stream = self._stream()
        if stream is None:  # a program without a console
            return
        if self._live is not None:
            with self._lock:
                self._table = table(record.snapshot, width=self._live.console.width)
                self._live.refresh()
            return
        print(begin_line(stream) + line(record.snapshot, list(record.findings), columns_of(stream) or LINE), file=stream, flush=True)

    def flush(self) -> None:
        """Do nothing: every record is printed when it is exported."""

    def close(self) -> None:
        """Stop drawing. The last table remains on the terminal."""
        if self._live is not None:
            for name, above in self._above.items():
                if getattr(sys, name) is above:
                    setattr(sys, name, above.stream)
            with self._lock:
                self._live.stop()
            self._live = None
            self._above.clear()

    def _picture(self) -> RenderableType:
        """Return the table, after the program's unfinished lines."""
        from rich.console import Group

        begun = [line for above in self._above.values() if (line := above.begun) is not None]
        return Group(*begun, *([] if self._table is None else [self._table]))

    def _stream(self) -> TextIO | None:
        if self.stream is not None:
            return self.stream
        return sys.stderr if self.stderr else sys.stdout


class StreamAbove:
    """Replaces a standard stream of the program while a table is drawn, so that lines and progress bars appear above the table.

    Args:
        stream: The replaced stream. All calls except writing are passed on to it.
        live: The table on the terminal.
        lock: Held by whoever draws or prints on that terminal.

    Attributes:
        stream: The replaced stream.
    """

    def __init__(self, stream: TextIO, live: Live, lock: threading.RLock) -> None:
        self.stream, self._live, self._lock, self._pid = stream, live, lock, os.getpid()
        self._line = ""  # the unfinished line; a carriage return at its end means that later text overwrites it

    def write(self, text: str) -> int:
        """Print complete lines above the table, and keep an unfinished line until it ends."""
        if os.getpid() != self._pid:  # in the child of a fork, where a thread that does not exist may hold the locks
            return self.stream.write(text)
        with self._lock:
            *lines, rest = (self._line + text).split("\n")
            self._line = rest.rstrip("\r").rpartition("\r")[2] + "\r" * rest.endswith("\r")
            for line in lines:
                self._live.console.print(_shown(line))
        return len(text)

    @property
    def begun(self) -> Text | None:
        """The unfinished line; None if there is none."""
        return _shown(self._line, no_wrap=True) if self._line else None

    def flush(self) -> None:
        """Draw the unfinished line."""
        if os.getpid() != self._pid:
            self.stream.flush()
        else:
            with self._lock:
                self._live.refresh()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def _shown(line: str, no_wrap: bool = False) -> Text:
    """Return a line as a terminal shows it: text after a carriage return overwrites the line. One at the end changes nothing."""
    from rich.text import Text

    return Text.from_ansi(line.rstrip("\r"), no_wrap=no_wrap)


def begin_line(stream: TextIO) -> str:
    """Return the text that moves a terminal to the beginning of an empty line; empty if the stream is no terminal."""
    # Spaces for a whole line reach the right edge if the line is empty. If a progress bar is on it, they continue on the next line.
    columns = columns_of(stream)
    return f"{' ' * columns}\r\x1b[K" if columns else ""


def columns_of(stream: TextIO) -> int:
    """Return the width of the terminal that a stream writes to; 0 if it is no terminal, or one without cursor movement."""
    # Serial lines and some containers report 0 columns. These count as terminals of usual width.
    if not stream.isatty() or os.environ.get("TERM", "dumb") in ("", "dumb", "unknown"):
        return 0
    try:
        return os.get_terminal_size(stream.fileno()).columns or LINE
    except (OSError, ValueError):  # an object that only claims to be a terminal
        return 0


def line(snapshot: Snapshot, findings: Sequence[Finding] = (), width: int = LINE) -> str:
    """Format a snapshot as one line: its whole devices (or the host if there is none), silent sources and current findings.

    If the line is too wide, devices are abbreviated, then shown as ranges; then findings are only counted.
    """
    silent = "".join(f" | {status.name}: {status.status}" for status in silent_sources(snapshot))
    names = [f"{finding.rule} {finding.key}".rstrip() for finding in findings]
    more = f", and {len(names) - MOST_FINDINGS} more" if len(names) > MOST_FINDINGS else ""
    found = f"{silent} | ! {counted(len(names), 'finding')}" if names else silent
    ends = (f"{found}: {', '.join(names[:MOST_FINDINGS])}{more}", found) if names else (silent,)
    text = ""
    for end in ends:
        for devices in _shapes(snapshot):
            text = devices + end
            if cells(text) <= width:
                return text
    return clipped(text, width)


def _shapes(snapshot: Snapshot) -> Iterator[str]:
    """Yield texts of decreasing length for the devices of a snapshot, or for the host if there is none."""
    devices = [one for one in vitals(snapshot) if one.whole]
    if not devices:
        metrics = snapshot.metrics
        yield f"Host Monitor - CPU {_percent(processors(metrics))} | memory {_percent(metrics.get('memory_percent'))}"
        return
    kinds = "/".join(dict.fromkeys(one.key.partition(".")[0].upper() for one in devices))
    yield f"{kinds} Monitor - " + " | ".join(
        f"{one.label}: {one.why or f'{_percent(one.utilization)}/{_percent(one.memory_percent)}'}" for one in devices
    )
    yield f"{kinds} %: " + " ".join(
        f"{one.key.partition('.')[2]}:{one.why or f'{_whole(one.utilization)}/{_whole(one.memory_percent)}'}" for one in devices
    )
    ranges = [f"{counted(len(devices), kinds)}"]
    for word, values in (("util", [one.utilization for one in devices]), ("memory", [one.memory_percent for one in devices])):
        known = [value for value in values if value is not None]
        if known:
            ranges.append(f"{word} {_percent(sum(known) / len(known))} ({_whole(min(known))} to {_whole(max(known))})")
    reasons = Counter(one.why for one in devices if one.why)
    yield ", ".join((*ranges, *(f"{number} {why}" for why, number in reasons.items())))


def _whole(value: float | None) -> str:
    return "-" if value is None else fixed(value)


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{fixed(value)}%"


# A table of the devices: a row for each, with bars, and a line for the host

WIDE = 200
"""Default width of the table, in characters."""
SPACE = 2
"""Number of characters between two columns."""
SHAPES: tuple[tuple[int, bool, tuple[str, ...]], ...] = (
    (10, True, ()),
    (6, True, ()),
    (6, True, ("Name",)),
    (4, False, ("Name",)),
    (0, False, ("Name",)),
    (0, False, ("Name", "Power")),
    (0, False, ("Name", "Power", "Temp")),
    (0, False, ("Name", "Power", "Temp", "Memory")),
)
"""Width of bars, whether memory is also shown as an amount, and columns that are left out. The first shape that fits is used."""


def table(snapshot: Snapshot, width: int = WIDE) -> RenderableType:
    """Return a snapshot as a renderable of rich that fits into ``width`` characters."""
    from rich.console import Group
    from rich.text import Text

    devices, silent = vitals(snapshot), silent_sources(snapshot)
    host, moment = printable(snapshot.hostname), f"{snapshot.timestamp[:19]}Z"
    clock = moment.partition("T")[2]
    heading = next((text for text in (f"{host}  {moment}", f"{host}  {clock}", clock) if cells(text) <= width), "")
    parts: list[RenderableType] = [Text(heading, style="bold", no_wrap=True, overflow="crop")]
    parts += [_drawn(devices, width)] if devices else []
    parts += [Text(f"{status.name}  {status.status}: {status.detail}", "red", no_wrap=True, overflow="ellipsis") for status in silent]
    parts += [] if devices or silent else [Text("no device was found")]
    return Group(*parts, Text(host_line(snapshot, width), no_wrap=True, overflow="ellipsis"))


def _drawn(devices: Sequence[Vitals], width: int) -> RenderableType:
    """Return the table of the devices in the first shape that fits."""
    from rich.table import Table
    from rich.text import Text

    for columns, amount, left_out in SHAPES:
        rows = [_cells(one, columns, amount, left_out) for one in devices]
        needed = sum(SPACE + max(len(heading), *(row[heading].cell_len for row in rows)) for heading in rows[0])
        if needed - SPACE <= width:  # no space is needed after the last column
            break
    else:
        return Text("too narrow", no_wrap=True, overflow="ellipsis")
    grid = Table(*rows[0], box=None, padding=(0, SPACE, 0, 0), pad_edge=False, header_style="bold")
    for column in grid.columns:
        column.no_wrap = True
    for row in rows:
        grid.add_row(*row.values())
    return grid


def _cells(one: Vitals, columns: int, amount: bool, left_out: Collection[str]) -> dict[str, Text]:
    """Return the cells of a device's row by heading. A device without values shows the reason."""
    from rich.text import Text

    memory_text = _bar(one.memory_percent, columns)
    if one.memory_used is not None and (amount or one.memory_percent is None):
        used = memory(one.memory_used, one.memory_total)
        memory_text = used if one.memory_percent is None else f"{memory_text} {used}"
    cells = {
        "Device": Text(one.label),
        "Name": Text(one.short_name),
        "Util": Text(_bar(one.utilization, columns)),
        "Memory": Text(memory_text, "bold red" if (one.memory_percent or 0) > FULL_MEMORY else ""),
        "Power": Text("-" if one.power is None else watts(one.power, one.power_limit)),
        "Temp": Text("-" if one.temperature is None else celsius(one.temperature), "bold red" if (one.temperature or 0) > HOT else ""),
    }
    if one.why:
        cells.update({"Util": Text(one.why, "red"), "Memory": Text(), "Power": Text(), "Temp": Text()})
    return {heading: cell for heading, cell in cells.items() if heading not in left_out}


def host_line(snapshot: Snapshot, width: int = WIDE) -> str:
    """Return a line with the use of the host's processors and memory and of the watched process, as far as it fits."""
    metrics = snapshot.metrics
    parts = [
        ("cpu", processors(metrics), " %"),
        ("memory", metrics.get("memory_percent"), " %"),
        ("process cpu", metrics.get("cpu"), " %"),
        ("process memory", metrics.get("proc.memory.rssMB"), " MiB"),
    ]
    line = "host"
    for text in [f"  {label} {fixed(value)}{unit}" for label, value, unit in parts if value is not None]:
        if len(line) + len(text) > width:
            break
        line += text
    return line


def _bar(share: float | None, columns: int) -> str:
    return "-" if share is None else bar(share, columns) + " " * bool(columns) + f"{percent(share):>5}"
