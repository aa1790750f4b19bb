"""``accelmetrics targets``: what it prints and writes, and a real Prometheus and Slurm beside it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.shell import call, environment, one_line
from tests.cli.test_serve import ready, serving
from tests.exporters.prometheus_server import PrometheusServer, program
from tests.support.waiting import wait_for


def test_hosts_become_targets(tmp_path: Path) -> None:
    """Groups by labels; a label for all does not override a line's own."""
    hosts = tmp_path / "hosts"
    hosts.write_text("a\nb:1 cluster=own\n")
    done = call("targets", "--hosts", str(hosts), "--label", "cluster=all", "--port", "9")
    assert json.loads(done.stdout) == [
        {"targets": ["a:9"], "labels": {"cluster": "all"}},
        {"targets": ["b:1"], "labels": {"cluster": "own"}},
    ]


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    """Where the nodes cannot be told, it stays as it was."""
    hosts, target = tmp_path / "hosts", tmp_path / "targets.json"
    hosts.write_text("a\n")
    assert call("targets", "--hosts", str(hosts), "--output", str(target)).returncode == 0
    before = target.read_text()
    assert json.loads(before) == [{"targets": ["a:22235"], "labels": {}}]
    hosts.write_text("a b\n")
    done = call("targets", "--hosts", str(hosts), "--output", str(target))
    assert done.returncode == 2 and "line 1: 'b' is no label" in one_line(done.stderr)
    done = call("targets", "--slurm", "--output", str(target), env=environment(PATH=str(tmp_path)))
    assert done.returncode == 1 and "sinfo was not found" in one_line(done.stderr)
    assert target.read_text() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hosts", "targets.json"]


@pytest.mark.servers
def test_a_host_list_of_real_slurm(tmp_path: Path) -> None:
    """`scontrol` expands it."""
    program("scontrol")
    config = tmp_path / "slurm.conf"
    config.write_text("ClusterName=t\nSlurmctldHost=localhost\nNodeName=gpu[1-3]\nPartitionName=p Nodes=ALL\n")
    done = call("targets", "--slurm", "gpu[08-10],login", env=environment(SLURM_CONF=str(config)))
    assert json.loads(done.stdout) == [{"targets": [f"{name}:22235" for name in ("gpu08", "gpu09", "gpu10", "login")], "labels": {}}]


@pytest.mark.servers
def test_a_real_prometheus_finds_the_nodes(tmp_path: Path) -> None:
    """By the file that is written, with its labels."""
    hosts, written = tmp_path / "hosts", tmp_path / "targets.json"
    with serving("--backends", "host") as (_, first), serving("--backends", "host") as (_, second):
        ready(first)
        ready(second)
        names = [base.removeprefix("http://") for base in (first, second)]
        hosts.write_text(f"{names[0]} rack=a\n{names[1]} rack=b\n")
        call("targets", "--hosts", str(hosts), "--output", str(written))
        (tmp_path / "server").mkdir()
        with PrometheusServer(tmp_path / "server", [{"job_name": "a", "file_sd_configs": [{"files": [str(written)]}]}]) as server:

            def seen() -> set[tuple[str, str]]:
                return {(labels.get("instance", ""), labels.get("rack", "")) for labels, _ in server.query("accelmetrics_up == 1")}

            wait_for(lambda: seen() == {(names[0], "a"), (names[1], "b")}, what=seen)
