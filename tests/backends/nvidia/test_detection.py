"""Detection: hard facts, words for each, no driver touched, under 5 ms."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from accelmetrics.backends import nvidia
from accelmetrics.backends.nvidia import backend
from tests.backends.nvidia.machine import run_program, write_tree
from tests.simulators.nvml import NvmlSimulator
from tests.support.pci import function


@pytest.fixture
def no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loader has no NVML. (Once this process has loaded the simulator, its loader always has one.)"""
    monkeypatch.setattr(nvidia, "library_name", lambda: "libnvidia-ml-that-is-not-here.so.1")


GPU = ("0x10de", "0x030200")
NO_GPUS = [("0x10de", "0x040300"), ("0x10de", "0x0c0330"), ("0x10de", "0x068000"), ("0x1002", "0x030000")]
"""Sound, USB and switches of NVIDIA, and GPUs of others."""


@pytest.mark.parametrize(
    ("bus", "file", "visible", "devices", "evidence", "advice"),
    [
        ([], "", None, 0, "no NVIDIA GPU on the PCI bus", None),
        ([GPU, ("0x10de", "0x030000")], "", None, 2, "2 NVIDIA GPUs on the PCI bus", "install the NVIDIA driver"),
        ([GPU, *NO_GPUS], "", None, 1, "1 NVIDIA GPU on the PCI bus", "install the NVIDIA driver"),
        ([GPU], "/.dockerenv", None, 1, "", "--gpus all"),
        ([GPU], "/run/.containerenv", None, 1, "", "--gpus all"),
        *(([GPU], "", value, 1, "", "NVIDIA_VISIBLE_DEVICES") for value in ("", "void", "none")),
        ([], "/dev/nvidiactl", None, 0, "", "install the NVIDIA driver"),  # a driver is there: reason enough to try
    ],
)
@pytest.mark.usefixtures("no_library")
def test_without_a_library(
    bus: list[tuple[str, str]],
    file: str,
    visible: str | None,
    devices: int,
    evidence: str,
    advice: str | None,
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is there is counted, and the advice is to install the driver, or what passes the GPUs to a container."""
    for number, (vendor, kind) in enumerate(bus):
        function(root, f"0000:{number:02x}:00.0", vendor, kind=kind)
    write_tree(root, {file: ""} if file else {})
    if visible is not None:
        monkeypatch.setenv("NVIDIA_VISIBLE_DEVICES", visible)
    found = backend.detect()
    assert (found.present, found.devices) == (advice is not None, devices)
    assert "is not installed" in found.evidence and evidence in found.evidence
    assert (advice or "") in found.advice and bool(found.advice) == (advice is not None)


def test_the_library_is_found_and_not_loaded(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its file is enough, whatever is in it."""
    name = "libnvidia-ml-that-nothing-loads.so.1"
    monkeypatch.setattr(nvidia, "library_name", lambda: name)
    monkeypatch.setenv("LD_LIBRARY_PATH", f"/nowhere::{tmp_path}")
    assert not backend.detect().present
    (tmp_path / name).write_text("no library")
    assert f"{name} is installed" in backend.detect().evidence


def test_a_folder_that_cannot_be_searched_has_no_library(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its files are not there for this user; a name that is too long fails in the same way for the superuser too."""
    monkeypatch.setenv("LD_LIBRARY_PATH", f"/{'x' * 300}:{tmp_path}")
    monkeypatch.setattr(nvidia, "library_name", lambda: "libnvidia-ml-that-nothing-loads.so.1")
    assert not backend.detect().present


def test_the_library_is_where_the_loader_knows_it(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its cache names paths, some of files that are gone."""
    name = "libnvidia-ml-that-nothing-loads.so.1"
    cache = tmp_path / "ld.so.cache"
    cache.write_bytes(b"glibc-ld.so.cache1.1\0%b\0%b/%b\0%b\0/gone/%b\0" % (name.encode(), bytes(tmp_path), *[name.encode()] * 3))
    monkeypatch.setattr(nvidia, "library_name", lambda: name)
    monkeypatch.setattr(nvidia, "LOADER_CACHE", cache)
    assert not backend.detect().present
    (tmp_path / name).write_text("no library")
    assert backend.detect().present


def test_nothing_is_loaded(simulator: NvmlSimulator) -> None:
    """In a process of its own, where nothing else has loaded the library either."""
    code = """
        from pathlib import Path
        from accelmetrics.backends.nvidia import backend
        print(backend.detect().evidence)
        print(Path("/proc/self/maps").read_text().count("libnvidia-ml"))
    """
    status, output = run_program(simulator, code)
    assert "libnvidia-ml.so.1 is installed" in output
    assert (status, output.splitlines()[-1]) == (0, "0")


def test_a_library_without_devices(root: Path, simulator: NvmlSimulator) -> None:
    """The library alone is enough to try; what is missing is said."""
    found = backend.detect()
    assert found.present
    assert "libnvidia-ml.so.1 is installed" in found.evidence
    assert "modprobe nvidia" in found.advice
    write_tree(root, {"/.dockerenv": ""})
    assert "/dev/nvidiactl is missing" in backend.detect().advice
    assert "--gpus all" in backend.detect().advice


def test_a_module_without_its_device_node(root: Path, simulator: NvmlSimulator) -> None:
    """Then the node has to be made."""
    write_tree(root, {"/proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.161.08  Wed\n"})
    assert "nvidia-modprobe" in backend.detect().advice


@pytest.mark.parametrize("node", ["/dev/nvidiactl", "/dev/dxg"])
def test_a_library_with_devices(root: Path, simulator: NvmlSimulator, node: str) -> None:
    """All is well, with NVIDIA's own driver and with that of WSL, which shows no PCI device."""
    write_tree(root, {node: ""})
    found = backend.detect()
    assert (found.present, found.advice) == (True, "")


@pytest.mark.parametrize("node", ["/dev/dxg", ""])
def test_the_library_of_wsl_outside_of_the_loaders_cache(root: Path, simulator: NvmlSimulator, node: str) -> None:
    """It is found, loaded and read at its place, beside the device of WSL and nowhere else."""
    name = "libnvidia-ml-of-wsl.so.1"  # one that no loader knows
    write_tree(root, {node: ""} if node else {})
    folder = root / "usr/lib/wsl/lib"
    folder.mkdir(parents=True)
    (folder / name).symlink_to(simulator.library)
    text = f"""
        from accelmetrics import sample
        from accelmetrics.backends import nvidia
        nvidia.library_name = lambda: {name!r}
        found = nvidia.backend.detect()
        snapshot = sample(["nvidia"])
        print(found.present, found.advice, snapshot.backends[0].status, snapshot.metrics.get("gpu.0.powerWatts"))
    """
    power = float(simulator.gpu[0].get("power_mw")) / 1000
    assert run_program(simulator, text) == (0, f"True  ok {power}\n" if node else "False  absent None\n")


def test_it_reads_little(root: Path, simulator: NvmlSimulator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 60 PCI functions the vendor, of NVIDIA's the class: what a machine has besides costs a file each."""
    for number in range(60):
        vendor, kind = GPU if number < 8 else ("0x8086", "0x060400")
        function(root, f"0000:{number:02x}:00.0", vendor, kind=kind)
    opened: list[str] = []

    def noted_open(path: str, *arguments: int) -> int:
        opened.append(str(path))
        return real_open(path, *arguments)

    real_open = os.open
    monkeypatch.setattr(os, "open", noted_open)
    assert backend.detect().devices == 8
    assert len(opened) <= 60 + 8 + 1, "and the version of the kernel module"
