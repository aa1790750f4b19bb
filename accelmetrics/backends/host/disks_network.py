"""Traffic of disks and network, and how full the file systems of the watched paths are.

Totals count from this reader's first reading; rates cover its last interval.

Disks: whole devices have their own keys, and so does the device of a watched path even if it is a partition, since W&B names it.
``disk.in`` (read) and ``disk.out`` (written) are sums over whole devices that are not built on other devices. Partitions, ``dm-`` and
``md`` devices are left out of the sums, because they move the bytes of other devices again. Loop devices and memory (``ram``, ``zram``) are
no disks.

Network: the sum over all interfaces, without loopback and without the ports of a bond or bridge, because the bond or bridge counts their
bytes too.

InfiniBand and RoCE: each port of each adapter has counters in ``/sys/class/infiniband``, which count since the driver was loaded or the
counters were reset. ``port_rcv_data`` and ``port_xmit_data`` count words of four bytes. A port has only the files that its adapter
supports: a counter without a file has no key, and a counter that answers "N/A" has a reason. The list of ports is read every ten seconds.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import lru_cache
from itertools import islice

from accelmetrics.backends.guard import through
from accelmetrics.backends.host.collector import GIB, INFINIBAND, MIB, PORT_FILES, RARE_PACE, Counter, HostReader
from accelmetrics.backends.kit.system import count, list_directory, read_once, read_text, reason_of, sysroot
from accelmetrics.schemas.errors import Reason, Unavailable
from accelmetrics.schemas.selection import MetricSelection

# The kernel counts in sectors of 512 bytes, also for devices with other sectors.
_SECTOR = 512
_NO_DISK = re.compile(r"^(?:loop|ram|zram)\d*$")
# Names of partitions, for a tree without /sys/block. A disk with a digit at the end of its name has a p before the partition number.
_PARTITION = re.compile(r"^(?:(?:[shv]|xv)d[a-z]+\d+|(?:nvme\d+n\d+|mmcblk\d+|nbd\d+|md\d+)p\d+|mmcblk\d+(?:boot\d+|rpmb))$")
_STACKED = re.compile(r"^(?:dm-|md)\d+")
_LOOPBACK_FLAG = 0x8

WORD = 4
MOST_PORTS = 256
_ADAPTER = re.compile(r"[0-9A-Za-z_-]{1,64}", re.ASCII)
_NUMBER = re.compile(r"\d{1,3}", re.ASCII)
_RATE = re.compile(rb"(\d{1,6}(?:\.\d+)?) Gb/sec")
_STATE = re.compile(rb"(\d): ")
ACTIVE = b"4"


@through
def file_system_usage(path: str) -> tuple[int, int]:
    """Return the bytes used in the file system of a path, and the bytes available to ordinary users.

    Raises:
        OSError: The path cannot be read.
        ValueError: The path is invalid.
    """
    stat = os.statvfs(path)
    return (stat.f_blocks - stat.f_bfree) * stat.f_frsize, stat.f_bavail * stat.f_frsize


def collect_filesystems(usage: Callable[[str], tuple[int, int]], paths: Iterable[str], reader: HostReader) -> None:
    """Put the usage of the file system of each path, as ``df`` computes it: space reserved for root is not free."""
    # A path belongs to the user's own view of the machine, so the system root is not put in front of it.
    for path in dict.fromkeys(paths):
        reader.progress.append(None)
        percent: float | Unavailable = Unavailable(Reason.NOT_SUPPORTED, f"the file system of {path} has no size")
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
"""Bytes read and bytes written by a device since boot, and its major and minor number."""


def parse_diskstats(data: bytes) -> dict[str, DiskIo]:
    """Return the counters of every device in ``/proc/diskstats`` by name, also of partitions and idle devices.

    Raises:
        ValueError: A line has too few fields, or a field is not a number.
    """
    return dict([_parse_device(line) for line in data.split(b"\n") if line])


@lru_cache(maxsize=256)
def _parse_device(line: bytes) -> tuple[str, DiskIo]:
    """Parse the line of a device."""
    # Cached by line: most devices are idle between two readings, and their lines do not change.
    fields = line.split(None, 10)
    if len(fields) < 10:
        raise ValueError(f"{len(fields)} fields in a line, 10 are needed")
    read, written, number = count(fields[5]) * _SECTOR, count(fields[9]) * _SECTOR, (count(fields[0]), count(fields[1]))
    return os.fsdecode(fields[2]), (read, written, number)


def choose_disks(paths: Iterable[str], stats: dict[str, DiskIo]) -> tuple[list[str], list[str]]:
    """Return the names of the devices with their own keys, and of the devices that are summed up.

    Args:
        paths: The watched paths.
        stats: The devices of ``/proc/diskstats``.
    """
    below = set()  # numbers of the devices that hold the paths
    for path in paths:
        with suppress(OSError, ValueError):
            device = os.stat(path).st_dev  # noqa: PTH116  the user's own path, as it is
            below.add((os.major(device), os.minor(device)))
    listed = frozenset(list_directory("/sys/block"))
    reported, summed = [], []
    for name, (_, _, number) in stats.items():
        if _NO_DISK.match(name):
            continue
        entry = name.replace("/", "!")  # sysfs writes a slash in a name as `!`: cciss!c0d0
        if listed:
            # An NVMe device with several paths has a hidden device for each path. They move the same bytes.
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
    """Return the collector of the bytes read and written by block devices, in MiB, and of their rates in bytes per second.

    Args:
        read: Returns the counters of the devices by name.
        choose: Returns the names of the devices with their own keys, and of the devices that are summed up.
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
            # Disks are chosen again only if the list changes, since the choice reads several files per disk.
            names = tuple(stats)
            reported, summed = choose(stats)
            # A device that disappears and returns starts at 0.
            devices = {name: devices.get(name) or (Counter(), Counter()) for name in reported}
        for side, direction, rate in ((0, "in", "readBps"), (1, "out", "writeBps")):
            moved = {name: (io[0], io[1])[side] for name, io in stats.items()}
            if of_all := {name: moved[name] for name in summed}:
                totals[side].feed(of_all)
                reader.put_counter(totals[side], f"disk.{direction}", unit=MIB)
            for name, counters in devices.items():
                counters[side].feed({name: moved[name]}, now)
                reader.put_counter(counters[side], f"disk.{name}.{direction}", f"disk.{name}.{rate}", MIB)
        reader.fail(Unavailable(Reason.NOT_SUPPORTED, "the system lists no disk"))

    return collect


