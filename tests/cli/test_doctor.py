"""``doctor``: each finding is provoked by the real condition; its words and exit status are what a user sees.

The conditions are real ones for the command: a driver library that answers with an error, a PCI bus with a card on it, a
command that is not on ``PATH``, a package that is installed and broken.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from accelmetrics.backends.built_in import BUILT_IN
from accelmetrics.visibility.doctor import unread_devices
from tests.cli.examination import Finding, examine
from tests.cli.machines import Printed, Rig
from tests.cli.shell import Tree, call, environment, on_path, plug_in, run
from tests.simulators.nvml import NvmlSimulator, Ret
from tests.simulators.rocm_smi import RocmSmiStandIn, output

NVIDIA, AMD = "0x10de", "0x1002"
BLOCKER = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name == "pynvml":
            raise ModuleNotFoundError("No module named 'pynvml'", name=name)

sys.meta_path.insert(0, Blocker())
"""


@pytest.fixture
def card(tree: Tree, simulator: NvmlSimulator) -> dict[str, str]:
    """A machine with one NVIDIA card on its bus, a control device, and the simulated driver."""
    tree.gpu("0000:01:00.0", NVIDIA, "nvidia").write("/dev/nvidiactl")
    return tree.environment(**simulator.environment())


def test_all_is_well(card: dict[str, str]) -> None:
    """Present, on what evidence, read from where, how fast, and what each device does not give."""
    found = examine("nvidia", card, strict=0)
    assert found.words.startswith("nvidia: works, read from nvml evidence: libnvidia-ml.so.1 is installed; 1 NVIDIA GPU on the PCI bus")
    assert "opening took" in found.words
    assert "not_supported (NVML_ERROR_NOT_SUPPORTED): fanSpeed" in found.words
    facts = found.facts
    assert facts["present"] is True
    assert facts["open_seconds"] > 0
    assert facts["read_seconds"] > 0
    assert [device["key"] for device in facts["devices"]] == ["gpu.0", "gpu.1"]
    assert all(device["readable"] and device["metrics"] > 20 for device in facts["devices"])
    assert facts["advice"] == ""


def test_driver_not_loaded(card: dict[str, str], simulator: NvmlSimulator) -> None:
    """The library is there, the card is there, the kernel module is not."""
    simulator.driver_away()
    found = examine("nvidia", card, strict=1)
    assert "nvidia: does not work" in found.words
    assert "the NVIDIA kernel driver is not loaded (NVML_ERROR_DRIVER_NOT_LOADED)" in found.words
    assert "what to do: load the driver's kernel module (`modprobe nvidia`)" in found.words
    assert found.facts["reason"] == "driver_unavailable"


def test_driver_not_loaded_and_no_card(tree: Tree, simulator: NvmlSimulator) -> None:
    """A machine that has the library of its neighbours, and no card: nothing that is there is unreadable."""
    simulator.driver_away()
    found = examine("nvidia", tree.environment(**simulator.environment()), strict=0)
    assert "is not loaded" in found.words


def test_driver_and_library_differ(card: dict[str, str], tree: Tree, simulator: NvmlSimulator) -> None:
    """After an update without a reboot: both versions as far as they are known."""
    tree.write("/proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.161.07  Sat Feb 17 22:55:48 UTC 2024\n")
    simulator.fail_init(Ret.LIB_RM_VERSION_MISMATCH)
    found = examine("nvidia", card, strict=1)
    assert "the loaded kernel module is 535.161.07" in found.words
    assert "what to do: reboot, or stop what uses the GPUs and reload the kernel module" in found.words


def test_no_permission(card: dict[str, str], simulator: NvmlSimulator) -> None:
    """The driver is there and says no."""
    simulator.fail_init(Ret.NO_PERMISSION)
    found = examine("nvidia", card, strict=1)
    assert "no_permission: this user may not ask the driver" in found.words
    assert "what to do: run as a user who may read /dev/nvidia*" in found.words


def test_no_permission_for_one_metric(card: dict[str, str], simulator: NvmlSimulator) -> None:
    """The device is readable; what is not is named, with advice."""
    simulator.gpu[0].set(power_mw=Ret.NO_PERMISSION)
    found = examine("nvidia", card, strict=0)
    gap = next(gap for gap in found.facts["devices"][0]["gaps"] if gap["reason"] == "no_permission")
    assert "powerWatts" in gap["names"]
    assert "run as a user" in gap["advice"]
    assert "no_permission (NVML_ERROR_NO_PERMISSION" in found.words


