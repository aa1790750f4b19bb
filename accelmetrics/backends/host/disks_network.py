"""What moves to and from disks and over the network, and how full the file systems of the watched paths are.

Totals count from this reader's first reading, rates are over its last interval.

Disks that get keys of their own are whole devices and, though it is a partition, the device that a watched path lies on: W&B
names that one. ``disk.in`` (read) and ``disk.out`` (written) add up whole devices that rest on no other: the partitions of a
disk, and what ``dm-`` and ``md`` put on top of it, move the same bytes again. Loop devices and memory (``ram``, ``zram``) are
no disks.

The network's bytes are those of all interfaces but loopback, and but the ports of a bond or bridge, whose bytes stand in its
own numbers already.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable
from functools import lru_cache

from accelmetrics.backends.host.collector import GIB, MIB, RARE_PACE, Counter, HostReader
from accelmetrics.backends.kit.system import count, list_directory, read_text, reason_of, sysroot
from accelmetrics.schemas.errors import Reason, Unavailable
from accelmetrics.schemas.named_tuple import NamedTuple

# The kernel counts in sectors of 512 bytes whatever the device's own are.
_SECTOR = 512
_NO_DISK = re.compile(r"^(?:loop|ram|zram)\d*$")
# How partitions are named, for a tree without /sys/block: a disk whose name ends in a digit puts a p before the number.
_PARTITION = re.compile(r"^(?:(?:[shv]|xv)d[a-z]+\d+|(?:nvme\d+n\d+|mmcblk\d+|nbd\d+|md\d+)p\d+|mmcblk\d+(?:boot\d+|rpmb))$")
_STACKED = re.compile(r"^(?:dm-|md)\d+")
_NO_DEVICE = Unavailable(Reason.NOT_SUPPORTED, "the system lists no disk")
_NO_INTERFACE = Unavailable(Reason.NOT_SUPPORTED, "there is no network interface but loopback")
_LOOPBACK_FLAG = 0x8


def file_system_usage(path: str) -> tuple[int, int]:
    """Return the bytes used, and bytes left to ordinary users, of the file system below a path. Raises ``OSError`` and ``ValueError``."""
    stat = os.statvfs(path)
    return (stat.f_blocks - stat.f_bfree) * stat.f_frsize, stat.f_bavail * stat.f_frsize


def collect_filesystems(usage: Callable[[str], tuple[int, int]], paths: Iterable[str], reader: HostReader) -> None:
    """Put how full the file system below each path is, as ``df`` counts: the administrators' reserve is not free space.

    A path names the user's own view, so no other root is put in front of it.
    """
    for path in dict.fromkeys(paths):
        reader.progress.append(None)
        percent: float | Unavailable = Unavailable(Reason.NOT_SUPPORTED, f"{path} lies on a file system without a size")
        gib = percent
        try:
            used, left = usage(path)
            if used + left > 0:
                percent, gib = 100.0 * used / (used + left), used / GIB
        except (OSError, ValueError) as error:
            percent = gib = reason_of(error, path)
        reader.put(f"disk.{path}.usagePercent", percent)
        reader.put(f"disk.{path}.usageGB", gib)


class DiskIo(NamedTuple):
    """Bytes that one device moved since boot, read and written, and its major and minor number."""

    moved: tuple[int, int]
    number: tuple[int, int]


def parse_diskstats(data: bytes) -> dict[str, DiskIo]:
    """Parse every device by name from ``/proc/diskstats``, partitions and idle ones too.

    Raises:
        ValueError: A line has too few fields, or one is not a number.
    """
    return dict([_parse_device(line) for line in data.split(b"\n") if line])


@lru_cache(maxsize=256)
def _parse_device(line: bytes) -> tuple[str, DiskIo]:
    """Parse one device's line. Most are idle between two readings, and their lines the same."""
    fields = line.split(None, 10)
    if len(fields) < 10:
        raise ValueError(f"{len(fields)} fields in a line, 10 are needed")
    moved = count(fields[5]) * _SECTOR, count(fields[9]) * _SECTOR
    return os.fsdecode(fields[2]), DiskIo(moved, (count(fields[0]), count(fields[1])))


def choose_disks(paths: Iterable[str], stats: dict[str, DiskIo]) -> tuple[list[str], list[str]]:
    """Choose among the listed devices those that get keys of their own, and those that are added up.

    Args:
        paths: The watched paths.
        stats: What ``/proc/diskstats`` lists.
    """
    below = _numbers_below(paths)
    listed = frozenset(list_directory("/sys/block"))
    reported, summed = [], []
    for name, disk in stats.items():
        if _NO_DISK.match(name):
            continue
        entry = name.replace("/", "!")  # in sysfs no slash can stand in a name: cciss!c0d0
        if listed:
            # A path of an NVMe device with several is hidden behind the device itself.
            is_whole = entry in listed and read_text(f"/sys/block/{entry}/hidden") != "1"
            is_stacked = bool(list_directory(f"/sys/block/{entry}/slaves"))
        else:
            is_whole, is_stacked = not _PARTITION.match(name), bool(_STACKED.match(name))
        if is_whole or disk.number in below:
            reported.append(name)
        if is_whole and not is_stacked:
            summed.append(name)
    return reported, summed


