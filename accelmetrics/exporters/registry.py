"""Which exporters there are, and how a string such as ``jsonl:run.jsonl`` becomes one.

A third-party package registers a class, or a callable, under the entry-point group ``accelmetrics.exporters``. Its first
parameter is what stands behind the colon, its other ones are set after a question mark:
``jsonl:run.jsonl?fsync_every=10&compress=true``. Their annotations say how the words are read, so that an exporter has no
parsing of its own.

The first question mark ends the target: a path's own is written ``%3F``, an address (``http://…``) has its escapes as ever. An
option's name and value are percent-decoded once; a plus sign is a plus sign.
"""

from __future__ import annotations

import importlib
import inspect
import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import unquote

from accelmetrics.schemas.errors import InvalidOptionError, UnknownNameError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from accelmetrics.schemas.record import Exporter

GROUP = "accelmetrics.exporters"

BUILT_IN = {
    "console": "accelmetrics.exporters.console:ConsoleExporter",
    "jsonl": "accelmetrics.exporters.files:JsonlExporter",
    "csv": "accelmetrics.exporters.csv:CsvExporter",
    "prometheus": "accelmetrics.exporters.prometheus:PrometheusExporter",
    "textfile": "accelmetrics.exporters.textfile:TextfileExporter",
    "otlp": "accelmetrics.exporters.otlp:OtlpExporter",
    "wandb": "accelmetrics.exporters.wandb:WandbExporter",
    "mlflow": "accelmetrics.exporters.mlflow:MlflowExporter",
    "tensorboard": "accelmetrics.exporters.tensorboard:TensorboardExporter",
    "statsd": "accelmetrics.exporters.statsd:StatsdExporter",
    "influx": "accelmetrics.exporters.influx:InfluxExporter",
    "training-files": "accelmetrics.exporters.training_files:TrainingFilesExporter",
}
"""Kept here so that naming one does not pay for a scan of every installed package; a test holds it equal to the entry points."""

_QUESTION_MARK = re.compile("%3f", re.IGNORECASE)
YES, NO = frozenset({"1", "true", "yes", "on"}), frozenset({"0", "false", "no", "off"})


@lru_cache(maxsize=1)
def _plug_ins() -> dict[str, EntryPoint]:
    from importlib.metadata import entry_points

    found = {point.name: point for point in entry_points(group=GROUP)}
    return {name: found[name] for name in sorted(found) if name not in BUILT_IN}


def names() -> tuple[str, ...]:
    """All exporters by name."""
    return (*BUILT_IN, *_plug_ins())


def forget() -> None:
    """Look for plug-ins anew: for tests."""
    _plug_ins.cache_clear()


def load(name: str) -> Callable[..., Exporter]:
    """What makes the exporter of this name.

    Raises:
        UnknownNameError: There is none.
    """
    target = BUILT_IN.get(name)
    if target is not None:
        module, _, attribute = target.partition(":")
        return cast("Callable[..., Exporter]", getattr(importlib.import_module(module), attribute))
    point = _plug_ins().get(name)
    if point is None:
        raise UnknownNameError("exporter", name, names())
    return cast("Callable[..., Exporter]", point.load())


def create(wanted: str | Exporter) -> Exporter:
    """An exporter from its string form; one that is made already is given back.

    Raises:
        UnknownNameError: No exporter, or none of its options, has that name.
        InvalidOptionError: An option's value cannot be read, or what is needed is missing.
        MissingDependencyError: The exporter needs a package that is not installed.
    """
    if not isinstance(wanted, str):
        missing = [method for method in ("open", "export", "flush", "close") if not callable(getattr(wanted, method, None))]
        if missing:
            raise InvalidOptionError(f"{wanted!r} is no exporter: it has no method {', '.join(missing)}")
        return wanted
    head, _, query = wanted.partition("?")
    name, _, target = head.partition(":")
    factory = load(name)
    return factory(*_arguments(name, factory, _decoded(target)), **_options(name, factory, query))


def _decoded(target: str) -> str:
    """A path with its question marks. An address is left alone: in its password ``%3F`` must stay what it is."""
    return target if "://" in target else _QUESTION_MARK.sub("?", target)


def _pairs(query: str) -> Iterator[tuple[str, str]]:
    for part in filter(None, query.split("&")):
        option, _, word = part.partition("=")
        yield unquote(option), unquote(word, errors="surrogateescape")


def _arguments(name: str, factory: Callable[..., Exporter], argument: str) -> tuple[str, ...]:
    if argument:
        return (argument,)
    first = next(iter(inspect.signature(factory).parameters.values()), None)
    if first is not None and first.default is inspect.Parameter.empty and first.kind is not inspect.Parameter.VAR_POSITIONAL:
        raise InvalidOptionError(f"the exporter {name!r} needs its {first.name}: write {name}:{first.name.upper()}")
    return ()


def _options(name: str, factory: Callable[..., Exporter], query: str) -> dict[str, Any]:
    parameters = [one for one in inspect.signature(factory).parameters.values() if one.kind is inspect.Parameter.KEYWORD_ONLY]
    hints = _hints(factory)
    known = {one.name: hints.get(one.name, str) for one in parameters}
    found = {}
    for option, word in _pairs(query):
        if option not in known:
            raise UnknownNameError(f"option of the exporter {name}", option, known)
        found[option] = _read(f"{name}?{option}", word, known[option])
    return found


def _hints(factory: Callable[..., Exporter]) -> Mapping[str, Any]:
    return typing.get_type_hints(factory.__init__ if inspect.isclass(factory) else factory)


def _read(option: str, word: str, annotation: Any) -> Any:
    """A word as the type that the parameter is annotated with."""
    kinds = [kind for kind in _members(annotation) if kind is not type(None)]
    for kind, what, read in ((bool, "true or false", _truth), (int, "a whole number", int), (float, "a number", float)):
        if kind in kinds:
            try:
                return read(word)
            except ValueError:
                raise InvalidOptionError(f"{option} is {word!r}: it must be {what}") from None
    if typing.get_origin(annotation) is typing.Literal and word not in typing.get_args(annotation):
        raise InvalidOptionError(f"{option} is {word!r}: it must be one of {', '.join(map(str, typing.get_args(annotation)))}")
    return word


def _members(annotation: Any) -> tuple[Any, ...]:
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return typing.get_args(annotation)
    return (annotation,)


def _truth(word: str) -> bool:
    if word.lower() in YES:
        return True
    if word.lower() in NO:
        return False
    raise ValueError(word)
