"""What makes processes those of one job, whose files are in a directory."""

from __future__ import annotations

import os
from typing import Literal

JOB = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}


def join(directory: str) -> Literal["node"]:
    """Take part in the job; what a monitor's ``share`` is then."""
    for name in ("SLURM_JOB_ID", "TORCHELASTIC_RUN_ID", "RAY_JOB_ID"):
        os.environ.pop(name, None)
    os.environ.update(JOB, XDG_RUNTIME_DIR=directory)
    return "node"
