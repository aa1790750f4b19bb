"""The machine that the tests run on: values against psutil's, a real family of processes, the cost of a reading."""

import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator

import psutil
import pytest

from accelmetrics.backends.contract import Driver, ReadOptions
from accelmetrics.backends.host.linux import linux_driver
from tests.backends.host.tree import values_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="platform: reads /proc")

BURN = "while True: pass"
BURN_IN_A_CHILD = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'while True: pass'])"


@pytest.fixture
def driver() -> Iterator[Driver]:
    found = linux_driver()
    yield found
    found.close()


@pytest.fixture
def start() -> Iterator[list[subprocess.Popen[bytes]]]:
    """A list for processes that are to end with the test, with all that they started."""
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for process in started:
        for child in psutil.Process(process.pid).children(recursive=True) if process.poll() is None else ():
            child.kill()
        process.kill()
        process.wait()


def python(code: str) -> subprocess.Popen[bytes]:
    """Another interpreter."""
    return subprocess.Popen([sys.executable, "-S", "-c", code])


def allowed_cpus(pid: int) -> int:
    """The CPUs that psutil says a process may use."""
    return len(psutil.Process(pid).cpu_affinity())


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


def test_what_runs_over_loopback_is_not_counted(driver: Driver) -> None:
    reader = driver.reader(ReadOptions(os.getpid()))
    reader.read(0, [])
    before = network_bytes()
    send_over_loopback(32)
    values = values_of(reader.read(0, []))
    assert network_bytes("lo") >= 32 * 2**20
    assert values["network.sent"] <= network_bytes() - before + 2**20
    assert values["network.sent"] < 32 * 2**20


def network_bytes(*names: str) -> int:
    """Bytes sent over these interfaces, or over all but loopback."""
    counters = psutil.net_io_counters(pernic=True)
    return sum(counters[name].bytes_sent for name in names or counters.keys() - {"lo"})


def send_over_loopback(mebibytes: int) -> None:
    """Send so much to ourselves."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        connection, _ = server.accept()
        with connection:
            for _ in range(mebibytes * 16):
                client.sendall(bytes(65536))
                left = 65536
                while left:
                    left -= len(connection.recv(left))


def test_a_busy_process_shows_its_cpu_and_an_idle_one_none(driver: Driver, start: list[subprocess.Popen[bytes]]) -> None:
    start += [python(BURN), python("import time; time.sleep(60)")]
    readers = [driver.reader(ReadOptions(process.pid)) for process in start]
    time.sleep(0.2)
    for reader in readers:
        reader.read(0, [])
    before = psutil.Process(start[0].pid).cpu_times()
    began = time.monotonic()
    time.sleep(0.6)
    busy, idle = (values_of(reader.read(0, []))["cpu"] for reader in readers)
    after = psutil.Process(start[0].pid).cpu_times()
    seconds = after.user + after.system - before.user - before.system
    expected = 100 * seconds / (time.monotonic() - began) / allowed_cpus(start[0].pid)
    assert busy == pytest.approx(expected, abs=10)
    assert busy > 10
    assert idle < 5


def test_a_burning_grandchild_counts_with_children_and_not_without(driver: Driver, start: list[subprocess.Popen[bytes]]) -> None:
    start.append(python(BURN_IN_A_CHILD))
    pid = start[0].pid
    child = psutil.Process(wait_for_child(pid))
    alone, family = driver.reader(ReadOptions(pid)), driver.reader(ReadOptions(pid, children=True))
    alone.read(0, [])
    family.read(0, [])
    before, began = sum(child.cpu_times()[:2]), time.monotonic()
    time.sleep(0.6)
    values = values_of(family.read(0, []))
    used = sum(child.cpu_times()[:2]) - before
    expected = 100 * used / (time.monotonic() - began) / allowed_cpus(pid)
    assert values["cpu"] == pytest.approx(expected, abs=10)
    assert expected > 10
    assert values["proc.cpu.threads"] == 2
    assert values_of(alone.read(0, []))["cpu"] < 5


def wait_for_child(pid: int) -> int:
    """The first child of a process, once it burns."""
    for _ in range(500):
        for child in psutil.Process(pid).children():
            if child.cpu_times().user > 0.05:
                return child.pid
        time.sleep(0.01)
    raise AssertionError("the child never began")


def test_what_a_child_used_before_it_ended_is_kept(driver: Driver, start: list[subprocess.Popen[bytes]]) -> None:
    code = (
        "import subprocess, sys, time; subprocess.run([sys.executable, '-S', '-c', 'import time\\nwhile time.process_time() < 0.4: pass'])"
    )
    start.append(python(f"import time; time.sleep(0.3); {code}; time.sleep(60)"))
    reader = driver.reader(ReadOptions(start[0].pid, children=True))
    time.sleep(0.15)
    reader.read(0, [])
    began = time.monotonic()
    while waited_for(start[0].pid) < 0.3:
        assert time.monotonic() - began < 20
        time.sleep(0.05)
    values = values_of(reader.read(0, []))
    seconds = values["cpu"] / 100 * (time.monotonic() - began) * allowed_cpus(start[0].pid)
    assert 0.35 <= seconds <= 1.0


def waited_for(pid: int) -> float:
    """CPU seconds of children that have ended."""
    times = psutil.Process(pid).cpu_times()
    return float(times.children_user + times.children_system)


def test_a_watched_process_that_ends_takes_its_own_keys_only(driver: Driver, start: list[subprocess.Popen[bytes]]) -> None:
    start.append(python("import time; time.sleep(60)"))
    reader = driver.reader(ReadOptions(start[0].pid))
    assert "proc.memory.rssMB" in values_of(reader.read(0, []))
    start[0].kill()
    for ended in (False, True):
        if ended:
            start[0].wait()
        else:
            wait_for_zombie(start[0].pid)
        reading = reader.read(0, [])
        assert reading.unavailable["proc.memory.rssMB"].reason == "not_in_use"
        assert "memory_percent" in values_of(reading)


def wait_for_zombie(pid: int) -> None:
    """Until a killed process is nothing but its entry."""
    for _ in range(500):
        if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return
        time.sleep(0.01)
    raise AssertionError("the process never ended")


def test_cpus_are_busy_while_something_burns(driver: Driver, start: list[subprocess.Popen[bytes]]) -> None:
    start.append(python(BURN))
    reader = driver.reader(ReadOptions(os.getpid()))
    reader.read(0, [])
    time.sleep(0.5)
    values = values_of(reader.read(0, []))
    shares = [value for key, value in values.items() if key.endswith(".cpu_percent")]
    assert len(shares) == psutil.cpu_count()
    assert all(0 <= share <= 100 for share in shares)
    assert sum(shares) > 40


def test_a_reading_costs_little(driver: Driver) -> None:
    reader = driver.reader(ReadOptions(os.getpid(), disk_paths=("/",)))
    costs = []
    for _ in range(60):
        time.sleep(0.002)
        before = time.thread_time()
        reader.read(0, [])
        costs.append(time.thread_time() - before)
    assert statistics.median(costs[5:]) < 0.0015 + 0.00002 * (os.cpu_count() or 1)


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
