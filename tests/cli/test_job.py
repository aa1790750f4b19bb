"""``accelmetrics job`` beside ``accelmetrics serve``, as a node runs them: who holds what, and what a job came to."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from accelmetrics.visibility.slurm_jobs import read_jobs
from tests.cli.shell import Tree, call, environment, one_line, run
from tests.cli.test_serve import get, ready, serving
from tests.exporters.prometheus_server import PrometheusServer
from tests.simulators.kubelet import Kubelet, container, pod
from tests.simulators.nvml import NvmlSimulator, Ramp
from tests.support.waiting import wait_for


class Node:
    """A machine with two simulated GPUs, of which NVML's first has the second device node.

    Attributes:
        base: Where its daemon answers.
        uuids: Of its GPUs, by NVML's number.
    """

    def __init__(self, folder: Path, base: str) -> None:
        self.folder = folder
        self.base = base
        self.uuids = dict(re.findall(r'accel_info\{accelerator="gpu\.(\d)",.*?uuid="([^"]+)"', self.page()))
        self.tree = Tree(folder / "root")
        (folder / "gres.conf").write_text("AutoDetect=nvml\n")

    def page(self) -> str:
        return get(f"{self.base}/metrics")[1]

    def job(self, action: str, job_id: str, gpus: str, *options: str) -> Any:
        """What Prolog or Epilog does."""
        variables = {"SLURM_JOB_ID": job_id, "SLURM_JOB_USER": "ada", "SLURM_JOB_PARTITION": "gpu", "SLURM_JOB_GPUS": gpus}
        variables["SLURM_CONF"] = str(self.folder / "slurm.conf")
        folders = ("--jobs", str(self.folder / "jobs"), *(("--summaries", str(self.folder / "summaries")) if action == "end" else ()))
        done = call("job", action, *folders, *options, env=self.tree.environment(**variables))
        assert done.returncode == 0
        return done

    def holders(self, name: str) -> list[dict[str, str]]:
        """The labels of an info series, on the page now."""
        return [dict(re.findall(r'(\w+)="([^"]*)"', line)) for line in re.findall(rf"^{name}\{{(.*)\}} 1\.0$", self.page(), re.MULTILINE)]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with NvmlSimulator(2) as simulator:
        for gpu, busy in ((0, 0), (1, 50)):
            simulator.gpu[gpu].set(minor_number=1 - gpu, gpu_util=busy, energy_mj=Ramp(5e9, rate=300_000))
        folders = (
            "--jobs",
            str(tmp_path / "jobs"),
            "--summaries",
            str(tmp_path / "summaries"),
            "--kubelet",
            str(tmp_path / "kubelet.sock"),
        )
        with serving("--backends", "nvidia", "--interval", "0.1", *folders, **simulator.environment()) as (_, base):
            ready(base)
            yield Node(tmp_path, base)


def test_a_job_from_its_prolog_to_its_epilog(node: Node) -> None:
    """Device node 0 is NVML's GPU 1: that one is the job's, busy half of the time, and the other keeps its series without one."""
    node.job("begin", "42", "0")
    (holder,) = wait_for(lambda: node.holders("accel_job_info"))
    expected = {"accelerator": "gpu.1", "uuid": node.uuids["1"], "scheduler": "slurm", "job_id": "42", "user": "ada", "partition": "gpu"}
    assert holder == expected
    assert 'accel_power_watts{accelerator="gpu.0"' in node.page()
    assert "accelmetrics_attribution_success" in node.page()
    summary_file = node.folder / "summaries" / "42.json"
    wait_for(summary_file.exists)
    taken = int(re.search(r"accelmetrics_ticks_total (\d+)", node.page())[1])  # type: ignore[index]
    wait_for(lambda: int(re.search(r"accelmetrics_ticks_total (\d+)", node.page())[1]) > taken + 5)  # type: ignore[index]
    done = node.job("end", "42", "0", "--json", "--wait", "60")
    assert done.stderr == ""
    summary = json.loads(done.stdout)
    assert summary == json.loads(summary_file.read_text())
    assert (summary["job_id"], summary["state"], summary["devices_held"]) == ("42", "ended", 1)
    (device,) = summary["devices"]
    assert (device["device"], device["uuid"]) == ("gpu.1", node.uuids["1"])
    assert device["utilization_percent_mean"] == pytest.approx(50.0)
    seconds = summary["ended"] - summary["began"]
    assert device["held_seconds"] == pytest.approx(seconds) and 0 < device["measured_seconds"] <= seconds
    assert device["used_seconds"] == pytest.approx(device["measured_seconds"] / 2)
    assert summary["held_hours"] == pytest.approx(seconds / 3600)
    assert summary["held_hours"] == pytest.approx(summary["used_hours"] + summary["wasted_hours"] + summary["unmeasured_hours"])
    assert summary["energy_joules"] > 0
    assert not (node.folder / "jobs" / "42.json").exists()
    wait_for(lambda: not node.holders("accel_job_info"))


def slurm(action: str, folder: Path, job_id: str = "42", *options: str) -> str:
    """What Prolog or Epilog says for a job with one device."""
    variables = {"SLURM_JOB_ID": job_id, "SLURM_JOB_GPUS": "0", "CUDA_VISIBLE_DEVICES": "GPU-1"}
    more = ("--summaries", str(folder / "summaries")) if action == "end" else ()
    done = call("job", action, "--jobs", str(folder / "jobs"), *more, *options, env=environment(**variables))
    assert done.returncode == 0
    return done.stderr


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="platform: only root can give files to another user")
def test_nothing_that_another_user_planted_is_followed(tmp_path: Path) -> None:
    """The daemon's user owns the directory around: a link or a directory of its own in place of root's leads nowhere."""
    place, target, jobs = tmp_path / "run", tmp_path / "target", tmp_path / "run" / "jobs"
    place.mkdir()
    target.mkdir()
    os.chown(place, 4711, 4711)
    jobs.symlink_to(target)
    os.chown(jobs, 4711, 4711, follow_symlinks=False)
    assert "link of user 4711 and is not followed" in slurm("begin", place)
    (target / "42.json").write_text("{}")
    assert "is not followed" in slurm("end", place)
    assert [file.read_text() for file in target.iterdir()] == ["{}"]
    jobs.unlink()
    jobs.symlink_to(target)  # made by root, in a directory of the other user's, who may put anything in its place
    assert "is not followed" in slurm("begin", place)
    jobs.unlink()
    jobs.mkdir()
    os.chown(jobs, 4711, 4711)
    assert "only root or this user may own and write it" in slurm("begin", place)
    jobs.rmdir()
    assert slurm("begin", place) == ""
    (place / "summaries").symlink_to(target)
    assert "is not followed" in slurm("end", place)


def test_only_a_job_is_removed(tmp_path: Path) -> None:
    """A file that is none, a link, and one that others may write stay where they are."""
    jobs, file = tmp_path / "jobs", tmp_path / "jobs" / "42.json"
    jobs.mkdir()
    for text, why in (
        (b"precious", "it is not JSON: Expecting value"),
        (b"\xff", "it is not UTF-8"),
        (b"{}", "it does not describe a job"),
    ):
        file.write_bytes(text)
        assert f"{file} is no file of `accelmetrics job begin` and is left as it is: {why}" in one_line(slurm("end", tmp_path))
        assert file.read_bytes() == text
    other = tmp_path / "other"
    file.replace(other)
    file.symlink_to(other)
    assert "it is a link and is not followed" in slurm("end", tmp_path)
    assert (file.is_symlink(), other.read_text()) == (True, "{}")
    assert slurm("begin", tmp_path) == ""
    assert (file.is_symlink(), other.read_text()) == (False, "{}")
    file.chmod(0o664)
    assert "mode 664" in slurm("end", tmp_path)
    problems: list[str] = []
    assert (read_jobs(str(jobs), problems), len(problems)) == ([], 1)
    file.chmod(0o644)
    assert "no summary" in slurm("end", tmp_path)
    assert not file.exists()


def test_a_summary_for_people(node: Node) -> None:
    """Two devices for as long as the job lasts, each with a line; a job of the same number later is another one."""
    for _ in range(2):
        node.job("begin", "7", "0-1")
        wait_for(lambda: len(node.holders("accel_job_info")) == 2)
        done = node.job("end", "7", "0-1", "--wait", "60")
        assert done.stderr == ""
        head, hours, energy, _, first, second = done.stdout.splitlines()
        assert re.fullmatch(r"job 7 \(ada, gpu\) on \S+: 2 devices for 0:00:\d\d", head)
        assert re.fullmatch(r"  GPU hours: [\d.]+ held, [\d.]+ used, [\d.]+ wasted, [\d.]+ not measured", hours)
        assert re.fullmatch(r"  energy: \d+ J", energy)
        assert first.split()[:2] == ["gpu.0", "0.0%"] and second.split()[:2] == ["gpu.1", "50.0%"]
        wait_for(lambda: not node.holders("accel_job_info"))


def test_a_job_whose_file_is_removed_by_hand(node: Node) -> None:
    """It has ended then, as far as can be told."""
    node.job("begin", "9", "1")
    wait_for(lambda: node.holders("accel_job_info"))
    (node.folder / "jobs" / "9.json").unlink()
    summary = wait_for(lambda: (found := json.loads((node.folder / "summaries" / "9.json").read_text()))["state"] == "ended" and found)
    assert summary["ended"] > summary["began"]


def test_pods_are_told_beside_jobs(node: Node) -> None:
    """Two containers share a GPU; a file that cannot be used is told and costs nothing else."""
    (node.folder / "jobs").mkdir()
    (node.folder / "jobs" / "1.json").write_text("{")
    ids = {"nvidia.com/gpu.shared": [f"{node.uuids['0']}::1"]}
    pods = [pod(name, "ml", container("main", ids)) for name in ("serve-a", "serve-b")]
    with Kubelet(node.folder / "kubelet.sock", *pods):
        found = wait_for(lambda: node.holders("accel_pod_info"))
    assert [(one["accelerator"], one["uuid"], one["pod"], one["namespace"], one["container"]) for one in found] == [
        ("gpu.0", node.uuids["0"], name, "ml", "main") for name in ("serve-a", "serve-b")
    ]
    assert 'accelmetrics_attribution_success{source="kubernetes"} 1.0' in node.page()


@pytest.mark.servers
def test_joins_of_the_documentation_answer_on_a_real_prometheus(node: Node, tmp_path: Path) -> None:
    """Utilisation by job and user, by pod on a shared GPU, and what is held and idle: as docs/cluster.md writes them."""
    text = (Path(__file__).parents[2] / "docs" / "cluster.md").read_text()
    by_job, by_pod, idle = re.findall(r"```promql\n(.*?)```", text, re.DOTALL)
    node.job("begin", "42", "0,1")
    ids = {"nvidia.com/gpu.shared": [f"{node.uuids['1']}::1"]}
    (tmp_path / "server").mkdir()
    with Kubelet(node.folder / "kubelet.sock", *(pod(name, "ml", container("main", ids)) for name in "ab")):
        wait_for(lambda: node.holders("accel_pod_info") and node.holders("accel_job_info"))
        target = node.base.removeprefix("http://")
        with PrometheusServer(tmp_path / "server", [{"job_name": "nodes", "static_configs": [{"targets": [target]}]}]) as server:
            ((labels, value),) = wait_for(lambda: server.query(by_job))
            assert (labels, value) == ({"job_id": "42", "user": "ada"}, pytest.approx(0.25))
            found = {labels["pod"]: value for labels, value in wait_for(lambda: server.query(by_pod))}
            assert found == {"a": pytest.approx(0.5), "b": pytest.approx(0.5)}
            ((labels, _),) = wait_for(lambda: server.query(idle))
            assert labels["uuid"] == node.uuids["0"]


@pytest.mark.parametrize(
    ("action", "variables", "said"),
    [
        ("begin", {}, "accelmetrics job begin: SLURM_JOB_ID is not set"),
        ("end", {"SLURM_JOB_ID": "../x"}, "accelmetrics job end: SLURM_JOB_ID is '../x', not a job id"),
        ("begin", {"SLURM_JOB_ID": "3"}, "job 3 has no devices: nothing was written"),
        ("begin", {"SLURM_JOB_ID": "3", "SLURM_JOB_GPUS": "gpu"}, "SLURM_JOB_GPUS ('gpu') names no GPU"),
        ("end", {"SLURM_JOB_ID": "3"}, "3.json is not there"),
    ],
)
def test_a_prolog_never_fails(action: str, variables: dict[str, str], said: str, tmp_path: Path) -> None:
    """One line says what is wrong, and the status is 0: another one would drain the node."""
    done = call("job", action, "--jobs", str(tmp_path), env=environment(**variables))
    assert (done.returncode, done.stdout) == (0, "")
    assert said in one_line(done.stderr)


def test_a_command_line_that_cannot_be_read() -> None:
    """It is told as by every command: the scripts that slurmd runs end with 0 all the same."""
    done = call("job", "end", "--wait", "long", env=environment(SLURM_JOB_ID="3"))
    assert done.returncode == 2 and "argument --wait: 'long'" in one_line(done.stderr)


def test_folders_of_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job's file lies in the folder that is named, and its Epilog finds it there."""
    monkeypatch.chdir(tmp_path)
    given = environment(SLURM_JOB_ID="3", SLURM_JOB_GPUS="0")
    assert call("job", "begin", "--jobs", "jobs", env=given).stderr == ""
    assert [path.relative_to(tmp_path) for path in tmp_path.rglob("*.json")] == [Path("jobs/3.json")]
    assert "no summary of job 3" in one_line(call("job", "end", "--jobs", "jobs", "--summaries", "summaries", env=given).stderr)
    assert not list(tmp_path.rglob("*.json"))


