"""Which devices Slurm gave a job: positions in gres.conf, device files, UUIDs."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from accelmetrics.visibility import slurm_jobs
from accelmetrics.visibility.slurm_jobs import devices_of, expanded, gpu_files
from tests.cli.shell import Tree

FIRST, SECOND = "GPU-18ef2d05-33ca-4c1f-9f0b-6e1f4a3b2c1d", "GPU-5ad4d6c1-8a2b-4b7e-9c55-0a1b2c3d4e5f"
INSTANCE = "MIG-6c4fd5a8-6ac3-5a2d-8a39-4a6b3a7f6f41"


def driver(tree: Tree, *minors: tuple[str, str, int]) -> None:
    """What NVIDIA's kernel driver says of its GPUs, by PCI address: UUID and minor number."""
    for address, uuid, minor in minors:
        text = f"Model: \t\t NVIDIA H100\nIRQ:   \t\t 150\nGPU UUID: \t {uuid}\nDevice Minor: \t {minor}\nGPU Excluded:\t No\n"
        tree.write(f"/proc/driver/nvidia/gpus/{address}/information", text)


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    """A machine of its own, without a configuration of Slurm."""
    monkeypatch.setattr(slurm_jobs, "GRES", ())
    made = Tree(tmp_path / "root")
    monkeypatch.setenv("ACCELMETRICS_SYSROOT", str(made.root))
    return made


def test_minor_numbers_are_no_indexes(tree: Tree) -> None:
    """NVML counts by address; a range and one without a GPU are told too. Nor positions, where a GPU has fallen off the bus."""
    driver(tree, ("0000:18:00.0", FIRST, 1), ("0000:3b:00.0", SECOND, 0))
    assert devices_of({"SLURM_JOB_GPUS": "0-1,7"}) == (("uuid", SECOND), ("uuid", FIRST), ("minor", "7"))
    driver(tree, ("0000:18:00.0", FIRST, 2), ("0000:3b:00.0", SECOND, 3))
    assert devices_of({"SLURM_JOB_GPUS": "1"}) == (("uuid", SECOND),)
    assert devices_of({"SLURM_JOB_GPUS": "3"}) == (("uuid", SECOND),), "it is no position"


def test_numbers_of_the_job_itself_are_not_believed(tree: Tree) -> None:
    """`CUDA_VISIBLE_DEVICES` counts from 0 in each job unless it holds UUIDs, which then are what the job has."""
    driver(tree, ("0000:18:00.0", FIRST, 0), ("0000:3b:00.0", SECOND, 1))
    assert devices_of({"SLURM_JOB_GPUS": "1", "CUDA_VISIBLE_DEVICES": "0"}) == (("uuid", SECOND),)
    assert devices_of({"SLURM_JOB_GPUS": "1", "CUDA_VISIBLE_DEVICES": f"{INSTANCE},{INSTANCE}"}) == (("uuid", INSTANCE),)
    assert devices_of({"CUDA_VISIBLE_DEVICES": "0"}) == ()


def test_a_driver_that_does_not_know_its_uuids(tree: Tree) -> None:
    """Before the first use of a GPU it says GPU-????????: the minor number is kept, for the daemon to resolve."""
    driver(tree, ("0000:18:00.0", "GPU-????????-????-????-????-????????????", 0))
    assert devices_of({"SLURM_JOB_GPUS": "0"}) == (("minor", "0"),)


@pytest.mark.parametrize("given", ["1", "129"])
def test_render_nodes_of_amd(given: str, tree: Tree) -> None:
    """Numbers are those of render nodes, from 0 or from 128: the device is told by its PCI address."""
    for minor, address in ((128, "0000:c1:00.0"), (129, "0000:C6:00.0")):
        tree.write(f"/sys/devices/{address}/vendor", "0x1002")
        node = tree.root / f"sys/class/drm/renderD{minor}"
        node.mkdir(parents=True)
        (node / "device").symlink_to(tree.root / "sys/devices" / address)
    assert devices_of({"SLURM_JOB_GPUS": given}) == (("pci", "0000:c6:00.0"),)


GRES = """\
# AutoDetect=nvml
NodeName=other Name=gpu File=/dev/nvidia[0-7]
NodeName=gpu[01-03] Name=gpu Type=h100 \\
    File=/dev/nvidia7   # the one by the door
Name=mps Count=100 File=/dev/nvidia0
nodename=gpu02,login name=GPU file="/dev/nvidia[1-2]" Cores=0-7
"""


def test_the_list_of_a_node(tree: Tree, tmp_path: Path) -> None:
    """Lines of other nodes and of other resources are passed over; the order is the file's."""
    (tmp_path / "gres.conf").write_text(GRES)
    environment = {"SLURM_CONF": str(tmp_path / "slurm.conf"), "SLURMD_NODENAME": "gpu02"}
    assert gpu_files(environment) == ["/dev/nvidia7", "/dev/nvidia1", "/dev/nvidia2"]
    driver(tree, ("0000:18:00.0", FIRST, 1), ("0000:3b:00.0", SECOND, 7))
    assert devices_of({**environment, "SLURM_JOB_GPUS": "0-2"}) == (("uuid", SECOND), ("uuid", FIRST), ("minor", "2"))
    assert gpu_files({**environment, "SLURMD_NODENAME": "gpu9"}) == []
    assert gpu_files({"SLURMD_NODENAME": "gpu02"}) == []


def test_files_that_are_no_gpus(tree: Tree, tmp_path: Path) -> None:
    """A job that was given such a one holds nothing that is read here."""
    (tmp_path / "gres.conf").write_text("Name=gpu File=/dev/nvidia-caps/nvidia-cap1,/dev/dri/renderD129,/dev/dri/renderD130\n")
    node = tree.root / "sys/class/drm/renderD129"
    node.mkdir(parents=True)
    (node / "device").symlink_to("../../../devices/0000:c6:00.0")
    assert devices_of({"SLURM_CONF": str(tmp_path / "slurm.conf"), "SLURM_JOB_GPUS": "0-2"}) == (("pci", "0000:c6:00.0"),)


@pytest.mark.parametrize(
    ("listed", "names"),
    [
        ("gpu[01-03,7],login", ["gpu01", "gpu02", "gpu03", "gpu7", "login"]),
        ("/dev/nvidia[0-1]", ["/dev/nvidia0", "/dev/nvidia1"]),
        ("a[2-1]b", ["a2-1b"]),
        ("a[0-99999]", ["a0-99999"]),
        ("", []),
    ],
)
def test_host_lists(listed: str, names: list[str]) -> None:
    """As Slurm writes them; a range that is none, or far too long, stays as it is."""
    assert expanded(listed) == names


@given(st.text('a[]-,0123456789 \n#=\\"') | st.text())
def test_any_text_is_a_list(text: str) -> None:
    """Nothing is thrown."""
    assert isinstance(expanded(text), list)
    assert isinstance(devices_of({"SLURM_JOB_GPUS": text, "CUDA_VISIBLE_DEVICES": text}), tuple)