def test_no_device(tree: Tree, simulator: NvmlSimulator) -> None:
    """A driver that is loaded, as its control device shows, without a card."""
    tree.write("/dev/nvidiactl")
    simulator.set(gpu_count=0)
    found = examine("nvidia", tree.environment(**simulator.environment()), strict=0)
    assert "lists no GPU" in found.words
    assert "what to do: check that the GPU is seated and powered" in found.words


def test_a_device_that_fails_at_enumeration(card: dict[str, str], simulator: NvmlSimulator) -> None:
    """It keeps its place, and its neighbour is unharmed."""
    simulator.fail_enumeration(1)
    found = examine("nvidia", card, strict=1)
    first, second = found.facts["devices"]
    assert (first["readable"], second["readable"]) == (True, False)
    assert second["key"] == "gpu.1"
    assert "NVML_ERROR_UNKNOWN" in second["problem"]
    assert "nvidia: works in part" in found.words
    assert "cannot be read" in found.words


def test_a_lost_device(card: dict[str, str], simulator: NvmlSimulator) -> None:
    """It fell off the bus: where to look, and what brings it back."""
    simulator.lose(0, enumerable=True)
    found = examine("nvidia", card, strict=1)
    lost, neighbour = found.facts["devices"]
    assert (lost["readable"], neighbour["readable"]) == (False, True)
    assert lost["problem"].startswith("device_lost: ")
    assert "what to do: look for Xid messages in the kernel log" in found.words


def examined_within(card: dict[str, str], enough: Callable[[Finding], bool]) -> Finding:
    """What doctor says within the shortest time in which a machine as busy as this one comes to the call that hangs."""
    for limit in ("0.5", "5", "50"):
        found = examine("nvidia", card, "--timeout", limit, named=True)
        if enough(found):
            break
    return found


def test_a_driver_that_hangs_while_it_opens(card: dict[str, str], simulator: NvmlSimulator) -> None:
    """The command does not wait for it longer than it was told to."""
    for function in ("nvmlInit_v2", "nvmlInitWithFlags"):
        simulator.rule(function, hang=True)
    found = examined_within(card, lambda found: "the driver is still being opened" in found.words)
    assert (found.status, found.strict) == (0, 1)
    assert "nvidia: does not answer" in found.words
    assert "timed_out: the driver is still being opened" in found.words
    assert "what to do: look at the kernel's log" in found.words


def test_a_device_that_hangs(card: dict[str, str], simulator: NvmlSimulator) -> None:
    """One call that never returns costs one device."""
    for function in ("nvmlDeviceGetTemperature", "nvmlDeviceGetTemperatureV"):
        simulator.rule(function, gpu=1, hang=True)
    hangs = "timed_out: a call into the driver has not returned"
    found = examined_within(card, lambda found: hangs in found.words and any(device["readable"] for device in found.facts["devices"]))
    assert (found.status, found.strict) == (0, 1)
    assert [device["readable"] for device in found.facts["devices"]] == [True, False]
    assert hangs in found.words


def test_nvidias_python_module_is_not_needed(card: dict[str, str], tmp_path: Path) -> None:
    """Devices are read without it."""
    (tmp_path / "sitecustomize.py").write_text(BLOCKER)
    found = examine("nvidia", {**card, "PYTHONPATH": f"{tmp_path}:{card['PYTHONPATH']}"}, by=run, strict=0)
    assert {device["readable"] for device in found.facts["devices"]} == {True}


def test_a_container_without_its_devices(tree: Tree) -> None:
    """The card is on the bus, the library was not brought in: the flag that does it."""
    tree.gpu("0000:01:00.0", NVIDIA, "nvidia").write("/.dockerenv")
    found = examine("nvidia", tree.environment(), by=run, strict=1)
    assert "docker run --gpus all" in found.words
    assert "libnvidia-ml.so.1 is not installed; 1 NVIDIA GPU on the PCI bus" in found.words


def test_an_amd_container_without_its_devices(tree: Tree, tmp_path: Path) -> None:
    """The driver is loaded on the host, its device nodes were not passed."""
    stand_in = RocmSmiStandIn(tmp_path)
    stand_in.behave("", errors="ERROR:root:Driver not initialized (amdgpu not found in modules)\n")
    tree.gpu("0000:03:00.0", AMD, "amdgpu").write("/sys/module/amdgpu/version")
    found = examine("amd", tree.environment(PATH=stand_in.path), strict=1)
    assert "--device=/dev/kfd --device=/dev/dri" in found.words
    assert "1 AMD GPU on the PCI bus" in found.words


