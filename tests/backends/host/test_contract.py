"""What every reading of the host owes to the sampler."""

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pytest_mock import MockerFixture

from accelmetrics import Monitor, Sampler
from accelmetrics.backends.contract import Backend, Driver, Reading, ReadOptions
from accelmetrics.backends.host import backend
from accelmetrics.backends.host.collector import PORT_FILES
from accelmetrics.schemas.catalogue import CATALOGUE
from tests.backends.host.tree import GIB, MEMINFO, PID, HostTree, values_of
from tests.support.waiting import wait_for

FIXED = set(
    """
cpu cpu.avg_temp cpu.powerWatts disk.in disk.out load.15m load.1m load.5m memory.totalBytes memory.usedBytes memory_percent network.recv
network.recvBps network.sent network.sentBps network.tcpRetransmits proc.cpu.systemPercent proc.cpu.threads proc.cpu.throttledPercent
proc.cpu.userPercent proc.memory.availableMB proc.memory.oomKills proc.memory.percent proc.memory.rssBytes proc.memory.rssMB
swap.used_percent
""".split()  # noqa: SIM905 a column of names reads better
)


def assert_sound(reading: Reading) -> None:
    """Every fixed key in exactly one place, every value a finite number, every reason with words."""
    values = values_of(reading)
    assert not values.keys() & reading.unavailable.keys()
    assert values.keys() | reading.unavailable.keys() >= FIXED
    for key, value in values.items():
        assert type(value) in (int, float), key
        assert math.isfinite(value), key
        assert value >= 0 or key == "cpu.avg_temp", key
    for key, why in reading.unavailable.items():
        assert why.detail, key


def descriptors() -> int:
    """How many this process holds."""
    return len(list(Path("/dev/fd").iterdir()))


@pytest.fixture
def driver() -> Iterator[Driver]:
    found = backend.open()
    yield found
    found.close()


def test_the_backend_is_what_the_contract_asks() -> None:
    found: Backend = backend
    assert (found.name, found.kind, found.interval) == ("host", None, 0)
    assert list(found.own_metrics()) == []


def test_what_it_owes_and_may_give_is_what_it_declares() -> None:
    coverage = backend.coverage()
    assert coverage.machine.keys() == FIXED
    assert coverage.optional.keys() == {
        "cpu.{i}.cpu_percent",
        *(f"disk.{{path}}.{stem}" for stem in ("usagePercent", "usageGB")),
        *(f"disk.{{device}}.{stem}" for stem in ("in", "out", "readBps", "writeBps")),
        *(f"ib.{{port}}.{name}" for name in (*PORT_FILES, "rxBps", "txBps")),
    }
    assert coverage.devices == coverage.processes == coverage.partitions == {}
    described = {row.key for row in CATALOGUE}
    assert described >= coverage.machine.keys() | coverage.optional.keys()
    assert all({**coverage.machine, **coverage.optional}.values()), "each says where it is read"


def test_detection_finds_the_machine_and_reserves_no_device() -> None:
    found = backend.detect()
    assert found.present
    assert found.devices == 0
    assert f"{os.cpu_count()} CPUs" in found.evidence


def test_a_driver_has_one_unit_and_no_device(driver: Driver) -> None:
    assert list(driver.devices) == []
    assert driver.source in ("proc", "psutil")


def test_every_fixed_key_is_in_exactly_one_place_at_every_reading(driver: Driver) -> None:
    reader = driver.reader(ReadOptions(os.getpid(), True, ("/", "/no/such/place")))
    for _ in range(3):
        reading = reader.read(0, [])
        assert_sound(reading)
        for path in ("/", "/no/such/place"):
            for stem in ("usagePercent", "usageGB"):
                assert (f"disk.{path}.{stem}" in values_of(reading)) != (f"disk.{path}.{stem}" in reading.unavailable)


def test_no_key_but_those_agreed(driver: Driver) -> None:
    reader = driver.reader(ReadOptions(os.getpid()))
    reader.read(0, [])
    reading = reader.read(0, [])
    for key in values_of(reading).keys() | reading.unavailable.keys():
        per_cpu = key.startswith("cpu.") and key.endswith(".cpu_percent")
        per_disk = key.startswith("disk.") and key.endswith((".in", ".out", ".readBps", ".writeBps", ".usagePercent", ".usageGB"))
        assert key in FIXED or per_cpu or per_disk


def test_two_readers_of_one_driver_do_not_shorten_each_others_intervals(tree: HostTree) -> None:
    watch = tree.reader()
    other = watch.driver.reader(ReadOptions(PID))
    watch.read()
    other.read(0, [])
    tree.network({"eth0": (5000, 2000)})
    tree.disks({"sda": (3048, 2000)})
    tree.process(PID, ticks=os.sysconf("SC_CLK_TCK"))
    tree.stat({0: (150, 950), 1: (200, 900)})
    tree.clock.now += 1.0
    other.read(0, [])
    values = watch.read(1.0)
    assert values["network.recvBps"] == pytest.approx(2000.0)
    assert values["disk.sda.readBps"] == pytest.approx(524288.0)
    assert values["cpu"] == pytest.approx(25.0)
    assert values["cpu.0.cpu_percent"] == pytest.approx(50.0)


