"""``accelmetrics report``: the results of recordings, by device, over all given files. Gaps in the recordings are excluded."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError, Namespace
from math import inf
from pathlib import Path

from accelmetrics.cli import options as arguments
from accelmetrics.cli.output import Stdout, check_target, folder_for, say, writing_to
from accelmetrics.monitor import settings
from accelmetrics.schemas.errors import AccelMetricsError
from accelmetrics.schemas.selection import ALL, MetricSelection
from accelmetrics.views.report import texts
from accelmetrics.views.report.comparison import Comparison, compare
from accelmetrics.views.report.making import CHARTED, Wanted, report_of_files
from accelmetrics.views.report.run_report import Price, RunReport
from accelmetrics.views.summaries import as_json

EXAMPLES = """\
  accelmetrics report run.jsonl
      a table of every device
  accelmetrics report run.jsonl --html run.html
      a page with plots, which opens from disk
  accelmetrics report run.jsonl --format markdown > RUN.md
      for a pull request or a report
  accelmetrics report run.jsonl --format markdown --plots plots > RUN.md
      the same with pictures
  accelmetrics report node-*.jsonl --format json
      several hosts together
  accelmetrics report run.jsonl --by epoch --price 0.30EUR
      a row for each epoch, with its cost
  accelmetrics report run.jsonl --price 2.5USD/h
      the cost of renting the devices by the hour
  accelmetrics report old.jsonl --compare new.jsonl
      two runs, with the uncertainty of their differences
  accelmetrics report run.jsonl --shape gpu-stats
      flat statistics of each GPU, as JSON

Recordings are files of the jsonl exporter and of `accelmetrics dump
--interval`. Rotated and compressed files of the same name are read too. Their
order does not matter, and duplicates count once. Means are weighted by time.
More than three usual intervals without a reading, or a clock set back, is a
gap, and nothing is computed across it. With --html or --plots nothing is
printed without --format.

Exit status: 0; 1 if a file cannot be read or is not a recording; 2 for invalid
arguments."""


def price(text: str) -> Price:
    """Parse the price of a kilowatt-hour (``0.30``, ``0.30EUR``, ``0.30 EUR/kWh``) or of a device's hour (``2.5USD/h``).

    Raises:
        ArgumentTypeError: The text has none of these forms.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([^\W\d_]{1,8}|[^\w\s.,/]?)\s*(?:/\s*(kWh|h))?", text.strip(), re.IGNORECASE)
    if found is None:
        raise ArgumentTypeError(f"{text!r} is not a price: write 0.30 or 0.30EUR for a kilowatt-hour, 2.5USD/h for an hour of a device")
    return Price(float(found[1]), found[2], per_hour=(found[3] or "").lower() == "h")


def carbon(text: str) -> float:
    """Parse grams of CO2 equivalent per kilowatt-hour.

    Raises:
        ArgumentTypeError: The text is no number of at least 0.
    """
    try:
        grams = float(text)
    except ValueError:
        grams = -1.0
    if not 0 <= grams < inf:
        raise ArgumentTypeError(f"{text!r} is not a number of grams: write 380 for 380 g per kilowatt-hour")
    return grams


OPTIONS: arguments.Groups = {
    "": {
        "files": {"nargs": "+", "type": settings.path.parse, "metavar": "FILE", "help": "recordings"},
        "--format": {"choices": ("text", "json", "markdown"), "help": "output format (default: text)"},
        "--html": {"metavar": "FILE", "help": "write a page with plots and tables to this file; it opens from disk"},
        "--plots": {"metavar": "DIR", "help": "write a picture of each plot to this directory, as SVG (needs the extra plots)"},
        "--png": {"action": "store_true", "help": "with --plots: also as PNG"},
        **arguments.only("--metrics"),
        "--by": {"metavar": "NAME", "help": "a row for each epoch, window, or value of any number that the program logged"},
        "--compare": {"nargs": "+", "type": settings.path.parse, "metavar": "FILE", "help": "recordings of another run to compare with"},
        "--align": {
            "choices": ("time", "step", "epoch"),
            "help": "with --html or --plots: draw over time, the program's steps or its epochs (default: time)",
        },
        "--price": {
            "type": price,
            "action": "append",
            "metavar": "PRICE",
            "help": "price of a kilowatt-hour: 0.30 or 0.30EUR; a second one for an hour of a device: 2.5USD/h",
        },
        "--carbon": {"type": carbon, "metavar": "GRAMS", "help": "grams of CO2 equivalent emitted per kilowatt-hour"},
        "--shape": {"choices": ("summary", "gpu-stats"), "default": "summary", "help": "content of the JSON (default: summary)"},
    },
}


