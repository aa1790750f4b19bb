"""``accelmetrics report``: what recordings came to, device by device."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from accelmetrics.cli import parsing
from accelmetrics.cli.output import say
from accelmetrics.cli.parsing import UsageError
from accelmetrics.schemas.errors import AccelMetricsError

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Iterator

    from accelmetrics.cli.output import Stdout
    from accelmetrics.schemas.record import Record

EXAMPLES = """\
  accelmetrics report run.jsonl                             a table of every device
  accelmetrics report run.jsonl --format markdown > RUN.md  for a pull request or a report
  accelmetrics report node-*.jsonl --format json            several hosts together
  accelmetrics report run.jsonl --shape gpu-stats           flat statistics of each GPU, as JSON

Recordings are what the jsonl exporter and `accelmetrics dump --interval` write; closed files of the same name (rotated,
compressed) are read with each. Means are weighted by time; a silence longer than three usual intervals is a gap, over which
nothing is reckoned.

Exit status: 0; 1 when a file cannot be read or is no recording; 2 for arguments that cannot be used."""


def configure(parser: ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("files", nargs="*", type=parsing.path, metavar="FILE", help="recordings")
    parser.add_argument("--format", choices=("text", "json", "markdown"), help="how to print it (default: text)")
    parser.add_argument("--shape", choices=("summary", "gpu-stats"), default="summary", help="what the JSON holds (default: summary)")


def run(options: Namespace, out: Stdout) -> int:
    """Read and print."""
    from accelmetrics.cli import recorded, report_forms

    if not options.files:
        raise UsageError("no recording: name one or more files, such as run.jsonl")
    if options.shape == "gpu-stats" and options.format not in (None, "json"):
        raise UsageError(f"--shape gpu-stats is JSON and excludes --format {options.format}")
    found = recorded.report(_records(options.files))
    if found is None:
        raise AccelMetricsError(f"no record in {', '.join(options.files)}")
    forms = {"text": report_forms.text, "json": report_forms.summary, "markdown": report_forms.markdown}
    out.write((report_forms.gpu_stats if options.shape == "gpu-stats" else forms[options.format or "text"])(found))
    return 0


def _records(files: list[str]) -> Iterator[Record]:
    """All records of all files; lines that cannot be read are told."""
    from accelmetrics.schemas.recording import recordings

    seen: set[Path] = set()
    for name in files:
        try:
            for recording in recordings(name):
                if recording.path.resolve() not in seen:
                    seen.add(recording.path.resolve())
                    yield from recording
                    if recording.skipped:
                        say(f"accelmetrics report: {recording.skipped} lines could not be read; the first: {recording.complaint}")
        except OSError as error:
            raise AccelMetricsError(f"cannot read {name}: {error.strerror or error}") from error
