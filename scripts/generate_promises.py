"""Renders the list of what users may rely on: names, options, keys, fields of documents, commands.

What is new is added; what is there is never taken away: a line that is no longer true is removed by hand, by the rules of
``docs/stability.md``, and `tests/test_stability.py` fails until then.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import EnumMeta
from pathlib import Path
from typing import Any

from accelmetrics.backends import built_in, kit
from accelmetrics.cli.main import COMMANDS, load
from accelmetrics.dialects import registry as dialects
from accelmetrics.exporters import registry as exporters
from accelmetrics.monitor import rules
from accelmetrics.monitor.settings import OPTIONS
from accelmetrics.schemas.catalogue import CATALOGUE
from accelmetrics.schemas.document import json_schema, lines_schema, topology_schema
from accelmetrics.schemas.errors import Reason

FILE = Path(__file__).parents[1] / "tests" / "promises.txt"
HEADER = "# What users may rely on; docs/stability.md says for how long. `make generate` adds what is new, and never removes a line.\n"
MODULES = ("accelmetrics", "accelmetrics.testing")
CONTRACTS = {
    "accelmetrics.backends.contract": (),
    "accelmetrics.backends.kit": tuple(kit._HOMES),
    "accelmetrics.dialects.contract": (),
    "accelmetrics.monitor.measures": ("Latest", "RuleInput"),
    "accelmetrics.schemas.metric": ("Metric",),
}
"""What plug-ins are made of, by module: these names, or all classes of the module. Exporters' and rules' are in ``accelmetrics`` itself."""
MADE_BY_USERS = frozenset({"MetricSelection", "Monitor", "Rule", "Sampler"})
"""Classes whose constructors are promised, beside those for tests, exporters and plug-ins; objects of the others are only given out."""


def render() -> str:
    """The list, with what was on it before."""
    return HEADER + "".join(f"{line}\n" for line in sorted(listed() | current()))


def listed() -> set[str]:
    """The lines of the file."""
    lines = FILE.read_text("utf-8").splitlines() if FILE.is_file() else []
    return {line for line in lines if line and not line.startswith("#")}


def current() -> set[str]:
    """The lines that are true now."""
    return {*_names(), *_keys(), *_documents(), *_commands(), *_plug_ins()}


def _names() -> Iterator[str]:
    """Public names, their members and the options of what can be called."""
    for module in (*MODULES, *CONTRACTS):
        found = importlib.import_module(module)
        own = [name for name, thing in vars(found).items() if isinstance(thing, type) and thing.__module__ == module and name[0] != "_"]
        names: Iterable[str] = CONTRACTS.get(module) or getattr(found, "__all__", own)
        for name in names:
            thing = getattr(found, name)
            yield f"name {module}.{name}"
            yield from (f"option {module}.{name}({option}=)" for option in _options(thing))
            for member in _members(thing) if isinstance(thing, type) else ():
                yield f"name {module}.{name}.{member}"
                yield from (f"option {module}.{name}.{member}({option}=)" for option in _options(getattr(thing, member, None)))


def _options(thing: Any) -> list[str]:
    """What can be given by name to a function, a method or a class that users make objects of."""
    if not inspect.isfunction(thing) and not (inspect.isclass(thing) and _is_made_by_users(thing)):
        return []
    by_name = {inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY}
    return [name for name, one in inspect.signature(thing).parameters.items() if one.kind in by_name and name != "self"]


def _is_made_by_users(thing: type) -> bool:
    own = ("accelmetrics.testing", *CONTRACTS)
    return thing.__name__ in MADE_BY_USERS or thing.__module__.startswith(own) or thing.__name__.endswith("Exporter")


def _members(thing: type) -> list[str]:
    """Public attributes and methods that the package itself defines."""
    if isinstance(thing, EnumMeta):
        return list(thing.__members__)
    own = [part for part in thing.__mro__ if part.__module__.startswith("accelmetrics.")]
    return [name for part in own for name in (*vars(part), *vars(part).get("__annotations__", ())) if not name.startswith("_")]


def _keys() -> Iterator[str]:
    for row in CATALOGUE:
        for spelling in (row.key, *row.aliases):
            yield f"key {spelling}: {'int' if row.integer else 'float'} {row.kind}, {row.unit}"
    yield from (f"reason {reason.value}" for reason in Reason)


def _documents() -> Iterator[str]:
    for name, schema in (("document", json_schema()), ("line", lines_schema()), ("topology", topology_schema())):
        yield from _fields(name, schema)


def _fields(name: str, schema: Mapping[str, Any]) -> Iterator[str]:
    """The fields of objects, with the objects within."""
    for part, about in schema.get("$defs", {}).items():
        yield from _fields(f"{name} {part}", about)
    for field, about in schema.get("properties", {}).items():
        if "." not in field:  # keys of metrics are listed as such
            yield f"field of {name}: {field}{' (always)' if field in schema.get('required', ()) else ''}"
            yield from _fields(f"{name} {field}", about)


def _commands() -> Iterator[str]:
    for command in COMMANDS:
        yield f"command {command}"
        for group in load(command).OPTIONS.values():
            for option, details in group.items():
                yield f"command {command} {option}"
                if details.get("action") is argparse.BooleanOptionalAction:
                    yield f"command {command} --no-{option.removeprefix('--')}"
    for option in OPTIONS.values():
        yield f"configuration {option.name}: {option.kind.words}"
        if option.variable:
            yield f"variable {option.variable}"


def _plug_ins() -> Iterator[str]:
    yield from (f"backend {name}" for name in built_in.BUILT_IN)
    yield from (f"dialect {name}" for name in dialects.BUILT_IN)
    yield from (f"rule {name}" for name in rules.BUILT_IN)
    for name in exporters.BUILT_IN:
        make: Callable[..., object] = exporters.load(name)
        yield f"exporter {name}"
        yield from (f"exporter {name}?{option}=" for option in _options(make))
