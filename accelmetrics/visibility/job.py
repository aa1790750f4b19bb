"""The processes of a job with their ranks and labels, and the member of the job to which a process of the driver's list belongs.

Process ids are those of the mounted ``/proc``. The driver's ids are the same if both are the host's. An id that does not exist in
``/proc`` is searched for among the inner ids of the job's processes (``NSpid``), for a driver that uses the container's ids. A process
that is found in neither way is not visible from here, and nothing is reported about it.
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
"""torchrun and most others, Open MPI, PMIx, MPICH and Intel MPI, Slurm. The launcher nearest to the program comes first."""
LOCAL_RANKS = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "RAY_LOCAL_RANK", "SLURM_LOCALID")
RAY = ("RAY_JOB_ID", "RAY_RAYLET_PID", "RAY_WORKER_ID")
"""Variables with which Ray starts its workers."""
RAY_KEEPS_OFF = "RAY_EXPERIMENTAL_NOSET_"
"""Prefix of the variables with which Ray sets no device list (``RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES``)."""
LONGEST_NAME = 48


Position = tuple[str, int | None, int | None]
"""The role, rank and local rank of a process in its job. The role is empty and a rank is None if no launcher gave it one."""
NO_POSITION: Position = ("", None, None)


def position(environ: Mapping[str, str]) -> Position:
    """Parse the role and the ranks that a launcher left in an environment."""
    return environ.get(ROLE, "").strip(), first_number(environ, RANKS), first_number(environ, LOCAL_RANKS)


def first_number(environ: Mapping[str, str], names: Iterable[str], least: int = 0) -> int | None:
    """Return the value of the first variable that is a whole number of at least ``least``, or None."""
    numbers = (plain_number(environ[name].strip()) for name in names if name in environ)
    return next((number for number in numbers if number is not None and number >= least), None)


def ray_decides(environ: Mapping[str, str]) -> bool:
    """Return whether Ray sets the device list of the process while it runs."""
    disabled = any(name.startswith(RAY_KEEPS_OFF) and value not in {"", "0", "false"} for name, value in environ.items())
    return any(name in environ for name in RAY) and not disabled


class Member:
    """A process of the job.

    Args:
        pid: Its id as the user named it, else its id in ``/proc``.
        number: Its id in ``/proc``. None if it does not exist there.
        environment: The environment with which it was started.

    Attributes:
        inner: Its ids in inner PID namespaces.
        above: Its ancestors, the parent first.
        position: Its role and ranks in the job.
    """

    def __init__(self, pid: int, number: int | None, environment: Environment) -> None:
        self.pid, self.number, self.environment = pid, number, environment
        status = None if number is None else read_status(number)
        self.inner = frozenset(status[1][1:]) if status else frozenset()
        self.above = () if number is None else tuple(ancestors(number))
        self.position = position(environment.values or {})

    def below_in_rank(self, other: Member) -> bool:
        """Return whether it is a helper of the other process: a descendant with the same role and ranks."""
        return other.number in self.above and self.position == other.position != NO_POSITION


def named(pid: int) -> Member:
    """Return the member for a PID that the user named, counted in our own PID namespace."""
    return Member(pid, number_here(pid), environment_of(pid))


def listed(number: int) -> Member:
    """Return the member for a process that the driver lists, by its id in ``/proc``."""
    # os.environ has the current environment of this process. /proc shows the environment at its start.
    own = number == number_here(os.getpid())
    return Member(number, number, environment_of(os.getpid()) if own else environment_at(number, number))


def below(parents: Sequence[Member], using: Collection[int]) -> list[Member]:
    """Return the workers at and below launchers.

    Workers are the processes that use a device. A rank without such a process has one worker: its process nearest to the launcher.
    """
    numbers = dict.fromkeys(number for parent in parents if parent.number is not None for number in descendants(parent.number))
    members = [listed(number) for number in numbers]
    workers = [member for member in members if uses(member, using)]
    covered = {NO_POSITION, *(member.position for member in workers)}
    # Data loaders and other helpers inherit their rank's environment, and so may a shell above the rank. So a rank has one worker.
    for member in members:
        own = member.position
        # Slurm gives torchrun a rank too. A process with other ranks below it is a launcher and no worker.
        launches = any(member.number in other.above and other.position not in (own, NO_POSITION) for other in members)
        if own not in covered and not launches and not any(member.below_in_rank(worker) for worker in workers):
            workers.append(member)
    return workers


def uses(member: Member, using: Collection[int]) -> bool:
    """Return whether the driver lists the process, by its id in ``/proc`` or by an inner id that does not exist there."""
    return member.number in using or any(pid in using and not is_visible(pid) for pid in member.inner)


def owner(members: Iterable[Member], pid: int) -> Member | None:
    """Return the member for a process of the driver's list, or its nearest ancestor in the job. None if it is outside the job."""
    known = list(members)
    unseen = next((member for member in known if member.number is None and member.pid == pid), None)
    if unseen is not None:
        return unseen
    if not is_visible(pid):
        # Processes of two containers may have the same inner id. Then the driver's id is ambiguous.
        inside = [member for member in known if pid in member.inner]
        return inside[0] if len(inside) == 1 else None
    by_number = {member.number: member for member in known}
    return next((by_number[number] for number in (pid, *ancestors(pid)) if number in by_number), None)


