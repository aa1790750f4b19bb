"""A ``gcipuinfo`` that does what a test says."""

import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from accelmetrics import Sampler
from accelmetrics.backends.contract import SYSTEM_CLOCK
from tests.simulators.graphcore import GcipuinfoStandIn


@pytest.fixture
def stand_in(tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[GcipuinfoStandIn, None, None]:
    """The module, importable; whatever hangs in the end is let go, so that no test leaves a stuck thread to the next."""
    del root
    module = GcipuinfoStandIn(tmp_path)
    monkeypatch.syspath_prepend(str(module.directory))
    monkeypatch.delitem(sys.modules, "gcipuinfo", raising=False)
    yield module
    module.behave([])
    sys.modules.pop("gcipuinfo", None)


@pytest.fixture
def sampler(stand_in: GcipuinfoStandIn) -> Generator[Sampler, None, None]:
    """A sampler of IPUs alone. A clock of its own gives it a numbering of its own."""
    del stand_in
    with Sampler(["graphcore"], clock=SYSTEM_CLOCK) as made:
        yield made
