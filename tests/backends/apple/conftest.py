"""A Mac with Apple's chip, as far as the backend can tell: what the kernel says is replaced, its commands are stand-ins."""

import os
from collections.abc import Generator
from pathlib import Path

import pytest

from accelmetrics import Sampler
from accelmetrics.backends import apple
from accelmetrics.backends.apple import AppleBackend, sources
from accelmetrics.backends.contract import SYSTEM_CLOCK
from accelmetrics.backends.kit.polled import PolledDriver
from tests.backends.apple.reading import Mac
from tests.simulators.apple import MacStandIn, kernel


@pytest.fixture
def mac(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MacStandIn:
    """The machine, and we are an ordinary user on it."""
    made = MacStandIn(tmp_path)
    monkeypatch.setenv("PATH", made.path)
    for module in (apple, sources):
        monkeypatch.setattr(module, "DIRECTORIES", ())
    for command in (sources.IOREG, *sources.POWERMETRICS, sources.PROFILER, sources.SYSCTL):
        monkeypatch.setattr(command, "directories", ())
    monkeypatch.setattr(os, "uname", kernel)
    monkeypatch.setattr(os, "geteuid", lambda: 501)
    return made


@pytest.fixture
def root(mac: MacStandIn, monkeypatch: pytest.MonkeyPatch) -> MacStandIn:
    """The same, and we may do everything."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    return mac


@pytest.fixture
def sampler(mac: MacStandIn) -> Generator[Sampler, None, None]:
    """A sampler of this machine alone. A clock of its own gives it a numbering of its own."""
    del mac
    with Sampler(["apple"], clock=SYSTEM_CLOCK) as made:
        yield made


@pytest.fixture
def machine() -> Generator[Mac, None, None]:
    """A backend of the test's own, with what it has replaced, closed after it."""
    opened: list[PolledDriver] = []

    def open_driver() -> PolledDriver:
        opened.append(AppleBackend().open())
        return opened[-1]

    yield Mac(open_driver)
    for driver in opened:
        driver.close()
