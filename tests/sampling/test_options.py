"""What can be asked for, and what is refused in words; whether a process was named is kept apart from which one it is."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

import accelmetrics
from accelmetrics import Sampler
from accelmetrics.sampling.options import Isolation, Options, checked
from accelmetrics.schemas.errors import InvalidOptionError
from accelmetrics.schemas.limits import MAX_SECONDS
from accelmetrics.testing import FakeBackend


def options(pid: int | None) -> Options:
    return checked(gpus=None, pid=pid, children=False, disk_paths=("/",), timeout=1.0, open_timeout=1.0)


@pytest.mark.parametrize(
    ("pid", "told", "watched"),
    [(None, os.getpid(), False), (4711, 4711, True), (os.getpid(), os.getpid(), True)],
    ids=["ours", "named", "ours-named"],
)
def test_sources_are_told_whether_the_process_was_named(pid: int | None, told: int, watched: bool) -> None:
    read = options(pid).read_options()
    assert (read.pid, read.watched) == (told, watched)


def test_a_child_process_that_is_told_our_number_does_not_watch_us() -> None:
    """With ``isolation="process"`` the number is filled in, since the child has another."""
    assert options(None)._replace(pid=4711).read_options()[::3] == (4711, False)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"gpus": 0}, r"gpus takes a list of numbers, keys or UUIDs, not 0: write \[0\]"),
    ({"gpus": 1.5}, "gpus takes a list"),
    ({"gpus": "12"}, "gpus takes a list"),
    ({"gpus": [[0]]}, r"gpus has \[0\]"),
    ({"disk_paths": None}, "disk_paths takes a list of mount points"),
    ({"disk_paths": 5}, "disk_paths takes a list of mount points"),
    ({"disk_paths": "/"}, "disk_paths takes a list of mount points"),
    ({"disk_paths": [5]}, "disk_paths takes a list of mount points"),
    ({"backends": 5}, "backends takes a list of names or backend objects, not 5"),
    ({"backends": FakeBackend()}, "backends takes a list of names or backend objects"),
    ({"backends": [5]}, "backends has 5: each must be a name or a backend object, and it lacks name, kind"),
    ({"backends": [["host"]]}, r"backends has \['host'\]"),
    ({"backends": [FakeBackend]}, "backends has the class FakeBackend: give an object of it"),
    ({"timeout": 1e300}, "timeout is 1e"),
    ({"timeout": 10**400}, "timeout is 1000"),
    ({"timeout": float("nan")}, "timeout is nan"),
    ({"timeout": [1]}, r"timeout is \[1\]"),
    ({"open_timeout": 1e10}, "open_timeout is 10000000000.0: it must be a number of seconds above 0, at most 1,000,000"),
]


@pytest.mark.parametrize("call", [Sampler, accelmetrics.sample])
@pytest.mark.parametrize(("options", "words"), REFUSED, ids=[str(options)[:40] for options, _ in REFUSED])
def test_what_cannot_be_used_is_refused_in_words(call: Callable[..., Any], options: dict[str, Any], words: str) -> None:
    accelmetrics.sample(["host"], disk_paths=["/"])  # what equals nothing that is shared already must be refused too
    with pytest.raises(InvalidOptionError, match=words):
        call(**{"backends": ["host"], **options})


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_the_longest_wait_can_be_waited(isolation: Isolation) -> None:
    with Sampler(["host"], isolation=isolation, timeout=MAX_SECONDS, open_timeout=MAX_SECONDS) as sampler:
        assert sampler.sample().metrics


def test_what_gives_items_once_is_asked_once() -> None:
    given: Any = {"backends": (name for name in ["host"]), "disk_paths": (path for path in ["/"])}
    assert accelmetrics.sample(**given).backends[0].name == "host"


class Strange(FakeBackend):
    """Cannot be the key of a dict."""

    __hash__ = None  # type: ignore[assignment]


def test_a_backend_that_cannot_be_hashed_is_read() -> None:
    backend = Strange()
    backend.device(0).set(temp=5)
    assert accelmetrics.sample([backend]).metrics == {"gpu.0.temp": 5}
