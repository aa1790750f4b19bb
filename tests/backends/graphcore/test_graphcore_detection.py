"""Detection goes by PCI cards, device nodes and the import path, imports nothing, and says what it found."""

import sys
from pathlib import Path
from types import ModuleType

import pytest

from accelmetrics.backends import registry
from accelmetrics.schemas.errors import SourceError
from tests.simulators.graphcore import GcipuinfoStandIn

backend = registry.load("graphcore")


def add_card(root: Path, address: str, vendor: str = "0x1d95") -> None:
    device = root / "sys/bus/pci/devices" / address
    device.mkdir(parents=True)
    (device / "vendor").write_text(f"{vendor}\n")


def add_nodes(root: Path, *names: str) -> None:
    (root / "dev").mkdir(exist_ok=True)
    for name in names:
        (root / "dev" / name).touch()


def test_nothing_is_said_plainly(root: Path) -> None:
    add_card(root, "0000:01:00.0", vendor="0x10de")
    found = backend.detect()
    assert (found.present, found.devices, found.advice) == (False, 0, "")
    assert found.evidence == "no device of Graphcore (0x1d95) on the PCI bus, no /dev/ipu*, no Python module gcipuinfo"


def test_a_card_without_the_module_is_there_and_says_how_to_get_it(root: Path) -> None:
    add_card(root, "0000:35:00.0")
    add_nodes(root, "ipu0", "ipu0_ex", "ipu0_mem")
    found = backend.detect()
    assert (found.present, found.devices) == (True, 1)
    assert found.evidence == "1 IPU on the PCI bus (0000:35:00.0), /dev/ipu0, no Python module gcipuinfo"
    with pytest.raises(SourceError, match="No module named 'gcipuinfo'") as refused:
        backend.open()
    assert "pip install" in refused.value.advice
    assert "Poplar SDK" in refused.value.advice


def test_the_module_alone_is_worth_a_try(stand_in: GcipuinfoStandIn) -> None:
    """IPU-Machines are reached over the network."""
    found = backend.detect()
    assert (found.present, found.devices, found.advice) == (True, 0, "")
    assert found.evidence == "Python module gcipuinfo, none on this PCI bus (they may be reached over the network)"
    assert stand_in.calls == []
    assert "gcipuinfo" not in sys.modules


def test_a_card_whose_nodes_were_not_passed_in_says_so(stand_in: GcipuinfoStandIn, root: Path) -> None:
    add_card(root, "0000:35:00.0")
    add_card(root, "0000:36:00.0")
    found = backend.detect()
    assert (found.present, found.devices) == (True, 2)
    assert found.evidence == "Python module gcipuinfo, 2 IPUs on the PCI bus (0000:35:00.0, 0000:36:00.0), no /dev/ipu*"
    assert "container" in found.advice
    assert stand_in.calls == []


def test_a_card_with_neither_nodes_nor_the_module_misses_both(root: Path) -> None:
    """How to start the container is told by detection, the module by opening: ``doctor`` puts them together in this order."""
    add_card(root, "0000:35:00.0")
    assert backend.detect().advice == "in a container, start it with gc-docker, which passes the IPUs in"
    with pytest.raises(SourceError) as refused:
        backend.open()
    assert refused.value.advice.startswith("gcipuinfo comes with")


def test_nodes_alone_are_evidence(root: Path) -> None:
    add_nodes(root, "ipu0", "ipu1", "ipu0_ex", "ipumem")
    found = backend.detect()
    assert (found.present, found.devices) == (True, 2)
    assert "/dev/ipu0, /dev/ipu1" in found.evidence


def test_an_odd_module_of_that_name_does_not_raise(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    del root
    odd = ModuleType("gcipuinfo")
    odd.__spec__ = None
    monkeypatch.setitem(sys.modules, "gcipuinfo", odd)
    assert not backend.detect().present


def test_it_is_a_source_of_ipus_that_is_read_when_asked() -> None:
    assert (backend.name, backend.kind, backend.interval, tuple(backend.own_metrics())) == ("graphcore", "ipu", 0.0, ())
