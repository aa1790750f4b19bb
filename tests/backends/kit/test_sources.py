"""A backend with several sources: the first that opens, or the one that is pinned."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import pytest

from accelmetrics.backends import registry
from accelmetrics.backends.contract import Clock, Coverage, Detection, Driver
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


def test_where_none_opens_the_one_that_is_there_gives_the_reason() -> None:
    with pytest.raises(DriverGoneError) as caught:
        backend_of(command=failing(MISSING), library=failing(HANGS)).open()
    assert (caught.value.reason, caught.value.backend) == (Reason.TIMED_OUT, "acme")
    assert caught.value.message == "libacme hangs; acme-smi is not installed"
    assert caught.value.advice == "load the driver; install it"


def test_a_registered_one_is_itself_after_a_journey() -> None:
    amd = registry.load("amd")
    assert pickle.loads(pickle.dumps(amd)) is amd
    assert isinstance(amd, SourcesBackend)
    pinned = amd.pinned("rocm-smi")
    assert pickle.loads(pickle.dumps(pinned)) is pinned