def run(options: Namespace, out: Stdout) -> int:
    """Read the recordings, then print the report and write its page and pictures.

    Raises:
        AccelMetricsError: A file cannot be read or written, or has no record.
    """
    both = {Path(name).resolve() for name in options.files} & {Path(name).resolve() for name in options.compare or ()}
    arguments.refuse(
        (
            options.shape == "gpu-stats" and options.format not in (None, "json"),
            f"--shape gpu-stats is JSON and excludes --format {options.format}",
        ),
        (options.png and options.plots is None, "--png needs --plots"),
        (options.align and options.html is None and options.plots is None, "--align needs --html or --plots"),
        (options.compare and (options.shape != "summary" or options.by), "--compare excludes --shape and --by"),
        (both, f"{', '.join(map(str, sorted(both)))} is on both sides of the comparison: give the files of another run"),
    )
    prices = {one.per_hour: one for one in options.price or ()}
    arguments.refuse((len(prices) < len(options.price or ()), "--price twice: give one for a kilowatt-hour and one for an hour (/h)"))
    wanted = Wanted(
        MetricSelection(options.metrics or ALL),
        series=CHARTED if options.compare or options.html is not None or options.plots is not None else None,
        price=prices.get(False),
        rent=prices.get(True),
        carbon=options.carbon,
        by=options.by or "",
        compared=bool(options.compare),
    )
    # A path that cannot be written, or a missing package, is reported before long recordings are read.
    if options.html is not None:
        check_target(options.html, out)
    if options.plots is not None:
        from accelmetrics.views.report import drawing

        drawing.check_installed()
        folder_for(options.plots)
    first = _read(options.files, wanted)
    found = compare(first, _read(options.compare, wanted)) if options.compare else first
    pictures = _draw(found, options, out)
    if pictures is not None and options.format is None and options.shape == "summary":
        return 0
    form = "json" if options.shape == "gpu-stats" else options.format or "text"
    if options.shape == "gpu-stats":
        text = as_json(texts.gpu_stats(first.document))
    elif form == "json":
        text = as_json(found.to_dict() if isinstance(found, Comparison) else found.document)
    elif isinstance(found, Comparison):
        text = texts.comparison_text(found) if form == "text" else texts.comparison_markdown(found)
    else:
        text = texts.text(found.document) if form == "text" else texts.markdown(found.document)
    out.write(text + (pictures or "") if form == "markdown" else text)
    return 0


def _draw(found: RunReport | Comparison, options: Namespace, out: Stdout) -> str | None:
    """Write the requested page and pictures.

    Returns:
        The Markdown links to the pictures, empty for a page alone; None if neither was requested.
    """
    if options.html is None and options.plots is None:
        return None
    from accelmetrics.views.report import drawing, html, plots

    drawn = plots.pictures(found) if isinstance(found, RunReport) else plots.pictures(found.a, found.b)
    axis: plots.Axis = options.align or "time"
    if options.html is not None:
        text = html.page(found, drawn, axis) if isinstance(found, RunReport) else html.comparison_page(found, drawn, axis)
        with writing_to(options.html, out) as write:
            write(text)
    if options.plots is None:
        return ""
    drawn = drawn if axis == "time" else plots.aligned(drawn, axis)
    return drawing.markdown_pictures(drawing.write_pictures(drawn, Path(options.plots), options.png))


def _read(files: list[str], wanted: Wanted) -> RunReport:
    """Read recordings and report their warnings on standard error.

    Raises:
        AccelMetricsError: A file cannot be read, or there is no record.
    """
    found = report_of_files(files, wanted)
    if found is None:
        raise AccelMetricsError(f"no records in {', '.join(files)}")
    for warning in found.warnings:
        say(f"accelmetrics report: {warning}")
    return found
