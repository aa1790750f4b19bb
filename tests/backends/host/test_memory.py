"""Host memory, swap, and the limits of version 2 cgroups."""

import pytest

from accelmetrics.backends.host.memory import parse_meminfo
from tests.backends.host.tree import GIB, MEMINFO, PAGE, PID, HostTree


def test_without_a_cgroup_the_hosts_memory_is_the_measure(tree: HostTree) -> None:
    tree.process(PID, pages=1024)
    values = tree.reader().read()
    assert values["memory_percent"] == pytest.approx(50.0)
    assert values["proc.memory.availableMB"] == 8000.0
    assert values["proc.memory.rssMB"] == pytest.approx(1024 * PAGE / 2**20)
    assert values["proc.memory.percent"] == pytest.approx(100 * 1024 * PAGE / (16384000 * 1024))
    assert values["swap.used_percent"] == pytest.approx(25.0)


def test_kernels_without_an_estimate_get_one() -> None:
    memory = parse_meminfo(b"MemTotal: 1000 kB\nMemFree: 100 kB\nCached: 200 kB\nSReclaimable: 50 kB\nSwapTotal: 0 kB\nSwapFree: 0 kB\n")
    assert memory.available == 350 * 1024


def test_no_swap_is_not_supported_and_not_zero_percent(tree: HostTree) -> None:
    tree.write("/proc/meminfo", MEMINFO.replace("2048000", "      0").replace("1536000", "      0"))
    watch = tree.reader()
    assert "swap.used_percent" not in watch.read()
    assert watch.reason("swap.used_percent") == "not_supported"


def test_a_limit_replaces_the_hosts_memory(tree: HostTree) -> None:
    tree.cgroup("/job")
    tree.level("/job", memory_max=str(4 * GIB), memory_current=str(GIB))
    tree.process(PID, pages=GIB // PAGE // 2)
    values = tree.reader().read()
    assert values["memory_percent"] == pytest.approx(25.0)
    assert values["proc.memory.availableMB"] == pytest.approx(3 * 1024)
    assert values["proc.memory.percent"] == pytest.approx(12.5)


def test_max_is_no_limit(tree: HostTree) -> None:
    tree.cgroup("/job")
    tree.level("/job", memory_max="max", memory_current=str(GIB))
    assert tree.reader().read()["memory_percent"] == pytest.approx(50.0)


def test_a_limit_above_the_hosts_memory_is_none(tree: HostTree) -> None:
    tree.cgroup("/job")
    tree.level("/job", memory_max=str(64 * GIB), memory_current=str(GIB))
    assert tree.reader().read()["memory_percent"] == pytest.approx(50.0)


def test_of_nested_limits_the_tightest_binds(tree: HostTree) -> None:
    tree.cgroup("/pods/pod1/box")
    tree.level("/pods", memory_max=str(8 * GIB), memory_current=str(7 * GIB))
    tree.level("/pods/pod1", memory_max=str(2 * GIB), memory_current=str(GIB // 2))
    tree.level("/pods/pod1/box", memory_max="max", memory_current=str(GIB // 4))
    values = tree.reader().read()
    assert values["memory_percent"] == pytest.approx(25.0)
    assert values["proc.memory.availableMB"] == pytest.approx(1024)  # a neighbour has eaten the pods' share
    assert values["proc.memory.percent"] == pytest.approx(100 * 100 * PAGE / (2 * GIB))


def test_a_host_with_less_to_give_than_the_limit_leaves_bounds_what_is_available(tree: HostTree) -> None:
    tree.cgroup("/job")
    tree.level("/job", memory_max=str(12 * GIB), memory_current=str(GIB))
    assert tree.reader().read()["proc.memory.availableMB"] == 8000.0


def test_use_above_a_lowered_limit_leaves_nothing_rather_than_less(tree: HostTree) -> None:
    tree.cgroup("/job")
    tree.level("/job", memory_max=str(GIB), memory_current=str(2 * GIB))
    assert tree.reader().read()["proc.memory.availableMB"] == 0.0


def test_a_limit_that_is_changed_is_noticed_within_a_second(tree: HostTree) -> None:
    tree.cgroup("/job")
    tree.level("/job", memory_max=str(4 * GIB), memory_current=str(GIB))
    watch = tree.reader()
    watch.read()
    tree.level("/job", memory_max=str(2 * GIB))
    assert watch.read(1.0)["memory_percent"] == pytest.approx(50.0)


def test_use_that_cannot_be_read_is_a_reason_and_not_the_hosts_number(tree: HostTree) -> None:
    tree.cgroup("/job")
    tree.level("/job", memory_max=str(4 * GIB), memory_current="nonsense")
    watch = tree.reader()
    assert "memory_percent" not in watch.read()
    assert watch.reason("memory_percent") == watch.reason("proc.memory.availableMB") == "parse_error"
    assert watch.read()["proc.memory.percent"] == pytest.approx(100 * 100 * PAGE / (4 * GIB))


def test_a_limit_is_enough_where_the_hosts_memory_is_unknown(tree: HostTree) -> None:
    tree.cgroup("/job")
    tree.level("/job", memory_max=str(4 * GIB), memory_current=str(GIB))
    tree.remove("/proc/meminfo")
    watch = tree.reader()
    values = watch.read()
    assert values["memory_percent"] == pytest.approx(25.0)
    assert "proc.memory.percent" in values
    assert watch.reason("swap.used_percent") == "not_supported"


def test_without_any_memory_each_key_has_a_reason(tree: HostTree) -> None:
    tree.write("/proc/meminfo", "MemTotal: lots\n")
    watch = tree.reader()
    assert "proc.memory.rssMB" in watch.read()
    assert {watch.reason(key) for key in ("memory_percent", "proc.memory.availableMB", "swap.used_percent")} == {"parse_error"}
    assert watch.reason("proc.memory.percent") == "not_supported"
