"""Whatever a file holds, the host gives finite values or reasons, each key once, and never raises."""

import math
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from accelmetrics.backends.host.collector import Counter, Process
from accelmetrics.backends.host.disks_network import parse_diskstats, parse_net_dev, parse_retransmits
from accelmetrics.backends.host.memory import directory_of, parse_flat, parse_limit, parse_mounts, parse_path, parse_quota
from accelmetrics.backends.host.process import TreeCpuTime, parse_allowed, parse_cpus, parse_process
from accelmetrics.backends.host.processor import busy_percent, parse_millidegrees, parse_stat
from accelmetrics.backends.kit.system import VARIABLE, count, parse_meminfo
from accelmetrics.schemas.errors import Reason
from tests.backends.host.test_contract import FIXED, assert_sound
from tests.backends.host.test_processor import zone
from tests.backends.host.tree import GIB, PID, HostTree

PARSERS: list[Callable[[bytes], object]] = [
    parse_stat,
    parse_meminfo,
    parse_diskstats,
    parse_net_dev,
    parse_retransmits,
    parse_allowed,
    parse_cpus,
    parse_path,
    parse_mounts,
    parse_quota,
    parse_limit,
    parse_flat,
    parse_millidegrees,
    lambda data: parse_process(data, 10_000_000, 4096),
]
WORDS = st.sampled_from(
    b"cpu0|MemTotal:|MemAvailable:|kB|Tcp:|RetransSegs|Cpus_allowed_list:|0::/|-|cgroup2|max|7 (x) S|eth0:|0-3,5|\n| |1|-1|oom_kill|\xff"
    b"|18446744073709551615|18446744073709551616|nr_periods|nr_throttled|/".split(b"|")
) | st.just(b"9" * 400)
CONTENT = st.binary(max_size=300) | st.lists(WORDS, max_size=60).map(b" ".join)
FILES = [
    "/proc/stat",
    "/proc/meminfo",
    "/proc/diskstats",
    "/proc/net/dev",
    "/proc/net/snmp",
    f"/proc/{PID}/stat",
    f"/proc/{PID}/status",
    f"/proc/{PID}/cgroup",
    f"/proc/{PID}/mountinfo",
    f"/proc/{PID}/task/{PID}/children",
    "/sys/devices/system/cpu/online",
    "/sys/fs/cgroup/job/memory.max",
    "/sys/fs/cgroup/job/memory.current",
    "/sys/fs/cgroup/job/memory.events",
    "/sys/fs/cgroup/job/cpu.max",
    "/sys/fs/cgroup/job/cpu.stat",
    "/sys/class/hwmon/hwmon0/temp1_input",
    "/sys/class/powercap/intel-rapl:0/energy_uj",
    "/sys/class/powercap/intel-rapl:0/max_energy_range_uj",
    "/sys/class/net/eth0/flags",
]
NUMBERS = st.integers(0, 2**64 - 1)


@pytest.mark.parametrize("parse", PARSERS, ids=range(len(PARSERS)))
@given(data=CONTENT)
@settings(max_examples=150, deadline=None)
def test_a_parser_answers_or_raises_value_error_and_nothing_else(parse: Callable[[bytes], object], data: bytes) -> None:
    try:
        parse(data)
    except ValueError as error:
        assert str(error)


@given(data=st.binary(max_size=30))
def test_a_count_is_an_unsigned_number_of_64_bits_or_an_error(data: bytes) -> None:
    try:
        value = count(data)
    except ValueError:
        assert not (data.isdigit() and len(data) <= 19)
        return
    assert 0 <= value < 2**64
    assert data.lstrip(b"0") in (str(value).encode(), b"")


@given(path=st.text(max_size=40), root=st.text(max_size=20))
def test_no_cgroup_path_leads_out_of_the_mount(path: str, root: str) -> None:
    found = directory_of(f"/{root}", "/sys/fs/cgroup", f"/{path}")
    assert found is None or (found.startswith("/sys/fs/cgroup") and ".." not in found.split("/"))


