"""Devices that are directories of files, as kernel drivers show them below ``/sys``.

::

    FIELDS = (Field("temp", "device/hwmon/hwmon*/temp1_input", "mC"), Field("smClock", "tt_aiclk", "MHz"))
    IDENTITY = {"vendor_index": "@number", "pci_bus_id": "@pci", "serial": "tt_serial"}
    backend = PolledBackend("tenstorrent", kind="npu", source="sysfs", connect=directories("/sys/class/tenstorrent/tenstorrent!*"), …)

A field's place is a path below the device's directory, or an absolute one; :class:`DeviceDirectory` has what else it may be. A file is
read when its device is read, through a descriptor that stays open, so that a file that hangs costs its own device.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from glob import escape, glob, has_magic
from statistics import fmean
from typing import Any

from accelmetrics.backends.contract import Number, Processes, Value
from accelmetrics.backends.kit.fdinfo import DrmClients, DrmKeys
from accelmetrics.backends.kit.fields import DeviceRecord, Field, number, pcie_generation, quoted
from accelmetrics.backends.kit.polled import Connect, DeviceSample, PollOnce
from accelmetrics.backends.kit.processes import NumberedNodes
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
"""Rows of a PCI device's link, as the kernel tells it."""

OFF = Unavailable(Reason.SUSPENDED, "the sensor has no value while what it measures is powered down")
"""What EAGAIN says, which thermal zones of a chip answer."""


def highest(said: Any) -> object:
    """Return the highest number of a list, as of clocks; what has none stays what it is."""
    return max((int(each) for each in quoted(said).split() if each.isdecimal()), default=said)


def clocks(below: str = "device/devfreq/*/") -> tuple[Field, Field]:
    """Make the rows of the clock and the highest clock of a device that the kernel's devfreq has.

    Args:
        below: The path to the directory of its clocks, with a slash at the end.
    """
    places = (f"{below}available_frequencies", f"{below}max_freq")
    return Field("smClock", f"{below}cur_freq", "Hz", zero_is_missing=True), Field("maxSmClock", places, "Hz", convert=highest)


_BLANK = " \t\r\n\0"
"""What stands around a text; a zero ends one of the device tree."""
_SELECTED = re.compile(r"\[([\w/]+)=([^\]]*)\]")
_SEVERAL: Mapping[str, Callable[[list[Number]], Number]] = {"max": max, "mean": fmean}
_BAR = re.compile(r"@bar([0-5])")


class DeviceDirectory(DeviceRecord):
    """One device's files as a record: what stands at a path, below its directory unless it is absolute.

    - ``*`` is any part of a name, and the first file is read: ``device/hwmon/hwmon*/temp1_input``;
    - ``[file=text]`` chooses among directories by a file in them, ``[_suffix=text]`` among files by the one beside them; a name may go on
      before it, and ``*`` in the text is anything: ``/sys/class/thermal/thermal_zone[type=*gpu*]/temp``,
      ``device/hwmon/hwmon[name=xe]/temp[_label=pkg]_input``; behind a whole name it says which file the directory must have:
      ``device/[device=0x56a?]/current_link_speed``;
    - ``max:`` or ``mean:`` before a path is that of all files there, where a sensor that is absent does not count;
    - ``{}`` stands for the instance, in a row that is read of each: ``tile0/gt{}/freq0/act_freq``;
    - ``@name`` is the directory's own, ``@number`` the last number in that, ``@pci`` and ``@platform`` what the device is called on its
      bus, ``@bar2`` the size of a memory region of a PCI device in bytes;
    - ``@clients.memory`` and ``@clients.<word>`` are what all programs use, as :meth:`.DrmClients.total` has it.

    Args:
        path: The directory.
        files: Where descriptors are kept.
        clients: The programs on the driver's devices; None where those are not looked for.
        holders: The programs that hold device nodes, where those are looked for.
    """

    wakes = True
    """Whether a look at its files would wake it while it is powered down: it is not read then."""

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
        """What the device is called on its bus: a PCI address, ``1002000000.v3d``."""
        return link_name(f"{self.path}/device") or os.path.realpath(f"{sysroot()}{self.path}").rpartition("/")[2]

    def begin(self, progress: list[Any]) -> None:
        """Prepare for a reading.

        Raises:
            SourceError: The device is powered down, and a look would wake it (``suspended``), or its directory has gone (``device_lost``).
        """
        self._progress = progress
        if inode(self.path) != self._inode:
            raise SourceError(Reason.DEVICE_LOST, f"{self.path} has gone")
        for place in ("power/runtime_status", "device/power/runtime_status") if self.wakes else ():
            if self._read(place) in ASLEEP:
                raise SourceError(Reason.SUSPENDED, f"{self.path} is powered down: reading it would wake it")

    def get(self, place: str) -> object:
        """Return what stands at a place: text, a number, a reason, or None where there is nothing."""
        if place in self._kept:  # as nearly always
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
        if place == "@number":
            return next(iter(re.findall(r"(?a:\d+)", name)[::-1]), "")
        if place in ("@pci", "@platform"):
            return self.bus_name if bool(PCI_ADDRESS.fullmatch(self.bus_name)) == (place == "@pci") else None
        return self._bar(int(found[1])) if (found := _BAR.fullmatch(place)) else None

    def instances(self, place: str) -> Iterator[str]:
        """List what stands where a path has ``{}``."""
        path = place if place.startswith("/") else f"{self.path}/{place}"
        form = re.escape(path).replace(r"\*", "[^/]*").replace(r"\{\}", "([^/]*)", 1)
        found = (re.fullmatch(form, path) for path in self._find(place.replace("{}", "*")))
        return (each[1] for each in found if each is not None)

    def processes(self, progress: list[Any]) -> Processes:
        """Find the programs that have it open."""
        if self._holders is not None:
            return self._holders.on(self.get("@number"))
        return None if self._clients is None else self._clients.on(self.bus_name, progress)

    def look_again(self) -> bool:
        """Look again for files that were not there. Returns whether the directory is still the one that it was.

        A driver that was loaded again makes new directories, in which another device may have the number.
        """
        self._kept = {place: files for place, files in self._kept.items() if files}
        is_same = inode(self.path) == self._inode
        for file in () if is_same else [file for files in self._kept.values() for file in files]:
            file.close()  # the new directory's reader gets the same objects
        return is_same

    def _find(self, place: str) -> list[str]:
        """Find the files at a place, in the order of their names."""
        path, *selections = _SELECTED.split(place if place.startswith("/") else f"{escape(self.path)}/{place}")
        found = [""]
        for name, text, then in zip(selections[::3], selections[1::3], selections[2::3], strict=True):
            beside = name if name.startswith("_") else f"/{name}"
            path = path[:-1] if path.endswith("/") else f"{path}*"
            marks = (mark for start in found for mark in _glob(f"{start}{path}{beside}"))
            chosen = (mark for mark in marks if fnmatchcase((read_text(mark) or "").strip("\0").lower(), text.lower()))
            found, path = [escape(mark.removesuffix(beside)) for mark in chosen], then
        return [each for start in found for each in _glob(f"{start}{path}")]

    def _files_at(self, place: str) -> list[KeptFile]:
        if place not in self._kept:
            self._kept[place] = [self._files.keep(path) for path in self._find(place)]
        return self._kept[place]

    def _read(self, place: str, which: int = 0) -> str | Unavailable | None:
        """Read one of the files at a place; None where it is not there."""
        files = self._kept.get(place) or self._files_at(place)
        if which >= len(files):
            return None
        try:
            return files[which].read().decode("utf-8", "replace").strip(_BLANK)
        except BlockingIOError:
            return OFF
        except OSError as error:
            self._kept.pop(place, None)  # hwmon directories get other numbers when a driver comes back
            if not isinstance(error, FileNotFoundError):
                return reason_of(error, place)
            if not has_magic(place):
                self._kept[place] = []
            return None
        finally:
            self._progress.append(place)

    def _several(self, how: Callable[[list[Number]], Number], path: str) -> Value | None:
        said = [number(self._read(path, which)) for which in range(len(self._files_at(path)))]
        numbers = [each for each in said if not isinstance(each, Unavailable)]
        reasons = sorted((each for each in said if isinstance(each, Unavailable)), key=lambda each: each.reason == Reason.NOT_SUPPORTED)
        if reasons and (not numbers or reasons[0].reason != Reason.NOT_SUPPORTED):
            return reasons[0]
        return how(numbers) if numbers else None

    def _bar(self, region: int) -> int | None:
        lines = str(self._read("device/resource") or self._read("resource") or "").splitlines()
        try:
            first, last = (int(word, 16) for word in lines[region].split()[:2])
        except (IndexError, ValueError):
            return None
        return last - first + 1 if last else None


