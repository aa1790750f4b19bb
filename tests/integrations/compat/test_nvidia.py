"""On NVIDIA's own devices the stand-in answers as the genuine library does."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from accelmetrics import Sampler
from tests.cli.shell import COMMAND, environment
from tests.integrations.compat.bound import Bound, called, device_functions
from tests.simulators.amdgpu import Tree
from tests.simulators.nvml import NvmlSimulator, Process
from tests.support.as_nvml import two_mi210
from tests.support.waiting import HANG

OTHERWISE = {
    "nvmlDeviceGetArchitecture": "none of NVIDIA's own where devices may be another vendor's",
    "nvmlDeviceGetEncoderUtilization": "the period of the sample is not known",
    "nvmlDeviceGetDecoderUtilization": "the period of the sample is not known",
    "nvmlDeviceGetPowerManagementLimit": "the limit in force stands for the one that is set",
    "nvmlDeviceGetPcieThroughput": "measured in a window of its own at each call",
}
"""Functions whose answers differ, and why."""
UNKNOWN_MEMBERS = {"pciDeviceId", "pciSubSystemId", "timestamp", "latencyUsec", "timeStamp", "encUtil", "decUtil", "version"}


@pytest.fixture
def simulator() -> Iterator[NvmlSimulator]:
    """Two simulated H100s at work."""
    with NvmlSimulator(gpus=2, profile="h100") as made:
        made.gpu[0].set(power_mw=431_250, temperature=61)
        made.load()
        yield made


def plain(found: Any) -> Any:
    """What a function gave, in values that can be compared."""
    if isinstance(found, ctypes.Union):
        return found.ullVal
    if isinstance(found, ctypes.Structure):
        return {name: plain(getattr(found, name)) for name, *_ in found._fields_ if name not in UNKNOWN_MEMBERS}
    if isinstance(found, ctypes.Array | list | tuple):
        return [plain(one) for one in found]
    return vars(found) if hasattr(found, "usedGpuMemory") else found


def test_all_answers_are_the_genuine_ones(simulator: NvmlSimulator) -> None:
    """Those that the stand-in has; a few differ, each for a reason."""
    import pynvml

    simulator.processes(0, [Process(4711, "C", used=3 << 30, sm=37, mem=12)])
    with Sampler(backends=["nvidia"]) as sampler:
        bound = Bound(sampler.sample(), everything=True)
    pynvml.nvmlInit()
    try:
        bound.nvml.nvmlInit()
        assert bound.nvml.nvmlDeviceGetCount() == pynvml.nvmlDeviceGetCount() == 2
        differ, equal = {}, []
        for index in range(2):
            genuine = pynvml.nvmlDeviceGetHandleByIndex(index)
            for name, call in device_functions(bound.nvml):
                try:
                    ours = plain(call(bound.handle(index)))
                except bound.nvml.NVMLError:
                    continue
                theirs = plain(called(pynvml, getattr(pynvml, name), genuine))
                if ours == theirs:
                    equal.append(name)
                elif name not in OTHERWISE:
                    differ[name] = (ours, theirs)
        assert differ == {}
        assert len(set(equal)) > 30, equal
    finally:
        pynvml.nvmlShutdown()
        bound.feed.remove()


@pytest.fixture
def amd(tmp_path: Any) -> Tree:
    """Two accelerators of AMD's in the same machine."""
    return two_mi210(tmp_path / "root", 1)


PROGRAM = """
import pynvml
pynvml.nvmlInit()
print([pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(index)) for index in range(pynvml.nvmlDeviceGetCount())])
"""


def test_a_mixed_machine(simulator: NvmlSimulator, amd: Tree) -> None:
    """Is refused, since NVIDIA's devices would no longer be seen; with ``all`` those come first."""
    env = environment(ACCELMETRICS_SYSROOT=str(amd.root), **simulator.environment())
    start = [*COMMAND, "run", "--backends", "nvidia,amd"]
    given: dict[str, Any] = {"env": env, "stdin": subprocess.DEVNULL, "capture_output": True, "text": True, "timeout": HANG}
    refused = subprocess.run([*start, "--as-nvml", "--", sys.executable, "-c", PROGRAM], **given)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.startswith("accelmetrics run: --as-nvml would hide this machine's NVIDIA devices (gpu.0, gpu.1)")
    shown = subprocess.run([*start, "--as-nvml=all", "--", sys.executable, "-c", PROGRAM], **given)
    assert shown.stdout.count("H100") == shown.stdout.count("AMD Instinct MI210") == 2, shown.stderr
    assert shown.stdout.index("H100") < shown.stdout.index("MI210")