def _numbers_below(paths: Iterable[str]) -> frozenset[tuple[int, int]]:
    """Collect major and minor numbers of the devices that paths lie on."""
    found = set()
    for path in paths:
        try:
            device = os.stat(path).st_dev  # noqa: PTH116  the user's own path, as it is
        except (OSError, ValueError):
            continue
        found.add((os.major(device), os.minor(device)))
    return frozenset(found)


class DiskCollector:
    """What moved to and from the block devices, in MiB and in bytes per second.

    Args:
        read: The devices' counters by name.
        choose: Names of those that get keys of their own, and of those that are added up.
    """

    def __init__(
        self, read: Callable[[], dict[str, DiskIo]], choose: Callable[[dict[str, DiskIo]], tuple[Iterable[str], Iterable[str]]]
    ) -> None:
        self._read = read
        self._choose = choose
        self._names: tuple[str, ...] = ()
        self._summed: Iterable[str] = ()
        self._totals = (Counter(), Counter())
        self._devices: dict[str, tuple[tuple[Counter, str, str], ...]] = {}

    def __call__(self, reader: HostReader) -> None:
        stats = self._read()
        now = reader.clock()
        if tuple(stats) != self._names:
            self._names = tuple(stats)
            reported, self._summed = self._choose(stats)
            # A device that was away is counted anew when it is back.
            directions = (("in", "readBps"), ("out", "writeBps"))
            self._devices = {
                name: self._devices.get(name)
                or tuple((Counter(), f"disk.{name}.{moved}", f"disk.{name}.{rate}") for moved, rate in directions)
                for name in reported
            }
        for side, total in enumerate(("disk.in", "disk.out")):
            summed = {name: stats[name].moved[side] for name in self._summed}
            if summed:
                self._totals[side].feed(summed)
                reader.put_counter(self._totals[side], total, unit=MIB)
            for name, counters in self._devices.items():
                counter, key, rate = counters[side]
                counter.feed({name: stats[name].moved[side]}, now)
                reader.put_counter(counter, key, rate, MIB)
        reader.fail(_NO_DEVICE)


def parse_net_dev(data: bytes) -> dict[str, tuple[int, int]]:
    """Parse bytes received and sent since it came up of every interface, loopback too, from ``/proc/net/dev``.

    Raises:
        ValueError: A line has too few fields, or one is not a number.
    """
    found = {}
    for line in data.split(b"\n"):
        # Large numbers touch the colon, and an alias has one in its name.
        name, colon, rest = line.rpartition(b":")
        fields = rest.split()
        if colon and len(fields) < 9:
            raise ValueError(f"{len(fields)} numbers in a line, 9 are needed")
        if colon:
            found[os.fsdecode(name.strip())] = count(fields[0]), count(fields[8])
    return found


def counts_elsewhere(name: str) -> bool:
    """Return whether an interface is loopback, or the port of another one."""
    if name == "lo" or os.path.exists(f"{sysroot()}/sys/class/net/{name}/master"):  # noqa: PTH110  a tenth of what a Path costs
        return True
    flags = read_text(f"/sys/class/net/{name}/flags") or ""
    try:
        return bool(int(flags, 16) & _LOOPBACK_FLAG)
    except ValueError:
        return False


class NetworkCollector:
    """What went over the network, in bytes and in bytes per second.

    Args:
        read: Bytes received and sent by interface.
        left_out: Whether an interface of that name does not count. Asked when interfaces come or go, and at a rare pace: one may
            become the port of another.
    """

    def __init__(self, read: Callable[[], dict[str, tuple[int, int]]], left_out: Callable[[str], bool]) -> None:
        self._read = read
        self._left_out = left_out
        self._names: tuple[str, ...] = ()
        self._counted: list[str] = []
        self._due = -math.inf
        self._received, self._sent = Counter(), Counter()

    def __call__(self, reader: HostReader) -> None:
        traffic = self._read()
        now = reader.clock()
        names = tuple(traffic)
        if names != self._names or now >= self._due:
            self._counted = [name for name in names if not self._left_out(name)]
            self._names, self._due = names, now + RARE_PACE
        if not self._counted and not self._received.seen:
            reader.fail(_NO_INTERFACE)
            return
        self._received.feed({name: traffic[name][0] for name in self._counted}, now)
        self._sent.feed({name: traffic[name][1] for name in self._counted}, now)
        reader.put_counter(self._received, "network.recv", "network.recvBps")
        reader.put_counter(self._sent, "network.sent", "network.sentBps")


def parse_retransmits(data: bytes) -> int:
    """Parse ``RetransSegs`` of the pair of lines in ``/proc/net/snmp`` that begin with ``Tcp:``.

    Raises:
        ValueError: There is none.
    """
    lines = [line.split() for line in data.split(b"\n") if line.startswith(b"Tcp:")]
    if len(lines) != 2 or b"RetransSegs" not in lines[0]:
        raise ValueError("Tcp: RetransSegs is missing")
    column = lines[0].index(b"RetransSegs")
    if column >= len(lines[1]):
        raise ValueError("Tcp: has fewer numbers than names")
    return count(lines[1][column])


def collect_retransmits(read: Callable[[], int], counter: Counter, reader: HostReader) -> None:
    """Put the TCP segments that were sent again."""
    counter.feed({"": read()})
    reader.put_counter(counter, "network.tcpRetransmits")