class OnChip(DeviceDirectory):
    """A device on the processor's chip, whose files answer while it is powered down without waking it.

    Besides the places of every directory there are ``@unified``, which is true since it shares the host's memory, and ``@compatible``, what
    the device tree calls it.
    """

    wakes = False

    def get(self, place: str) -> object:
        """Return what stands at a place: text, a number, a reason, or None where there is nothing."""
        if place == "@unified":
            return True
        if place == "@compatible":
            return str(self._read("device/of_node/compatible") or "").partition("\0")[0]
        return super().get(place)


def _glob(pattern: str) -> list[str]:
    if not has_magic(pattern):  # one that may not be searched for says so when it is read
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
    """Connect a polled backend to directories below ``/sys``, one a device.

    Args:
        pattern: Their path, where ``*`` is any part of a name: ``/sys/class/drm/card*``.
        more: Other paths, where devices have more than one.
        drivers: Kernel drivers, of which one must drive the device; any when empty.
        processes: Finds the processes that use a device, where a consumer wants to know; None where that is not to be found out.
        clients: What a DRM driver calls what programs use, where they are to be found by that.
        record: What reads a device's files: :class:`OnChip`, or a class of the vendor's with places of its own.
        nodes: A regular expression of the device nodes that programs hold, where they are to be found by those: its group is ``@number``.
    """
    return _Connect((pattern, *more), drivers, processes, clients, record, nodes)


class _Connect:
    """Opens directories. Listing them wakes no device, and each looks for itself whether its own sleeps."""

    wakes = False

    def __init__(self, *about: Any) -> None:
        self._about = about

    def __call__(self) -> PollOnce:
        return _Directories(*self._about)


class _Directories:
    """The directories that there are now, as a poll."""

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
        paths = [path for each in self._patterns for path in _glob(each)]
        drivers = ((path, link_name(f"{path}/device/driver") or link_name(f"{path}/driver")) for path in paths)
        driven = [path for path, driver in drivers if not self._drivers or driver in self._drivers]
        known = {path: device for path, device in self._known.items() if device.look_again()}
        about = (self._files, self._clients, self._holders)
        self._known = {path: known.get(path) or self._record(path, *about) for path in driven if inode(path)}
        if self._holders is not None:
            self._holders.look([])
        return [DeviceSample(device, self._processes(device), begin=device.begin) for device in self._known.values()]

    def _processes(self, device: DeviceDirectory) -> Callable[[list[Any]], Processes]:
        find = self._find
        return device.processes if find is None else lambda _: find(device)

    def close(self) -> None:
        """Give all descriptors back."""
        self._files.close()
