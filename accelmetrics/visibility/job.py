"""The processes of a job: which they are, their ranks and labels, and to which of them a process that the driver lists belongs.

Processes go by their numbers in the mounted ``/proc``. The driver's numbers are the same where both are the host's; a number
that no process has there is looked for among the inner numbers of the job's processes (``NSpid``), for a driver that counts as
the container does. A process that is found in neither way cannot be seen from here, and nothing is said of it.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence

from accelmetrics.backends.kit.processes import (
    ancestors,
    descendants,
    is_visible,
    namespace_of,
    number_here,
    read_status,
)
from accelmetrics.backends.kit.system import read_text
from accelmetrics.backends.visible import plain_number
from accelmetrics.sampling.devices import Environment, environment_at, environment_of

ROLE = "ACCELMETRICS_ROLE"
RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")
"""torchrun and most others, Open MPI, PMIx, MPICH and Intel MPI, Slurm: the nearest to the program first."""
LOCAL_RANKS = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "RAY_LOCAL_RANK", "SLURM_LOCALID")
RAY = ("RAY_JOB_ID", "RAY_RAYLET_PID", "RAY_WORKER_ID")
"""What the workers of Ray are started with."""
RAY_KEEPS_OFF = "RAY_EXPERIMENTAL_NOSET_"
"""Begins the variables that tell Ray to leave the lists alone (``RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES``)."""
LONGEST_NAME = 48


Position = tuple[str, int | None, int | None]
"""The role, the rank and the local rank of a process in its job; empty and None where its launcher gave it none."""
NO_POSITION: Position = ("", None, None)


def position(environ: Mapping[str, str]) -> Position:
    """Parse the role and the ranks that a launcher left in an environment."""
    return environ.get(ROLE, "").strip(), first_number(environ, RANKS), first_number(environ, LOCAL_RANKS)


def first_number(environ: Mapping[str, str], names: Iterable[str], least: int = 0) -> int | None:
    """Parse the first of these variables that is a whole number, and not less than ``least``; None where none is."""
    numbers = (plain_number(environ[name].strip()) for name in names if name in environ)
    return next((number for number in numbers if number is not None and number >= least), None)


def ray_decides(environ: Mapping[str, str]) -> bool:
    """Tell whether Ray gives the process its list of devices while it runs."""
    kept_off = any(name.startswith(RAY_KEEPS_OFF) and value not in {"", "0", "false"} for name, value in environ.items())
    return any(name in environ for name in RAY) and not kept_off


class Member:
    """One process of the job.

    Args:
        pid: As it was named, else its number in ``/proc``.
        number: Its number in ``/proc``; None when it is not there.
        environment: What it was started with.

    Attributes:
        inner: Its numbers in the namespaces further in.
        above: Its parents and theirs.
        position: Its role and ranks in the job.
    """

    def __init__(self, pid: int, number: int | None, environment: Environment) -> None:
        self.pid, self.number, self.environment = pid, number, environment
        status = None if number is None else read_status(number)
        self.inner = frozenset(status[1][1:]) if status else frozenset()
        self.above = () if number is None else tuple(ancestors(number))
        self.position = position(environment.values or {})

    def below_in_rank(self, other: Member) -> bool:
        """Return whether it is a helper of the other: below it, and of the same role and ranks."""
        return other.number in self.above and self.position == other.position != NO_POSITION


def named(pid: int) -> Member:
    """Describe a process that the user names, by its number in our own namespace."""
    return Member(pid, number_here(pid), environment_of(pid))


def listed(number: int) -> Member:
    """Describe a process that the driver lists."""
    # Our own environment is known as it is now, which /proc does not show.
    own = number == number_here(os.getpid())
    return Member(number, number, environment_of(os.getpid()) if own else environment_at(number, number))


def unseen(pid: int, why: str) -> Member:
    """Describe a process that the driver lists and of which nothing can be said, by the driver's number."""
    return Member(pid, None, Environment(None, why))


def below(parents: Sequence[Member], using: Collection[int]) -> list[Member]:
    """List the workers at and below launchers.

    They are the processes that use a device, and of each rank without one the process nearest the launcher: loaders and other
    helpers have their rank's environment too, and a shell that waits for a rank has it before the rank does. A process is no worker
    while processes below it have other ranks: Slurm gives torchrun a rank too.
    """
    numbers = dict.fromkeys(number for parent in parents if parent.number is not None for number in descendants(parent.number))
    members = [listed(number) for number in numbers]
    workers = [member for member in members if uses(member, using)]
    taken = {NO_POSITION, *(member.position for member in workers)}
    for member in members:
        own = member.position
        launches = any(member.number in other.above and other.position not in (own, NO_POSITION) for other in members)
        if own not in taken and not launches and not any(member.below_in_rank(worker) for worker in workers):
            workers.append(member)
    return workers


