"""Host memory and swap; where a cgroup lies, what limits it, throttling and kills."""

import errno
import os
import shutil

import pytest
from pytest_mock import MockerFixture

from accelmetrics.backends.host import backend, memory
from accelmetrics.backends.host.memory import directory_of, levels_of, parse_limit, parse_mounts, parse_path, parse_quota
from accelmetrics.backends.kit.system import parse_meminfo
from tests.backends.host.tree import GIB, MEMINFO, PAGE, PID, TICK, HostTree


def test_without_a_cgroup_the_hosts_memory_is_the_measure(tree: HostTree) -> None:
    tree.process(PID, pages=1024)
    values = tree.reader().read()
    assert values["memory_percent"] == pytest.approx(50.0)
    assert values["proc.memory.availableMB"] == 8000.0
    assert (values["memory.usedBytes"], values["memory.totalBytes"]) == (8192000 * 1024, 16384000 * 1024)
    assert values["proc.memory.rssMB"] == pytest.approx(1024 * PAGE / 2**20)
    assert values["proc.memory.rssBytes"] == 1024 * PAGE
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
    tree.job(memory_max=str(4 * GIB), memory_current=str(GIB))
    tree.process(PID, pages=GIB // PAGE // 2)
    values = tree.reader().read()
    assert values["memory_percent"] == pytest.approx(25.0)
    assert (values["memory.usedBytes"], values["memory.totalBytes"]) == (GIB, 4 * GIB)
    assert values["proc.memory.availableMB"] == pytest.approx(3 * 1024)
    assert values["proc.memory.percent"] == pytest.approx(12.5)


@pytest.mark.parametrize(
    ("limit", "current", "percent", "available"),
    [("max", GIB, 50.0, 8000.0), (64 * GIB, GIB, 50.0, 8000.0), (12 * GIB, GIB, 100 / 12, 8000.0), (GIB, 2 * GIB, 200.0, 0.0)],
    ids=["none", "above the host's memory", "more than the host has left", "lowered below what is used"],
)
def test_limits_and_the_host(tree: HostTree, limit: object, current: int, percent: float, available: float) -> None:
    """What is available is bounded by what the host has left, and never below 0."""
    tree.job(memory_max=str(limit), memory_current=str(current))
    values = tree.reader().read()
    assert values["memory_percent"] == pytest.approx(percent)
    assert values["proc.memory.availableMB"] == available


def test_of_nested_limits_the_tightest_binds(tree: HostTree) -> None:
    tree.cgroup("/pods/pod1/box")
    tree.level("/pods", memory_max=str(8 * GIB), memory_current=str(7 * GIB))
    tree.level("/pods/pod1", memory_max=str(2 * GIB), memory_current=str(GIB // 2))
    tree.level("/pods/pod1/box", memory_max="max", memory_current=str(GIB // 4))
    values = tree.reader().read()
    assert values["memory_percent"] == pytest.approx(25.0)
    assert values["proc.memory.availableMB"] == pytest.approx(1024)  # a neighbour has eaten the pods' share
    assert values["proc.memory.percent"] == pytest.approx(100 * 100 * PAGE / (2 * GIB))


def test_a_limit_that_is_changed_is_noticed_within_a_second(tree: HostTree) -> None:
    tree.job(memory_max=str(4 * GIB), memory_current=str(GIB))
    watch = tree.watch()
    tree.level("/job", memory_max=str(2 * GIB))
    assert watch.read(1.0)["memory_percent"] == pytest.approx(50.0)


def test_a_limit_that_a_level_had_not_is_noticed_within_ten_seconds(tree: HostTree) -> None:
    """Its controller has been switched on: there is a file now, of limits and of events."""
    tree.job(memory_current=str(GIB))
    watch = tree.watch()
    assert watch.reason("proc.memory.oomKills") == "not_supported"
    tree.level("/job", memory_max=str(2 * GIB), memory_events="oom_kill 3")
    watch.read(10.0)
    values = watch.read(1.0)
    assert (values["memory_percent"], values["proc.memory.oomKills"]) == (50.0, 0)


def test_a_limit_whose_controller_is_switched_off_is_none_at_once(tree: HostTree, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its file stays open and answers that there is no such device."""
    tree.job(memory_max=str(2 * GIB), memory_current=str(GIB))
    tree.level("/job", cpu_max="50000 100000", cpu_stat="nr_periods 1\nnr_throttled 0")
    watch = tree.reader()
    assert watch.read()["memory_percent"] == 50.0
    limit = (tree.root / "sys/fs/cgroup/job/memory.max").stat().st_ino
    pread = os.pread

    def answer(descriptor: int, size: int, offset: int) -> bytes:
        if os.fstat(descriptor).st_ino == limit:
            raise OSError(errno.ENODEV, "No such device")
        return pread(descriptor, size, offset)

    monkeypatch.setattr(os, "pread", answer)
    values = watch.read(1.0)
    assert values["memory.totalBytes"] == 16384000 * 1024
    assert watch.reason("proc.cpu.throttledPercent") == "needs_interval", "the quota is there still"


def test_use_that_cannot_be_read_is_a_reason_and_not_the_hosts_number(tree: HostTree) -> None:
    tree.job(memory_max=str(4 * GIB), memory_current="nonsense")
    watch = tree.reader()
    assert "memory_percent" not in watch.read()
    assert watch.reason("memory_percent") == watch.reason("proc.memory.availableMB") == watch.reason("memory.usedBytes") == "parse_error"
    assert watch.read()["memory.totalBytes"] == 4 * GIB
    assert watch.read()["proc.memory.percent"] == pytest.approx(100 * 100 * PAGE / (4 * GIB))


def test_a_limit_is_enough_where_the_hosts_memory_is_unknown(tree: HostTree) -> None:
    tree.job(memory_max=str(4 * GIB), memory_current=str(GIB))
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


V1 = """12:pids:/user.slice
4:memory:/process_api/cd63d17d
1:name=systemd:/
"""


@pytest.mark.parametrize(
    ("text", "path"),
    [
        (b"0::/\n", "/"),
        (b"0::/system.slice/docker-ab.scope\n", "/system.slice/docker-ab.scope"),
        (V1.encode() + b"0::/init.scope\n", "/init.scope"),
        (b"0::/gone (deleted)\n", "/gone"),
        (V1.encode(), None),
        (b"", None),
    ],
)
def test_the_path_is_that_of_version_2(text: bytes, path: str | None) -> None:
    assert parse_path(text) == path


def test_mounts_are_found_among_others_with_and_without_optional_fields() -> None:
    text = (
        b"31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n"
        b"35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
        b"41 31 0:38 / /sys/fs/cgroup/unified rw,relatime shared:9 master:3 - cgroup2 cgroup2 rw\n"
        b"42 31 0:38 /a\\040b /mnt/c\\040d rw - cgroup2 cgroup2 rw\n"
        b"43 31 0:39 / /mnt/cgroup2 rw - ext4 /dev/sda1 rw\n"
    )
    assert parse_mounts(text) == [("/", "/sys/fs/cgroup/unified"), ("/a b", "/mnt/c d")]


@pytest.mark.parametrize(
    ("root", "path", "directory"),
    [
        ("/", "/", "/sys/fs/cgroup"),
        ("/", "/a/b", "/sys/fs/cgroup/a/b"),
        ("/docker/ab", "/docker/ab", "/sys/fs/cgroup"),
        ("/docker/ab", "/docker/ab/child", "/sys/fs/cgroup/child"),
        ("/docker/ab", "/docker/abc", "/sys/fs/cgroup/docker/abc"),
        ("/", "/../sibling", None),
        ("/..", "/", None),
    ],
)
def test_a_bind_mounts_root_is_stripped_from_the_path(root: str, path: str, directory: str | None) -> None:
    assert directory_of(root, "/sys/fs/cgroup", path) == directory


def test_the_levels_end_at_the_mount() -> None:
    assert levels_of("/sys/fs/cgroup", "/sys/fs/cgroup/x/y") == ["/sys/fs/cgroup/x/y", "/sys/fs/cgroup/x", "/sys/fs/cgroup"]
    assert levels_of("/sys/fs/cgroup", "/sys/fs/cgroup") == ["/sys/fs/cgroup"]


@pytest.mark.parametrize(("text", "cpus"), [(b"max 100000\n", None), (b"150000 100000\n", 1.5), (b"5000 10000\n", 0.5)])
def test_quotas(text: bytes, cpus: float | None) -> None:
    assert parse_quota(text) == cpus


@pytest.mark.parametrize("text", [b"", b"100000", b"100000 0", b"-1 100000", b"a b"])
def test_a_quota_that_is_none_is_an_error(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        parse_quota(text)


def test_limits_beyond_32_bits_are_read() -> None:
    assert parse_limit(b"9223372036854771712\n") == 9223372036854771712
    assert parse_limit(b"max\n") is None


@pytest.mark.parametrize(("path", "root"), [("/system.slice/docker-ab.scope", "/system.slice/docker-ab.scope"), ("/", "/")])
def test_a_container_sees_its_limits_at_the_root_of_its_mount(tree: HostTree, path: str, root: str) -> None:
    """With a namespace of its own too."""
    tree.cgroup(path, mount_root=root)
    tree.level("", memory_max=str(4 * GIB), memory_current=str(2 * GIB))
    assert tree.reader().read()["memory_percent"] == pytest.approx(50.0)


def test_the_hybrid_hierarchy_is_read_where_it_is_mounted(tree: HostTree) -> None:
    tree.cgroup("/job", mount_point="/sys/fs/cgroup/unified")
    tree.write("/sys/fs/cgroup/unified/job/memory.max", f"{4 * GIB}\n")
    tree.write("/sys/fs/cgroup/unified/job/memory.current", f"{GIB}\n")
    assert tree.reader().read()["memory_percent"] == pytest.approx(25.0)


def test_version_1_alone_is_not_read_and_says_so(tree: HostTree) -> None:
    tree.write(f"/proc/{PID}/cgroup", V1)
    tree.write("/sys/fs/cgroup/memory/process_api/cd63d17d/memory.limit_in_bytes", str(GIB))
    watch = tree.reader()
    assert watch.read()["memory_percent"] == pytest.approx(50.0)
    assert watch.reason("proc.cpu.throttledPercent") == watch.reason("proc.memory.oomKills") == "not_supported"
    assert "version 2" in watch.detail("proc.memory.oomKills")


def test_without_a_mount_table_the_usual_place_is_tried(tree: HostTree) -> None:
    tree.write(f"/proc/{PID}/cgroup", "0::/job\n")
    tree.level("/job", memory_max=str(4 * GIB), memory_current=str(GIB))
    assert tree.reader().read()["memory_percent"] == pytest.approx(25.0)


def test_throttling_is_the_share_of_periods_at_the_tightest_quota(tree: HostTree) -> None:
    tree.cgroup("/pod/box")
    tree.level("/pod", cpu_max="50000 100000", cpu_stat="usage_usec 5\nnr_periods 100\nnr_throttled 10\nthrottled_usec 99")
    tree.level("/pod/box", cpu_max="200000 100000", cpu_stat="nr_periods 100\nnr_throttled 0")
    watch = tree.reader()
    assert "proc.cpu.throttledPercent" not in watch.read()
    assert watch.reason("proc.cpu.throttledPercent") == "needs_interval"
    tree.level("/pod", cpu_stat="usage_usec 6\nnr_periods 110\nnr_throttled 14\nthrottled_usec 100")
    assert watch.read(1.0)["proc.cpu.throttledPercent"] == pytest.approx(40.0)


@pytest.mark.parametrize(("quota", "reason", "words"), [("50000", "needs_interval", "no period"), ("max", "not_supported", "no CPU quota")])
def test_where_there_is_no_share_of_periods(tree: HostTree, quota: str, reason: str, words: str) -> None:
    """In an interval without a period, and without a quota."""
    tree.job(cpu_max=f"{quota} 100000", cpu_stat="nr_periods 100\nnr_throttled 10")
    watch = tree.watch()
    assert "proc.cpu.throttledPercent" not in watch.read(0.05)
    assert watch.reason("proc.cpu.throttledPercent") == reason
    assert words in watch.detail("proc.cpu.throttledPercent")


def test_kills_count_from_the_first_reading(tree: HostTree) -> None:
    tree.job(memory_events="low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\noom_group_kill 0")
    watch = tree.reader()
    assert "proc.memory.oomKills" not in watch.read()
    assert watch.reason("proc.memory.oomKills") == "needs_interval"
    assert watch.read(1.0)["proc.memory.oomKills"] == 0
    tree.level("/job", memory_events="oom 4\noom_kill 5")
    assert watch.read(1.0)["proc.memory.oomKills"] == 3


def test_a_process_moved_to_another_cgroup_is_counted_anew_there(tree: HostTree) -> None:
    tree.cgroup("/one")
    tree.level("/one", memory_events="oom_kill 2")
    tree.level("/two", memory_events="oom_kill 900")
    watch = tree.watch()
    assert watch.read(1.0)["proc.memory.oomKills"] == 0
    tree.cgroup("/two")
    assert "proc.memory.oomKills" not in watch.read(1.0)
    assert watch.read(1.0)["proc.memory.oomKills"] == 0


def test_the_table_of_mounts_is_read_every_ten_seconds_and_when_the_process_moves(tree: HostTree, mocker: MockerFixture) -> None:
    tree.cgroup("/one")
    tree.level("/one", memory_max=str(GIB), memory_current=str(GIB // 2))
    tree.level("/two", memory_max=str(GIB), memory_current=str(GIB // 4))
    watch = tree.reader()
    assert watch.read()["memory_percent"] == 50.0
    spy = mocker.spy(memory, "parse_mounts")
    for _ in range(9):
        watch.read(1.0)
    assert spy.call_count == 0
    watch.read(1.0)
    assert spy.call_count == 1
    tree.cgroup("/two")
    assert watch.read(1.0)["memory_percent"] == 25.0
    assert spy.call_count == 2


def test_our_own_move_is_noticed_within_ten_seconds(tree: HostTree) -> None:
    tree.process(os.getpid())
    tree.level("/one", memory_max=str(GIB), memory_current=str(GIB // 2))
    tree.level("/two", memory_max=str(GIB), memory_current=str(GIB // 4))
    tree.cgroup("/one", pid=os.getpid())
    watch = tree.reader(pid=os.getpid())
    assert watch.read()["memory_percent"] == 50.0
    tree.cgroup("/two", pid=os.getpid())
    assert watch.read(10.0)["memory_percent"] == 25.0


@pytest.mark.parametrize(("quota", "ticks"), [("50000 100000", TICK // 4), ("1600000 100000", TICK)])
def test_the_quota_divides_cpu_where_it_is_below_the_affinity(tree: HostTree, quota: str, ticks: int) -> None:
    tree.job(cpu_max=quota)
    watch = tree.watch()
    tree.process(PID, ticks=ticks)
    assert watch.read(1.0)["cpu"] == pytest.approx(50.0)


def test_a_broken_limit_is_a_parse_error_and_costs_its_own_keys(tree: HostTree) -> None:
    tree.job(cpu_max="rubbish", memory_events="oom_kill 1")
    watch = tree.reader()
    assert "memory_percent" in watch.read()
    assert watch.reason("proc.cpu.throttledPercent") == "parse_error"


def test_a_limit_that_was_broken_for_a_while_loses_nothing_that_was_throttled(tree: HostTree) -> None:
    tree.job(cpu_max="50000 100000", cpu_stat="nr_periods 100\nnr_throttled 10")
    watch = tree.watch()
    tree.level("/job", cpu_max="rubbish")
    assert "proc.cpu.throttledPercent" not in watch.read(1.0)
    tree.level("/job", cpu_max="50000 100000", cpu_stat="nr_periods 120\nnr_throttled 15")
    assert watch.read(1.0)["proc.cpu.throttledPercent"] == pytest.approx(25.0)


def test_a_process_that_ended_is_not_in_use_here_too(tree: HostTree) -> None:
    """Its cgroup's keys say what its other keys say."""
    tree.job(cpu_max="100000 100000", cpu_stat="nr_periods 1\nnr_throttled 0", memory_events="oom_kill 1")
    watch = tree.watch()
    shutil.rmtree(tree.root / "proc" / str(PID))
    watch.driver.close()  # a kept descriptor of a file that was removed reads on, one of a real /proc does not
    watch.read(1.0)
    for key in ("cpu", "proc.cpu.throttledPercent", "proc.memory.oomKills"):
        assert (watch.reason(key), watch.detail(key)) == ("not_in_use", f"process {PID} has ended")


def test_a_process_that_never_was_is_not_in_use_here_too(tree: HostTree) -> None:
    watch = tree.reader(pid=99)
    assert "memory_percent" in watch.read()
    for key in ("cpu", "proc.cpu.throttledPercent", "proc.memory.oomKills"):
        assert (watch.reason(key), watch.detail(key)) == ("not_in_use", "there is no process 99")


def test_detection_names_the_limits(tree: HostTree) -> None:
    tree.cgroup("/job", pid=os.getpid())
    tree.level("/job", memory_max=str(4 * GIB), cpu_max="150000 100000")
    found = backend.detect()
    assert found.present
    assert "cgroup v2 limit 4 GiB and 1.5 CPUs" in found.evidence


def test_detection_says_where_there_is_no_version_2(tree: HostTree) -> None:
    tree.write(f"/proc/{os.getpid()}/cgroup", V1)
    assert "no cgroup v2" in backend.detect().evidence
