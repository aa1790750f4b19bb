"""``accelmetrics dump``: one reading as tables or as one document, or a stream of readings, one document per line."""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from functools import partial

from accelmetrics.cli import options as arguments
from accelmetrics.cli.output import Stdout, say, writing_to
from accelmetrics.monitor import settings
from accelmetrics.schemas.errors import Reason
from accelmetrics.schemas.snapshot import Snapshot

OWN_KEYS = "wandb"
DEFAULT_SETTLE = 0.2

EXAMPLES = """\
  accelmetrics dump                              devices and problems
  accelmetrics dump --all                        every metric, in tables
  accelmetrics dump temp powerWatts 'throttle.*'
      some metrics of all devices, side by side
  accelmetrics dump --json | jq .metrics         one JSON document
  accelmetrics dump --json --indent 2            the same, indented
  accelmetrics dump --flat --gpus 0,2-3          the flat dict of some devices
  accelmetrics dump --interval 5 --output run.jsonl   a document every 5 s
  accelmetrics dump --csv --interval 1 --count 60 --output minute.csv
  accelmetrics dump --backends host --pid 4711 --children
  accelmetrics dump --replay bundle.zip
      the machine on which the bundle was made
  accelmetrics dump --keys nvidia-smi --csv
      nvidia-smi's table, of any vendor

formats:
  table   for people, on a terminal and in a pipe alike: the default
  json    one document; with --interval, or --count above 1, a document a line
  jsonl   a document a line: the default of a stream
  csv     a header, and a row a reading: timestamp, hostname, a column a key,
          empty where a value is missing. Columns are those of the first
          reading, or of the file that is added to; `accelmetrics metrics` has
          the units
  influx  line protocol for Telegraf, a point a device and one for the host
          (docs/other-monitors.md)
A single document for --output, --flat, --topology or --indent is JSON.

Exit status: 0 also when some source could not be read (the document says which,
`accelmetrics doctor` why); 1 when nothing could be written; 2 for arguments
that cannot be used; 130 after Ctrl-C; 141 when the reader has gone."""
SHORT = ("json", "jsonl", "csv")
"""Formats that are also options, such as ``--json``."""
OPTIONS: arguments.Groups = {
    "": {
        "names": {
            "nargs": "*",
            "metavar": "NAME",
            "help": "print only these metrics, a row for each device; NAME may be a pattern, such as 'temp*'",
        },
        "--all": {"action": "store_true", "help": "print every metric, and why others are missing"},
        "--format": {"choices": ("table", "json", "jsonl", "csv", "influx"), "help": "output format"},
        **{f"--{name}": {"action": "store_true", "help": f"short for --format {name}"} for name in SHORT},
        "--indent": {"type": settings.count.parse, "metavar": "N", "help": "spaces of indentation of one JSON document"},
        "--flat": {"action": "store_true", "help": "print only the flat dict of metrics (json and jsonl)"},
        "--topology": {"action": "store_true", "help": "add the connections of the devices to each document (json and jsonl)"},
        "--keys": {
            "default": OWN_KEYS,
            "metavar": "NAME",
            "help": "print the flat dict under another monitor's names: wandb (default: everything, under our own), wandb-docs, "
            "nvidia-smi, prometheus, dcgm, nvidia_smi, nvitop, amd, otel, verl, training",
        },
        "--interval": {
            "type": settings.pause.parse,
            "metavar": "S",
            "help": "seconds between readings; without --count, until stopped",
        },
        "--count": {
            "type": settings.count.parse,
            "metavar": "N",
            "help": f"number of readings (without --interval: one every {arguments.DEFAULT_INTERVAL:g} s)",
        },
        "--settle": {
            "type": settings.span.parse,
            "metavar": "S",
            "help": f"seconds to a second reading, which a single dump takes for rates (default: {DEFAULT_SETTLE:g}; 0: none)",
        },
        "--replay": {
            "type": settings.path.parse,
            "metavar": "BUNDLE",
            "help": "read an archive of `accelmetrics bundle` as if it were this machine",
        },
        "--output": {
            "type": lambda text: "" if text == "-" else settings.path.parse(text),
            "default": "-",
            "metavar": "FILE",
            "help": "write to FILE: one document replaces it, a stream appends lines",
        },
    },
    arguments.READ: arguments.READING,
}


def format_of(options: Namespace, repeated: bool) -> str:
    """Return the requested format, or the default for these options.

    Args:
        options: The command's options.
        repeated: Whether several readings are printed.

    Raises:
        UsageError: Two options exclude each other.
    """
    short = [name for name in SHORT if getattr(options, name)]
    for name in short:
        arguments.refuse(
            (
                options.format not in (None, name),
                f"--{name} is short for --format {name} and excludes --format {options.format}: give one of them",
            ),
            (len(short) > 1, f"--{short[0]} excludes --{short[-1]}: give one of them"),
        )
    form = short[0] if short else options.format
    tables = options.all or bool(options.names)
    arguments.refuse(
        (
            tables and (options.flat or options.topology or form not in (None, "table") or options.keys != OWN_KEYS),
            "--all and NAME are for tables of our own keys: documents have every metric, and --metrics chooses some",
        ),
        (options.all and bool(options.names), "--all prints every metric, and excludes NAME: give one of them"),
        (
            form == "influx" and options.keys != OWN_KEYS,
            "--format influx has our own keys as fields and excludes --keys: give one of them",
        ),
        (
            options.topology and (options.flat or options.keys != OWN_KEYS or form in ("table", "csv", "influx")),
            "--topology is for the documents of json and jsonl: `accelmetrics topology` prints it for people",
        ),
        (
            options.flat and form in ("table", "csv", "influx"),
            f"--flat excludes --format {form}: it goes with json and jsonl",
        ),
        (
            repeated and options.settle is not None,
            "--settle is for a single dump and excludes --interval and --count above 1: a stream's second reading has the rates",
        ),
        (
            options.indent is not None and (repeated or form in ("table", "csv", "jsonl", "influx")),
            "--indent is for one JSON document, as --json prints it: streams have a line a reading",
        ),
    )
    if form or tables:
        return form or "table"
    return "jsonl" if repeated else "json" if options.output or options.flat or options.topology or options.indent else "table"


