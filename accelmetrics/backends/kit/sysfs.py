"""Devices that kernel drivers show as directories of files below ``/sys``.

::

    FIELDS = (Field("temp", "device/hwmon/hwmon*/temp1_input", "mC"), Field("smClock", "tt_aiclk", "MHz"))
    IDENTITY = {"vendor_index": "@number", "pci_bus_id": "@pci", "serial": "tt_serial"}
    backend = PolledBackend("tenstorrent", kind="npu", source="sysfs", connect=directories("/sys/class/tenstorrent/tenstorrent!*"), …)

A field's place is a path below the device's directory, or an absolute path; :class:`DeviceDirectory` lists the other forms. A file is
read when its device is read, through a descriptor that stays open. A file that hangs affects only its own device.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from glob import escape, glob, has_magic
from statistics import fmean
from typing import Any

from accelmetrics.backends.contract import Number, Processes, Value
from accelmetrics.backends.kit.fields import DeviceRecord, Field, number, pcie_generation, quoted
from accelmetrics.backends.kit.polled import Connect, DeviceSample, PollOnce
from accelmetrics.backends.kit.processes import DrmClients, DrmKeys, NumberedNodes
from accelmetrics.backends.kit.system import ASLEEP, PCI_ADDRESS, Files, KeptFile, inode, link_name, read_text, reason_of, sysroot
from accelmetrics.schemas.errors import Reason, SourceError, Unavailable

PCIE_LINK = tuple(
    Field(metric, f"device/{place}", convert=pcie_generation if "speed" in place else None)
    for metric, place in (
        ("pcieLinkGen", "current_link_speed"),
        ("pcieLinkWidth", "current_link_width"),
        ("maxPcieLinkGen", "max_link_speed"),
        ("maxPcieLinkWidth", "max_link_width"),
    )
)
"""Rows of a PCI device's link, as the kernel reports it."""


def highest(printed: Any) -> object:
    """Return the highest number of a list, for example of clocks; a text without a number is returned unchanged."""
    return max((int(each) for each in quoted(printed).split() if each.isdecimal()), default=printed)


def clocks(below: str = "device/devfreq/*/") -> tuple[Field, Field]:
    """Make the rows of the current and the highest clock of a device with the kernel's devfreq.

    Args:
        below: The path to the directory of its clocks, with a slash at the end.
    """
    return (
        Field("smClock", f"{below}cur_freq", "Hz", zero_is_missing=True),
        Field("maxSmClock", (f"{below}available_frequencies", f"{below}max_freq"), "Hz", convert=highest),
    )


_SELECTED = re.compile(r"\[([\w/]+)=([^\]]*)\]")
_SEVERAL: Mapping[str, Callable[[list[Number]], Number]] = {"max": max, "mean": fmean}


