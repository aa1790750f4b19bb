"""The machine that monitors watch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.monitors.machine import Machine, two_vendors


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    """Two H100s and two MI210s."""
    with two_vendors(tmp_path) as made:
        yield made
