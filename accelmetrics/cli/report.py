"""``accelmetrics report``: what recordings came to, device by device."""

from __future__ import annotations

from collections import deque
from contextlib import contextmanager
from heapq import heappop, heappush
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from accelmetrics.cli import options as arguments
from accelmetrics.cli.options import UsageError
from accelmetrics.cli.output import say
from accelmetrics.schemas.errors import AccelMetricsError, DocumentError

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Iterator

    from accelmetrics.cli.output import Stdout
    from accelmetrics.schemas.record import Record
    from accelmetrics.schemas.recording import Recording

TAKEN = "JSON lines, which the exporter jsonl and `accelmetrics dump --json --interval` write"

EXAMPLES = """\
  accelmetrics report run.jsonl                             a table of every device
  accelmetrics report run.jsonl --format markdown > RUN.md  for a pull request or a report
  accelmetrics report node-*.jsonl --format json            several hosts together
  accelmetrics report run.jsonl --shape gpu-stats           flat statistics of each GPU, as JSON

Recordings are what the jsonl exporter and `accelmetrics dump --interval` write; closed files of the same name (rotated,
compressed) are read with each. They may be given in any order, and twice. Means are weighted by time; a silence longer than
three usual intervals is a gap, over which nothing is reckoned, and so is a clock that was set back.

Exit status: 0; 1 when a file cannot be read or is no recording; 2 for arguments that cannot be used."""


def configure(parser: ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("files", nargs="*", type=arguments.path, metavar="FILE", help="recordings")
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
    if found.repeated:
        say(f"accelmetrics report: {found.repeated} readings are there twice, by their time: each is counted once")
    forms = {"text": report_forms.text, "json": report_forms.summary, "markdown": report_forms.markdown}
    out.write((report_forms.gpu_stats if options.shape == "gpu-stats" else forms[options.format or "text"])(found))
    return 0


class _Source(NamedTuple):
    """The recordings that stand under one name: closed files, oldest first, and the growing one.

    Attributes:
        begin: Time of the first record, in nanoseconds since 1970.
        whose: What tells the first record from those of others.
        recordings: The files, from the first one that holds a record.
    """

    begin: int
    whose: tuple[str, ...]
    recordings: list[Recording]


def _records(files: list[str]) -> Iterator[Record]:
    """All records of all files, those of one process of a run by time."""
    groups: dict[tuple[str, ...], list[_Source]] = {}
    for source in _sources(files):
        groups.setdefault(source.whose, []).append(source)
    for group in groups.values():
        yield from _by_time(sorted(group, key=lambda source: source.begin))


def _by_time(sources: list[_Source]) -> Iterator[Record]:
    """Each source in its own order, and merged where they overlap; a file is opened when its time has come, for there may be many."""
    waiting = deque(sources)
    under_way: list[tuple[int, int, Record, Iterator[Record]]] = []
    while waiting or under_way:
        if waiting and (not under_way or waiting[0].begin <= under_way[0][0]):
            number, records = len(waiting), _read(waiting.popleft().recordings)
        else:
            _, number, record, records = heappop(under_way)
            yield record
        if (following := next(records, None)) is not None:
            heappush(under_way, (following.snapshot.time_ns, -number, following, records))


def _sources(files: list[str]) -> Iterator[_Source]:
    from accelmetrics.cli.recorded import whose
    from accelmetrics.schemas.recording import recordings

    seen: set[Path] = set()
    for name in files:
        with _telling(name):
            found = [one for one in recordings(name) if one.path.resolve() not in seen]
            seen.update(one.path.resolve() for one in found)
            for place, recording in enumerate(found):
                first = next(iter(recording), None)
                if first is not None:
                    yield _Source(first.snapshot.time_ns, whose(first), found[place:])
                    break
                _tell_skipped(recording)


def _read(found: list[Recording]) -> Iterator[Record]:
    """The records of files one after the other; lines that cannot be read are told."""
    for recording in found:
        with _telling(str(recording.path)):
            yield from recording
        _tell_skipped(recording)


def _tell_skipped(recording: Recording) -> None:
    if recording.skipped:
        lines = "1 line" if recording.skipped == 1 else f"{recording.skipped} lines"
        say(f"accelmetrics report: {lines} could not be read; the first: {recording.complaint}")


@contextmanager
def _telling(name: str) -> Iterator[None]:
    try:
        yield
    except DocumentError as error:
        raise AccelMetricsError(f"{error}: report takes {TAKEN}") from error
    except OSError as error:
        raise AccelMetricsError(f"cannot read {name}: {error.strerror or error}") from error