class DeviceDirectory(DeviceRecord):
    """A device's files as a record. A place is a path below the device's directory, unless it is absolute.

    - ``*`` matches any part of a name, and the first file is read: ``device/hwmon/hwmon*/temp1_input``.
    - ``[file=text]`` selects directories by the text of a file in them: ``/sys/class/thermal/thermal_zone[type=*gpu*]/temp``.
      ``[_suffix=text]`` selects files by a companion file: ``device/hwmon/hwmon[name=xe]/temp[_label=pkg]_input``. The name before
      the bracket may be a beginning, and ``*`` in the text matches anything. After a complete name, the bracket is a file that the
      directory must have: ``device/[device=0x56a?]/current_link_speed``.
    - ``max:`` or ``mean:`` before a path is that of all matching files; a sensor that is absent does not count.
    - ``{}`` is replaced by the instance, in a row that is read for each: ``tile0/gt{}/freq0/act_freq``.
    - ``@name`` is the directory's name, ``@number`` the last number in it, ``@pci`` and ``@platform`` the device's name on that
      bus, ``@bar2`` the size of a PCI device's memory region in bytes, ``@compatible`` its name in the device tree.
    - ``@clients.memory`` and ``@clients.<word>`` are the use by all programs, as :meth:`.DrmClients.total` returns it.

    Args:
        path: The directory.
        files: Keeps the descriptors.
        clients: The programs on the driver's devices; None if they are not looked for.
        holders: The programs that hold device nodes; None if they are not looked for.
    """

    wakes = True
    """Whether reading its files would wake a suspended device. If so, a suspended device is not read."""

    def __init__(self, path: str, files: Files, clients: DrmClients | None = None, holders: NumberedNodes | None = None) -> None:
        self.path = path
        self._inode = inode(path)
        self._files = files
        self._clients = clients
        self._holders = holders
        self._kept: dict[str, list[KeptFile]] = {}
        self._progress: list[Any] = []

    @property
    def bus_name(self) -> str:
        """The device's name on its bus: a PCI address, or for example ``1002000000.v3d``."""
        return link_name(f"{self.path}/device") or os.path.realpath(f"{sysroot()}{self.path}").rpartition("/")[2]

    def begin(self, progress: list[Any]) -> None:
        """Prepare for a reading.

        Raises:
            SourceError: The device is suspended, and reading would wake it (``suspended``), or its directory is gone
                (``device_lost``).
        """
        self._progress = progress
        if inode(self.path) != self._inode:
            raise SourceError(Reason.DEVICE_LOST, f"{self.path} has gone")
        # The directory is either the device or one of a class, with the device behind the link.
        for place in ("power/runtime_status", "device/power/runtime_status") if self.wakes else ():
            if self._read(place) in ASLEEP:
                raise SourceError(Reason.SUSPENDED, f"{self.path} is suspended: reading it would wake it")

    def get(self, place: str) -> object:
        """Return the value at a place: text, a number, a reason, or None if there is nothing."""
        if place in self._kept:  # the fast way, taken nearly always
            return self._read(place)
        how, colon, path = place.partition(":")
        if colon and how in _SEVERAL:
            return self._several(_SEVERAL[how], path)
        if not place.startswith("@"):
            return self._read(place)
        if place.startswith("@clients.") and self._clients is not None:
            return self._clients.total(self.bus_name, place.partition(".")[2], self._progress)
        name = self.path.rpartition("/")[2]
        if place == "@name":
            return name
        if place == "@unified":
            return not self.wakes
        if place == "@compatible":
            return str(self._read("device/of_node/compatible") or "").partition("\0")[0]
        if place == "@number":
            return next(iter(re.findall(r"(?a:\d+)", name)[::-1]), "")
        if place in ("@pci", "@platform"):
            return self.bus_name if bool(PCI_ADDRESS.fullmatch(self.bus_name)) == (place == "@pci") else None
        return self._bar(int(place[4:])) if re.fullmatch("@bar[0-5]", place) else None

    def instances(self, place: str) -> Iterator[str]:
        """Yield the instances that replace ``{}`` in a path."""
        path = place if place.startswith("/") else f"{self.path}/{place}"
        form = re.escape(path).replace(r"\*", "[^/]*").replace(r"\{\}", "([^/]*)", 1)
        found = (re.fullmatch(form, path) for path in self._find(place.replace("{}", "*")))
        return (each[1] for each in found if each is not None)

    def processes(self, progress: list[Any]) -> Processes:
        """Find the programs that have the device open."""
        if self._holders is not None:
            return self._holders.on(self.get("@number"))
        return None if self._clients is None else self._clients.on(self.bus_name, progress)

    def look_again(self) -> bool:
        """Search again for missing files. Returns whether the directory is still the same.

        A driver that was reloaded makes new directories, and the same number may then be another device's.
        """
        self._kept = {place: files for place, files in self._kept.items() if files}
        is_same = inode(self.path) == self._inode
        for file in () if is_same else [file for files in self._kept.values() for file in files]:
            file.close()  # the new directory's reader shares these objects, and must open the files again
        return is_same

    def _find(self, place: str) -> list[str]:
        """Find the files at a place, in the order of their names."""
        path, *selections = _SELECTED.split(place if place.startswith("/") else f"{escape(self.path)}/{place}")
        found = [""]
        for name, text, rest in zip(selections[::3], selections[1::3], selections[2::3], strict=True):
            suffix = name if name.startswith("_") else f"/{name}"
            path = path[:-1] if path.endswith("/") else f"{path}*"
            marks = (mark for start in found for mark in _glob(f"{start}{path}{suffix}"))
            chosen = (mark for mark in marks if fnmatchcase((read_text(mark) or "").strip("\0").lower(), text.lower()))
            # From here on the paths are real names: characters of patterns in them must match themselves.
            found, path = [escape(mark.removesuffix(suffix)) for mark in chosen], rest
        return [each for start in found for each in _glob(f"{start}{path}")]

    def _files_at(self, place: str) -> list[KeptFile]:
        if place not in self._kept:
            self._kept[place] = [self._files.keep(path) for path in self._find(place)]
        return self._kept[place]

    def _read(self, place: str, which: int = 0) -> str | Unavailable | None:
        """Read one of the files at a place; None if it does not exist."""
        files = self._kept.get(place) or self._files_at(place)
        if which >= len(files):
            return None
        try:
            return files[which].read().decode("utf-8", "replace").strip(" \t\r\n\0")  # a zero byte ends a text of the device tree
        except BlockingIOError:
            # The answer (EAGAIN) of a chip's thermal zones while they are powered down.
            return Unavailable(Reason.SUSPENDED, "the sensor has no value while its part of the chip is powered down")
        except OSError as error:
            self._kept.pop(place, None)  # hwmon directories get other numbers when a driver is reloaded
            if not isinstance(error, FileNotFoundError):
                return reason_of(error, place)
            if not has_magic(place):
                self._kept[place] = []
            return None
        finally:
            self._progress.append(place)

    def _several(self, how: Callable[[list[Number]], Number], path: str) -> Value | None:
        values = [number(self._read(path, which)) for which in range(len(self._files_at(path)))]
        numbers = [each for each in values if not isinstance(each, Unavailable)]
        # A sensor that fails makes the whole unknown. One that is absent does not.
        reasons = sorted((each for each in values if isinstance(each, Unavailable)), key=lambda each: each.reason == Reason.NOT_SUPPORTED)
        if reasons and (not numbers or reasons[0].reason != Reason.NOT_SUPPORTED):
            return reasons[0]
        return how(numbers) if numbers else None

    def _bar(self, region: int) -> int | None:
        try:
            lines = str(self._read("device/resource") or self._read("resource")).splitlines()
            first, last = (int(word, 16) for word in lines[region].split()[:2])
        except (IndexError, ValueError):
            return None
        # The kernel prints zeros for a region that the device does not have.
        return last - first + 1 if last else None


