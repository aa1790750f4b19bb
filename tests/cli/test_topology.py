"""``topology``, ``dump --topology`` and ``list --clocks``: what people and programs are shown."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from accelmetrics.schemas.document import topology_schema
from tests.cli.shell import call, environment
from tests.simulators.amdgpu import Tree
from tests.simulators.amdgpu.machines import mi210_pair
from tests.simulators.nvml import NvmlSimulator
from tests.support.pci import plug, rdma_card


@pytest.fixture
def env(simulator: NvmlSimulator, tmp_path: Path) -> dict[str, str]:
    """Two H100s, and nothing in ``/sys``."""
    return environment(**simulator.environment(), ACCELMETRICS_SYSROOT=str(tmp_path))


def test_matrix_of_eight(tmp_path: Path) -> None:
    """It fits into 80 columns, with what the devices are, and what its words mean."""
    with NvmlSimulator(gpus=8) as simulator:
        shown = call("topology", "--backends", "nvidia", env=environment(**simulator.environment(), ACCELMETRICS_SYSROOT=str(tmp_path)))
    assert (shown.returncode, shown.stderr) == (0, "")
    matrix, places, legend = shown.stdout.split("\n\n")
    assert matrix.splitlines()[0].split() == [f"gpu.{number}" for number in range(8)]
    assert matrix.splitlines()[3].split() == ["gpu.2", "NV18", "NV18", "X", *["NV18"] * 5]
    assert places.splitlines()[8].split() == ["gpu.7", "NVIDIA", "H100", "80GB", "HBM3", "00000000:4F:00.0", "1", "32-63"]
    assert legend == "NVn   n NVLinks, through switches\n"
    assert max(map(len, shown.stdout.splitlines())) <= 80


def test_vendors_and_network_cards(env: dict[str, str], tmp_path: Path) -> None:
    """A card is a column of a matrix of its own, and listed with the devices."""
    mi210_pair(Tree(tmp_path))
    for bus, node in (("10", 0), ("19", 0), ("43", 0), ("83", 1)):
        plug(tmp_path, f"pci0000:{bus}", f"0000:{bus}:01.0", f"0000:{bus}:00.0", node=node, cpus=f"{8 * node}-{8 * node + 7}")
    rdma_card(tmp_path, "mlx5_0", "pci0000:83", "0000:83:02.0", "0000:84:00.0", node=1)
    shown = call("topology", "--backends", "nvidia,amd", env=env)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert shown.stdout.splitlines()[:15] == [
        "       gpu.0  gpu.1  gpu.2  gpu.3",
        "gpu.0  X      NV18   NODE   SYS",
        "gpu.1  NV18   X      NODE   SYS",
        "gpu.2  NODE   NODE   X      SYS",
        "gpu.3  SYS    SYS    SYS    X",
        "",
        "       mlx5_0",
        "gpu.0  SYS",
        "gpu.1  SYS",
        "gpu.2  SYS",
        "gpu.3  PHB",
        "",
        "DEVICE  NAME                   PCI               NUMA  CPUS",
        "gpu.0   NVIDIA H100 80GB HBM3  00000000:10:00.0  0     0-7",
        "gpu.1   NVIDIA H100 80GB HBM3  00000000:19:00.0  0     0-7",
    ]


def test_unknown_is_said_with_its_reason(simulator: NvmlSimulator, env: dict[str, str]) -> None:
    """A question mark in the matrix, and why below it."""
    simulator.rule("nvmlDeviceGetNvLinkState", error=4)
    shown = call("topology", "--backends", "nvidia", env=env)
    assert "gpu.0  X      NODE?" in shown.stdout
    unknown = " ".join(shown.stdout.rpartition("\n\n")[2].split())
    assert unknown.startswith("unknown: links between gpu.0 and gpu.1: no_permission (NVML_ERROR_NO_PERMISSION: this user")


def test_the_device_that_is_unknown_is_named_once(tmp_path: Path) -> None:
    """Not with each of its neighbours."""
    with NvmlSimulator(gpus=4) as simulator:
        simulator.rule("nvmlDeviceGetNvLinkState", 2, error=999)
        shown = call("topology", "--backends", "nvidia", env=environment(**simulator.environment(), ACCELMETRICS_SYSROOT=str(tmp_path)))
    assert "unknown: links of gpu.2: driver_error (NVML_ERROR_UNKNOWN: an internal error of the driver)" in " ".join(shown.stdout.split())
    assert max(map(len, shown.stdout.splitlines())) <= 80


def test_documents(env: dict[str, str]) -> None:
    """The JSON is as ``schema --topology`` says, and part of ``dump --json --topology``; a dump without has none of it."""
    alone = json.loads(call("topology", "--json", "--backends", "nvidia", env=env).stdout)
    jsonschema.Draft202012Validator(topology_schema()).validate(alone)
    assert alone["topology"]["connections"] == [
        {"between": ["gpu.0", "gpu.1"], "path": "NODE", "link": "nvlink", "links": 18, "hops": 2, "switched": True, "unavailable": {}}
    ]
    dumped = json.loads(call("dump", "--json", "--topology", "--backends", "nvidia", env=env).stdout)
    assert (dumped["topology"], dumped["devices"]) == (alone["topology"], alone["devices"])
    lines = call("dump", "--topology", "--count", "2", "--interval", "0.05", "--backends", "nvidia", env=env).stdout.splitlines()
    assert [json.loads(line)["topology"] for line in lines] == [alone["topology"]] * 2
    assert "topology" not in json.loads(call("dump", "--json", "--backends", "nvidia", env=env).stdout)


@pytest.mark.parametrize("other", [["--flat"], ["--format", "csv"], ["--keys", "dcgm"]])
def test_other_forms_have_no_place_for_it(other: list[str], env: dict[str, str]) -> None:
    """Refused, not left out."""
    refused = call("dump", "--topology", *other, env=env)
    assert refused.returncode == 2 and "accelmetrics topology" in refused.stderr


def test_no_device(tmp_path: Path) -> None:
    """Said on standard error; there is no matrix of nothing."""
    shown = call("topology", "--backends", "amd", env=environment(ACCELMETRICS_SYSROOT=str(tmp_path)))
    assert (shown.returncode, shown.stdout) == (0, "") and "doctor" in shown.stderr


def test_clocks(simulator: NvmlSimulator, env: dict[str, str]) -> None:
    """In a line for people, all of them for programs; a device that refuses has the reason."""
    simulator.rule("nvmlDeviceGetSupportedMemoryClocks", 1, error=3)
    shown = call("list", "--clocks", "--backends", "nvidia", env=env).stdout
    assert "gpu.0  memory 2619 MHz with graphics 210 to 1980 MHz (119 steps)\ngpu.0  memory 1309 MHz with graphics 210 to 990" in shown
    assert "gpu.1  clocks unknown: not_supported (NVML_ERROR_NOT_SUPPORTED)\n" in shown
    first, second = json.loads(call("list", "--clocks", "--json", "--backends", "nvidia", env=env).stdout)
    assert first["clocks"]["memory_mhz"] == [2619, 1309] and first["clocks"]["graphics_by_memory"]["1309"][-1] == 210
    assert second["clocks"] == {"reason": "not_supported", "detail": "NVML_ERROR_NOT_SUPPORTED"}
    assert "clocks" not in json.loads(call("list", "--json", "--backends", "nvidia", env=env).stdout)[0]