def name_of(member: Member) -> str:
    """Return the title that Ray gave a process, else the first two words of its command without directories."""
    if member.number is None:
        return ""
    words = (read_text(f"/proc/{member.number}/cmdline") or "").split("\0")
    title = words[0] if words[0].startswith("ray::") else " ".join(word.rstrip("/").rpartition("/")[2] for word in words[:2] if word)
    return title[:LONGEST_NAME]


def in_other_container(member: Member) -> bool:
    """Return whether a process runs in another mount namespace, where devices may have other numbers."""
    if member.number is None:
        return False
    ours, theirs = namespace_of("self", "mnt"), namespace_of(member.number, "mnt")
    return "" not in (ours, theirs) and ours != theirs


# Variables of schedulers and launchers become labels of every record. Names follow OpenTelemetry's resource attributes (``k8s.…``).
# OpenTelemetry has none for Slurm, Ray and torchrun, so their labels begin with the product's name.

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
"""The label for each variable."""

POD_VARIABLES = {
    "POD_NAME": "k8s.pod.name",
    "POD_NAMESPACE": "k8s.namespace.name",
    "POD_UID": "k8s.pod.uid",
    "NODE_NAME": "k8s.node.name",
}
"""The label for each variable that manifests commonly set through the downward API. Only read inside a pod."""

WORLD_SIZES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS")
"""The number of processes of the job: torchrun and most others, Open MPI, MPICH and Intel MPI, Slurm. The nearest comes first."""

_NAMESPACE = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"


def job_labels(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the labels of the job from an environment: the scheduler's ids and names, the rank and the world size.

    Args:
        environment: The variables. By default those of this process.
    """
    values = os.environ if environment is None else environment
    labels = {label: value for name, label in VARIABLES.items() if (value := values.get(name, ""))}
    if "KUBERNETES_SERVICE_HOST" in values:
        explicit = {label: value for name, label in POD_VARIABLES.items() if (value := values.get(name, ""))}
        # A pod's host name is its name, unless its manifest sets another one. So an explicit POD_NAME wins.
        usual = {"k8s.pod.name": values.get("HOSTNAME", ""), "k8s.namespace.name": (read_text(_NAMESPACE) or "").strip()}
        labels |= {label: value for label, value in usual.items() if value} | explicit
    _, rank, local_rank = position(values)
    numbers = {"rank": rank, "local_rank": local_rank, "world_size": first_number(values, WORLD_SIZES, least=1)}
    return labels | {name: str(number) for name, number in numbers.items() if number is not None}
