"""What the monitor's tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.monitor.watching import no_threads


@pytest.fixture
def nothing_stays() -> Iterator[None]:
    """Each test leaves no thread of a monitor behind."""
    yield
    no_threads("accelmetrics-")
