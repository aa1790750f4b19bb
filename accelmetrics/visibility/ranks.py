"""Who a process is in its job, by what its launcher left in its environment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from accelmetrics.backends.visible_lists import plain_number

ROLE = "ACCELMETRICS_ROLE"
RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")
"""torchrun and most others, Open MPI, PMIx, MPICH and Intel MPI, Slurm: the nearest to the program first."""
LOCAL_RANKS = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "RAY_LOCAL_RANK", "SLURM_LOCALID")
RAY = ("RAY_JOB_ID", "RAY_RAYLET_PID", "RAY_WORKER_ID")
"""What the workers of Ray are started with."""
RAY_KEEPS_OFF = "RAY_EXPERIMENTAL_NOSET_"
"""Begins the variables that tell Ray to leave the lists alone (``RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES``)."""
RAY_NOTE = "it is a worker of Ray, which sets the list inside the running process, where nobody else can read it"


class Position(NamedTuple):
    """A process's place in its job; None, or empty, where nobody gave it one."""

    role: str
    rank: int | None
    local_rank: int | None

    @property
    def known(self) -> bool:
        """Whether it has one at all."""
        return bool(self.role) or self.rank is not None or self.local_rank is not None


def position(environ: Mapping[str, str]) -> Position:
    """The place that an environment speaks of."""
    return Position(environ.get(ROLE, "").strip(), _first(environ, RANKS), _first(environ, LOCAL_RANKS))


def ray_decides(environ: Mapping[str, str]) -> bool:
    """Whether Ray gives the process its list while it runs."""
    kept_off = any(name.startswith(RAY_KEEPS_OFF) and value not in {"", "0", "false"} for name, value in environ.items())
    return any(name in environ for name in RAY) and not kept_off


def _first(environ: Mapping[str, str], names: tuple[str, ...]) -> int | None:
    numbers = (plain_number(environ[name].strip()) for name in names if name in environ)
    return next((number for number in numbers if number is not None), None)
