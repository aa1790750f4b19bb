"""The machine that the tests run on: values against psutil's, a real tree of processes."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import psutil
import pytest

from accelmetrics.backends.contract import Driver, Number, Reader, ReadOptions
from accelmetrics.backends.host.drivers import linux_driver
from tests.backends.host.tree import values_of
from tests.support.programs import Program
from tests.support.waiting import wait_for

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="platform: reads /proc")

BURN = "while True: pass"
TICKS = 0.03
"""Seconds by which CPU times that are counted in clock ticks may be off: two numbers at either end."""


@pytest.fixture
def driver() -> Iterator[Driver]:
    found = linux_driver()
    yield found
    found.close()


def test_memory_and_the_process_agree_with_psutil(driver: Driver) -> None:
    reader = driver.reader(ReadOptions(os.getpid()))
    values = values_of(reader.read(0, []))
    me, host = psutil.Process(), psutil.virtual_memory()
    assert values["proc.memory.rssMB"] == pytest.approx(me.memory_info().rss / 2**20, rel=0.05)
    assert values["proc.cpu.threads"] == me.num_threads()
    # A limit on the tests' own cgroup replaces the host's memory, and is tighter.
    assert values["proc.memory.percent"] >= 0.95 * 100 * me.memory_info().rss / host.total
    assert values["proc.memory.availableMB"] <= 1.1 * host.available / 2**20


def test_disks_agree_with_psutil(driver: Driver) -> None:
    reader = driver.reader(ReadOptions(os.getpid(), disk_paths=("/",)))
    reading = reader.read(0, [])
    usage = psutil.disk_usage("/")
    assert values_of(reading)["disk./.usagePercent"] == pytest.approx(usage.percent, abs=2)
    assert values_of(reading)["disk./.usageGB"] == pytest.approx(usage.used / 2**30, rel=0.05)
    ours = {key[5:-3] for key in reading.unavailable if key.startswith("disk.") and key.endswith(".in") and key != "disk.in"}
    theirs = {name for name in psutil.disk_io_counters(perdisk=True) or {} if not name.startswith(("loop", "ram", "zram"))}
    assert ours <= theirs


class Interval(NamedTuple):
    """What lay between two readings, each of which took a while itself.

    Attributes:
        values: The later reading's.
        shortest: Seconds from the end of the first reading to the beginning of the second.
        longest: Seconds from the beginning of the first to the end of the second.
        least: CPU seconds that were used in the shortest interval, by psutil.
        most: CPU seconds that were used in the longest.
    """

    values: dict[str, Number]
    shortest: float
    longest: float
    least: float
    most: float

    def holds_share(self, percent: float, cpus: int) -> bool:
        """Whether that share of so many CPUs over the interval agrees with psutil."""
        least = 100 * (self.least - TICKS) / self.longest / cpus
        most = 100 * (self.most + TICKS) / self.shortest / cpus
        return least <= percent <= most


def measured(reader: Reader, used: Callable[[], float], go_on: Callable[[float], object]) -> Interval:
    """Read twice, with psutil's numbers just before and after each reading, and ``go_on(used so far)`` in between."""
    times, cpu = [], []

    def take() -> dict[str, Number]:
        for part in ("before", "after"):
            if part == "after":
                values = values_of(reader.read(0, []))
            times.append(time.monotonic())
            cpu.append(used())
        return values

    take()
    go_on(cpu[1])
    values = take()
    return Interval(values, times[2] - times[1], times[3] - times[0], cpu[2] - cpu[1], cpu[3] - cpu[0])


def cpu_seconds(pid: int) -> float:
    """CPU time of a process by psutil."""
    return float(sum(psutil.Process(pid).cpu_times()[:2]))


def until_it_used(used: Callable[[], float], seconds: float) -> Callable[[float], object]:
    """A wait until so many more CPU seconds were used."""
    return lambda before: wait_for(lambda: used() >= before + seconds)


def allowed_cpus(pid: int) -> int:
    """The CPUs that psutil says a process may use."""
    return len(psutil.Process(pid).cpu_affinity())


def test_a_busy_process_shows_its_cpu_and_an_idle_one_none(driver: Driver) -> None:
    with Program(BURN) as busy, Program("tell(); wait_to_go_on()") as idle:
        idle.told()
        wait_for(lambda: psutil.Process(idle.pid).status() == psutil.STATUS_SLEEPING)
        resting = driver.reader(ReadOptions(idle.pid))
        resting.read(0, [])
        reader = driver.reader(ReadOptions(busy.pid))
        found = measured(reader, lambda: cpu_seconds(busy.pid), until_it_used(lambda: cpu_seconds(busy.pid), 0.3))
        assert found.holds_share(found.values["cpu"], allowed_cpus(busy.pid))
        assert found.values["cpu"] > 0
        assert values_of(resting.read(0, []))["cpu"] == pytest.approx(0.0, abs=0.1)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="platform: no affinity")
