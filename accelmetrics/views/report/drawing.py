"""Pictures of a report's plots, drawn by matplotlib: SVG and PNG files, and the static pictures of a page."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from io import BytesIO
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from accelmetrics.exporters.files import replace_file
from accelmetrics.schemas.errors import AccelMetricsError, MissingDependencyError, require
from accelmetrics.schemas.record import Finding
from accelmetrics.schemas.text import clipped, printable
from accelmetrics.views.report.plots import (
    ALIGNED,
    TITLES,
    Histogram,
    MeasureSpread,
    Pictures,
    Plot,
    PlotLine,
    Span,
    aligned,
    lacking,
    lasting,
    moment,
    plain,
    shown_unit,
    time_ticks,
)
from accelmetrics.views.report.run_report import Column, Mark, ReducedSeries

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PALETTE = ("#16191d", "#0072b2", "#b87a00", "#00805d", "#d55e00", "#3a97cf", "#b35c93", "#7b8591")
"""Colours of Okabe and Ito. Colours that are pale on white are darkened to a contrast of 3:1."""
FOUND = "#a3003d"
"""Colour of findings. No device has it."""
KINDS = {"throttle": "#d55e00", "silence": "#7b8591", "gap": "#7b8591", "event": "#16191d", "finding": FOUND}
GRID, SHADE = "#e3e6ea", "#eef1f4"
WIDTH, HEIGHT, ROW, FRAME = 7.2, 2.4, 0.18, 0.7
"""Inches: width and height of a picture, height of a row, and margins above and below rows."""
NARROW, QUARTER, LOW_ROW = 4.2, 3.2, 0.14
"""Inches on a page: width of a picture in one of three and of four columns, and the height of a row in the latter."""
DPI, PAGE_DPI = 200, 130
"""PNG resolution of files, and of the pictures in a page, where all of them add to its size."""
LETTERS = 110.0
"""Approximate number of letters that fit into the width of a picture."""
MOST_LETTERS = 28
"""Largest number of letters of a row's name."""
LOOK: Any = {
    "font.family": ["DejaVu Sans"],
    "font.size": 8,
    "axes.edgecolor": GRID,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 9,
    "axes.titleweight": "bold",
    "grid.color": GRID,
    "lines.linewidth": 1.1,
    "lines.markersize": 3,
    "xtick.color": "#16191d",
    "ytick.color": "#16191d",
    # The names of hosts and of logged numbers may hold a dollar: it begins no formula.
    "text.parse_math": False,
    # The same plot gives the same bytes, and its texts are texts.
    "svg.hashsalt": "accelmetrics",
    "svg.fonttype": "none",
}


Draw = Callable[[], "Figure"]


def check_installed() -> None:
    """Check that matplotlib is installed.

    Raises:
        MissingDependencyError: matplotlib is not installed.
    """
    require("matplotlib", "plots")


def is_installed() -> bool:
    """Return whether pictures can be drawn."""
    try:
        check_installed()
    except MissingDependencyError:
        return False
    return True


def render(draw: Draw, kind: Literal["svg", "png"], title: str = "", dpi: int = DPI) -> bytes:
    """Return the content of a picture file."""
    import matplotlib

    held = BytesIO()
    # matplotlib warns of each letter that its font lacks, of which a name may hold any: the picture has a box in its place.
    with matplotlib.rc_context(LOOK), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        metadata = {"Title": printable(title), "Creator": None, "Date": None} if kind == "svg" else {"Software": None}
        draw().savefig(held, format=kind, dpi=dpi, metadata=metadata)
    return held.getvalue()


def pictures(found: Pictures) -> Iterator[tuple[str, str, Draw]]:
    """Yield all pictures of a report: file name without suffix, title, and drawing function."""
    span = (found.begin, found.end)
    for plot in found.plots:
        yield plot.name, plot.title, partial(draw_plot, plot, found.marks, span)
    if found.strip:
        yield "strip", "Throttling, gaps and events", partial(draw_strip, found.strip, found.axis, span)
    for plot in found.logged:
        yield plot.name, plot.title, partial(draw_logged, plot, found)
    for histogram in found.step_times:
        yield histogram[0], histogram[1], partial(draw_histogram, histogram)
    for spread in found.distributions:
        yield spread.name, f"{spread.title}: distribution", partial(draw_spread, spread)


def write_pictures(found: Pictures, folder: Path, png: bool = False) -> list[tuple[str, Path]]:
    """Write all pictures of a report. Each file is replaced atomically.

    Args:
        found: The plots.
        folder: The folder; created if it does not exist.
        png: Whether to write PNG files in addition to SVG.

    Returns:
        Titles and files in the order to show them; PNG files if there are any.

    Raises:
        MissingDependencyError: matplotlib is not installed.
        AccelMetricsError: Something cannot be written.
    """
    check_installed()
    kinds: tuple[Literal["svg", "png"], ...] = ("svg", "png") if png else ("svg",)
    written = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, title, draw in pictures(found):
            for kind in kinds:
                replace_file(folder / f"{name}.{kind}", render(draw, kind, title))
            written.append((title, folder / f"{name}.{kinds[-1]}"))
    except OSError as error:
        raise AccelMetricsError(f"cannot write pictures to {folder}: {error.strerror or error}") from error
    return written


