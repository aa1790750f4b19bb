"""The look at the PCI bus that all backends share: one for all of them, and never an old one for long."""

import os
import threading
from pathlib import Path

import pytest

from accelmetrics.backends.contract import Detection
from accelmetrics.backends.kit.system import find_driven, find_hardware, find_nodes, find_pci, pci_devices, pci_slot
from tests.sampling.conftest import until
from tests.simulators.drm import DrmTree

AMD, NVIDIA = "0x1002", "0x10de"


@pytest.fixture(autouse=True)
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without devices, not looked at yet."""
    monkeypatch.setenv("ACCELMETRICS_SYSROOT", str(tmp_path))
    monkeypatch.setattr("accelmetrics.backends.kit.system._BUS", {})
    return tmp_path


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The vendor files that were read."""
    read: list[str] = []

    really = os.open

    def noted(path: str, flags: int) -> int:
        if str(path).endswith("/vendor"):
            read.append(path)
        return really(path, flags)

    monkeypatch.setattr(os, "open", noted)
    return read


def plug(root: Path, address: str, vendor: str, kind: str = "0x030000") -> Path:
    device = root / "sys/bus/pci/devices" / address
    device.mkdir(parents=True, exist_ok=True)
    (device / "vendor").write_text(f"{vendor}\n")
    (device / "class").write_text(f"{kind}\n")
    return device


def test_each_vendor_has_its_own_of_the_classes_asked_for_in_order(system: Path) -> None:
    for address, vendor, kind in (
        ("0000:81:00.0", AMD, "0x030000"),
        ("0000:03:00.0", AMD, "0x120000"),
        ("0000:03:00.1", AMD, "0x040300"),
        ("0000:05:00.0", NVIDIA, "0x030200"),
    ):
        plug(system, address, vendor, kind)
    assert pci_devices(AMD) == ["0000:03:00.0", "0000:03:00.1", "0000:81:00.0"]
    assert pci_devices(AMD, ("0x03", "0x12")) == ["0000:03:00.0", "0000:81:00.0"]
    assert pci_devices(NVIDIA) == ["0000:05:00.0"]
    assert pci_devices("0x1ae0") == []


