"""Ray below ``run --as-nvml``: it schedules by its own copy of NVIDIA's binding, which finds no library there."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from tests.frameworks.ray.clusters import OFFLINE
from tests.support.as_nvml import told, two_mi210

PROGRAM = """
import json, sys, pynvml, ray
from ray._private.accelerators import NvidiaGPUAcceleratorManager
pynvml.nvmlInit()
ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level="error", _temp_dir=sys.argv[1])
found = [pynvml.nvmlDeviceGetCount(), NvidiaGPUAcceleratorManager.get_current_node_num_accelerators(), ray.cluster_resources().get("GPU")]
ray.shutdown()
print(json.dumps(found))
"""


def test_no_device_is_counted(tmp_path: Path) -> None:
    """While a monitor in the same program sees two."""
    tree = two_mi210(tmp_path / "root", os.getpid())
    short = tempfile.mkdtemp(prefix="r", dir="/tmp")  # the path of Ray's sockets must be short
    try:
        assert told(PROGRAM, short, tree=tree, options=("-W", "ignore"), **OFFLINE) == [2, 0, None]
    finally:
        shutil.rmtree(short, ignore_errors=True)
