"""``accelmetrics metrics``: the catalogue of metrics."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Mapping, Sequence
from typing import Any

from accelmetrics.backends import built_in, registry
from accelmetrics.backends.contract import Backend, Coverage
from accelmetrics.backends.guard import guarded
from accelmetrics.cli import options as arguments
from accelmetrics.cli.output import Stdout
from accelmetrics.schemas.catalogue import SECTIONS, Section, coverage_of, find, given_by, read_from
from accelmetrics.schemas.errors import UnknownNameError
from accelmetrics.schemas.metric import Metric
from accelmetrics.schemas.selection import PRESETS, presets_of
from accelmetrics.schemas.text import aligned, wrapped

Given = Mapping[str, Mapping[str, str]]
EXAMPLES = """\
  accelmetrics metrics
      every metric, its unit and its meaning
  accelmetrics metrics gpu.0.powerWatts
      everything about one: sources, other names
  accelmetrics metrics throttl
      metrics with this text in their key, other names or meaning
  accelmetrics metrics --preset core
      the metrics of `--metrics core`
  accelmetrics metrics --backend amd --json
      the metrics of a source, as JSON"""
OPTIONS: arguments.Groups = {
    "": {
        "key": {
            "nargs": "?",
            "metavar": "KEY|WORD",
            "help": "one metric (gpu.0.temp, or its template), or a word to look for",
        },
        "--backend": {"metavar": "NAME", "help": "only the metrics of this source"},
        "--preset": {"choices": tuple(PRESETS), "help": "only the metrics of this preset of --metrics"},
        "--json": {"action": "store_true", "help": "print a JSON array"},
    },
}


def run(options: Namespace, out: Stdout) -> int:
    """Print the catalogue, or the requested part of it."""
    names = [options.backend] if options.backend else registry.names()
    plug_ins = {name: registry.load(name) for name in names if name not in built_in.BUILT_IN}
    own = [Section("Plug-in", name, registry.add_own_metrics(plug_in)) for name, plug_in in plug_ins.items()]
    given = _given(plug_ins)
    exact, sections = chosen(options.key, options.backend, options.preset, own, given)
    if options.json:
        entries = [entry(row, given.get(row.key, {})) for section in sections for row in section.rows]
        out.write(json.dumps(entries, indent=2, ensure_ascii=False) + "\n")
    elif exact:
        out.write("".join(details(row, given.get(row.key, {})) for section in sections for row in section.rows))
    else:
        out.write("\n".join(overview(section, out.width) for section in sections))
    return 0


def _given(plug_ins: Mapping[str, Backend]) -> dict[str, dict[str, str]]:
    """Return the sources of each metric, by its key: the source's name and where it reads the metric."""
    given = {key: dict(sources) for key, sources in given_by().items()}
    for name, backend in plug_ins.items():
        coverage = guarded(backend.coverage).value or Coverage()  # a plug-in that fails is listed without sources
        for key, words in read_from(backend.kind or "", coverage._asdict()).items():
            given.setdefault(key, {})[name] = words
    return given


def chosen(wanted: str | None, backend: str | None, preset: str | None, own: Sequence[Section], given: Given) -> tuple[bool, list[Section]]:
    """Return whether the text names one metric, and the sections with the matching rows.

    Args:
        wanted: A key, its template, or words to search for; None for all metrics.
        backend: Only metrics of this source.
        preset: Only metrics of this preset.
        own: Sections of plug-ins.
        given: The sources of each metric.

    Raises:
        UsageError: The text is no key, and no metric contains its words.
    """
    template, unknown = "", ""
    try:
        template = find(wanted).key if wanted else ""
    except UnknownNameError as error:
        unknown = str(error).partition(" Known:")[0]
    sections = []
    for section in (*SECTIONS, *own):
        rows = (row for row in section.rows if backend is None or section.title == backend or backend in given.get(row.key, ()))
        rows = (row for row in rows if preset is None or preset in presets_of(row))
        if unknown:  # search for the words, ignoring case, in the key, the other names and the meaning
            texts = ((row, "\n".join((row.key, *row.aliases, row.prometheus, row.otel, row.meaning)).lower()) for row in rows)
            found = tuple(row for row, text in texts if all(word in text for word in (wanted or "").lower().split()))
        else:
            found = tuple(row for row in rows if not template or row.key == template)
        sections.append(section._replace(rows=found))
    shown = [section for section in sections if section.rows]
    if unknown and not shown:
        raise arguments.UsageError(f"{unknown} `accelmetrics metrics` lists them all")
    return bool(template), shown


def entry(row: Metric, sources: Mapping[str, str]) -> dict[str, Any]:
    """Return a metric as plain values for JSON."""
    partitions = [backend for backend in sources if row.device_part and row.name in coverage_of(backend).get("partitions", ())]
    facts = {name: value for name, value in row._asdict().items() if name != "preset"}
    return {**facts, "aliases": list(row.aliases), "presets": presets_of(row), "sources": dict(sources), "partitions": partitions}


def overview(section: Section, width: int) -> str:
    """Return a section as text: key, unit and kind of each metric, and its meaning below."""
    heads = aligned([(row.key, row.unit, row.kind) for row in section.rows], "  ")
    lines = [f"{section.family}: {section.title}"]
    for head, row in zip(heads, section.rows, strict=True):
        lines += [head, *wrapped(row.meaning, width, " " * 6)]
    return "\n".join(lines) + "\n"


def details(row: Metric, sources: Mapping[str, str]) -> str:
    """Return all facts about one metric as text."""
    facts = [
        ("unit", row.unit),
        ("kind", row.kind),
        ("range", limits(row)),
        ("whole numbers", "always" if row.integer else ""),
        ("also emitted as", ", ".join(row.aliases)),
        ("presets", ", ".join(presets_of(row))),
        *((f"from {backend}", source) for backend, source in sources.items()),
        ("Prometheus", row.prometheus),
        ("OpenTelemetry", row.otel),
    ]
    return "\n".join([row.key, f"  {row.meaning}", *aligned([fact for fact in facts if fact[1]], "  ")]) + "\n"


def limits(row: Metric) -> str:
    """Return the range of a metric's values in words; empty if it has none."""
    if row.minimum is None:
        return f"up to {row.maximum:g}" if row.maximum is not None else ""
    return f"{row.minimum:g} to {row.maximum:g}" if row.maximum is not None else f"{row.minimum:g} and above"
