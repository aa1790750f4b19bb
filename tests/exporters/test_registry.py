"""A string names an exporter and sets its options; what it cannot mean is refused in words."""

from __future__ import annotations

import inspect
import sys
import types
import typing
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Literal
from unittest.mock import Mock

import pytest

from accelmetrics.exporters import registry
from accelmetrics.schemas import plug_ins
from accelmetrics.schemas.errors import InvalidOptionError, MissingDependencyError, UnknownNameError
from accelmetrics.schemas.record import Record
from accelmetrics.schemas.selection import MetricSelection

OBJECTS = ("stream", "device_labels", "process_labels")
"""Options that take an object."""


class Sink:
    """An exporter with an option of each kind."""

    name = "sink"

    def __init__(
        self, path: str, *, every: int = 1, pause: float | None = None, packed: bool = False, mode: Literal["a", "b"] = "a", title: str = ""
    ) -> None:
        self.options = (path, every, pause, packed, mode, title)

    def open(self) -> None: ...

    def export(self, record: Record) -> None: ...

    def flush(self) -> None: ...

    def close(self) -> None: ...


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.BUILT_IN, "sink", f"{__name__}:Sink")


def made(text: str) -> tuple[object, ...]:
    exporter = registry.create(text)
    assert isinstance(exporter, Sink)
    return exporter.options


def test_a_string_sets_every_kind_of_option() -> None:
    """Each word is read as its parameter's annotation says."""
    assert made("sink:run.jsonl") == ("run.jsonl", 1, None, False, "a", "")
    assert made("sink:a:b?every=3&pause=0.5&packed=yes&mode=b&title=x%20y") == ("a:b", 3, 0.5, True, "b", "x y")


@pytest.mark.parametrize(
    ("text", "path", "title"),
    [
        ("sink:x?title=http://h:1&mode=b", "x", "http://h:1"),
        ("sink:x?title=/etc/a+b", "x", "/etc/a+b"),
        ("sink:x?title=a=b%26c%2525%2B%3A", "x", "a=b&c%25+:"),
        ("sink:x?title=what?:&&mode=a", "x", "what?:"),
        ("sink:x?title=", "x", ""),
        ("sink:x?title=d%FF", "x", "d\udcff"),
        ("sink:why%3f%3F.jsonl", "why??.jsonl", ""),
        ("sink:100%25+a b.jsonl", "100%25+a b.jsonl", ""),
        ("sink:http://me:a%3Fb@h:1/x?title=y", "http://me:a%3Fb@h:1/x", "y"),
    ],
)
def test_only_the_first_question_mark_and_ampersands_part_a_string(text: str, path: str, title: str) -> None:
    """Colons, plus signs and further question marks belong to the words; what is percent-encoded is decoded once."""
    found = made(text)
    assert (found[0], found[5]) == (path, title)


WORDS = {bool: ("true", True), int: ("3", 3), float: ("2.5", 2.5)}


def word(hint: Any) -> tuple[str, object]:
    """A word that an option of this type takes, and its value: one with a colon where it takes text."""
    kinds = [
        kind
        for kind in (typing.get_args(hint) if typing.get_origin(hint) in (types.UnionType, typing.Union) else (hint,))
        if kind is not type(None)
    ]
    if typing.get_origin(kinds[0]) is Literal:
        return typing.get_args(kinds[0])[-1], typing.get_args(kinds[0])[-1]
    return WORDS.get(kinds[0], ("http://a:1", "http://a:1"))


def test_a_function_cannot_be_written_as_a_word() -> None:
    """The message says what the option must be."""
    with pytest.raises(InvalidOptionError, match=r"prometheus\?device_labels is 'pod_of': it must be callable"):
        registry.create("prometheus:?device_labels=pod_of")


def needs_target(name: str) -> bool:
    """Whether the exporter cannot be made without what stands behind the colon: a file, a directory."""
    first = next(iter(inspect.signature(registry.load(name)).parameters.values()))
    return first.default is first.empty


