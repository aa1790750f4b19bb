"""A host made of files: what the tests of the host backend read in the place of ``/proc`` and ``/sys``."""

import os
from pathlib import Path
from typing import Any

from accelmetrics.backends.contract import Number, Reading, ReadOptions
from accelmetrics.backends.host.collector import HostDriver, HostReader
from accelmetrics.backends.host.drivers import linux_driver
from accelmetrics.schemas.selection import MetricSelection

PID = 4242
TICK = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
MIB = 1024 * 1024
GIB = 1024 * MIB

MEMINFO = """MemTotal:       16384000 kB
MemFree:         1024000 kB
MemAvailable:    8192000 kB
Buffers:          204800 kB
Cached:          4096000 kB
SwapCached:            0 kB
SReclaimable:     409600 kB
SwapTotal:       2048000 kB
SwapFree:        1536000 kB
HugePages_Total:       0
DirectMap1G:           0 kB
"""
SNMP = """Ip: Forwarding DefaultTTL InReceives
Ip: 1 64 1000
Tcp: RtoAlgorithm RtoMin RtoMax MaxConn ActiveOpens PassiveOpens AttemptFails EstabResets CurrEstab InSegs OutSegs RetransSegs InErrs
Tcp: 1 200 120000 -1 10 20 0 0 5 9000 8000 {retransmits} 0
Udp: InDatagrams NoPorts
Udp: 5 0
"""
NET_HEAD = """Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
"""


