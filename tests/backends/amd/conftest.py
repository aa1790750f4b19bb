"""A machine without any hardware, and a ``rocm-smi`` that does what a test says."""

from pathlib import Path

import pytest

from tests.simulators.rocm_smi import RocmSmiStandIn


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The root that stands in front of ``/sys``, ``/proc`` and ``/dev``: empty."""
    root = tmp_path / "root"
    root.mkdir()
    monkeypatch.setenv("ACCELMETRICS_SYSROOT", str(root))
    return root


@pytest.fixture
def stand_in(tmp_path: Path, system: Path, monkeypatch: pytest.MonkeyPatch) -> RocmSmiStandIn:
    """The command, first on ``PATH``."""
    del system
    command = RocmSmiStandIn(tmp_path)
    monkeypatch.setenv("PATH", command.path)
    return command
