"""A string names an exporter and sets its options; what it cannot mean is refused in words."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Literal

import pytest

from accelmetrics.exporters import registry
from accelmetrics.schemas.errors import InvalidOptionError, UnknownNameError
from accelmetrics.schemas.record import Record


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
        ("sink:x?mode=c", InvalidOptionError, "one of a, b"),
    ],
)
def test_what_cannot_be_meant_is_refused(text: str, error: type[Exception], words: str) -> None:
    """The message names what was wrong and what to write."""
    with pytest.raises(error, match=words):
        registry.create(text)


def test_every_built_in_is_an_entry_point() -> None:
    """The package registers its own exporters where plug-ins register theirs."""
    registered = {point.name: point.value for point in entry_points(group=registry.GROUP) if point.value.startswith("accelmetrics.")}
    assert registered == {name: target for name, target in registry.BUILT_IN.items() if name != "sink"}
