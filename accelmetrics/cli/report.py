"""``accelmetrics report``: what recordings came to, device by device, over all files that are given, whatever gaps they have."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError, Namespace
from math import inf
from pathlib import Path

from accelmetrics.cli import options as arguments
from accelmetrics.cli.output import Stdout, say
from accelmetrics.monitor import settings
from accelmetrics.schemas.errors import AccelMetricsError
from accelmetrics.schemas.selection import ALL, MetricSelection
from accelmetrics.views.report import texts
from accelmetrics.views.report.comparison import compare
from accelmetrics.views.report.making import CHARTED, Wanted, report_of_files
from accelmetrics.views.report.run_report import Price, RunReport
from accelmetrics.views.summaries import as_json

EXAMPLES = """\
  accelmetrics report run.jsonl                             a table of every device
  accelmetrics report run.jsonl --format markdown > RUN.md  for a pull request or a report
  accelmetrics report node-*.jsonl --format json            several hosts together
  accelmetrics report run.jsonl --by epoch --price 0.30EUR  a row for each epoch, with what it cost
  accelmetrics report new.jsonl --compare old.jsonl         two runs, and how sure their differences are
  accelmetrics report run.jsonl --shape gpu-stats           flat statistics of each GPU, as JSON

Recordings are what the jsonl exporter and `accelmetrics dump --interval` write; closed files of the same name (rotated,
compressed) are read with each. They may be given in any order, and twice. Means are weighted by time; a silence longer than
three usual intervals is a gap, over which nothing is reckoned, and so is a clock that was set back.

Exit status: 0; 1 when a file cannot be read or is no recording; 2 for arguments that cannot be used."""


def price(text: str) -> Price:
    """Return what a kilowatt-hour costs: ``0.30``, ``0.30EUR``, ``0.30 EUR``.

    Raises:
        ArgumentTypeError: It is no such price.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([^\W\d_]{1,8}|[^\w\s.,]?)", text.strip())
    if found is None:
        raise ArgumentTypeError(f"{text!r} is no price of a kilowatt-hour: write 0.30 or 0.30EUR")
    return Price(float(found[1]), found[2])


def carbon(text: str) -> float:
    """Return grams of CO2 equivalent.

    Raises:
        ArgumentTypeError: It is no number from 0 up.
    """
    try:
        grams = float(text)
    except ValueError:
        grams = -1.0
    if not 0 <= grams < inf:
        raise ArgumentTypeError(f"{text!r} is no number of grams for a kilowatt-hour: write 380")
    return grams


OPTIONS: arguments.Groups = {
    "": {
        "files": {"nargs": "+", "type": settings.path.parse, "metavar": "FILE", "help": "recordings"},
        "--format": {"choices": ("text", "json", "markdown"), "help": "how to print it (default: text)"},
        **arguments.only("--metrics"),
        "--by": {"metavar": "NAME", "help": "a row for each epoch, window, or value of any number that the program logged"},
        "--compare": {"nargs": "+", "type": settings.path.parse, "metavar": "FILE", "help": "recordings of another run to compare with"},
        "--price": {"type": price, "metavar": "PRICE", "help": "what a kilowatt-hour costs: 0.30 or 0.30EUR"},
        "--carbon": {"type": carbon, "metavar": "GRAMS", "help": "grams of CO2 equivalent that making a kilowatt-hour gives off"},
        "--shape": {"choices": ("summary", "gpu-stats"), "default": "summary", "help": "what the JSON holds (default: summary)"},
    },
}


def run(options: Namespace, out: Stdout) -> int:
    """Read the recordings and print the report."""
    if options.shape == "gpu-stats" and options.format not in (None, "json"):
        raise arguments.UsageError(f"--shape gpu-stats is JSON and excludes --format {options.format}")
    wanted = Wanted(MetricSelection(options.metrics or ALL), price=options.price, carbon=options.carbon, by=options.by or "")
    if options.compare:
        _compare(options, wanted._replace(series=CHARTED, compared=True), out)
        return 0
    found = _read(options.files, wanted)
    views = {"text": texts.text, "markdown": texts.markdown, "json": as_json}
    out.write(as_json(texts.gpu_stats(found.document)) if options.shape == "gpu-stats" else views[options.format or "text"](found.document))
    return 0


def _read(files: list[str], wanted: Wanted) -> RunReport:
    """Read recordings, and tell what is to be said of them."""
    found = report_of_files(files, wanted)
    if found is None:
        raise AccelMetricsError(f"no record in {', '.join(files)}")
    for warning in found.warnings:
        say(f"accelmetrics report: {warning}")
    return found


def _compare(options: Namespace, wanted: Wanted, out: Stdout) -> None:
    """Compare two runs."""
    if options.shape != "summary" or options.by:
        raise arguments.UsageError("--compare excludes --shape and --by")
    both = {Path(name).resolve() for name in options.files} & {Path(name).resolve() for name in options.compare}
    if both:
        raise arguments.UsageError(f"{', '.join(map(str, sorted(both)))} is on both sides of the comparison: give the files of another run")
    found = compare(_read(options.files, wanted), _read(options.compare, wanted))
    views = {"text": texts.comparison_text, "markdown": texts.comparison_markdown}
    out.write(as_json(found.to_dict()) if options.format == "json" else views[options.format or "text"](found))