def run(options: Namespace, out: Stdout) -> int:
    """Read the devices, or the archive of ``--replay``, and print them."""
    if options.replay:
        from accelmetrics.visibility.replay import Recording, replaying

        in_a_child = options.isolation == "process"
        arguments.refuse((in_a_child, "--replay excludes --isolation process: give one of them"))
        recording = Recording(options.replay)
        # The archive has answers of the sources that it was recorded with, so they are the default.
        for name, value in recording.options.items():
            setattr(options, name, getattr(options, name) or value)
        with replaying(recording):
            return _read(options, out)
    return _read(options, out)


def _read(options: Namespace, out: Stdout) -> int:
    from accelmetrics.sampling.sampler import Sampler

    repeated = options.interval is not None or (options.count or 1) > 1
    text = _formatter(options, format_of(options, repeated), repeated, out)
    if absent := arguments.absent_process(options):
        say(f"{arguments.PROGRAM} dump: {absent}")
    reading = arguments.reading(options)
    if options.names:
        reading["metrics"] = options.names
    with writing_to(options.output, out, repeated) as write, Sampler(**reading) as sampler:
        sample = partial(sampler.sample, topology=options.topology)
        if repeated:
            for snapshot in readings(sample, options.interval or arguments.DEFAULT_INTERVAL, options.count):
                write(text(snapshot))
        else:
            write(text(settled(sample, DEFAULT_SETTLE if options.settle is None else options.settle)))
    return 0


def _formatter(options: Namespace, form: str, repeated: bool, out: Stdout) -> Callable[[Snapshot], str]:
    """Return the function that formats a snapshot as text.

    Raises:
        UnknownNameError: There is no dialect of this name.
        WriteError: The CSV file to append to has another header.
    """
    dialect = None
    if options.keys != OWN_KEYS:
        from accelmetrics.dialects import registry

        dialect = registry.dialect(options.keys)
    if form == "influx":
        from accelmetrics.exporters.influx import PointWriter
        from accelmetrics.schemas.record import Record

        points = PointWriter()
        return lambda snapshot: points.text(Record(snapshot))
    if form in ("table", "csv"):
        from accelmetrics.cli import formats

        if form == "table":
            end = "\n" if repeated else ""  # an empty line separates the tables of a stream
            if dialect is not None:
                return lambda snapshot: formats.names(snapshot, dialect) + end
            if options.names:
                return lambda snapshot: formats.chosen(snapshot, out.width) + end
            if options.all or options.metrics:
                return lambda snapshot: formats.table(snapshot, out.width) + end
            return lambda snapshot: formats.screen(snapshot, out.width) + end
        if dialect is not None and dialect.tabular:
            return formats.device_rows(dialect)
        return formats.csv(repeated, options.output, dialect)
    indent = options.indent or (2 if out.terminal and not options.output and form == "json" and not repeated else None)
    if dialect is None and not options.flat:
        return lambda snapshot: snapshot.to_json(indent) + "\n"
    import json

    from accelmetrics.schemas.record import Record

    def flat(snapshot: Snapshot) -> str:
        found = snapshot.metrics if dialect is None else dialect.flat(Record(snapshot))
        return json.dumps(found, indent=indent, allow_nan=False) + "\n"

    return flat


def settled(sample: Callable[[], Snapshot], settle: float) -> Snapshot:
    """Return a reading. If a metric is missing because it needs an interval, wait and return a second reading.

    Args:
        sample: Takes a reading.
        settle: Seconds between the two readings; 0 for no second one.
    """
    snapshot = sample()
    if settle and any(why.reason == Reason.NEEDS_INTERVAL for why in snapshot.unavailable.values()):
        time.sleep(settle)
        snapshot = sample()
    return snapshot


def readings(sample: Callable[[], Snapshot], interval: float, number: int | None) -> Iterator[Snapshot]:
    """Yield readings on an absolute schedule: a slow reading does not shift later ones, and missed ticks are skipped.

    Args:
        sample: Takes a reading.
        interval: Seconds between readings.
        number: Number of readings; None for no end.
    """
    start = time.monotonic()
    count = 0
    while True:
        yield sample()
        count += 1
        if count == number:
            return
        # The remainder of the interval is never negative and always finite, however short the interval is.
        time.sleep(interval - (time.monotonic() - start) % interval)
