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
from contextlib import suppress
from functools import lru_cache

from accelmetrics.backends.host.collector import GIB, MIB, RARE_PACE, Counter, HostReader
from accelmetrics.backends.kit.system import count, list_directory, read_text, reason_of, sysroot
from accelmetrics.schemas.errors import Reason, Unavailable

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


DiskIo = tuple[int, int, tuple[int, int]]
"""Bytes that one device moved since boot, read and written, and its major and minor number."""


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
    read, written, number = count(fields[5]) * _SECTOR, count(fields[9]) * _SECTOR, (count(fields[0]), count(fields[1]))
    return os.fsdecode(fields[2]), (read, written, number)


def choose_disks(paths: Iterable[str], stats: dict[str, DiskIo]) -> tuple[list[str], list[str]]:
    """Choose among the listed devices those that get keys of their own, and those that are added up.

    Args:
        paths: The watched paths.
        stats: What ``/proc/diskstats`` lists.
    """
    below = set()  # the numbers of the devices that paths lie on
    for path in paths:
        with suppress(OSError, ValueError):
            device = os.stat(path).st_dev  # noqa: PTH116  the user's own path, as it is
            below.add((os.major(device), os.minor(device)))
    listed = frozenset(list_directory("/sys/block"))
    reported, summed = [], []
    for name, (_, _, number) in stats.items():
        if _NO_DISK.match(name):
            continue
        entry = name.replace("/", "!")  # in sysfs no slash can stand in a name: cciss!c0d0
        if listed:
            # A path of an NVMe device with several is hidden behind the device itself.
            is_whole = entry in listed and read_text(f"/sys/block/{entry}/hidden") != "1"
            is_stacked = bool(list_directory(f"/sys/block/{entry}/slaves"))
        else:
            is_whole, is_stacked = not _PARTITION.match(name), bool(_STACKED.match(name))
        if is_whole or number in below:
            reported.append(name)
        if is_whole and not is_stacked:
            summed.append(name)
    return reported, summed


def disk_collector(
    read: Callable[[], dict[str, DiskIo]], choose: Callable[[dict[str, DiskIo]], tuple[Iterable[str], Iterable[str]]]
) -> Callable[[HostReader], None]:
    """Make the collector of what moved to and from the block devices, in MiB and in bytes per second.

    Args:
        read: The devices' counters by name.
        choose: Names of those that get keys of their own, and of those that are added up.
    """
    names: tuple[str, ...] = ()
    summed: Iterable[str] = ()
    totals = (Counter(), Counter())
    devices: dict[str, tuple[Counter, Counter]] = {}

    def collect(reader: HostReader) -> None:
        nonlocal names, summed, devices
        stats = read()
        now = reader.clock()
        if tuple(stats) != names:
            names = tuple(stats)
            reported, summed = choose(stats)
            # A device that was away is counted anew when it is back.
            devices = {name: devices.get(name) or (Counter(), Counter()) for name in reported}
        for side, direction, rate in ((0, "in", "readBps"), (1, "out", "writeBps")):
            moved = {name: (io[0], io[1])[side] for name, io in stats.items()}
            if of_all := {name: moved[name] for name in summed}:
                totals[side].feed(of_all)
                reader.put_counter(totals[side], f"disk.{direction}", unit=MIB)
            for name, counters in devices.items():
                counters[side].feed({name: moved[name]}, now)
                reader.put_counter(counters[side], f"disk.{name}.{direction}", f"disk.{name}.{rate}", MIB)
        reader.fail(_NO_DEVICE)

    return collect


def parse_net_dev(data: bytes) -> dict[str, tuple[int, int]]:
    """Parse bytes received and sent since it came up of every interface, loopback too, from ``/proc/net/dev``.

    Raises:
        ValueError: A line has too few fields, or one is not a number.
    """
    found = {}
    for line in data.split(b"\n"):
        # Large numbers touch the colon, and an alias has one in its name.
        name, colon, rest = line.rpartition(b":")
        if colon:
            fields = rest.split()
            if len(fields) < 9:
                raise ValueError(f"{len(fields)} numbers in a line, 9 are needed")
            found[os.fsdecode(name.strip())] = count(fields[0]), count(fields[8])
    return found


def counts_elsewhere(name: str) -> bool:
    """Return whether an interface is loopback, or the port of another one."""
    if name == "lo" or os.path.exists(f"{sysroot()}/sys/class/net/{name}/master"):  # noqa: PTH110  a tenth of what a Path costs
        return True
    with suppress(ValueError):
        return bool(int(read_text(f"/sys/class/net/{name}/flags") or "", 16) & _LOOPBACK_FLAG)
    return False


def network_collector(read: Callable[[], dict[str, tuple[int, int]]], left_out: Callable[[str], bool]) -> Callable[[HostReader], None]:
    """Make the collector of what went over the network, in bytes and in bytes per second.

    Args:
        read: Bytes received and sent by interface.
        left_out: Whether an interface of that name does not count. Asked when interfaces come or go, and at a rare pace: one may
            become the port of another.
    """
    names: tuple[str, ...] = ()
    counted: list[str] = []
    due = -math.inf
    received, sent = Counter(), Counter()

    def collect(reader: HostReader) -> None:
        nonlocal names, counted, due
        traffic = read()
        now = reader.clock()
        if tuple(traffic) != names or now >= due:
            names, due = tuple(traffic), now + RARE_PACE
            counted = [name for name in names if not left_out(name)]
        if not counted and not received.seen:
            reader.fail(_NO_INTERFACE)
            return
        received.feed({name: traffic[name][0] for name in counted}, now)
        sent.feed({name: traffic[name][1] for name in counted}, now)
        reader.put_counter(received, "network.recv", "network.recvBps")
        reader.put_counter(sent, "network.sent", "network.sentBps")

    return collect


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