def test_a_process_that_is_held_to_one_cpu_is_measured_against_it(driver: Driver) -> None:
    with Program(BURN) as busy:
        os.sched_setaffinity(busy.pid, {min(os.sched_getaffinity(0))})
        reader = driver.reader(ReadOptions(busy.pid))
        found = measured(reader, lambda: cpu_seconds(busy.pid), until_it_used(lambda: cpu_seconds(busy.pid), 0.3))
    assert found.holds_share(found.values["cpu"], 1)


def test_a_burning_grandchild_counts_with_children_and_not_without(driver: Driver) -> None:
    with Program(
        f"import os, subprocess, sys; child = subprocess.Popen([sys.executable, '-c', {BURN!r}]); tell(child.pid); child.wait()"
    ) as parent:
        (child,) = parent.told()
        wait_for(lambda: psutil.Process(parent.pid).status() == psutil.STATUS_SLEEPING)
        alone, family = driver.reader(ReadOptions(parent.pid)), driver.reader(ReadOptions(parent.pid, children=True))
        alone.read(0, [])
        try:
            found = measured(family, lambda: cpu_seconds(child), until_it_used(lambda: cpu_seconds(child), 0.3))
            assert found.holds_share(found.values["cpu"], allowed_cpus(parent.pid))
            assert found.values["proc.cpu.threads"] == 2
            assert values_of(alone.read(0, []))["cpu"] < found.values["cpu"] / 2
        finally:
            psutil.Process(child).kill()


CHILD_THAT_ENDS = """
import subprocess, sys
wait_to_go_on()
subprocess.run([sys.executable, "-S", "-c", "import time\\nwhile time.process_time() < 0.4: pass"])
tell()
wait_to_go_on()
"""


def test_what_a_child_used_before_it_ended_is_kept(driver: Driver) -> None:
    with Program(CHILD_THAT_ENDS) as parent:

        def used() -> float:
            return float(sum(psutil.Process(parent.pid).cpu_times()[:4]))

        def child_comes_and_goes(_: float) -> None:
            parent.go_on()
            parent.told()

        found = measured(driver.reader(ReadOptions(parent.pid, children=True)), used, child_comes_and_goes)
        assert found.least > 0.35
        assert found.holds_share(found.values["cpu"], allowed_cpus(parent.pid))


def test_a_watched_process_that_ends_takes_its_own_keys_only(driver: Driver) -> None:
    with Program("wait_to_go_on()") as watched:
        reader = driver.reader(ReadOptions(watched.pid))
        assert "proc.memory.rssMB" in values_of(reader.read(0, []))
        watched.process.kill()
        wait_for(lambda: psutil.Process(watched.pid).status() == psutil.STATUS_ZOMBIE)
        for ended in (False, True):
            if ended:
                watched.end()
            reading = reader.read(0, [])
            assert reading.unavailable["proc.memory.rssMB"].reason == "not_in_use"
            assert "memory_percent" in values_of(reading)


def test_cpus_are_busy_while_something_burns(driver: Driver) -> None:
    with Program(BURN) as busy:
        used = until_it_used(lambda: cpu_seconds(busy.pid), 0.5)
        found = measured(driver.reader(ReadOptions(os.getpid())), lambda: cpu_seconds(busy.pid), used)
    shares = [value for key, value in found.values.items() if key.endswith(".cpu_percent")]
    assert len(shares) == psutil.cpu_count()
    assert all(0 <= share <= 100 for share in shares)
    # The kernel counts each CPU's time by its clock tick: half of what the process used is there in any case.
    assert sum(shares) / 100 * found.longest > found.least / 2


def test_psutil_is_not_loaded_where_proc_is_read() -> None:
    code = """
import os, sys
from accelmetrics.backends.contract import ReadOptions
from accelmetrics.backends.host import backend
backend.detect()
reader = backend.open().reader(ReadOptions(os.getpid(), children=True))
reader.read(0, [])
reader.read(0, [])
sys.exit("psutil" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_child_after_fork_reads_with_a_driver_of_its_own() -> None:
    code = """
import os, sys
from accelmetrics.backends.contract import ReadOptions
from accelmetrics.backends.host import backend
backend.open().reader(ReadOptions(os.getpid())).read(0, [])
pid = os.fork()
if pid == 0:
    reading = backend.open().reader(ReadOptions(os.getpid())).read(0, [])
    os._exit(0 if any("proc.memory.rssMB" in block.names for block in reading.blocks) else 3)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
