"""Labels as Prometheus wants them: who a device is, whose job uses it, which run this is."""

from __future__ import annotations

import re
from collections.abc import Mapping

from accelmetrics.schemas.snapshot import DeviceSlot

_SCHEDULERS = {"slurm": "slurm", "k8s": "kubernetes", "kubernetes": "kubernetes", "ray": "ray", "pbs": "pbs", "lsf": "lsf", "flux": "flux"}
"""The first words of labels that name a scheduler's job, and what the scheduler is called."""
_SHORT = {
    "id": "job_id",
    "job": "job_id",
    "job_user": "user",
    "job_partition": "partition",
    "job_account": "account",
    "pod_name": "pod",
    "namespace_name": "namespace",
    "container_name": "container",
}
"""What the field calls these labels."""
_NOT_IN_NAMES = re.compile(r"\W", re.ASCII)
_TAKEN = frozenset({"instance", "job", "le", "quantile", "accelerator", "uuid", "scheduler"})


def identity_labels(place: DeviceSlot) -> dict[str, str]:
    """The two labels of each series of a device; neither is ever empty."""
    identity = place.identity
    return {"accelerator": place.key, "uuid": identity.uuid or identity.pci_bus_id or place.key}


def label_name(text: str) -> str:
    """A text as the name of a label: letters, digits and underscores, and none of the names that mean something else."""
    name = _clean(text)
    return f"label_{name}" if name in _TAKEN or name[0].isdigit() else name


def jobs(labels: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """By scheduler, what a record's labels say of its job: ``slurm.job.id`` is the label ``job_id`` of ``slurm``."""
    found: dict[str, dict[str, str]] = {}
    for label, value in labels.items():
        scheduler = _scheduler(label)
        if scheduler and value:
            name = _clean(label.partition(".")[2])
            found.setdefault(scheduler, {})[_SHORT.get(name) or label_name(name)] = value
    return found


def run_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """The labels of a record that no scheduler gave."""
    return {label_name(label): value for label, value in labels.items() if value and not _scheduler(label)}


def _scheduler(label: str) -> str:
    head, dot, rest = label.partition(".")
    return _SCHEDULERS.get(head, "") if dot and rest else ""


def _clean(text: str) -> str:
    return _NOT_IN_NAMES.sub("_", text).lstrip("_") or "label"