class Clock:
    """A clock that stands until it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class HostTree:
    """The files, and a driver that reads them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.clock = Clock()
        self.stat({0: (100, 900), 1: (200, 800)})
        self.write("/proc/meminfo", MEMINFO)
        self.write("/proc/loadavg", "2.25 1.50 0.75 3/812 91234\n")
        self.network({"lo": (5, 5), "eth0": (1000, 2000)})
        self.write("/proc/net/snmp", SNMP.format(retransmits=7))
        self.disks({"sda": (1000, 2000)})
        self.process(PID)

    def write(self, path: str, text: str) -> Path:
        """Put a file at a system path."""
        file = Path(f"{self.root}{path}")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        return file

    def remove(self, path: str) -> None:
        """Take a file away."""
        Path(f"{self.root}{path}").unlink()

    def stat(self, cpus: dict[int, tuple[int, int]]) -> None:
        """``/proc/stat`` of these CPUs, each with busy and idle ticks, and the list of those that are on."""
        self.write("/sys/devices/system/cpu/online", ",".join(map(str, cpus)) + "\n")
        lines = ["cpu  1 2 3 4 5 6 7 8 9 10"]
        lines += [f"cpu{number} {busy} 0 0 {idle} 0 0 0 0 0 0" for number, (busy, idle) in cpus.items()]
        self.write("/proc/stat", "\n".join([*lines, "intr 12345 0 0", "ctxt 99", "btime 1700000000"]) + "\n")

    def network(self, interfaces: dict[str, tuple[int, int]]) -> None:
        """``/proc/net/dev`` with received and sent bytes of each interface."""
        lines = [f"{name:>6}: {received:>7} 9 0 0 0 0 0 0 {sent:>8} 8 0 0 0 0 0 0" for name, (received, sent) in interfaces.items()]
        self.write("/proc/net/dev", NET_HEAD + "\n".join(lines) + "\n")

    def disks(self, sectors: dict[str, tuple[int, int]]) -> None:
        """``/proc/diskstats`` with sectors read and written of each device."""
        lines = [
            f" 999 {n:>6} {name} 10 0 {read} 5 20 0 {written} 6 0 7 8 0 0 0 0 0 0"
            for n, (name, (read, written)) in enumerate(sectors.items())
        ]
        self.write("/proc/diskstats", "\n".join(lines) + "\n")

    def block(self, name: str, *slaves: str, hidden: int = 0) -> None:
        """A whole device in ``/sys/block``, resting on others."""
        self.write(f"/sys/block/{name}/hidden", f"{hidden}\n")
        folder = Path(f"{self.root}/sys/block/{name}/slaves")
        folder.mkdir(parents=True, exist_ok=True)
        for slave in slaves:
            (folder / slave).touch()

    def process(
        self,
        pid: int,
        *,
        ticks: int = 0,
        system: int = 0,
        waited: int = 0,
        start: int = 5000,
        parent: int = 1,
        threads: int = 1,
        pages: int = 100,
        state: str = "S",
        name: str = "python",
        children: tuple[int, ...] | None = (),
    ) -> None:
        """One process with its entry, its CPUs and the list of its children (None: a kernel without such lists)."""
        head = f"{pid} ({name}) {state} {parent} {pid} {pid} 0 -1 4194560 100 0 0 0 {ticks} {system} {waited} 0 20 0 {threads} 0 {start}"
        self.write(f"/proc/{pid}/stat", f"{head} 12345678 {pages} 18446744073709551615 1 1 0 0 0 0 0 0 0 0 0 0 17 0 0 0 0 0 0\n")
        cpus = "Cpus_allowed:\tff\nCpus_allowed_list:\t0-7"
        self.write(f"/proc/{pid}/status", f"Name:\t{name}\nPPid:\t{parent}\n{cpus}\nMems_allowed_list:\t0\n")
        if children is not None:
            self.children(pid, pid, children)

    def children(self, pid: int, thread: int, children: tuple[int, ...]) -> None:
        """The list of the children that one thread started."""
        self.write(f"/proc/{pid}/task/{thread}/children", "".join(f"{child} " for child in children))

    def cgroup(self, path: str, mount_root: str = "/", mount_point: str = "/sys/fs/cgroup", pid: int = PID) -> None:
        """The process's version 2 cgroup and the mount that shows it."""
        self.write(f"/proc/{pid}/cgroup", f"0::{path}\n")
        mount = f"31 23 0:28 {mount_root} {mount_point} rw,nosuid,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate"
        self.write(f"/proc/{pid}/mountinfo", f"23 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw\n{mount}\n")

    def level(self, path: str, **files: str) -> None:
        """The files of one cgroup; underscores in names stand for dots."""
        for name, text in files.items():
            self.write(f"/sys/fs/cgroup{path}/{name.replace('_', '.')}", text + "\n")

    def job(self, **files: str) -> None:
        """A cgroup ``/job`` of the process, with these files."""
        self.cgroup("/job")
        self.level("/job", **files)

    def watch(self, **options: Any) -> "Watch":
        """A reader of this tree that has read once."""
        watch = self.reader(**options)
        watch.read()
        return watch

    def reader(self, pid: int = PID, children: bool = False, disk_paths: tuple[str, ...] = (), metrics: str = "all") -> "Watch":
        """A reader of this tree."""
        driver = linux_driver(self.clock)
        return Watch(self, driver, driver.reader(ReadOptions(pid, children, disk_paths, metrics=MetricSelection(metrics))))


class Watch:
    """A reader with its driver, and readings as plain dicts."""

    def __init__(self, tree: HostTree, driver: HostDriver, reader: HostReader) -> None:
        self.tree = tree
        self.driver = driver
        self.reader = reader
        self.reading = Reading()

    def read(self, after: float = 0.0) -> dict[str, Number]:
        """Values of a reading that many seconds after the last one."""
        self.tree.clock.now += after
        self.reading = self.reader.read(0, [])
        return values_of(self.reading)

    def reason(self, key: str) -> str:
        """Why the last reading lacks a key."""
        return str(self.reading.unavailable[key].reason)

    def detail(self, key: str) -> str:
        """The words to it."""
        return self.reading.unavailable[key].detail


def values_of(reading: Reading) -> dict[str, Number]:
    """A reading's values by key."""
    found: dict[str, Number] = {}
    for block in reading.blocks:
        assert len(block.names) == len(block.values)
        for name, value in zip(block.names, block.values, strict=True):
            assert name not in found
            found[name] = value
    return found