def markdown_pictures(written: Sequence[tuple[str, Path]]) -> str:
    """Return a Markdown section with the pictures, with paths relative to the current directory."""
    parts = ["", "## Pictures", ""]
    for title, path in written:
        words = "".join(f"\\{letter}" if letter in "\\[]()!<>*_`" else letter for letter in title)
        parts.append(f"![{words}](<{path.as_posix().replace('<', '%3C').replace('>', '%3E')}>)")
    return "\n".join(parts) + "\n"


def draw_plot(plot: Plot, marks: Sequence[Mark] = (), span: tuple[float, float] | None = None) -> Figure:
    """Draw lines, each as its mean within a band from the lowest to the highest value.

    Args:
        plot: The plot.
        marks: Marks on the axis. Findings are drawn only if they concern this plot.
        span: Begin and end of the axis; those of the lines by default.
    """
    places = [place for line in plot.lines for place in (line.x[0], line.x[-1])] or [0.0]
    several = len(plot.lines) > 1 or any(line.label.startswith("median") for line in plot.lines)
    columns = max(1, int(LETTERS / (8 + max((len(line.label[:40]) for line in plot.lines), default=1)))) if several else 1
    figure, axes = _axes(plot.heading, (HEIGHT + 0.17 * -(-len(plot.lines) // columns) * several))
    _across(axes, plot.axis, *(span or (min(places), max(places))))
    _shade(axes, marks)
    for line in plot.lines:
        _draw_line(axes, line)
    values = [value for line in plot.lines for column in (line.low, line.high) for value in column if value is not None]
    lowest, highest = min(values, default=0.0), max([*values, plot.top] if plot.top else values, default=1.0)
    bottom = min(lowest, 0.0) if lowest < highest / 2 or plot.top or plot.from_zero else None
    room = 0.06 * ((highest - (lowest if bottom is None else bottom)) or abs(highest) or 1.0)
    axes.set_ylim(lowest - room if bottom is None else bottom - room * (bottom < 0), highest + room)
    left, right = axes.get_xlim()
    for mark in marks:  # a bar at the upper edge for each finding, and a line where it begins
        if mark.kind == "finding" and plot.name in mark.plots:
            axes.axvspan(mark.begin, max(mark.end, mark.begin + (right - left) / 300), 0.98, 1.0, color=FOUND)
            axes.axvline(mark.begin, color=FOUND, linewidth=1, linestyle=":")
    if several:
        figure.legend(loc="outside lower left", ncols=columns, frameon=False)
    return figure


def draw_logged(plot: Plot, found: Pictures) -> Figure:
    """Draw a logged number, over the program's steps if they are known, else over time."""
    if found.axis not in ALIGNED and not lacking(found, "step"):
        by_step = next((one for one in aligned(found, "step").logged if one.name == plot.name), None)
        if by_step is not None:
            return draw_plot(by_step)
    return draw_plot(plot, found.marks, (found.begin, found.end))


def draw_strip(rows: Sequence[tuple[str, str, Sequence[Span]]], axis: str, span: tuple[float, float]) -> Figure:
    """Draw the rows of the strip over time. A larger share is darker."""
    figure, axes = _axes("Throttling, gaps and events", FRAME + ROW * len(rows))
    _across(axes, axis, *span)
    for position, (_, kind, spans) in enumerate(rows):
        for begin, end, share, _ in spans:
            axes.barh(
                position, max(end - begin, (span[1] - span[0]) / 500), 0.7, begin, color=KINDS[kind], alpha=0.25 + 0.75 * share, linewidth=0
            )
    _name_rows(axes, [label for label, _, _ in rows])
    return figure


def draw_histogram(histogram: Histogram, page: bool = False) -> Figure:
    """Draw a histogram; on a page without the title, which is in the page's text."""
    from matplotlib.ticker import MaxNLocator

    _, title, edges, counts = histogram
    figure, axes = _axes("" if page else f"{title}, s", HEIGHT, NARROW if page else WIDTH)
    axes.stairs(counts, edges, fill=True, color=PALETTE[1])
    axes.xaxis.set_major_formatter(lambda value, _: plain(value))
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    return figure


def draw_spread(spread: MeasureSpread, page: bool = False) -> Figure:
    """Draw distributions: a line from lowest to highest, a bar from the median to p99, marks at p95 and the mean.

    On a page, title and legend are in the page's text.
    """
    factor = spread.factor
    figure, axes = _axes(
        "" if page else spread.heading,
        (FRAME + (LOW_ROW * len(spread.rows) if page else ROW * (len(spread.rows) + 1))),
        QUARTER if page else WIDTH,
    )
    for position, (_, held) in enumerate(spread.rows):
        marks: list[Any] = [
            axes.hlines(position, held.min / factor, held.max / factor, color=PALETTE[7], linewidth=1),
            axes.barh(position, (held.p99 - held.p50) / factor, 0.55, held.p50 / factor, color=PALETTE[1], alpha=0.45),
            axes.vlines(held.p95 / factor, position - 0.28, position + 0.28, color=PALETTE[1], linewidth=2),
            *axes.plot(held.mean / factor, position, "o", color=PALETTE[4]),
        ]
        if not page and not position:
            words = ("least to largest", "median to p99", "p95", "mean over time")
            figure.legend(marks, words, loc="outside lower left", ncols=len(words), frameon=False)
    least, most = min(0.0, *(held.min / factor for _, held in spread.rows)), max(held.max / factor for _, held in spread.rows)
    axes.set_xlim(least, most + 0.03 * ((most - least) or 1.0))
    axes.xaxis.set_major_formatter(lambda value, _: plain(value))
    _name_rows(axes, [label for label, _ in spread.rows])
    return figure


def draw_detail(series: ReducedSeries, times: Sequence[float], values: Column, finding: Finding) -> Figure:
    """Draw the original readings of a metric around a finding."""
    unit, factor = shown_unit(series.unit, max((value for value in values if value is not None), default=0.0))
    column = [None if value is None else value / factor for value in values]
    until = times[-1] if finding.until_ns is None else finding.until_ns / 1e9
    title = f"{series.device} {TITLES.get(series.measure or series.name, series.name)}"
    plot = Plot("detail", title, unit, "time", (PlotLine(series.device, 1, False, times, column, column, column),))
    return draw_plot(plot, [Mark("finding", finding.rule, finding.since_ns / 1e9, until, finding.severity, ("detail",))])


def _axes(title: str, height: float, width: float = WIDTH) -> tuple[Figure, Axes]:
    from matplotlib.figure import Figure

    figure = Figure((width, height), layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(clipped(printable(title), int(LETTERS)))
    axes.tick_params(length=0)
    axes.yaxis.set_major_formatter(lambda value, _: plain(value))
    return figure, axes


def _across(axes: Axes, axis: str, begin: float, end: float) -> None:
    """Label the horizontal axis: times in UTC, time since the first step, or steps."""
    end = end if end > begin else begin + 1.0
    if axis in {"time", "seconds"}:
        places = time_ticks(begin, end)
        axes.set_xticks(places, [moment(at, places) if axis == "time" else lasting(at, places) for at in places])
    else:
        axes.xaxis.set_major_formatter(lambda value, _: plain(value))
    axes.set_xlim(begin, end)
    axes.set_title({"time": "UTC", "seconds": "since the first step"}.get(axis, axis), loc="right", fontsize=8, fontweight="normal")


def _shade(axes: Axes, marks: Sequence[Mark]) -> None:
    """Shade gaps and every second epoch and window behind the lines, with names if there is room."""
    left, right = axes.get_xlim()
    named = [mark for mark in marks if mark.kind in {"window", "epoch"} and mark.begin < right and mark.end > left]
    for position, mark in enumerate(named):
        begin, end = max(mark.begin, left), min(mark.end, right)
        if position % 2 == 0:
            axes.axvspan(begin, end, color=SHADE, zorder=0)
        room = int((end - begin) / (right - left) * LETTERS)
        if room >= 4:
            name = f" {clipped(printable(mark.label), room)}"
            axes.text(begin, 0.99, name, transform=axes.get_xaxis_transform(), va="top", fontsize=7, color="#59616b")
    for mark in marks:
        if mark.kind == "gap":
            axes.axvspan(mark.begin, mark.end, color="#d3d8de", alpha=0.7, zorder=0.5)


def _draw_line(axes: Axes, line: PlotLine) -> None:
    """Draw a band and the mean over it, interrupted by missing values. A value without neighbours is a dot."""
    low, mean, high = ([nan if value is None else value for value in column] for column in (line.low, line.mean, line.high))
    color = PALETTE[line.color]
    if line.low != line.high:
        axes.fill_between(line.x, low, high, color=color, alpha=0.16, linewidth=0)
    around = [None, *line.mean, None]
    lonely = [place for place in range(len(mean)) if around[place] is None and around[place + 2] is None]
    axes.plot(line.x, mean, "--" if line.dashed else "-", color=color, label=clipped(printable(line.label), 40))
    axes.plot([line.x[place] for place in lonely], [mean[place] for place in lonely], "o", color=color)


def _name_rows(axes: Axes, labels: Sequence[str]) -> None:
    axes.set_yticks(range(len(labels)), [clipped(printable(label), MOST_LETTERS) for label in labels])
    axes.set_ylim(len(labels) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")