def uses(member: Member, using: Collection[int]) -> bool:
    """Return whether the driver lists the process itself."""
    return member.number in using or any(pid in using and not is_visible(pid) for pid in member.inner)


def owner(members: Iterable[Member], pid: int) -> Member | None:
    """Find the member that a process of the driver's list is, or else the nearest one above it; None where it is none of the job."""
    known = list(members)
    unseen = next((member for member in known if member.number is None and member.pid == pid), None)
    if unseen is not None:
        return unseen
    if not is_visible(pid):
        inside = [member for member in known if pid in member.inner]
        return inside[0] if len(inside) == 1 else None
    by_number = {member.number: member for member in known}
    return next((by_number[number] for number in (pid, *ancestors(pid)) if number in by_number), None)


def name_of(member: Member) -> str:
    """Return the title that a framework gave a process, else its program's name."""
    if member.number is None:
        return ""
    words = (read_text(f"/proc/{member.number}/cmdline") or "").split("\0")
    title = words[0] if words[0].startswith("ray::") else " ".join(word.rstrip("/").rpartition("/")[2] for word in words[:2] if word)
    return title[:LONGEST_NAME]


def in_other_container(member: Member) -> bool:
    """Return whether a process has a file system of its own, and with it perhaps devices numbered otherwise."""
    if member.number is None:
        return False
    ours, theirs = namespace_of("self", "mnt"), namespace_of(member.number, "mnt")
    return "" not in (ours, theirs) and ours != theirs


# Variables of schedulers and launchers become labels of every record. Names follow OpenTelemetry's resource attributes where it has one
# (``k8s.…``); Slurm, Ray and torchrun have none there, and get their own word in front.

VARIABLES = {
    "SLURM_JOB_ID": "slurm.job.id",
    "SLURM_ARRAY_JOB_ID": "slurm.array.job.id",
    "SLURM_ARRAY_TASK_ID": "slurm.array.task.id",
    "SLURM_STEP_ID": "slurm.step.id",
    "SLURM_JOB_NAME": "slurm.job.name",
    "SLURM_JOB_USER": "slurm.job.user",
    "SLURM_JOB_PARTITION": "slurm.job.partition",
    "SLURM_JOB_ACCOUNT": "slurm.job.account",
    "SLURM_CLUSTER_NAME": "slurm.cluster.name",
    "SLURMD_NODENAME": "slurm.node.name",
    "RAY_JOB_ID": "ray.job.id",
    "TORCHELASTIC_RUN_ID": "torchrun.run.id",
    "TORCHELASTIC_RESTART_COUNT": "torchrun.restart.count",
}
"""The variable, and the label that it becomes."""

POD_VARIABLES = {
    "POD_NAME": "k8s.pod.name",
    "POD_NAMESPACE": "k8s.namespace.name",
    "POD_UID": "k8s.pod.uid",
    "NODE_NAME": "k8s.node.name",
}
"""What a pod is told about itself under the usual names of the downward API; only read inside one."""

WORLD_SIZES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS")
"""How many processes the job has: torchrun and most others, Open MPI, MPICH and Intel MPI, Slurm: the nearest first."""

_NAMESPACE = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"


def job_labels(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return what the environment says about the job: its scheduler's identity, and this process's rank.

    Args:
        environment: The variables; this process's own when left out.
    """
    values = os.environ if environment is None else environment
    labels = {label: value for name, label in VARIABLES.items() if (value := values.get(name, ""))}
    if "KUBERNETES_SERVICE_HOST" in values:
        told = {label: value for name, label in POD_VARIABLES.items() if (value := values.get(name, ""))}
        # A pod's host name is its name unless its manifest says otherwise.
        usual = {"k8s.pod.name": values.get("HOSTNAME", ""), "k8s.namespace.name": (read_text(_NAMESPACE) or "").strip()}
        labels |= {label: value for label, value in usual.items() if value} | told
    _, rank, local_rank = position(values)
    numbers = {"rank": rank, "local_rank": local_rank, "world_size": first_number(values, WORLD_SIZES, least=1)}
    return labels | {name: str(number) for name, number in numbers.items() if number is not None}