@pytest.mark.parametrize("target", ["", ":x:1"])
@pytest.mark.parametrize("name", registry.BUILT_IN)
def test_every_built_in_gets_its_options_whole(name: str, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With and without a target, whatever colons stand in the options."""
    factory = registry.load(name)
    got: list[tuple[tuple[object, ...], dict[str, object]]] = []

    def taker(*arguments: object, **options: object) -> Sink:
        got.append((arguments, options))
        return Sink("x")

    monkeypatch.setattr(taker, "__signature__", inspect.signature(factory), raising=False)
    monkeypatch.setattr(taker, "__annotations__", typing.get_type_hints(factory.__init__))
    monkeypatch.setattr(registry, "load", lambda _: taker)
    strings = [one.name for one in inspect.signature(factory).parameters.values() if one.kind is inspect.Parameter.KEYWORD_ONLY]
    words = {option: word(taker.__annotations__[option]) for option in strings if option not in OBJECTS}
    text = f"{name}{target}?{'&'.join(f'{option}={said}' for option, (said, _) in words.items())}"
    if not target and needs_target(name):
        with pytest.raises(InvalidOptionError, match="needs its"):
            registry.create(text)
        return
    registry.create(text)
    assert got == [((target[1:],) if target else (), {option: value for option, (_, value) in words.items()})]


@pytest.mark.parametrize("name", registry.BUILT_IN)
def test_every_built_in_takes_a_selection(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the keyword and in its string form, where a comma belongs to it; files and trackers leave detail out unless told otherwise."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    for client in ("aim", "clearml", "swanlab", "trackio"):  # they are with their own tests alone
        monkeypatch.setitem(sys.modules, client, Mock(__file__=__file__))
    path = tmp_path / "x.prom"
    target = f":{path}" if needs_target(name) else ""
    plain, chosen = registry.create(f"{name}{target}"), registry.create(f"{name}{target}?metrics=core,-gpu.0.temp")
    assert plain.metrics == MetricSelection(inspect.signature(registry.load(name)).parameters["metrics"].default)  # type: ignore[attr-defined]
    assert chosen.metrics == MetricSelection("core,-gpu.0.temp")  # type: ignore[attr-defined]
    made = registry.load(name)(*([str(path)] if target else []), metrics=["core", "cpu"])
    assert made.metrics == MetricSelection(["core", "cpu"])  # type: ignore[attr-defined]
    with pytest.raises(UnknownNameError, match="Did you mean 'powerWatts'"):
        registry.create(f"{name}{target}?metrics=powerWats")


def test_a_selection_for_an_exporter_that_knows_of_none() -> None:
    """One of another package is given it too; one with an option of that name is given its words."""
    assert not hasattr(registry.create("sink:x"), "metrics")
    assert registry.create("sink:x?metrics=core&every=3").metrics == MetricSelection("core")  # type: ignore[attr-defined]


def test_a_selection_that_an_exporter_cannot_have(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is refused in words."""
    monkeypatch.setattr(Sink, "metrics", property(lambda _: 5), raising=False)
    with pytest.raises(InvalidOptionError, match="the exporter 'sink' does not support metrics: "):
        registry.create("sink:x?metrics=core")


def test_an_object_is_taken_as_it_is() -> None:
    """An exporter that is made already stays the one it is; anything else is refused."""
    exporter = Sink("here")
    assert registry.create(exporter) is exporter
    with pytest.raises(InvalidOptionError, match="no method open, export"):
        registry.create(3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ("sunk:x", UnknownNameError, "Did you mean 'sink'"),
        ("sink", InvalidOptionError, "needs its path: write sink:PATH"),
        ("sink:x?evry=1", UnknownNameError, "Did you mean 'every'"),
        ("sink:x?every=two", InvalidOptionError, "'two': it must be a whole number"),
        ("sink:x?pause=long", InvalidOptionError, "must be a number"),
        ("sink:x?packed=perhaps", InvalidOptionError, "true or false"),
        ("sink:x?mode=c", InvalidOptionError, "must be 'a' or 'b'"),
        ("influx:run.lp?precision=m", InvalidOptionError, "must be 'ns', 'us', 'ms' or 's'"),
    ],
)
def test_what_cannot_be_meant_is_refused(text: str, error: type[Exception], words: str) -> None:
    """The message names what was wrong and what to write."""
    with pytest.raises(error, match=words):
        registry.create(text)


OTLP_MESSAGES = "opentelemetry.proto.collector.metrics.v1.metrics_service_pb2"


@pytest.mark.parametrize(
    ("text", "extra", "package", "needs_nothing"),
    [
        ("console:table", "rich", "rich", "console"),
        ("influx:http://127.0.0.1:8086", "influx", "httpx", "influx:run.lp"),
        ("prometheus", "prometheus", "prometheus_client", ""),
        ("prometheus", "prometheus", "tornado", "textfile:run.prom"),
        ("textfile:run.prom", "prometheus", "prometheus_client", ""),
        ("otlp?protocol=grpc", "otlp", "grpc", "otlp?protocol=http"),
        ("otlp?protocol=http", "otlp", "httpx", "otlp?protocol=grpc"),
        ("otlp?protocol=http", "otlp", OTLP_MESSAGES, ""),
        ("mlflow", "mlflow", "mlflow", ""),
        ("tensorboard:runs", "tensorboard", "tensorboard", ""),
        *((name, name, name, "") for name in ("aim", "clearml", "swanlab", "trackio")),
    ],
)
def test_a_missing_package_is_named(text: str, extra: str, package: str, needs_nothing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the exporter is made, with the command that installs it; what does without the package is made."""
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingDependencyError, match=rf"pip install 'accelmetrics\[{extra}\]'"):
        registry.create(text)
    if needs_nothing:
        registry.create(needs_nothing)


@pytest.mark.parametrize(
    ("target", "source", "why"),
    [
        ("acme_sink:Sink", "import a_module_that_is_not_there", "ModuleNotFoundError: No module named 'a_module_that_is_not_there'"),
        ("acme_sink:Sink", "Other = 1", "AttributeError: module 'acme_sink' has no attribute 'Sink'"),
        ("acme_sink:Sink", "raise RuntimeError('too old')", "RuntimeError: too old"),
        ("acme_sink:Sink", "def broken(:", "SyntaxError: "),
        ("acme_gone:Sink", "", "ModuleNotFoundError: No module named 'acme_gone'"),
    ],
)
def test_a_plug_in_that_cannot_be_imported_is_named(
    target: str, source: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its module, and by the package to be mended."""
    info = tmp_path / "acme-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{registry.GROUP}]\nacme = {target}\n")
    (tmp_path / "acme_sink.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    plug_ins.registered.cache_clear()
    try:
        with pytest.raises(InvalidOptionError) as error:
            registry.create("acme:x")
    finally:
        plug_ins.registered.cache_clear()
        sys.modules.pop("acme_sink", None)
    assert str(error.value).startswith(f"the exporter 'acme' ({target}) could not be loaded: {why}")
    assert str(error.value).endswith(": fix or uninstall the package acme, which registers it")


def test_every_built_in_is_an_entry_point() -> None:
    """The package registers its own exporters where plug-ins register theirs."""
    registered = {point.name: point.value for point in entry_points(group=registry.GROUP) if point.value.startswith("accelmetrics.")}
    assert registered == {name: target for name, target in registry.BUILT_IN.items() if name != "sink"}