def test_one_look_serves_every_vendor(system: Path, looks: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("accelmetrics.backends.kit.system.BUS_LASTS", 60.0)
    plug(system, "0000:03:00.0", AMD)
    for vendor in (AMD, NVIDIA, AMD):
        pci_devices(vendor)
    assert len(looks) == 1


def test_a_device_that_comes_or_goes_is_seen_at_once(system: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("accelmetrics.backends.kit.system.BUS_LASTS", 60.0)
    plug(system, "0000:03:00.0", AMD)
    assert pci_devices(AMD) == ["0000:03:00.0"]
    second = plug(system, "0000:83:00.0", AMD)
    assert pci_devices(AMD) == ["0000:03:00.0", "0000:83:00.0"]
    for path in (*second.iterdir(), second):
        path.unlink() if path.is_file() else path.rmdir()
    assert pci_devices(AMD) == ["0000:03:00.0"]


def test_a_device_that_takes_anothers_address_is_seen_by_a_later_look(system: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("accelmetrics.backends.kit.system.BUS_LASTS", 0.05)
    plug(system, "0000:03:00.0", AMD)
    assert pci_devices(NVIDIA) == []
    plug(system, "0000:03:00.0", NVIDIA)
    until(lambda: pci_devices(NVIDIA) == ["0000:03:00.0"])


def test_another_root_and_another_process_look_for_themselves(
    system: Path, looks: list[str], tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("accelmetrics.backends.kit.system.BUS_LASTS", 60.0)
    plug(system, "0000:03:00.0", AMD)
    other = tmp_path_factory.mktemp("other")
    plug(other, "0000:03:00.0", NVIDIA)
    assert pci_devices(AMD)
    monkeypatch.setenv("ACCELMETRICS_SYSROOT", str(other))
    assert pci_devices(AMD) == []
    assert len(looks) == 2
    monkeypatch.setattr("os.getpid", lambda: 1)
    assert pci_devices(NVIDIA) == ["0000:03:00.0"]
    assert len(looks) == 3


def test_a_device_that_may_not_be_asked_is_nobodys(system: Path) -> None:
    plug(system, "0000:03:00.0", AMD)
    (system / "sys/bus/pci/devices/0000:05:00.0/vendor").mkdir(parents=True)
    (system / "sys/bus/pci/devices/0000:06:00.0").mkdir()
    assert pci_devices(AMD) == ["0000:03:00.0"]


def test_threads_that_look_together_see_the_same(system: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("accelmetrics.backends.kit.system.BUS_LASTS", 0.0)
    for bus in range(8):
        plug(system, f"0000:0{bus}:00.0", (AMD, NVIDIA)[bus % 2])
    found: list[int] = []

    def look() -> None:
        found.extend(len(pci_devices(vendor)) for _ in range(50) for vendor in (AMD, NVIDIA))

    threads = [threading.Thread(target=look) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [4] * 400


def add(root: Path, address: str, vendor: str, device: str, kind: str = "0x120000") -> Path:
    function = plug(root, address, f"0x{vendor}", kind)
    (function / "device").write_text(f"0x{device}\n")
    return function


def test_pci_ids_name_a_vendors_device_or_class(system: Path) -> None:
    add(system, "0000:02:00.0", "1ded", "6001")
    add(system, "0000:01:00.0", "1ded", "107f", "0x020000")
    add(system, "0000:03:00.0", "1eff", "1250")
    assert find_pci(["1ded:*"]) == ["0000:01:00.0", "0000:02:00.0"]
    assert find_pci(["1ded:6001"]) == find_pci(["1ded:*:12"]) == find_pci(["1ded:60*"]) == ["0000:02:00.0"]
    assert find_pci(["1eff:*", "1ded:*:02"]) == ["0000:01:00.0", "0000:03:00.0"]
    assert find_pci(["1eff:1020"]) == []


def test_a_virtual_function_beside_its_physical_one_is_no_device_of_its_own(system: Path) -> None:
    physical = add(system, "0000:03:00.0", "1eff", "1250")
    virtual = add(system, "0000:03:00.1", "1eff", "1251")
    (virtual / "physfn").symlink_to(physical)
    assert find_pci(["1eff:*"]) == ["0000:03:00.0"]


def test_a_star_in_a_device_node_is_a_number(system: Path) -> None:
    (system / "dev/accel").mkdir(parents=True)
    for name in ("rbln0", "rbln12", "rbln0_mem", "rblnX", "accel/accel3"):
        (system / "dev" / name).touch()
    assert find_nodes(["/dev/rbln*", "/dev/accel/accel*", "/dev/other*"]) == ["/dev/rbln0", "/dev/rbln12", "/dev/accel/accel3"]


def test_hardware_is_told_in_words(system: Path) -> None:
    ids, nodes = ("1eff:*",), ("/dev/rbln*",)
    assert find_hardware("Rebellions", "npu", ids, nodes) == (
        False,
        "no device of Rebellions (0x1eff) on the PCI bus, no /dev/rbln*",
        0,
        "",
    )
    add(system, "0000:03:00.0", "1eff", "1250")
    found = find_hardware("Rebellions", "npu", ids, nodes)
    assert found[:3] == (True, "1 NPU on the PCI bus (0000:03:00.0), no /dev/rbln*", 1)
    assert found.advice == "load the kernel driver; in a container, start it with --device=/dev/rbln0"
    (system / "dev").mkdir()
    (system / "dev/rbln0").touch()
    (system / "dev/rbln1").touch()
    assert find_hardware("Rebellions", "npu", ids, nodes) == (True, "1 NPU on the PCI bus (0000:03:00.0), /dev/rbln0, /dev/rbln1", 2, "")
    assert find_hardware("Rebellions", "npu", (), nodes) == (True, "/dev/rbln0, /dev/rbln1", 2, "")


@pytest.mark.parametrize("written", ["0000:c1:00.0", "00000000:C1:00.0", "C1:00.0", "0:c1:00.0"])
def test_a_slot_is_found_however_its_address_is_written(system: Path, written: str) -> None:
    device = plug(system, "0000:c1:00.0", NVIDIA)
    (device / "numa_node").write_text("1\n")
    (device / "local_cpulist").write_text("32-63,96-127\n")
    assert pci_slot(written) == (1, "32-63,96-127")


@pytest.mark.parametrize(
    ("node", "cpus", "expected"),
    [
        ("-1\n", "0-7\n", (None, "0-7")),
        ("0\n", "0\n", (0, "0")),
        ("", "", (None, "")),
        ("99999999999999999999", "all of them", (None, "")),
        ("\u0661", "1-", (None, "")),
        ("1", ",".join(["1"] * 5000), (1, "")),
    ],
)
def test_what_the_kernel_does_not_know_of_a_slot_is_left_out(system: Path, node: str, cpus: str, expected: tuple[int | None, str]) -> None:
    device = plug(system, "0000:c1:00.0", NVIDIA)
    (device / "numa_node").write_text(node)
    (device / "local_cpulist").write_text(cpus)
    assert pci_slot("0000:c1:00.0") == expected


@pytest.mark.parametrize("address", ["", "../../0000:c1:00.0", "0000:c1:00.0/..", "c1", "\udcff", "x" * 100_000])
def test_what_is_no_address_has_no_slot(address: str) -> None:
    assert pci_slot(address) == (None, "")


# Kernel drivers


def test_devices_are_found_by_the_kernel_driver_that_has_them(system: Path) -> None:
    """Of every class, and of boards: each once, though a card has render nodes and connectors too."""
    tree = DrmTree(system)
    tree.add("0000:03:00.0", "xe", {})
    tree.add("0000:00:02.0", "i915", {}, number=1)
    tree.add("0000:04:00.0", "amdgpu", {}, number=2)
    tree.add("1002000000.v3d", "v3d", {}, number=3)
    tree.add("0000:00:0b.0", "intel_vpu", {}, node="accel/accel")
    tree.add("fb000000.gpu", "panfrost", {}, node="devfreq/fb000000.gpu")
    drivers = ("drm/i915", "drm/xe", "accel/intel_vpu", "devfreq/panfrost", "platform/v3d", "platform/panthor", "accel/qaic")
    assert find_driven(drivers) == {
        "/sys/class/drm/card1": "i915",
        "/sys/class/drm/card0": "xe",
        "/sys/class/accel/accel0": "intel_vpu",
        "/sys/class/devfreq/fb000000.gpu0": "panfrost",
        "/sys/bus/platform/devices/1002000000.v3d": "v3d",
    }


FACTS = {"vendor": "0x8086", "device": "0x56a0", "class": "0x030000"}


def intel() -> Detection:
    return find_hardware("Intel", "gpu", ("8086:*:03",), drivers=("drm/i915", "drm/xe"))


def test_the_kernel_driver_is_evidence_and_advice(system: Path) -> None:
    """A card without one is there and to be told of; one of another driver's, say passed through to a virtual machine, is not ours."""
    tree = DrmTree(system)
    assert intel() == (False, "no device of Intel (0x8086) on the PCI bus", 0, "")
    card = tree.add("0000:03:00.0", "", FACTS, node="")
    evidence = "1 GPU on the PCI bus (0000:03:00.0), no GPU driven by i915 or xe"
    assert intel() == (True, evidence, 1, "load the kernel driver: sudo modprobe i915 or xe")
    tree.remove(card)
    tree.add("0000:03:00.0", "vfio-pci", FACTS, node="")
    passed = intel()
    assert passed == (False, "0000:03:00.0 is driven by vfio-pci, which does not expose its values", 0, "")
    tree.add("0000:00:02.0", "xe", FACTS)
    evidence = (
        "1 GPU on the PCI bus (0000:00:02.0), 0000:03:00.0 is driven by vfio-pci, which does not expose its values, card0 driven by xe"
    )
    assert intel() == (True, evidence, 1, "")


def test_a_board_is_found_by_its_driver_alone(system: Path) -> None:
    assert find_hardware("Broadcom", "gpu", drivers=("platform/v3d",)) == (False, "no GPU driven by v3d", 0, "")
    DrmTree(system).add("1002000000.v3d", "v3d", {})
    assert find_hardware("Broadcom", "gpu", drivers=("platform/v3d",)) == (True, "1002000000.v3d driven by v3d", 1, "")
