"""``accelmetrics report``: what recordings came to, device by device, over all files that are given, whatever gaps they have."""

from __future__ import annotations

from argparse import Namespace

from accelmetrics.cli import options as arguments
from accelmetrics.cli.output import Stdout, say
from accelmetrics.monitor import settings
from accelmetrics.schemas.errors import AccelMetricsError
from accelmetrics.schemas.selection import ALL, MetricSelection
from accelmetrics.views.report import texts
from accelmetrics.views.report.making import Wanted, report_of_files
from accelmetrics.views.summaries import as_json

EXAMPLES = """\
  accelmetrics report run.jsonl                             a table of every device
  accelmetrics report run.jsonl --format markdown > RUN.md  for a pull request or a report
  accelmetrics report node-*.jsonl --format json            several hosts together
  accelmetrics report run.jsonl --shape gpu-stats           flat statistics of each GPU, as JSON

Recordings are what the jsonl exporter and `accelmetrics dump --interval` write; closed files of the same name (rotated,
compressed) are read with each. They may be given in any order, and twice. Means are weighted by time; a silence longer than
three usual intervals is a gap, over which nothing is reckoned, and so is a clock that was set back.

Exit status: 0; 1 when a file cannot be read or is no recording; 2 for arguments that cannot be used."""
OPTIONS: arguments.Groups = {
    "": {
        "files": {"nargs": "+", "type": settings.path.parse, "metavar": "FILE", "help": "recordings"},
        "--format": {"choices": ("text", "json", "markdown"), "help": "how to print it (default: text)"},
        **arguments.only("--metrics"),
        "--shape": {"choices": ("summary", "gpu-stats"), "default": "summary", "help": "what the JSON holds (default: summary)"},
    },
}


def run(options: Namespace, out: Stdout) -> int:
    """Read the recordings and print the report."""
    if options.shape == "gpu-stats" and options.format not in (None, "json"):
        raise arguments.UsageError(f"--shape gpu-stats is JSON and excludes --format {options.format}")
    found = report_of_files(options.files, Wanted(MetricSelection(options.metrics or ALL)))
    if found is None:
        raise AccelMetricsError(f"no record in {', '.join(options.files)}")
    for warning in found.warnings:
        say(f"accelmetrics report: {warning}")
    views = {"text": texts.text, "markdown": texts.markdown, "json": as_json}
    out.write(as_json(texts.gpu_stats(found.document)) if options.shape == "gpu-stats" else views[options.format or "text"](found.document))
    return 0
