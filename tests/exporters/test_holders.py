"""Jobs and pods that devices were given to, from a monitor that was told to what is served, under each exporter's names."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pytest

from accelmetrics.exporters.scrape_cache import ScrapeCache
from accelmetrics.monitor.monitor import Monitor
from accelmetrics.schemas.record import Holder, Holders
from accelmetrics.schemas.snapshot import Snapshot
from accelmetrics.testing import FakeBackend
from accelmetrics.testing.fake import FakeClock
from tests.monitor.watching import Recorder, gpus
from tests.records import record
from tests.support.waiting import wait_for

JOB = Holder("gpu.0", "job", {"scheduler": "slurm", "job_id": "42", "user": "ada", "partition": "gpu"})
POD = Holder("gpu.1", "pod", {"pod": "train-0", "namespace": "ml", "container": "main"})
OTHER = Holder("gpu.1", "pod", {"pod": "train-1", "namespace": "ml", "container": "main"})


def served(dialect: str, *found: Holder, labels: Mapping[str, str] | None = None, **sources: str) -> list[str]:
    cache = ScrapeCache(dialect)
    cache.take(record(2)._replace(labels=labels or {}, holders=Holders(found, sources)))
    return cache.metrics().decode().splitlines()


def labels_of(lines: list[str], name: str, device: str) -> list[dict[str, str]]:
    """The labels of a metric's series, of one device."""
    found = [dict(re.findall(r'(\w+)="([^"]*)"', line)) for line in lines if line.startswith(f"{name}{{")]
    return [labels for labels in found if device in (labels.get("accelerator"), labels.get("gpu"), labels.get("gpu_id"))]


def test_jobs_and_pods_have_series_of_their_own() -> None:
    """Several hold a device; what is no device that was read has none, and the measurements have no more labels than ever."""
    lines = served("prometheus", JOB, POD, OTHER, JOB._replace(device="gpu.7"))
    (job,) = labels_of(lines, "accel_job_info", "gpu.0")
    assert {name: job[name] for name in JOB.labels} == JOB.labels and job["uuid"]
    assert [pod["pod"] for pod in labels_of(lines, "accel_pod_info", "gpu.1")] == ["train-0", "train-1"]
    assert not [line for line in lines if "gpu.7" in line]
    (power,) = labels_of(lines, "accel_power_watts", "gpu.0")
    assert power.keys() == {"accelerator", "uuid"}


def test_the_job_of_the_monitor_itself_is_told_once() -> None:
    """Its labels say it of every device; a second series of a device and job would break each join."""
    lines = served("prometheus", JOB, JOB._replace(labels={"job_id": "43"}), labels={"slurm.job.id": "42"})
    assert [job["job_id"] for job in labels_of(lines, "accel_job_info", "gpu.0")] == ["42", "43"]


def test_sources_that_do_not_answer_are_told() -> None:
    """By name, 1 or 0; where none was asked there is no such series."""
    lines = served("dcgm", slurm="", kubernetes="away")
    assert 'accelmetrics_attribution_success{source="slurm"} 1.0' in lines
    assert 'accelmetrics_attribution_success{source="kubernetes"} 0.0' in lines
    assert "attribution" not in "\n".join(served("dcgm"))


def test_dcgms_labels() -> None:
    """The one pod and the one job of a device are labels of its series, as DCGM's exporter writes them; of several, none."""
    lines = served("dcgm", JOB, POD)
    (first,), (second,) = (labels_of(lines, "DCGM_FI_DEV_POWER_USAGE", number) for number in "01")
    assert (first.get("hpc_job"), first.get("pod")) == ("42", None)
    assert (second.get("pod"), second.get("namespace"), second.get("container"), second.get("hpc_job")) == ("train-0", "ml", "main", None)
    (shared,) = labels_of(served("dcgm", POD, OTHER), "DCGM_FI_DEV_POWER_USAGE", "1")
    assert "pod" not in shared


def test_amds_labels() -> None:
    """The job that holds the device stands before the one that the monitor runs in."""
    lines = served("amd", JOB, labels={"slurm.job.id": "7"})
    (first,), (second,) = (labels_of(lines, "gpu_power_usage", number) for number in "01")
    assert (first["job_id"], first["job_user"], first["job_partition"]) == ("42", "ada", "gpu")
    assert second["job_id"] == "7"


@pytest.mark.parametrize("fails", [False, True])
def test_a_monitor_asks_at_every_tick(fails: bool) -> None:
    """What it is told goes with each record; a function that raises costs that alone."""
    asked: list[Snapshot] = []

    def tell(snapshot: Snapshot) -> Holders:
        asked.append(snapshot)
        if fails:
            raise RuntimeError("no idea")
        return Holders((JOB,))

    recorder = Recorder()
    backend: FakeBackend = gpus(1)
    with Monitor(1.0, [recorder], backends=[backend], attribution=tell, clock=FakeClock()):
        wait_for(lambda: len(recorder.records) > 2)
    assert [one.holders.found for one in recorder.records[:3]] == [() if fails else (JOB,)] * 3
    assert all(one.snapshot in asked for one in recorder.records[:3])
