"""What tests of vendors begin with."""

from __future__ import annotations

import pytest

from accelmetrics.backends.kit import PolledBackend
from accelmetrics.testing import FakeClock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    """The sampler's, and that of every backend on the kit."""
    made = FakeClock()
    monkeypatch.setattr(
        PolledBackend, "clock", property(lambda _: made, lambda backend, own: vars(backend).update(clock=own)), raising=False
    )
    return made
