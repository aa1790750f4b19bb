"""The registry of exporters, and their string form: ``jsonl:run.jsonl``.

A third-party package registers a class or a callable under the entry-point group ``accelmetrics.exporters``. The text after the colon is
its first parameter. Keyword-only parameters follow a question mark: ``jsonl:run.jsonl?fsync_every=10&compress=true``. Their annotations
determine how the values are parsed, so an exporter needs no parser. Every exporter has the option ``metrics``.

The first question mark ends the target. A question mark in a path is written ``%3F``; an address (``http://…``) keeps its escapes. Names
and values of options are percent-decoded once, and a plus sign remains a plus sign.
"""

from __future__ import annotations

import re
import typing
from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from accelmetrics.schemas import plug_ins
from accelmetrics.schemas.errors import InvalidOptionError, UnknownNameError
from accelmetrics.schemas.selection import MetricSelection

if TYPE_CHECKING:
    from accelmetrics.schemas.record import Exporter, Record

GROUP = "accelmetrics.exporters"
METRICS = "metrics"
EXPORTERS = {
    "console": ("console:ConsoleExporter", "a terminal: a line for every reading, or a live table", "accelmetrics[rich] for the table"),
    "jsonl": ("files:JsonlExporter", "a file: a JSON line for every reading", ""),
    "csv": ("csv:CsvExporter", "a file: a row for every reading", ""),
    "prometheus": ("prometheus:PrometheusExporter", "Prometheus, which scrapes them over HTTP", "accelmetrics[prometheus]"),
    "textfile": ("textfile:TextfileExporter", "a file for node_exporter's textfile collector", "accelmetrics[prometheus]"),
    "otlp": ("otlp:OtlpExporter", "an OpenTelemetry collector, over gRPC or HTTP", "accelmetrics[otlp]"),
    "wandb": ("wandb:WandbExporter", "a run of Weights & Biases", "accelmetrics[wandb]"),
    "mlflow": ("mlflow:MlflowExporter", "a run of MLflow", "accelmetrics[mlflow]"),
    "tensorboard": ("tensorboard:TensorboardExporter", "event files for TensorBoard", "accelmetrics[tensorboard]"),
    "trackio": ("tracker:TrackioExporter", "a run of trackio", "accelmetrics[trackio]"),
    "swanlab": ("tracker:SwanlabExporter", "a run of SwanLab", "accelmetrics[swanlab]"),
    "aim": ("tracker:AimExporter", "a run of Aim", "accelmetrics[aim]"),
    "clearml": ("tracker:ClearmlExporter", "a task of ClearML", "accelmetrics[clearml]"),
    "statsd": ("statsd:StatsdExporter", "StatsD, or DogStatsD with tags, over UDP", ""),
    "influx": ("influx:InfluxExporter", "line protocol: a file, or a server over HTTP", "accelmetrics[influx] for a server"),
    "training-files": ("training_files:TrainingFilesExporter", "the JSON-lines files of home-grown training dashboards", ""),
}
"""Class, destination and additionally needed packages of each built-in exporter by name."""
BUILT_IN = {name: f"accelmetrics.exporters.{where}" for name, (where, *_) in EXPORTERS.items()}
"""Entry point of each built-in exporter by name. A test compares the table with the entry points of the package."""


def exporting(name: str, export: Callable[[Record], object], other: object = None, **more: object) -> Exporter:
    """Return an exporter that calls a function with each record. By default, ``open``, ``flush`` and ``close`` do nothing.

    Args:
        name: The exporter's name.
        export: Function that is called with each record.
        other: Exporter that provides ``open``, ``flush``, ``close`` and the choice of metrics and processes.
        more: Further attributes.
    """
    # bool serves as a function that does nothing: bool() is False.
    parts = {part: getattr(other, part, bool) for part in ("open", "flush", "close")}
    chosen = {"metrics": getattr(other, METRICS, None), "processes": getattr(other, "processes", 0)}
    return cast("Exporter", SimpleNamespace(name=name, export=export, **{**parts, **chosen, **more}))