def parse_net_dev(data: bytes) -> dict[str, tuple[int, int]]:
    """Return the bytes received and sent by each interface since it came up, from ``/proc/net/dev``.

    Raises:
        ValueError: A line has too few fields, or a field is not a number.
    """
    found = {}
    for line in data.split(b"\n"):
        # Split at the last colon: a large number follows it without a space, and the name of an alias contains a colon.
        name, colon, rest = line.rpartition(b":")
        if colon:
            fields = rest.split()
            if len(fields) < 9:
                raise ValueError(f"{len(fields)} numbers in a line, 9 are needed")
            found[os.fsdecode(name.strip())] = count(fields[0]), count(fields[8])
    return found


def counts_elsewhere(name: str) -> bool:
    """Return whether an interface is a loopback, or a port of another interface that counts its bytes."""
    if name == "lo" or os.path.exists(f"{sysroot()}/sys/class/net/{name}/master"):  # noqa: PTH110  ten times faster than a Path
        return True
    with suppress(ValueError):
        return bool(int(read_text(f"/sys/class/net/{name}/flags") or "", 16) & _LOOPBACK_FLAG)
    return False


def network_collector(read: Callable[[], dict[str, tuple[int, int]]], left_out: Callable[[str], bool]) -> Callable[[HostReader], None]:
    """Return the collector of network traffic, in bytes and in bytes per second.

    Args:
        read: Returns the bytes received and sent by interface.
        left_out: Whether the interface of a name does not count. It is asked when interfaces come or go, and every :data:`RARE_PACE`
            seconds, since an interface may become a port of another.
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
            reader.fail(Unavailable(Reason.NOT_SUPPORTED, "loopback is the only network interface"))
            return
        received.feed({name: traffic[name][0] for name in counted}, now)
        sent.feed({name: traffic[name][1] for name in counted}, now)
        reader.put_counter(received, "network.recv", "network.recvBps")
        reader.put_counter(sent, "network.sent", "network.sentBps")

    return collect


def parse_retransmits(data: bytes) -> int:
    """Return ``RetransSegs`` from the two lines of ``/proc/net/snmp`` that begin with ``Tcp:`` (names and numbers).

    Raises:
        ValueError: The value is missing.
    """
    lines = [line.split() for line in data.split(b"\n") if line.startswith(b"Tcp:")]
    if len(lines) != 2 or b"RetransSegs" not in lines[0]:
        raise ValueError("Tcp: RetransSegs is missing")
    column = lines[0].index(b"RetransSegs")
    if column >= len(lines[1]):
        raise ValueError("Tcp: has fewer numbers than names")
    return count(lines[1][column])


def collect_retransmits(read: Callable[[], int], counter: Counter, reader: HostReader) -> None:
    """Put the number of TCP segments that were sent again."""
    counter.feed({"": read()})
    reader.put_counter(counter, "network.tcpRetransmits")


# InfiniBand and RoCE

RATES = {"rxBytesTotal": "rxBps", "txBytesTotal": "txBps"}
"""Counters of words, with the name of their rate."""
FORMS = {"linkActive": _STATE, "linkRate": _RATE}
"""Files that hold more than a number, with their form: ``4: ACTIVE``, ``200 Gb/sec (4X HDR)``."""


def parse_value(name: str, data: bytes) -> int | float:
    """Parse a port's file: bytes, the link's rate in Mbit/s, 1 for an active link and else 0, or a plain number.

    Raises:
        ValueError: The file has another form.
    """
    if name not in FORMS:
        return count(data) * (WORD if name in RATES else 1)
    found = FORMS[name].match(data)
    if found is None:
        raise ValueError(f"no {PORT_FILES[name]}: {data[:32]!r}")
    return float(found[1]) * 1000 if name == "linkRate" else int(found[1] == ACTIVE)


def infiniband_collector(metrics: MetricSelection) -> Callable[[HostReader], None]:
    """Return the collector of the traffic and the errors of InfiniBand and RoCE ports.

    Args:
        metrics: The selected metrics. Files of other metrics are not read, since reading a file may ask the adapter's firmware.
    """
    files = {
        name: file
        for name, file in PORT_FILES.items()
        if any(metrics.wants_some(f"ib.{{port}}.{each}") for each in (name, RATES.get(name)) if each)
    }
    counters: dict[str, Counter] = {}
    ports: list[tuple[str, str]] = []
    due = -math.inf

    def collect(reader: HostReader) -> None:
        nonlocal counters, ports, due
        if reader.now >= due:
            adapters = filter(_ADAPTER.fullmatch, list_directory(INFINIBAND))
            found = ((adapter, number) for adapter in adapters for number in list_directory(f"{INFINIBAND}/{adapter}/ports"))
            # A bound, in case a driver lists an absurd number of ports.
            ports = list(islice((port for port in found if _NUMBER.fullmatch(port[1])), MOST_PORTS))
            due = reader.now + RARE_PACE
        known, counters = counters, {}
        for adapter, number in ports:
            reader.progress.append(None)
            head = f"ib.{adapter}.{number}"
            for name, file in files.items():
                key = f"{head}.{name}"
                try:
                    value = parse_value(name, read_once(f"{INFINIBAND}/{adapter}/ports/{number}/{file}").strip())
                except FileNotFoundError:
                    continue  # this adapter does not support it
                except (OSError, ValueError) as error:
                    reader.put(key, reason_of(error, file))
                    continue
                reader.put(key, value)
                if name in RATES:
                    # A port that disappears and returns starts with a new interval.
                    counter = counters[key] = known.get(key) or Counter()
                    counter.feed({"": int(value)}, reader.clock())
                    reader.put(f"{head}.{RATES[name]}", counter.per_second())

    return collect
