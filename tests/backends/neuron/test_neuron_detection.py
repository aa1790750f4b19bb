"""Whether the hardware is here: by hard facts, quickly, and in words."""

from __future__ import annotations

import os
import shutil
from typing import Any

import pytest

from accelmetrics.backends.neuron import backend
from accelmetrics.visibility.doctor import diagnose
from tests.simulators.neuron import NeuronMonitorStandIn, SysfsTree


def test_nothing_is_here(tree: SysfsTree) -> None:
    assert backend.detect() == (False, "no accelerator of AWS (0x1d0f) on the PCI bus, no /dev/neuron0", 0, "")


def test_amazons_network_cards_and_disks_are_no_accelerators(tree: SysfsTree) -> None:
    tree.add_pci("0000:00:04.0", "0x8061", kind="0x010802")
    tree.add_pci("0000:00:05.0", "0xec20", kind="0x020000")
    assert not backend.detect().present


def test_the_tool_alone_is_no_hardware(tool: NeuronMonitorStandIn) -> None:
    assert not backend.detect().present


@pytest.mark.parametrize(
    ("device", "kind"),
    [("0x7064", "0x088000"), ("0x7164", "0x088000"), ("0x7264", "0x088000"), ("0x7364", "0x088000"), ("0x9999", "0x120000")],
)
def test_a_chip_on_the_bus_without_a_driver(tree: SysfsTree, device: str, kind: str) -> None:
    tree.add_pci("0000:00:1e.0", device, kind)
    found = backend.detect()
    assert found.present
    assert found.evidence == "1 Neuron device on the PCI bus (0000:00:1e.0), but the driver is not loaded"
    assert "modprobe neuron" in found.advice
    assert found.devices == 1


def test_another_vendors_accelerator(tree: SysfsTree) -> None:
    tree.add_pci("0000:00:1e.0", "0x7164", vendor="0x1002")
    assert not backend.detect().present


def test_the_node_alone(tree: SysfsTree) -> None:
    tree.add_node()
    words = "/dev/neuron0 is there; the driver shows no counters in /sys/devices/virtual/neuron_device"
    assert backend.detect() == (True, words, 1, "")


def test_a_node_and_chips_on_the_bus(tree: SysfsTree) -> None:
    """The chips are counted, and the driver is not said to be missing."""
    tree.add_node()
    tree.add_pci("0000:00:1e.0", "0x7164")
    tree.add_pci("0000:00:1f.0", "0x7164")
    assert (backend.detect().devices, backend.detect().advice) == (2, "")


def test_a_container_that_was_given_another_chip_than_the_first(tree: SysfsTree) -> None:
    tree.add_chip(3)
    tree.add_node(3)
    assert backend.detect().advice == ""


def test_the_drivers_tree(tree: SysfsTree) -> None:
    tree.add_chip(0)
    tree.add_chip(1)
    found = backend.detect()
    assert found.evidence == "2 Neuron devices with 4 cores in /sys/devices/virtual/neuron_device, no /dev/neuron0"
    assert (found.devices, found.advice) == (4, "in a container, start it with --device=/dev/neuron0")
    tree.add_node()
    assert backend.detect().advice == ""


def test_a_tree_that_was_laid_out_anew_is_told(tree: SysfsTree) -> None:
    """As by driver 2.31: somewhere else, where nothing is read."""
    tree.add_chip(0)
    tree.add_node()
    for core in range(2):
        shutil.move(tree.neuron / f"neuron0/neuron_core{core}/stats", tree.neuron / f"neuron0/neuron_core{core}/moved")
    words = "counters are not in the expected place: neuron driver 2.31 moved counters, and they are read only through neuron-monitor"
    assert backend.detect().evidence.endswith(f"; {words}")
    (found,) = diagnose(["neuron"]).backends
    assert found.evidence.endswith(words)


def test_one_file_of_each_chip_is_read(tree: SysfsTree, monkeypatch: pytest.MonkeyPatch) -> None:
    """Detection is cheap on the largest machines too."""
    for chip in range(16):
        tree.add_chip(chip, cores=8)
    opened, names = os.open, list[str]()

    def noted(path: Any, *rest: Any) -> int:
        names.append(str(path))
        return opened(path, *rest)

    monkeypatch.setattr(os, "open", noted)
    assert backend.detect().devices == 128
    assert len(names) == 16


def test_what_it_is() -> None:
    assert (backend.name, backend.kind, backend.own_metrics()) == ("neuron", "trn", ())
