"""Which block devices are reported, and which of them may be added up.

Reported are whole devices and, though it is a partition, the device that a watched path lies on: W&B names that one. Added
up are whole devices that rest on no other: the partitions of a disk, and what ``dm-`` and ``md`` put on top of it, move the
same bytes again. Loop devices and memory (``ram``, ``zram``) are no disks.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from accelmetrics.backends.host.disk_io import Chosen, DiskIo
from accelmetrics.backends.kit.system import list_directory, read_text

_NO_DISK = re.compile(r"^(?:loop|ram|zram)\d*$")
# How partitions are named, for a tree without /sys/block: a disk whose name ends in a digit puts a p before the number.
_PARTITION = re.compile(r"^(?:(?:[shv]|xv)d[a-z]+\d+|(?:nvme\d+n\d+|mmcblk\d+|nbd\d+|md\d+)p\d+|mmcblk\d+(?:boot\d+|rpmb))$")
_STACKED = re.compile(r"^(?:dm-|md)\d+")


def choose(stats: dict[str, DiskIo], paths: Iterable[str]) -> Chosen:
    """The devices that count, of all that are listed.

    Args:
        stats: What ``/proc/diskstats`` lists.
        paths: The watched paths.
    """
    below = _numbers_below(paths)
    listed = frozenset(list_directory("/sys/block"))
    disks = [name for name in stats if not _NO_DISK.match(name)]
    whole = [name for name in disks if _is_whole(name, listed)]
    reported = [name for name in disks if name in whole or stats[name].number in below]
    return Chosen(tuple(reported), tuple(name for name in whole if not _is_stacked(name, listed)))


def _is_whole(name: str, listed: frozenset[str]) -> bool:
    if not listed:
        return not _PARTITION.match(name)
    entry = _entry(name)
    # A path of an NVMe device with several is hidden behind the device itself.
    return entry in listed and read_text(f"/sys/block/{entry}/hidden") != "1"


def _is_stacked(name: str, listed: frozenset[str]) -> bool:
    if not listed:
        return _STACKED.match(name) is not None
    return bool(list_directory(f"/sys/block/{_entry(name)}/slaves"))


def _entry(name: str) -> str:
    """A device's name in sysfs, where a slash cannot stand: ``cciss!c0d0``."""
    return name.replace("/", "!")


def _numbers_below(paths: Iterable[str]) -> frozenset[tuple[int, int]]:
    """Major and minor numbers of the devices that paths lie on."""
    found = set()
    for path in paths:
        try:
            device = os.stat(path).st_dev  # noqa: PTH116  the user's own path, as it is
        except (OSError, ValueError):
            continue
        found.add((os.major(device), os.minor(device)))
    return frozenset(found)
