"""Named tuples that are made without a look at their annotations are those that ``typing`` makes."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import typing
from pathlib import Path

import accelmetrics
from accelmetrics.schemas import named_tuple


class Ours(named_tuple.NamedTuple):
    """What it is."""

    name: str
    number: int | None = None
    "In words."
    rest: tuple[Ours, ...] = ()

    @property
    def words(self) -> str:
        return f"{self.name} {self.number}"

    @classmethod
    def named(cls, name: str) -> Ours:
        return cls(name, 7)


class Theirs(typing.NamedTuple):
    """What it is."""

    name: str
    number: int | None = None
    "In words."
    rest: tuple[Ours, ...] = ()

    @property
    def words(self) -> str:
        return f"{self.name} {self.number}"

    @classmethod
    def named(cls, name: str) -> Theirs:
        return cls(name, 7)


def test_the_class_is_the_one_that_typing_makes() -> None:
    """Fields, defaults, words, methods and bases; only the annotations are as they were written."""
    for name in ("_fields", "_field_defaults", "__match_args__", "__doc__", "__module__", "__bases__", "__slots__"):
        assert getattr(Ours, name) == getattr(Theirs, name), name
    assert {*dir(Theirs)} - {*dir(Ours)} <= {"__orig_bases__"}
    assert {*dir(Ours)} <= {*dir(Theirs)}
    assert Ours.__name__ == Ours.__qualname__ == "Ours"
    assert typing.get_type_hints(Ours) == typing.get_type_hints(Theirs)


def test_an_instance_is_like_one_of_typings() -> None:
    made = Ours.named("a")
    theirs: tuple[object, ...] = Theirs.named("a")
    assert made == theirs
    assert (made.words, made._asdict()) == ("a 7", Theirs.named("a")._asdict())
    assert repr(made) == "Ours(name='a', number=7, rest=())"
    assert pickle.loads(pickle.dumps(made)) == made
    assert made._replace(number=8) == ("a", 8, ())


def test_no_named_tuple_of_a_sample_is_made_by_typing() -> None:
    """Each would have its annotations compiled."""
    program = """
import sys, accelmetrics
accelmetrics.sample(["nvidia", "host"])
modules = [module for name, module in sys.modules.items() if name.startswith("accelmetrics.")]
classes = {value for module in modules for value in vars(module).values() if isinstance(value, type) and hasattr(value, "_fields")}
print(len(classes) > 10, sorted(found.__name__ for found in classes if hasattr(found, "__orig_bases__")))
"""
    environment = {name: value for name, value in os.environ.items() if name != "ACCELMETRICS_VALIDATE"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout == "True []\n"


def test_annotations_are_texts_wherever_one_is_made() -> None:
    """From Python 3.14 on others are not in the namespace of a class any more, and a tuple would have no fields."""
    sources = {path: path.read_text("utf-8") for path in Path(accelmetrics.__file__).parent.rglob("*.py")}
    makers = {path for path, source in sources.items() if "schemas.named_tuple import NamedTuple" in source}
    assert len(makers) > 10
    assert [path for path in makers if "\nfrom __future__ import annotations\n" not in sources[path]] == []