@given(values=st.lists(NUMBERS, min_size=2))
def test_a_counter_never_falls_and_never_exceeds_what_the_system_counted(values: list[int]) -> None:
    counter = Counter()
    totals = []
    for value in values:
        counter.feed({"": value})
        totals.append(counter.total)
    assert totals == sorted(totals)
    assert totals[-1] == sum(max(after - before, 0) for before, after in pairwise(values))


@given(readings=st.lists(st.dictionaries(st.sampled_from("abc"), NUMBERS)))
def test_a_sum_never_falls_whatever_comes_and_goes(readings: list[dict[str, int]]) -> None:
    counter = Counter()
    before = 0
    for reading in readings:
        counter.feed(reading)
        assert counter.total >= before
        before = counter.total


@given(before=st.tuples(NUMBERS, NUMBERS), after=st.tuples(NUMBERS, NUMBERS))
def test_a_busy_share_is_a_share(before: tuple[int, int], after: tuple[int, int]) -> None:
    share = busy_percent(before, after)
    assert not isinstance(share, float) or 0.0 <= share <= 100.0


@given(before=NUMBERS, after=NUMBERS, largest=NUMBERS)
def test_a_counter_that_wraps_gains_nothing_negative_nor_above_its_range(before: int, after: int, largest: int) -> None:
    counter = Counter({"zone": largest})
    counter.feed({"zone": before})
    counter.feed({"zone": after})
    assert counter.gain is None or 0 <= counter.gain <= max(largest, after)


TIMES = st.tuples(*[st.integers(0, 10**6)] * 3)
PROCESSES = st.builds(
    Process,
    pid=st.integers(1, 6),
    start=st.integers(0, 1),
    parent=st.integers(0, 6),
    own=TIMES,
    waited=TIMES,
    threads=st.just(1),
    rss=st.just(1),
    ended=st.booleans(),
)


@given(readings=st.lists(st.lists(PROCESSES, min_size=1)))
def test_a_tree_of_processes_never_uses_less_than_nothing(readings: list[list[Process]]) -> None:
    usage = TreeCpuTime(lambda pid: None)
    for number, members in enumerate(readings):
        used, _ = usage.advance(members, 10**6)
        assert min(used) >= 0
        assert number or used == (0, 0, 0)


@given(changes=st.lists(st.tuples(st.sampled_from(FILES), CONTENT | st.none()), min_size=1, max_size=6))
@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_host_of_rubbish_gives_sound_readings(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, changes: list[tuple[str, bytes | None]]
) -> None:
    tree = whole_tree(tmp_path_factory.mktemp("host"), monkeypatch)
    watch = tree.watch(children=True, disk_paths=("/",))
    for path, content in changes:
        file = Path(f"{tree.root}{path}")
        file.unlink(missing_ok=True) if content is None else file.write_bytes(content)
        for reader in (watch, tree.reader(children=True, disk_paths=("/",))):
            reader.read(1.0)
            assert_sound(reader.reading)
            assert {str(why.reason) for why in reader.reading.unavailable.values()} <= {str(reason) for reason in Reason}
            assert all(math.isfinite(value) for block in reader.reading.blocks for value in block.values)


def whole_tree(root: Path, monkeypatch: pytest.MonkeyPatch) -> HostTree:
    """A host that has everything."""
    monkeypatch.setenv(VARIABLE, str(root))
    tree = HostTree(root)
    tree.job(memory_max=str(GIB), memory_current="5", memory_events="oom_kill 0")
    tree.level("/job", cpu_max="50000 100000", cpu_stat="nr_periods 1\nnr_throttled 1")
    tree.write("/sys/class/hwmon/hwmon0/name", "k10temp\n")
    tree.write("/sys/class/hwmon/hwmon0/temp1_input", "40000\n")
    tree.write("/sys/class/net/eth0/flags", "0x1003\n")
    zone(tree, "intel-rapl:0", "package-0", 5)
    return tree


def test_a_host_that_has_everything_lacks_nothing_at_the_second_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = whole_tree(tmp_path, monkeypatch)
    watch = tree.watch()
    tree.level("/job", cpu_stat="nr_periods 2\nnr_throttled 1")
    tree.stat({0: (150, 950), 1: (200, 900)})
    assert watch.read(1.0).keys() >= FIXED
    assert not watch.reading.unavailable
