"""Which job this process belongs to, from the variables that schedulers and launchers set: labels for every record.

Names follow OpenTelemetry's resource attributes where it has one (``k8s.…``); Slurm, Ray and torchrun have none there, and
get their own word in front. A variable that is not set gives no label.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from accelmetrics.backends.kit.system import read_text
from accelmetrics.visibility.job import first_number, position

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
