"""A line for every record, for people: ``GPU Monitor - GPU0: 85.2%/76.3% | GPU1: 0.0%/2.5%`` (utilisation/memory in use).

What rules find stands behind it while it lasts: ``| ! 2 findings: hot gpu.0, hot gpu.1``.
On a terminal it can be a table instead that is drawn in place; elsewhere a record is one line.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Literal, TextIO, get_args

from accelmetrics.schemas.errors import InvalidOptionError, require
from accelmetrics.schemas.selection import ALL, MetricChoice, MetricSelection
from accelmetrics.schemas.text import counted
from accelmetrics.schemas.vitals import processors, silent_sources, vitals

if TYPE_CHECKING:
    from accelmetrics.schemas.finding import Findings
    from accelmetrics.schemas.record import Record
    from accelmetrics.schemas.snapshot import Snapshot

Style = Literal["line", "table"]
STYLES = get_args(Style)
MOST_FINDINGS = 3
"""Findings that a line names; the others are counted."""


class ConsoleExporter:
    """Prints records.

    Args:
        style: ``line``: a line each. ``table``: a table drawn in place on a terminal (extra ``rich``), lines elsewhere.
        stderr: Print to standard error instead of standard output.
        stream: Where to print, instead of either.
        metrics: Which metrics the records that it is given have: see :class:`~accelmetrics.schemas.selection.MetricSelection`.

    Attributes:
        stderr: Whether it prints to standard error.
        stream: Where it prints instead; None for neither but the standard streams. To be set before it is opened.

    Raises:
        InvalidOptionError: There is no such style.
        MissingDependencyError: The table needs a package that is not installed.
    """

    name = "console"

    def __init__(self, style: Style = "line", *, stderr: bool = False, stream: TextIO | None = None, metrics: MetricChoice = ALL) -> None:
        self._style = style
        self.stderr = stderr
        self.stream = stream
        self._live: Any = None
        self.metrics = MetricSelection(metrics)
        if style not in STYLES:
            raise InvalidOptionError(f"style is {style!r}: it must be one of {', '.join(STYLES)}")
        if style == "table":
            require("rich", "rich")

    def open(self) -> None:
        """Begin to draw, where there is something to draw on."""
        stream = self._stream()
        if self._style == "table" and stream is not None and stream.isatty():
            from rich.console import Console
            from rich.live import Live

            self._live = Live(console=Console(file=stream), auto_refresh=False, transient=False)
            self._live.start()

    def export(self, record: Record) -> None:
        """Print one."""
        stream = self._stream()
        if stream is None:  # a program without a console
            return
        if self._live is not None:
            from accelmetrics.exporters.device_table import table

            self._live.update(table(record.snapshot, width=self._live.console.width), refresh=True)
            return
        print(line(record.snapshot) + _found(record.findings), file=stream, flush=True)

    def flush(self) -> None:
        """Return at once: every record is printed when it comes."""

    def close(self) -> None:
        """Leave the table as it stands."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _stream(self) -> TextIO | None:
        if self.stream is not None:
            return self.stream
        return sys.stderr if self.stderr else sys.stdout


def line(snapshot: Snapshot) -> str:
    """Format a snapshot as one line: its whole devices, or the host where there is none; and the sources that do not answer."""
    silent = "".join(f" | {status.name}: {status.status}" for status in silent_sources(snapshot))
    devices = [one for one in vitals(snapshot) if one.whole]
    if devices:
        kinds = "/".join(dict.fromkeys(one.key.partition(".")[0].upper() for one in devices))
        told = (one.why or f"{_percent(one.utilization)}/{_percent(one.memory_percent)}" for one in devices)
        return f"{kinds} Monitor - " + " | ".join(f"{one.label}: {words}" for one, words in zip(devices, told, strict=True)) + silent
    metrics = snapshot.metrics
    return f"Host Monitor - CPU {_percent(processors(metrics))} | memory {_percent(metrics.get('memory_percent'))}{silent}"


def _found(findings: Findings) -> str:
    """Format what lasts, the gravest first."""
    names = [f"{finding.rule} {finding.key}".rstrip() for finding in findings]
    if not names:
        return ""
    more = f", and {len(names) - MOST_FINDINGS} more" if len(names) > MOST_FINDINGS else ""
    return f" | ! {counted(len(names), 'finding')}: {', '.join(names[:MOST_FINDINGS])}{more}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}%"