def test_a_later_reader_begins_its_own_count(tree: HostTree) -> None:
    watch = tree.watch()
    tree.network({"eth0": (5000, 2000)})
    later = watch.driver.reader(ReadOptions(PID))
    assert "network.recv" not in values_of(later.read(0, []))
    assert watch.read(1.0)["network.recv"] == 4000
    tree.network({"eth0": (5001, 2000)})
    assert values_of(later.read(0, []))["network.recv"] == 1


def test_names_and_reasons_are_the_same_objects_while_nothing_changes(tree: HostTree) -> None:
    watch = tree.watch(disk_paths=("/",))
    tree.stat({0: (150, 950), 1: (200, 900)})
    watch.read(1.0)
    before = watch.reading
    tree.stat({0: (250, 1050), 1: (300, 950)})
    watch.read(1.0)
    assert all(new.names is old.names for new, old in zip(watch.reading.blocks, before.blocks, strict=True))
    assert watch.reading.unavailable is before.unavailable


def test_progress_is_reported_part_by_part(tree: HostTree) -> None:
    watch = tree.reader()
    progress: list[Any] = []
    watch.reader.read(0, progress)
    assert len(progress) >= 8
    alone = len(progress)
    tree.process(PID, children=tuple(range(6000, 6050)))
    for pid in range(6000, 6050):
        tree.process(pid, parent=PID)
    watch.driver.reader(ReadOptions(PID, children=True)).read(0, progress)
    assert len(progress) >= 2 * alone + 50


CALLS = ("open", "pread", "listdir", "stat", "statvfs", "readlink")


def test_a_reading_between_the_slow_ones_reads_nothing(tree: HostTree, mocker: MockerFixture) -> None:
    """What is paced is not looked at: the same blocks are served again."""
    watch = tree.reader(disk_paths=("/",))
    for _ in range(3):
        watch.read(1.0)
    before = watch.reading
    calls = {name: mocker.spy(os, name) for name in CALLS}
    values = watch.read(0.1)
    assert {name: spy.call_count for name, spy in calls.items() if spy.call_count} == {}
    assert all(new is old for new, old in zip(watch.reading.blocks, before.blocks, strict=True))
    assert watch.reading.unavailable is before.unavailable
    assert {"memory_percent", "proc.memory.rssMB", "disk.in", "network.sent", "disk./.usageGB"} <= values.keys()
    watch.read(0.4)
    assert {name: spy.call_count for name, spy in calls.items() if spy.call_count} == {"pread": 1}, "the CPUs, twice a second"


def test_what_is_kept_is_what_a_reading_would_give_while_nothing_is_due(tree: HostTree, mocker: MockerFixture) -> None:
    """Given without a look at a file; nothing is kept before the first reading, nor once something is due."""
    watch = tree.reader()
    assert watch.reader.kept(0) is None
    for _ in range(3):
        watch.read(1.0)
    tree.clock.now += 0.1
    spy = mocker.spy(os, "pread")
    kept = watch.reader.kept(0)
    assert kept is not None
    read = watch.reader.read(0, [])
    assert all(one is other for one, other in zip(kept.blocks, read.blocks, strict=True))
    assert kept.unavailable is read.unavailable
    assert spy.call_count == 0
    tree.clock.now += 0.4
    assert watch.reader.kept(0) is None, "the CPUs are due"


def test_a_reading_is_as_old_as_the_oldest_value_in_it(tree: HostTree) -> None:
    """Also where the CPUs, which are read twice a second, are of now."""
    reader, began = tree.reader().reader, tree.clock.now
    for seconds, oldest in ((0.0, 0.0), (1.0, 1.0), (1.1, 1.0), (1.5, 1.0), (1.9, 1.0), (2.0, 2.0)):
        tree.clock.now = began + seconds
        assert reader.read(0, []).read_at == began + oldest


def test_a_reading_in_which_nothing_was_due_tells_its_age() -> None:
    """And how long the look before has taken."""
    with Sampler(["host"]) as sampler:
        looks, age = 0, math.inf
        while looks < 3:
            (status,) = sampler.sample().backends
            assert status.age_seconds is not None
            assert status.duration_seconds
            looks += status.age_seconds < age
            age = status.age_seconds
        assert sampler.statistics.readings > looks, "the host is looked at once a second"


def test_a_window_between_two_looks_has_what_the_host_said_then() -> None:
    """However short it is: a value of a slower pace counts at every reading."""
    with Monitor(3600, backends=["host"]) as monitor:
        wait_for(lambda: monitor.status.ticks)
        with monitor.window() as first, monitor.window() as second:
            wait_for(lambda: "memory_percent" in second.summary)
        assert first.summary["memory_percent"].count > 0
        assert first.summary["cpu"].count > 0


