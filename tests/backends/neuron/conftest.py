"""A machine without any hardware, and a ``neuron-monitor`` that does what a test says."""

from collections.abc import Generator
from pathlib import Path

import pytest

from accelmetrics.backends import neuron
from tests.simulators.neuron import NeuronMonitorStandIn, SysfsTree


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SysfsTree:
    """The root that stands in front of ``/sys`` and ``/dev``: empty. No tool is on ``PATH``."""
    root = tmp_path / "root"
    root.mkdir()
    monkeypatch.setenv("ACCELMETRICS_SYSROOT", str(root))
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.setattr(neuron, "DIRECTORIES", (str(tmp_path / "opt"),))
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    return SysfsTree(root)


@pytest.fixture
def tool(tmp_path: Path, tree: SysfsTree, monkeypatch: pytest.MonkeyPatch) -> Generator[NeuronMonitorStandIn, None, None]:
    """The command, on ``PATH``."""
    del tree
    stand_in = NeuronMonitorStandIn(tmp_path)
    monkeypatch.setenv("PATH", stand_in.path)
    yield stand_in
    # A process that a failing test left running would print into a directory that is being removed.
    stand_in.tell(mode="die", status=0)
