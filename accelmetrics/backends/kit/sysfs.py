"""Devices that are directories of files, as kernel drivers show them below ``/sys``.

::

    FIELDS = (Field("temp", "device/hwmon/hwmon*/temp1_input", "mC"), Field("smClock", "tt_aiclk", "MHz"))
    IDENTITY = {"vendor_index": "@number", "pci_bus_id": "@pci", "serial": "tt_serial"}
    backend = PolledBackend("tenstorrent", kind="npu", source="sysfs", connect=directories("/sys/class/tenstorrent/tenstorrent!*"), …)

A field's place is a path below the device's directory. A file is read when its device is read, through a descriptor that stays open,
so that a file that hangs costs its own device.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from functools import partial
from glob import glob
from typing import Any

from accelmetrics.backends.kit.fields import DeviceRecord
from accelmetrics.backends.kit.polled import Connect, DeviceSample
from accelmetrics.backends.kit.system import ASLEEP, PCI_ADDRESS, Files, KeptFile, link_name, reason_of, sysroot
from accelmetrics.schemas.errors import Reason, SourceError, Unavailable


class DeviceDirectory(DeviceRecord):
    """One device's files as a record: what stands at a path below its directory, where ``*`` is any part of a name.

    Besides files there are ``@name`` (the directory's own), ``@number`` (at the end of that) and ``@pci`` (the device's address).

    Args:
        path: The directory.
        files: Where descriptors are kept.
    """

    def __init__(self, path: str, files: Files) -> None:
        self.path = path
        self._files = files
        self._kept: dict[str, KeptFile] = {}
        self._progress: list[Any] = []

    def begin(self, progress: list[Any]) -> None:
        """Prepare for a reading.

        Raises:
            SourceError: The device is powered down, and a look would wake it (``suspended``).
        """
        self._progress = progress
        for place in ("power/runtime_status", "device/power/runtime_status"):
            if self._read(place) in ASLEEP:
                raise SourceError(Reason.SUSPENDED, f"{self.path} is powered down: reading it would wake it")

    def get(self, place: str) -> object:
        """Return what stands at a place: text, a reason, or None where there is nothing."""
        name = self.path.rpartition("/")[2]
        if place == "@name":
            return name
        if place == "@number":
            return name[len(name.rstrip("0123456789")) :]
        if place == "@pci":
            paths = (os.path.realpath(f"{sysroot()}{self.path}{below}") for below in ("/device", ""))
            return next((last for path in paths if PCI_ADDRESS.fullmatch(last := path.rpartition("/")[2])), None)
        return self._read(place)

    def _read(self, place: str) -> str | Unavailable | None:
        if place not in self._kept:
            found = sorted(glob(place, root_dir=f"{sysroot()}{self.path}"))  # noqa: PTH207 - a Path would not keep the root apart
            if not found:
                return None
            self._kept[place] = self._files.keep(f"{self.path}/{found[0]}")
        try:
            return self._kept[place].read().decode("utf-8", "replace").strip()
        except FileNotFoundError:
            del self._kept[place]
            return None
        except OSError as error:
            del self._kept[place]  # hwmon directories get other numbers when a driver comes back
            return reason_of(error, place)
        finally:
            self._progress.append(place)


def directories(pattern: str, *, drivers: Sequence[str] = ()) -> Connect:
    """Connect a polled backend to directories below ``/sys``, one a device.

    Args:
        pattern: Their path, where ``*`` is any part of a name: ``/sys/class/drm/card*``.
        drivers: Kernel drivers, of which one must drive the device; any when empty.
    """
    return partial(_Directories, pattern, drivers)


class _Directories:
    """The directories that there are now, as a poll."""

    def __init__(self, pattern: str, drivers: Sequence[str]) -> None:
        self._pattern = pattern
        self._drivers = drivers
        self._files = Files()
        self._known: dict[str, DeviceDirectory] = {}

    def __call__(self) -> Iterable[DeviceSample]:
        paths = [f"/{path}" for path in sorted(glob(self._pattern.lstrip("/"), root_dir=sysroot() or "/"))]  # noqa: PTH207 - as above
        drivers = ((path, link_name(f"{path}/device/driver") or link_name(f"{path}/driver")) for path in paths)
        driven = [path for path, driver in drivers if not self._drivers or driver in self._drivers]
        self._known = {path: self._known.get(path) or DeviceDirectory(path, self._files) for path in driven}
        return [DeviceSample(device, begin=device.begin) for device in self._known.values()]

    def close(self) -> None:
        """Give all descriptors back."""
        self._files.close()