def names() -> tuple[str, ...]:
    """Return the names of all exporters."""
    return plug_ins.names(GROUP, BUILT_IN)


def load(name: str) -> Callable[..., Exporter]:
    """Return the class or function that creates the exporter with this name.

    Raises:
        UnknownNameError: There is no exporter with this name.
        InvalidOptionError: The exporter is another package's and cannot be imported.
    """
    with plug_ins.load_errors("exporter", GROUP, name):
        return cast("Callable[..., Exporter]", plug_ins.load("exporter", GROUP, BUILT_IN, name))


def create(wanted: str | Exporter) -> Exporter:
    """Create an exporter from its string form. An exporter object is returned unchanged.

    Raises:
        UnknownNameError: There is no exporter, or no option, with this name.
        InvalidOptionError: An option has an invalid value, or the target is missing.
        MissingDependencyError: The exporter needs a package that is not installed.
    """
    if not isinstance(wanted, str):
        missing = [method for method in ("open", "export", "flush", "close") if not callable(getattr(wanted, method, None))]
        if missing:
            raise InvalidOptionError(f"{wanted!r} is not an exporter: it has no method {', '.join(missing)}")
        return wanted
    head, _, query = wanted.partition("?")
    name, _, target = head.partition(":")
    factory = load(name)
    if "://" not in target:  # an address keeps its escapes: %3F may be part of a password
        target = re.sub("%3f", "?", target, flags=re.IGNORECASE)
    import inspect  # it takes 1.4 MiB with its imports, which a monitor without exporters does not need
    from urllib.parse import unquote

    parameters = list(inspect.signature(factory).parameters.values())
    needed = [one.name for one in parameters[:1] if one.default is one.empty and one.kind is one.POSITIONAL_OR_KEYWORD]
    if needed and not target:
        raise InvalidOptionError(f"the exporter {name!r} needs its {needed[0]}: write {name}:{needed[0].upper()}")
    known = {one.name: one for one in parameters if one.kind is one.KEYWORD_ONLY}
    hints = typing.get_type_hints(factory.__init__ if inspect.isclass(factory) else factory) if query else {}
    options = {}
    for part in filter(None, query.split("&")):
        option, _, word = (unquote(text, errors="surrogateescape") for text in part.partition("="))
        if option not in known and option != METRICS:
            raise UnknownNameError(f"option of the exporter {name}", option, [*known, METRICS])
        options[option] = _read(f"{name}?{option}", word, hints.get(option, str))
    chosen = MetricSelection(options.pop(METRICS)) if METRICS in options and METRICS not in known else None
    exporter = factory(*([target] if target else []), **options)
    if chosen is not None:
        try:
            exporter.metrics = chosen  # type: ignore[attr-defined]  # another package's exporter may lack the attribute
        except AttributeError as error:
            raise InvalidOptionError(f"the exporter {name!r} does not support {METRICS}: {error}") from error
    return exporter


def _read(option: str, word: str, hint: Any) -> Any:
    """Convert a word to the type of the parameter's annotation."""
    if hint is str or str in typing.get_args(hint):
        return word
    from pydantic import PydanticSchemaGenerationError, TypeAdapter, ValidationError

    try:
        return TypeAdapter(hint).validate_strings(word)
    except ValidationError as error:
        why = error.errors()[0]["msg"].partition(", unable to")[0]  # a list of choices has commas too
        for theirs, ours in (
            ("Input should be", "it must be"),
            ("a valid boolean", "true or false"),
            ("a valid integer", "a whole number"),
            ("a valid number", "a number"),
        ):
            why = why.replace(theirs, ours)
    except PydanticSchemaGenerationError:
        why = "its type has no text form"
    raise InvalidOptionError(f"{option} is {word!r}: {why}")
