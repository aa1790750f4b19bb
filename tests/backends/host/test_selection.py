"""What is not selected is not read."""

from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from pytest_mock import MockerFixture

from accelmetrics.backends.contract import ReadOptions
from accelmetrics.backends.host.collector import GROUPS, needed_groups
from accelmetrics.backends.host.drivers import portable_driver
from accelmetrics.backends.kit.system import KeptFile
from accelmetrics.schemas.selection import MetricSelection
from tests.backends.host.tree import PID, HostTree, values_of

MEMORY = {"/proc/meminfo", "/proc/self/mountinfo", f"/proc/{PID}/cgroup"}


@pytest.mark.parametrize(
    ("metrics", "groups"),
    [
        ("core", set()),
        ("gpu.0.powerWatts", set()),
        ("all", set(GROUPS)),
        ("load.1m", {"load"}),
        ("disk./data.usageGB", {"filesystems"}),
        ("disk.sda.readBps", {"disks"}),
        ("disk.in", {"disks"}),
        ("cpu.3.cpu_percent", {"cpus"}),
        ("memory_percent", {"memory", "cgroup"}),
        ("cpu", {"process", "cgroup", "memory"}),
        ("proc.cpu.userPercent", {"process", "cgroup", "memory"}),
        ("all,-disk*,-network*,-cpu.*", {"process", "cgroup", "memory", "load", "infiniband"}),
        ("ib.mlx5_0.1.rxBps", {"infiniband"}),
    ],
)
def test_groups_of_a_selection(metrics: str, groups: set[str]) -> None:
    """Those that give something of it, and what those are measured against."""
    assert needed_groups(MetricSelection(metrics)) == groups


@pytest.mark.parametrize(
    ("metrics", "path", "others"),
    [
        ("load.1m", "/proc/loadavg", {"/proc/stat", "/proc/meminfo", "/proc/diskstats", "/proc/net/dev", f"/proc/{PID}/stat"}),
        ("network.sent", "/proc/net/dev", {"/proc/stat", "/proc/meminfo", "/proc/diskstats", "/proc/loadavg", f"/proc/{PID}/stat"}),
        ("cpu", f"/proc/{PID}/stat", {"/proc/loadavg", "/proc/diskstats", "/proc/net/dev", "/proc/net/snmp"}),
    ],
)
def test_files_that_give_nothing_of_it_are_not_read(
    tree: HostTree, mocker: MockerFixture, metrics: str, path: str, others: set[str]
) -> None:
    spied = mocker.spy(KeptFile, "read")
    watch = tree.watch(metrics=metrics)
    values = watch.read(2.0)
    read = {call.args[0].path.removeprefix(str(tree.root)) for call in spied.call_args_list}
    assert metrics in values
    assert path in read
    assert not read & others


def test_the_same_values_as_of_everything(tree: HostTree) -> None:
    """What a metric is measured against is read with it."""
    every = tree.reader()
    every.read()
    for key, value in every.read(2.0).items():
        watch = tree.reader(metrics=key)
        watch.read()
        assert watch.read(2.0)[key] == value


def test_nothing_of_the_host_is_nothing_read(tree: HostTree, mocker: MockerFixture) -> None:
    spied = mocker.spy(KeptFile, "read")
    progress: list[Any] = []
    reading = tree.reader(metrics="core").reader.read(0, progress)
    assert (values_of(reading), dict(reading.unavailable), progress, spied.call_count) == ({}, {}, [], 0)


def test_psutil_is_asked_for_what_is_wanted() -> None:
    """By the names of its calls."""
    asked: list[str] = []

    def counted(name: str) -> Any:
        def call(*given: Any, **named: Any) -> Any:
            asked.append(name)
            return getattr(psutil, name)(*given, **named)

        return call

    names = ("cpu_times", "virtual_memory", "swap_memory", "disk_usage", "disk_io_counters", "net_io_counters", "Process")
    driver = portable_driver(psutil=SimpleNamespace(**{**vars(psutil), **{name: counted(name) for name in names}}))
    for metrics, calls in {
        "memory_percent": {"virtual_memory", "swap_memory"},
        "network.*": {"net_io_counters"},
        "powerWatts": set(),
    }.items():
        asked.clear()
        driver.reader(ReadOptions(1, metrics=MetricSelection(metrics))).read(0, [])
        assert set(asked) == calls
