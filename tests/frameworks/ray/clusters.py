"""Programs beside Ray, as it is released: offline, with its files in a folder of a short name and simulated GPUs on each node."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from tests.frameworks.programs import Ended, train

OFFLINE = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}
BEGIN = """\
import logging
import os
import sys
import time

import ray
from ray.cluster_utils import Cluster

logging.basicConfig()

def wait_for(condition, limit=200):
    end = time.monotonic() + limit
    while not (found := condition()):
        assert time.monotonic() < end, "never"
        time.sleep(0.05)
    return found

def cluster(nodes=2):
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 4, "num_gpus": 2, "include_dashboard": False, "temp_dir": sys.argv[1]})
    others = [made.add_node(num_cpus=4, num_gpus=2) for _ in range(nodes - 1)]
    return made, others
"""


def run_beside_ray(folder: Path, program: str | Path, gpus: int = 2) -> Ended:
    """Run a program whose first argument is a folder for Ray's own files: the path of its sockets must be short."""
    short = Path(tempfile.mkdtemp(prefix="r", dir="/tmp"))
    (folder / "ray").mkdir()
    offline = {**OFFLINE, "CUDA_VISIBLE_DEVICES": ",".join(map(str, range(gpus)))}
    try:
        return train(folder, program if isinstance(program, Path) else BEGIN + program, str(short), ranks=1, gpus=gpus, **offline)
    finally:
        shutil.rmtree(short, ignore_errors=True)
