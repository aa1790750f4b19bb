"""Which job a process belongs to, from real environments of schedulers and launchers."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from accelmetrics.visibility.job import job_labels

SLURM = {
    "SLURM_JOB_ID": "4242",
    "SLURM_JOBID": "4242",
    "SLURM_STEP_ID": "0",
    "SLURM_STEPID": "0",
    "SLURM_JOB_NAME": "pretrain",
    "SLURM_JOB_USER": "ada",
    "SLURM_JOB_PARTITION": "h100",
    "SLURM_JOB_ACCOUNT": "vision",
    "SLURM_CLUSTER_NAME": "north",
    "SLURMD_NODENAME": "node-17",
    "SLURM_NTASKS": "16",
    "SLURM_PROCID": "9",
    "SLURM_LOCALID": "1",
    "SLURM_NNODES": "2",
}
TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "8f2c",
    "TORCHELASTIC_RESTART_COUNT": "0",
    "RANK": "3",
    "LOCAL_RANK": "3",
    "WORLD_SIZE": "8",
    "GROUP_RANK": "0",
    "MASTER_ADDR": "127.0.0.1",
}
RAY = {"RAY_JOB_ID": "02000000", "RAY_RAYLET_PID": "71", "RAY_WORKER_ID": "5f", "RAY_LOCAL_RANK": "2"}
POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "HOSTNAME": "trainer-0", "POD_NAMESPACE": "ml", "POD_UID": "c0ffee", "NODE_NAME": "node-3"}


@pytest.mark.parametrize(
    ("environment", "labels"),
    [
        ({}, {}),
        (
            SLURM,
            {
                "slurm.job.id": "4242",
                "slurm.step.id": "0",
                "slurm.job.name": "pretrain",
                "slurm.job.user": "ada",
                "slurm.job.partition": "h100",
                "slurm.job.account": "vision",
                "slurm.cluster.name": "north",
                "slurm.node.name": "node-17",
                "rank": "9",
                "local_rank": "1",
                "world_size": "16",
            },
        ),
        (
            {"SLURM_JOB_ID": "43", "SLURM_ARRAY_JOB_ID": "42", "SLURM_ARRAY_TASK_ID": "1"},
            {"slurm.job.id": "43", "slurm.array.job.id": "42", "slurm.array.task.id": "1"},
        ),
        (
            TORCHRUN,
            {"torchrun.run.id": "8f2c", "torchrun.restart.count": "0", "rank": "3", "local_rank": "3", "world_size": "8"},
        ),
        (RAY, {"ray.job.id": "02000000", "local_rank": "2"}),
        (
            POD,
            {"k8s.pod.name": "trainer-0", "k8s.namespace.name": "ml", "k8s.pod.uid": "c0ffee", "k8s.node.name": "node-3"},
        ),
        ({"POD_NAME": "a name that some program uses", "HOSTNAME": "laptop"}, {}),
        (
            {**POD, "POD_NAME": "real"},
            {"k8s.pod.name": "real", "k8s.namespace.name": "ml", "k8s.pod.uid": "c0ffee", "k8s.node.name": "node-3"},
        ),
        ({"SLURM_JOB_ID": "", "RANK": "none", "WORLD_SIZE": ""}, {}),
        (
            {"OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_SIZE": "16", "SLURM_NTASKS": "4"},
            {"rank": "5", "local_rank": "1", "world_size": "16"},
        ),
        ({"PMI_RANK": "2", "PMI_SIZE": "4"}, {"rank": "2", "world_size": "4"}),
        ({"WORLD_SIZE": "8 of 16", "PMI_SIZE": "-1", "OMPI_COMM_WORLD_SIZE": "0", "SLURM_NTASKS": "2"}, {"world_size": "2"}),
    ],
    ids=["nothing", "slurm", "slurm-array", "torchrun", "ray", "kubernetes", "no-pod", "named-pod", "empty", "openmpi", "mpich", "numbers"],
)
def test_an_environment_gives_the_labels_of_its_job(
    environment: Mapping[str, str], labels: Mapping[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Exactly these, as texts; a variable that is not set, or empty, gives none."""
    monkeypatch.setenv("ACCELMETRICS_SYSROOT", str(tmp_path))
    assert job_labels(environment) == labels


def test_the_innermost_launcher_says_the_rank() -> None:
    """torchrun below Slurm below Kubernetes: each gives its identity, and the nearest to the program the rank."""
    found = job_labels({**SLURM, **TORCHRUN})
    assert (found["rank"], found["local_rank"], found["world_size"]) == ("3", "3", "8")
    assert (found["slurm.job.id"], found["torchrun.run.id"]) == ("4242", "8f2c")


def test_a_pods_namespace_is_read_where_kubernetes_puts_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """When its manifest does not hand it in."""
    file = tmp_path / "var/run/secrets/kubernetes.io/serviceaccount/namespace"
    file.parent.mkdir(parents=True)
    file.write_text("training\n")
    monkeypatch.setenv("ACCELMETRICS_SYSROOT", str(tmp_path))
    assert job_labels({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}) == {"k8s.namespace.name": "training"}
    assert job_labels({}) == {}


def test_without_an_argument_it_is_this_process_that_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """As its environment is now."""
    for name in list(os.environ):
        if name.startswith(("SLURM", "RAY_", "TORCHELASTIC")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    assert job_labels()["slurm.job.id"] == "77"