def amd_machine(tree: Tree) -> Tree:
    """A card with its driver and its device nodes."""
    return tree.gpu("0000:03:00.0", AMD, "amdgpu").write("/sys/module/amdgpu/version").write("/dev/kfd").write("/dev/dri/renderD128")


def test_the_vendors_tool_is_missing(tree: Tree, tmp_path: Path) -> None:
    """Which package has it."""
    (tmp_path / "empty").mkdir()
    found = examine("amd", amd_machine(tree).environment(PATH=str(tmp_path / "empty")), strict=1)
    assert "rocm-smi was not found in PATH, /opt/rocm/bin" in found.words
    assert "install ROCm's package rocm-smi-lib" in found.words


def test_the_vendors_tool_may_not_read(tree: Tree, tmp_path: Path) -> None:
    """Which groups to join."""
    stand_in = RocmSmiStandIn(tmp_path)
    stand_in.behave("", errors="ERROR: GPU[0]\t: RSMI_STATUS_PERMISSION: Permission denied\n")
    found = examine("amd", amd_machine(tree).environment(PATH=stand_in.path), strict=1)
    assert "no_permission: rocm-smi may not read the devices" in found.words
    assert "usermod -aG video,render" in found.words


def test_an_amd_card_that_works(tree: Tree, tmp_path: Path) -> None:
    """The other vendor, the other source."""
    stand_in = RocmSmiStandIn(tmp_path)
    stand_in.behave(output("radeon_6_2"))
    found = examine("amd", amd_machine(tree).environment(PATH=stand_in.path), strict=0)
    assert found.words.startswith("amd: works, read from rocm-smi")
    assert found.facts["devices"][0]["metrics"] > 3


def test_nothing_here(tree: Tree) -> None:
    """Absent is no failure: of each source it is said what was looked for."""
    shown = run("doctor", "--strict", env=tree.environment())
    assert shown.returncode == 0
    _, heading, *paragraphs, last = (" ".join(part.split()) for part in shown.stdout.split("\n\n"))
    assert heading == "WORKS"
    assert paragraphs[0].startswith("host: works, read from ")
    assert paragraphs[1:9] == [
        "NOT HERE",
        "nvidia: not present evidence: libnvidia-ml.so.1 is not installed; no NVIDIA GPU on the PCI bus",
        "amd: not present evidence: no display or accelerator device of AMD (0x1002) on the PCI bus",
        "intel: not present evidence: no GPU driven by i915 or xe",
        f"apple: not present evidence: {os.uname().sysname} {os.uname().machine}: not macOS on Apple silicon",
        "tpu: not present evidence: no TPU of Google (0x1ae0) on the PCI bus",
        "neuron: not present evidence: no accelerator of AWS (0x1d0f) on the PCI bus, no /dev/neuron0",
        "graphcore: not present evidence: no device of Graphcore (0x1d95) on the PCI bus, no /dev/ipu*, no Python module gcipuinfo",
    ]
    assert all(" not present evidence: no" in paragraph for paragraph in paragraphs[9:])
    assert last == "No device was found."


def test_what_is_broken_stands_first(card: dict[str, str], simulator: NvmlSimulator) -> None:
    """Then what works, then what is not here; with what is on the bus and is not read, by its vendor's name."""
    simulator.driver_away()
    shown = call("doctor", env=card).stdout.split("\n\n")
    order = [part.partition(":")[0] for part in shown[1:-1]]
    assert order[:6] == ["PRESENT, BUT BROKEN", "nvidia", "WORKS", "host", "NOT HERE", "amd"]


def test_an_accelerator_that_no_source_reads_is_named(tree: Tree) -> None:
    """By its vendor; one of a vendor that nothing knows by its number. Network cards of such vendors are none."""
    tree.device("0000:41:00.0", "0x1e60", "0x2864", "0x120000")
    tree.device("0000:42:00.0", "0xabcd", "0x0001", "0x120000")
    tree.device("0000:43:00.0", "0x19e5", "0x0222", "0x020000")
    done = call("doctor", "--strict", env=tree.environment())
    assert done.returncode == 0
    (block,) = [part for part in done.stdout.split("\n\n") if part.startswith("Hailo")]
    assert block.splitlines() == ["Hailo: 0000:41:00.0 (1e60:2864)", "an accelerator of vendor 0xabcd: 0000:42:00.0 (abcd:0001)"]
    assert done.stdout.endswith("2 devices on the PCI bus cannot be read by this release.\n")
    facts = json.loads(call("doctor", "--json", env=tree.environment()).stdout)
    assert facts["unread"][0] == {"name": "Hailo", "pci_bus_id": "0000:41:00.0", "pci_id": "1e60:2864"}
    assert "unread" not in call("doctor", "--backends", "host", env=tree.environment()).stdout