def test_a_reading_that_is_given_again_took_as_long_as_the_look_of_its_own_sampler() -> None:
    """Another one may read more of the host, and more slowly."""
    with Sampler(["host"], metrics="load.1m") as sampler, Sampler(["host"]) as other:
        for _ in range(2):
            sampler.sample()
        again = False
        while not again:
            before = sampler.sample()
            other.sample()
            after = sampler.sample()
            (first,), (second,) = before.backends, after.backends
            again = (second.age_seconds or 0.0) > (after.time_ns - before.time_ns) / 1e9
        assert second.duration_seconds == first.duration_seconds


def test_a_host_of_which_nothing_is_wanted_is_not_silent() -> None:
    """As with ``core``, which has metrics of devices alone: each of its readings is of now, and none is called old."""
    with Sampler(["host"], metrics="core") as sampler:
        _, second, *_, last = [sampler.sample() for _ in range(20)]
        age = last.backends[0].age_seconds
        assert age is not None and age < (last.time_ns - second.time_ns) / 1e9


def test_files_read_in_a_second(tree: HostTree, mocker: MockerFixture) -> None:
    """At ten readings a second the CPUs are read twice and the rest once; at one a second, and seldomer, everything at each."""
    tree.job(cpu_max="50000 100000", memory_max=str(GIB), memory_current=str(GIB // 2), memory_events="oom_kill 0")
    tree.level("/job", cpu_stat="nr_periods 1\nnr_throttled 0")
    watch = tree.reader()
    for _ in range(3):
        watch.read(1.0)
    calls = {name: mocker.spy(os, name) for name in CALLS}

    def counts(readings: int, after: float) -> dict[str, int]:
        before = {name: spy.call_count for name, spy in calls.items()}
        for _ in range(readings):
            watch.read(after)
        return {name: spy.call_count - before[name] for name, spy in calls.items()}

    once = counts(1, 1.0)
    # Nothing is opened anew. Held open are the CPUs, the cgroup's name, two limits, events and throttling, memory and what the cgroup
    # uses of it, the process with the CPUs that it may use and those that are on, retransmits, loads; short lists of disks and interfaces.
    assert (once["open"], once["pread"]) == (0, 15)
    assert counts(1, 100.0)["pread"] == once["pread"]
    tenth = counts(10, 0.1)
    assert (tenth["pread"], tenth["open"]) == (once["pread"] + 1, once["open"])


def test_values_are_kept_for_their_pace_and_no_longer(tree: HostTree) -> None:
    """Memory and the process too: a reading 0.9 s later has what was found then, one after a second or more what is there now."""
    watch = tree.watch()
    watch.read(0.1)
    tree.write("/proc/meminfo", MEMINFO.replace("MemAvailable:    8192000", "MemAvailable:    4096000"))
    tree.process(PID, ticks=50, threads=7)
    values = watch.read(0.9)
    assert (values["memory_percent"], values["proc.cpu.threads"], values["cpu"]) == (50.0, 1, 0.0)
    values = watch.read(0.1)
    assert (values["memory_percent"], values["proc.cpu.threads"]) == (75.0, 7)
    assert values["cpu"] == pytest.approx(25.0), "half a second in one, of two CPUs"
    for after in (1.0, 3600.0):
        tree.process(PID, threads=int(after))
        assert watch.read(after)["proc.cpu.threads"] == after


def test_what_could_not_be_read_is_tried_again_at_the_next_reading_once(tree: HostTree) -> None:
    """A failure that lasts is met at the pace."""
    watch = tree.watch()
    watch.read(0.1)
    tree.write("/proc/meminfo", "rubbish")
    watch.read(1.0)
    assert watch.reason("memory_percent") == "parse_error"
    tree.write("/proc/meminfo", MEMINFO)
    assert watch.read(0.1)["memory_percent"] == 50.0
    tree.write("/proc/meminfo", "rubbish")
    watch.read(1.0)
    watch.read(0.1)
    tree.write("/proc/meminfo", MEMINFO)
    watch.read(0.1)
    assert watch.reason("memory_percent") == "parse_error", "it failed twice"
    assert watch.read(0.9)["memory_percent"] == 50.0


def test_a_process_that_ended_is_not_kept_alive_by_what_was_kept(tree: HostTree) -> None:
    """Nor does a later one of its number take its place."""
    watch = tree.watch()
    watch.read(0.1)
    tree.process(PID, start=9999, threads=5)
    assert watch.read(0.5)["proc.cpu.threads"] == 1
    values = watch.read(0.5)
    assert not values.keys() & {"cpu", "proc.cpu.threads", "proc.memory.rssMB"}
    assert watch.reason("proc.cpu.threads") == "not_in_use"


def test_a_closed_driver_holds_no_descriptor_and_reads_again_when_asked(tree: HostTree) -> None:
    watch = tree.reader()
    before = descriptors()
    watch.read()
    assert descriptors() > before
    watch.driver.close()
    assert descriptors() == before
    assert "memory_percent" in watch.read(1.0)
    watch.driver.close()


def test_readers_that_are_dropped_give_their_descriptors_back(tree: HostTree) -> None:
    watch = tree.watch()
    before = descriptors()
    for pid in range(100, 120):
        tree.process(pid)
        values_of(watch.driver.reader(ReadOptions(pid)).read(0, []))
    assert descriptors() == before