class OnChip(DeviceDirectory):
    """A device on the processor's chip. Its files answer while it is suspended, without waking it.

    ``@unified`` is always true there, since the device shares the host's memory.
    """

    wakes = False


def _glob(pattern: str) -> list[str]:
    if not has_magic(pattern):  # glob() hides a directory that may not be searched; reading the path reports it
        return [pattern]
    return [f"/{path}" for path in sorted(glob(pattern.lstrip("/"), root_dir=sysroot() or "/"))]  # noqa: PTH207 - keeps the root apart


def directories(
    pattern: str,
    *more: str,
    drivers: Sequence[str] = (),
    processes: Callable[[DeviceRecord], Processes] | None = None,
    clients: DrmKeys | None = None,
    record: type[DeviceDirectory] = DeviceDirectory,
    nodes: str = "",
) -> Connect:
    """Connect a polled backend to directories below ``/sys``, one per device.

    Args:
        pattern: Their path; ``*`` matches any part of a name: ``/sys/class/drm/card*``.
        more: Further paths, if devices have more than one.
        drivers: Kernel drivers, one of which must drive the device; any if empty.
        processes: Finds the processes that use a device, if a consumer wants them; None if they are not looked for.
        clients: The driver's names for its engines and memory, to find programs through DRM.
        record: The class that reads a device's files: :class:`OnChip`, or a vendor's class with its own places.
        nodes: A regular expression of the device nodes that programs hold, to find programs by them. Its group is ``@number``.
    """
    return _Connect(_Directories, (pattern, *more), drivers, processes, clients, record, nodes)


class _Connect(partial[PollOnce]):
    """Opens directories. Listing them wakes no device, and each device checks by itself whether it is suspended."""

    wakes = False


class _Directories:
    """The directories that exist now, as a poll."""

    def __init__(
        self,
        patterns: Sequence[str],
        drivers: Sequence[str],
        processes: Callable[[DeviceRecord], Processes] | None,
        clients: DrmKeys | None,
        record: type[DeviceDirectory],
        nodes: str,
    ) -> None:
        self._patterns = patterns
        self._drivers = drivers
        self._find = processes
        self._record = record
        self._files = Files()
        self._clients = None if clients is None else DrmClients(clients)
        self._holders = NumberedNodes(nodes) if nodes else None
        self._known: dict[str, DeviceDirectory] = {}

    def __call__(self) -> Iterable[DeviceSample]:
        # Devices that stay keep their open files. The others are opened again by new objects.
        known = {path: device for path, device in self._known.items() if device.look_again()}
        self._known = {}
        for path in (path for pattern in self._patterns for path in _glob(pattern)):
            driver = link_name(f"{path}/device/driver") or link_name(f"{path}/driver")
            if inode(path) and (not self._drivers or driver in self._drivers):
                self._known[path] = known.get(path) or self._record(path, self._files, self._clients, self._holders)
        if self._holders is not None:
            self._holders.look([])
        return [DeviceSample(device, self._processes(device), begin=device.begin) for device in self._known.values()]

    def _processes(self, device: DeviceDirectory) -> Callable[[list[Any]], Processes]:
        find = self._find
        return device.processes if find is None else lambda _: find(device)

    def close(self) -> None:
        """Close all descriptors."""
        self._files.close()