def test_a_folder_that_cannot_be_written_to(tmp_path: Path) -> None:
    """Likewise, in a process of its own."""
    (tmp_path / "file").write_text("")
    done = run("job", "begin", "--jobs", str(tmp_path / "file"), env=environment(SLURM_JOB_ID="3", SLURM_JOB_GPUS="0"))
    assert done.returncode == 0
    assert "accelmetrics job begin: " in one_line(done.stderr) and str(tmp_path / "file") in done.stderr


def test_without_a_daemon(tmp_path: Path) -> None:
    """The Epilog waits for nothing, says so, and removes the file."""
    node_environment = environment(SLURM_JOB_ID="3", SLURM_JOB_GPUS="0")
    folder = tmp_path / "jobs"
    assert call("job", "begin", "--jobs", str(folder), env=node_environment).stderr == ""
    assert [job.job_id for job in read_jobs(str(folder), [])] == ["3"]
    assert (folder / "3.json").stat().st_mode & 0o777 == 0o644
    done = call("job", "end", "--jobs", str(folder), "--summaries", str(tmp_path), "--wait", "3600", env=node_environment)
    assert done.returncode == 0 and "`accelmetrics serve` did not see the job" in one_line(done.stderr)
    assert list(folder.iterdir()) == []


def test_a_daemon_that_has_gone(tmp_path: Path) -> None:
    """It has noticed the job and does not say what it came to; what is left of another job of that number is no summary either."""
    node_environment = environment(SLURM_JOB_ID="3", SLURM_JOB_GPUS="0")
    folders = ("--jobs", str(tmp_path / "jobs"))
    for text, said in (
        ('{"state": "running", "began": BEGAN}', "within 0 s"),
        ('{"state": "ended", "began": 1}', "did not see the job"),
        ("nonsense", "3.json: it is not JSON: Expecting value"),
    ):
        call("job", "begin", *folders, env=node_environment)
        (job,) = read_jobs(str(tmp_path / "jobs"), [])
        (tmp_path / "3.json").write_text(text.replace("BEGAN", repr(job.began)))
        done = call("job", "end", *folders, "--summaries", str(tmp_path), "--wait", "0", env=node_environment)
        assert done.returncode == 0 and said in one_line(done.stderr)
        assert not (tmp_path / "jobs" / "3.json").exists()
