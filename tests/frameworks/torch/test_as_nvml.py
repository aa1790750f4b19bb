"""PyTorch below ``run --as-nvml``: what it tells of a device is the simulated one's, and it counts none, since CUDA has none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.as_nvml import told, two_mi210

PROGRAM = """
import json, torch
found = [torch.cuda.utilization(0), torch.cuda.temperature(0), torch.cuda.power_draw(0), torch.cuda.clock_rate(0)]
try:
    counted = torch.cuda._raw_device_count_nvml()
except OSError as error:
    counted = str(error).partition(":")[0]
print(json.dumps([found, torch.cuda.is_available(), torch.cuda.device_count(), counted]))
"""


@pytest.mark.parametrize("check", ["0", "1"])
def test_no_device_is_counted(tmp_path: Path, check: str) -> None:
    """Also where it is told to look for NVML alone: it loads the library by its file's name, and there is none of that."""
    tree = two_mi210(tmp_path / "root", os.getpid())
    found, available, count, counted = told(PROGRAM, tree=tree, PYTORCH_NVML_BASED_CUDA_CHECK=check)
    assert found == [83, 47, 212_000, 1700]
    assert (available, count, counted) == (False, 0, "libnvidia-ml.so.1")
