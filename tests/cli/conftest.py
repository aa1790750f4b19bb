"""A machine for tests in this process, and simulated ones for the command as a process of its own."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import pytest

from accelmetrics import Monitor
from accelmetrics.backends import built_in, registry
from accelmetrics.cli.main import main
from accelmetrics.schemas import plug_ins
from tests.cli import machines
from tests.cli.shell import Tree
from tests.simulators.nvml import NvmlSimulator


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Iterator[machines.Rig]:
    """The only vendor of this machine, beside the host."""
    made = machines.Rig()
    monkeypatch.setattr(machines, "current", made)
    monkeypatch.setattr(built_in, "BUILT_IN", {"rig": built_in.Registration("rig", "gpu", "rig"), "host": built_in.BUILT_IN["host"]})
    monkeypatch.setitem(sys.modules, "accelmetrics.backends.rig", machines)
    monkeypatch.setattr(plug_ins, "registered", lru_cache(lambda group: {}))
    registry.forget()
    yield made
    registry.forget()


@pytest.fixture
def short_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    """A monitor of this process that is stopped gives its exporters half a second at most."""
    stop = Monitor.stop
    monkeypatch.setattr(Monitor, "stop", lambda monitor, timeout=0.5: stop(monitor, min(timeout, 0.5)))


@pytest.fixture
def simulator() -> Iterator[NvmlSimulator]:
    """Two simulated H100s."""
    with NvmlSimulator(gpus=2) as made:
        yield made


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """A system without any hardware."""
    return Tree(tmp_path / "root")


@pytest.fixture
def log_as_before() -> Iterator[None]:
    """The package's logger is left as it was found."""
    log = logging.getLogger("accelmetrics")
    before = log.handlers[:], log.level, log.propagate
    yield
    log.handlers[:], log.level, log.propagate = before


@pytest.fixture
def output(capsys: pytest.CaptureFixture[str]) -> machines.Printed:
    """What a command line that succeeds prints."""

    def run(*arguments: str) -> str:
        assert main(arguments) == 0
        return capsys.readouterr().out

    return run


@pytest.fixture
def printed(rig: machines.Rig, capsys: pytest.CaptureFixture[str]) -> machines.Printed:
    """What ``dump`` of the scripted vendor prints, without a word beside it."""
    del rig

    def run(*arguments: str) -> str:
        assert main(["dump", "--backends", "rig", *arguments]) == 0
        out, err = capsys.readouterr()
        assert err == ""
        return out

    return run
