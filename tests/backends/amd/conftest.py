"""A machine without ROCm, and a ``rocm-smi`` that does what a test says."""

from pathlib import Path

import pytest

from tests.simulators.amdgpu import Tree
from tests.simulators.rocm_smi import RocmSmiStandIn


@pytest.fixture
def tree(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    """A machine without ROCm."""
    monkeypatch.setenv("ROCM_PATH", str(tmp_path / "rocm"))
    monkeypatch.delenv("ROCM_HOME", raising=False)
    monkeypatch.setattr("accelmetrics.backends.amd.amdsmi.DEFAULT_ROOT", str(tmp_path / "opt"))
    return Tree(root)


@pytest.fixture
def stand_in(tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> RocmSmiStandIn:
    """The command, first on ``PATH``."""
    del root
    command = RocmSmiStandIn(tmp_path)
    monkeypatch.setenv("PATH", command.path)
    return command
