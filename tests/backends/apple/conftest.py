"""A Mac with Apple's chip, as far as the backend can tell: what the kernel says is replaced, its commands are stand-ins."""

from collections.abc import Generator
from pathlib import Path

import pytest

from accelmetrics import Sampler
from accelmetrics.backends.apple import machine
from accelmetrics.backends.apple.driver import AppleDriver
from accelmetrics.backends.clock import SYSTEM_CLOCK
from tests.simulators.apple import MacStandIn

MAC = machine.Machine("Darwin", "arm64", "Darwin Kernel Version 25.1.0: root:xnu-12377.41.6~2/RELEASE_ARM64_T6020")


@pytest.fixture
def mac(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MacStandIn:
    """The machine, and we are an ordinary user on it."""
    made = MacStandIn(tmp_path)
    monkeypatch.setenv("PATH", made.path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(machine, "uname", lambda: MAC)
    monkeypatch.setattr(machine, "is_root", lambda: False)
    return made


@pytest.fixture
def root(mac: MacStandIn, monkeypatch: pytest.MonkeyPatch) -> MacStandIn:
    """The same, and we may do everything."""
    monkeypatch.setattr(machine, "is_root", lambda: True)
    return mac


@pytest.fixture
def sampler(mac: MacStandIn) -> Generator[Sampler, None, None]:
    """A sampler of this machine alone. A clock of its own gives it a numbering of its own."""
    del mac
    with Sampler(["apple"], clock=SYSTEM_CLOCK) as made:
        yield made


@pytest.fixture
def drivers() -> Generator[list[AppleDriver], None, None]:
    """Drivers that a test opens, closed after it."""
    opened: list[AppleDriver] = []
    yield opened
    for driver in opened:
        driver.close()
