"""Detection goes by what the kernel shows, says what it found, and advises where something is missing."""

from pathlib import Path

import pytest

from accelmetrics.backends.amd import backend
from accelmetrics.backends.amd.cards import is_integrated
from tests.simulators.rocm_smi import RocmSmiStandIn

DISPLAY, ACCELERATOR, AUDIO, BRIDGE = "0x030000", "0x120000", "0x040300", "0x060400"


def add_pci(root: Path, address: str, *, vendor: str = "0x1002", kind: str = DISPLAY, driver: str = "amdgpu") -> None:
    """A PCI device, bound to a driver."""
    device = root / "sys/bus/pci/devices" / address
    device.mkdir(parents=True)
    (device / "vendor").write_text(f"{vendor}\n")
    (device / "class").write_text(f"{kind}\n")
    if driver:
        bound = root / "sys/bus/pci/drivers" / driver
        bound.mkdir(parents=True, exist_ok=True)
        (device / "driver").symlink_to(bound)


def add_node(root: Path, number: int, *, vendor: int = 4098, simds: int = 304) -> None:
    """A node of the compute driver's topology."""
    node = root / "sys/class/kfd/kfd/topology/nodes" / str(number)
    node.mkdir(parents=True)
    (node / "properties").write_text(f"cpu_cores_count 0\nsimd_count {simds}\nvendor_id {vendor}\nname\n")


def add(root: Path, *paths: str) -> None:
    for path in paths:
        (root / path).mkdir(parents=True, exist_ok=True)


def test_nothing_of_amd_is_absent(root: Path) -> None:
    add_pci(root, "0000:01:00.0", vendor="0x10de", driver="nvidia")
    found = backend.detect()
    assert not found.present
    assert found.devices == 0
    assert found.advice == ""
    assert found.evidence == "no display or accelerator device of AMD (0x1002) on the PCI bus"


def test_cards_with_their_driver_are_present(root: Path) -> None:
    add_pci(root, "0000:03:00.0")
    add_pci(root, "0000:83:00.0", kind=ACCELERATOR)
    add(root, "sys/module/amdgpu", "dev/kfd", "dev/dri")
    found = backend.detect()
    assert found.present
    assert found.devices == 2
    assert found.advice == ""
    assert found.evidence == "2 AMD GPUs on the PCI bus (0000:03:00.0, 0000:83:00.0), amdgpu loaded"


def test_other_functions_of_a_card_are_no_cards(root: Path) -> None:
    add_pci(root, "0000:03:00.0")
    add_pci(root, "0000:03:00.1", kind=AUDIO, driver="snd_hda_intel")
    add_pci(root, "0000:02:00.0", kind=BRIDGE, driver="pcieport")
    add(root, "dev/kfd")
    assert backend.detect().devices == 1


def test_a_driver_that_is_built_in_counts(root: Path) -> None:
    """Without parameters a built-in driver has no folder below ``/sys/module``."""
    add_pci(root, "0000:03:00.0")
    add(root, "dev/dri")
    assert "amdgpu loaded" in backend.detect().evidence


def test_a_card_without_its_driver_is_present_with_advice(root: Path) -> None:
    add_pci(root, "0000:03:00.0", driver="")
    found = backend.detect()
    assert found.present
    assert found.devices == 1
    assert "amdgpu is not loaded" in found.evidence
    assert "modprobe amdgpu" in found.advice


def test_a_container_without_devices_is_told_the_flags(root: Path) -> None:
    add_pci(root, "0000:03:00.0")
    add(root, "sys/module/amdgpu")
    found = backend.detect()
    assert found.present
    assert "no /dev/kfd and no /dev/dri" in found.evidence
    assert "--device=/dev/kfd --device=/dev/dri" in found.advice


def test_a_hidden_bus_is_made_up_for_by_the_compute_driver(root: Path) -> None:
    add_node(root, 0, vendor=0, simds=0)
    add_node(root, 1)
    add_node(root, 2)
    add_node(root, 3, vendor=7572)
    add(root, "dev/kfd")
    found = backend.detect()
    assert found.present
    assert found.devices == 2
    assert "none visible on the PCI bus" in found.evidence


def test_the_driver_without_a_card_is_absent(root: Path) -> None:
    add(root, "sys/module/amdgpu", "dev/kfd")
    found = backend.detect()
    assert not found.present
    assert "amdgpu is loaded without one" in found.evidence


@pytest.mark.parametrize("driver", ["radeon", "vfio-pci"])
def test_a_card_under_a_foreign_driver_is_none_of_ours(root: Path, driver: str) -> None:
    add_pci(root, "0000:03:00.0", driver=driver)
    found = backend.detect()
    assert not found.present
    assert found.devices == 0
    assert f"1 bound to {driver}" in found.evidence


def test_a_card_that_amdgpu_does_not_drive_is_named(root: Path) -> None:
    add_pci(root, "0000:03:00.0")
    add_pci(root, "0000:04:00.0", driver="")
    add(root, "sys/module/amdgpu", "dev/dri")
    found = backend.detect()
    assert found.devices == 2
    assert "not driven by it: 0000:04:00.0" in found.evidence


def test_the_tool_alone_is_no_evidence(stand_in: RocmSmiStandIn) -> None:
    """Another vendor's tool has the same name; and detection starts no process."""
    assert not backend.detect().present
    assert stand_in.calls == []


def test_unreadable_oddities_do_not_raise(root: Path) -> None:
    add(root, "sys/bus/pci/devices/odd", "sys/class/kfd/kfd/topology/nodes/0/properties")
    (root / "sys/bus/pci/devices/file").write_text("no directory")
    assert not backend.detect().present


@pytest.mark.parametrize(
    ("header", "expected"), [(b"\x78\x00\x01\x03", False), (b"\x80\x00\x02\x01", True), (b"\x08\x01\x03\x00", True), (b"\x01", None)]
)
def test_the_format_of_its_table_tells_a_processor_from_a_card(root: Path, header: bytes, expected: bool | None) -> None:
    device = root / "sys/bus/pci/devices/0000:03:00.0"
    device.mkdir(parents=True)
    (device / "gpu_metrics").write_bytes(header)
    assert is_integrated("0000:03:00.0") is expected


@pytest.mark.parametrize("status", ["active", "suspended"])
def test_a_processors_gpu_is_known_by_its_id_without_a_table_and_asleep(root: Path, status: str) -> None:
    device = root / "sys/bus/pci/devices/0000:0c:00.0"
    (device / "power").mkdir(parents=True)
    (device / "power/runtime_status").write_text(f"{status}\n")
    (device / "device").write_text("0x13c0\n")
    assert is_integrated("0000:0c:00.0") is True
    assert is_integrated("0000:0C:00.0", "0x744c") is None, "an id that was printed counts"