SPELLED = """
from accelmetrics.backends.kit import DeviceSample, Field, PolledBackend

DEVICES = [{"index": number, "bus": bus, "watts": 50} for number, bus in enumerate(("00000000:41:00.0", "0X42:00.0", "1:43:00.0"))]
backend = PolledBackend(
    "acme", kind="npu", source="acme", connect=lambda: lambda: map(DeviceSample, DEVICES), fields=(Field("powerWatts", "watts", "W"),),
    identity={"vendor_index": "index", "pci_bus_id": "bus"},
)
"""


def test_what_a_plug_in_reads_is_not_unread(tree: Tree, tmp_path: Path) -> None:
    """However its vendor spells the addresses of its devices; another one's is still named."""
    for address in ("0000:41:00.0", "0000:42:00.0", "0001:43:00.0", "0000:43:00.0"):
        tree.device(address, "0xac3e", "0x0001", "0x120000")
    plug_in(tmp_path, "acme", "accelmetrics_acme:backend", SPELLED)
    facts = json.loads(call("doctor", "--json", env=tree.environment() | on_path(tmp_path)).stdout)
    assert [device["pci_bus_id"] for device in facts["unread"]] == ["0000:43:00.0"]


def test_what_a_registration_finds_is_read(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    """A vendor that gets a backend is no longer named among the unread, whichever list has its ids."""
    tree.device("0000:41:00.0", "0x1ed2", "0x0000", "0x120000").device("0000:42:00.0", "0xabcd", "0x0001", "0x120000")
    tree.device("0000:40:00.0", "0x1de0", "0x0001", "0x120000")
    monkeypatch.setenv("ACCELMETRICS_SYSROOT", str(tree.root))
    assert [device["name"] for device in unread_devices()] == ["Groq", "FuriosaAI NPU", "an accelerator of vendor 0xabcd"]
    row = BUILT_IN["rebellions"]._replace(pci=("1ed2:*:12", "1de0:*:12", "abcd:*:12"))
    monkeypatch.setattr("accelmetrics.visibility.doctor.BUILT_IN", {"rebellions": row})
    assert unread_devices() == ()


def test_a_broken_plug_in(tmp_path: Path) -> None:
    """It is reported with the words of its import, and costs no other source anything; not even one that exits ends the command."""
    plug_in(tmp_path, "cracked", "accelmetrics_cracked:backend", "import a_module_that_nobody_has\n")
    found = examine("cracked", on_path(tmp_path), strict=0)
    assert "the plug-in accelmetrics_cracked:backend could not be loaded" in found.words
    assert "No module named 'a_module_that_nobody_has'" in found.words
    assert "what to do: fix or uninstall the package that registers it" in found.words
    assert found.facts["present"] is False
    plug_in(tmp_path, "leaver", "accelmetrics_leaver:backend", "raise SystemExit('bye')\n")
    assert "SystemExit: bye" in examine("leaver", on_path(tmp_path), strict=0).words
    assert examine("host", on_path(tmp_path)).facts["status"] == "ok"


def test_a_source_named_is_opened_in_any_case(tree: Tree) -> None:
    """What the attempt says is more than what detection says."""
    found = examine("nvidia", tree.environment(), named=True, by=run, strict=0)
    assert found.words.startswith("nvidia: not present")
    assert "the driver's library is not installed" in found.words
    assert "what to do: install the NVIDIA driver" in found.words


def test_the_host(rig: Rig, output: Printed) -> None:
    """What the host gives, and why it does not give the rest; nothing that merely needs an interval."""
    del rig
    (host,) = json.loads(output("doctor", "--backends", "host", "--json"))["backends"]
    assert host["metrics"] > 5
    assert "needs_interval" not in {gap["reason"] for gap in host["gaps"]}


def test_every_word_fits_the_terminal(card: dict[str, str], simulator: NvmlSimulator) -> None:
    """Lines are wrapped, not cut: advice is to be read whole."""
    simulator.lose(0, enumerable=True)
    text = call("doctor", env={**card, "COLUMNS": "70"}).stdout
    assert max(map(len, text.splitlines())) <= 70
    assert environment()["PYTHONPATH"] not in text
