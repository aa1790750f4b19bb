"""``accelmetrics metrics``: the catalogue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from accelmetrics.backends import registry
from accelmetrics.backends.guard import guarded
from accelmetrics.cli.layout import aligned, wrapped
from accelmetrics.cli.parsing import UsageError
from accelmetrics.schemas.catalogue import SECTIONS, Section, listed, partitions_of, sources_of
from accelmetrics.schemas.errors import UnknownNameError
from accelmetrics.schemas.metric import Metric

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from accelmetrics.cli.output import Stdout

PLUG_IN = "Plug-in"
MEANING_INDENT = " " * 6
EXAMPLES = """\
  accelmetrics metrics                              every metric, its unit and its meaning
  accelmetrics metrics gpu.0.powerWatts             everything about one: sources, other names
  accelmetrics metrics --backend amd --json         what a source gives, for programs"""


def configure(parser: ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("key", nargs="?", metavar="KEY", help="one metric: gpu.0.temp, or its template gpu.{i}.temp")
    parser.add_argument("--backend", metavar="NAME", help="the metrics that this source gives")
    parser.add_argument("--json", action="store_true", help="print a JSON array")


def run(options: Namespace, out: Stdout) -> int:
    """Print the catalogue, or the part that was asked for."""
    sections = chosen(options.key, options.backend)
    if options.json:
        import json

        rows = [entry(row, read_from(section, row)) for section in sections for row in section.rows]
        out.write(json.dumps(rows, indent=2, ensure_ascii=False) + "\n")
    elif options.key:
        out.write("".join(details(row, read_from(section, row)) for section in sections for row in section.rows))
    else:
        out.write("\n".join(overview(section, out.width) for section in sections))
    return 0


def chosen(key: str | None, backend: str | None) -> list[Section]:
    """The sections, with the rows that were asked for.

    Raises:
        UnknownNameError: There is no such source.
        UsageError: There is no such metric.
    """
    plug_ins = _plug_ins(backend)
    template = _template(key, plug_ins) if key else ""
    kept = [_part(section, template, backend) for section in SECTIONS] + [_part(section, template, None) for section in plug_ins]
    return [section for section in kept if section.rows]


def _plug_ins(backend: str | None) -> list[Section]:
    """What only a plug-in knows, one section each; that of one source where it is named."""
    names = [backend] if backend else registry.names()
    others = {name: registry.load(name) for name in names if name not in registry.BUILT_IN}
    return [Section(PLUG_IN, name, tuple(guarded(loaded.own_metrics).value or ())) for name, loaded in others.items()]


def read_from(section: Section, row: Metric) -> dict[str, str]:
    """By backend, where a metric is read, in words."""
    if section.family != PLUG_IN:
        return dict(sources_of(row))
    coverage = guarded(registry.load(section.title).coverage).value or ()
    return {section.title: next((part[row.name] for part in coverage if row.name in part), "")}


def _template(key: str, plug_ins: list[Section]) -> str:
    if any(row.key == key for section in plug_ins for row in section.rows):
        return key
    try:
        return listed(key).key
    except UnknownNameError as error:
        raise UsageError(f"{str(error).partition(' Known:')[0]} `accelmetrics metrics` lists them all") from error


def _part(section: Section, template: str, backend: str | None) -> Section:
    rows = [row for row in section.rows if backend is None or backend in sources_of(row)]
    return section._replace(rows=tuple(row for row in rows if not template or row.key == template))


def entry(row: Metric, sources: dict[str, str]) -> dict[str, Any]:
    """A row for programs."""
    return {**row._asdict(), "aliases": list(row.aliases), "sources": sources, "partitions": list(partitions_of(row))}


def overview(section: Section, width: int) -> str:
    """A section's rows: key, unit, kind, meaning."""
    heads = aligned([(row.key, row.unit, row.kind) for row in section.rows], "  ")
    lines = [f"{section.family}: {section.title}"]
    for head, row in zip(heads, section.rows, strict=True):
        lines += [head, *wrapped(row.meaning, width, MEANING_INDENT)]
    return "\n".join(lines) + "\n"


def details(row: Metric, sources: dict[str, str]) -> str:
    """Everything about one metric."""
    facts = [
        ("unit", row.unit),
        ("kind", row.kind),
        ("range", limits(row)),
        ("whole numbers", "always" if row.integer else ""),
        ("also emitted as", ", ".join(row.aliases)),
        *((f"from {backend}", source) for backend, source in sources.items()),
        ("Prometheus", row.prometheus),
        ("OpenTelemetry", row.otel),
    ]
    return "\n".join([row.key, f"  {row.meaning}", *aligned([fact for fact in facts if fact[1]], "  ")]) + "\n"


def limits(row: Metric) -> str:
    """Between what a metric's values lie, in words."""
    if row.minimum is None:
        return f"up to {row.maximum:g}" if row.maximum is not None else ""
    return f"{row.minimum:g} to {row.maximum:g}" if row.maximum is not None else f"{row.minimum:g} and above"
