"""A backend with several sources: the first that opens, or the one that is pinned."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from accelmetrics.backends import registry
from accelmetrics.backends.built_in import BUILT_IN
from accelmetrics.backends.contract import Clock, Coverage, Detection, Driver, ReadOptions
from accelmetrics.backends.kit import DeviceSample, Field, PolledBackend, PollOnce, Source
from accelmetrics.backends.kit.sources import SourcesBackend
from accelmetrics.schemas.errors import DriverGoneError, Reason, SourceError, UnknownNameError
from accelmetrics.testing import FakeBackend


def failing(error: SourceError) -> Callable[[Clock], Driver]:
    def open_(clock: Clock) -> Driver:
        raise error

    return open_


MISSING = SourceError(Reason.DRIVER_UNAVAILABLE, "acme-smi is not installed", advice="install it")
HANGS = DriverGoneError(Reason.TIMED_OUT, "libacme hangs")
WORKS = FakeBackend("acme").open()


def backend_of(**sources: Callable[[Clock], Driver]) -> SourcesBackend:
    found = Detection(True, "one card", 1, "load the driver")
    return SourcesBackend("acme", "gpu", sources, detect=lambda: found, coverage=Coverage)


def test_the_first_that_opens_is_used() -> None:
    assert backend_of(library=failing(MISSING), command=lambda clock: WORKS).open() is WORKS


def test_a_pinned_source_is_the_only_one() -> None:
    backend = backend_of(library=failing(HANGS), command=lambda clock: WORKS)
    assert backend.pinned("command").open() is WORKS
    with pytest.raises(SourceError, match="libacme hangs"):
        backend.pinned("library").open()
    assert backend.pinned("library") is backend.pinned("library")
    assert (backend.pin, backend.pinned("library").pin) == ("", "library")
    with pytest.raises(UnknownNameError, match=r"unknown source of the backend acme 'libary'\. Did you mean 'library'"):
        backend.pinned("libary")


def test_each_source_of_a_polled_backend_that_lists_devices_can_be_pinned() -> None:
    """One that only adds to devices is no second way to them; one that stands in for another is asked by itself."""
    asked: list[str] = []

    def source(name: str) -> Callable[[], PollOnce]:
        def poll() -> list[DeviceSample]:
            asked.append(name)
            return [DeviceSample({"watts": len(name)})]

        return lambda: poll

    fields = (Field("powerWatts", "watts", "W"),)
    stand_in, paced = Source("text", source("text"), fields, instead_of="json"), Source("slow", source("slow"), fields, 60.0)
    backend = PolledBackend("acme", kind="gpu", source="json", connect=source("json"), fields=fields, also=(stand_in, paced))
    assert backend.sources == ("json", "text")
    pinned = backend.pinned("text")
    reading = pinned.open().reader(ReadOptions(1)).read(0, [])
    assert (asked, [block.values for block in reading.blocks]) == (["text"], [(4,)])
    assert (pinned.coverage(), backend.pinned("text"), backend.pin) == (backend.coverage(), pinned, "")
    with pytest.raises(UnknownNameError, match="unknown source of the backend acme 'slow'"):
        backend.pinned("slow")


def test_every_backend_with_several_sources_is_documented_as_verified() -> None:
    listed = (Path(__file__).parents[3] / "docs" / "verify.md").read_text("utf-8").partition("## References")[2].partition("\n## ")[0]
    rows = {name: row for row in listed.splitlines() if row.startswith("| `") for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    several = {name: sources for name in BUILT_IN if len(sources := getattr(registry.load(name), "sources", ())) > 1}
    assert several.keys() == rows.keys() - {"nvidia", "host"}
    assert [name for name, sources in several.items() if not all(f"`{source}`" in rows[name] for source in sources)] == []


def test_where_none_opens_the_one_that_is_there_gives_the_reason() -> None:
    with pytest.raises(DriverGoneError) as caught:
        backend_of(command=failing(MISSING), library=failing(HANGS)).open()
    assert (caught.value.reason, caught.value.backend) == (Reason.TIMED_OUT, "acme")
    assert caught.value.message == "libacme hangs; acme-smi is not installed"
    assert caught.value.advice == "load the driver; install it"


def test_a_registered_one_is_itself_after_a_journey() -> None:
    for name, source in (("amd", "rocm-smi"), ("gaudi", "hl-smi-table")):
        pinned = getattr(registry.load(name), "pinned")(source)  # noqa: B009 - not every backend has it
        assert pickle.loads(pickle.dumps(pinned)) is pinned
