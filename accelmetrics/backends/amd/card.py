"""One card's files: what the kernel driver shows of it below ``/sys/bus/pci/devices``, as a record.

What changes quickly is read each time, the rest every ten seconds. ``pcie_bw`` is never read: the kernel takes a second to
answer. A file that is not there now may be later (sensors come when the card wakes), so nothing is remembered about it.

Places in the record are the files' names; ``hwmon:`` stands before sensors, by their labels, and ``gpu_metrics:`` before
fields of that table, in the units of the sensor files (thousandths of degrees, microwatts, hertz, microjoules).
"""

from __future__ import annotations

import errno
import math
import re
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from accelmetrics.backends.amd import gpu_metrics, sysfs
from accelmetrics.backends.amd.links import slot_link
from accelmetrics.backends.amd.table import Value
from accelmetrics.backends.kit.system import Files, KeptFile, list_directory, read_text
from accelmetrics.schemas.errors import DriverGoneError, SourceError
from accelmetrics.schemas.reasons import Reason, Unavailable

PACE = 9.95
"""Seconds for which slow values are kept; a little less than ten, so that readings every second find them outdated."""

TOGETHER = 0.05
"""Seconds within which what is read of a card's partitions is read together, from one table."""

FAST = ("gpu_busy_percent", "mem_busy_percent", "mem_info_vram_used", "mem_info_gtt_used")
SLOW = ("mem_info_vram_total", "mem_info_gtt_total", "pcie_replay_count", "pp_mclk_od")
FAST_SENSORS = re.compile(r"(temp\d+_input|power1_average|power1_input|pwm1|freq\d+_input|energy1_input)", re.ASCII)
SLOW_SENSORS = re.compile(r"(temp\d+_(crit|emergency)|power1_cap)", re.ASCII)
CLOCKS = {"pp_dpm_sclk": "sclk", "pp_dpm_mclk": "mclk"}
GONE = (errno.ENODEV, errno.ENXIO)
NO_TABLE = Unavailable(Reason.NOT_SUPPORTED, "the kernel driver shows no gpu_metrics for this card")

_LEVEL = re.compile(r"^\s*(\w+)\s*:\s*(\d{1,6})\s*mhz\s*(\*?)", re.IGNORECASE | re.MULTILINE | re.ASCII)
_ERRORS = re.compile(r"^(ue|ce)\s*:\s*(\d{1,18})\s*$", re.MULTILINE | re.ASCII)


class Card:
    """The files of one card; shared by all its readers, which never read it at the same time, and by its partitions'.

    Args:
        address: Its PCI address.
        files: Where descriptors are kept.
        others: Addresses of the driver's other cards.

    Attributes:
        address: The same.
        record: What the files said last.
        table: ``gpu_metrics``, or why there is none.
        shown: Whether there was any file of the driver's at all.
    """

    def __init__(self, address: str, files: Files, others: Sequence[str] = ()) -> None:
        self.address = address
        self.shown = True
        self.record: dict[str, object] = {}
        self.table: gpu_metrics.Table | Unavailable = Unavailable(Reason.NOT_SUPPORTED, "gpu_metrics was not read yet")
        self._others = others
        self._base = sysfs.device_path(address)
        self._files = files
        self._kept: dict[str, KeptFile] = {}
        self._slow: dict[str, object] = {}
        self._sensors: dict[str, str] = {}
        self._link: dict[str, object] = {}
        self._due = -math.inf
        self._reading = threading.Lock()
        self._latest: tuple[float, gpu_metrics.Table | Unavailable] = (-math.inf, self.table)

    def check(self, progress: list[Any]) -> bool:
        """Whether it is awake.

        Raises:
            SourceError: It is no longer there, or its driver let go of it (``device_lost``).
            DriverGoneError: The driver let go of all cards.
        """
        # What the PCI bus knows of a card (its link, whether it sleeps) stays when its driver is unloaded.
        if not sysfs.is_driven(self.address):
            if read_text(f"{self._base}/vendor") is None:
                raise SourceError(Reason.DEVICE_LOST, f"{self.address} is no longer on the PCI bus", backend="amd")
            raise self.lost(f"{self.address} is no longer driven by amdgpu")
        # A kernel without power management has no such file.
        return self._read("power/runtime_status", progress) not in sysfs.ASLEEP

    def lost(self, words: str) -> SourceError:
        """That the driver let go of the card, or has gone, if it let go of all others too."""
        self._due = -math.inf  # when it is back, its sensors may have other numbers
        if any(map(sysfs.is_driven, self._others)):
            return SourceError(Reason.DEVICE_LOST, words, backend="amd")
        return DriverGoneError(Reason.DRIVER_UNAVAILABLE, words, backend="amd")

    def refresh(self, now: float, progress: list[Any]) -> None:
        """Read what is due."""
        if now >= self._due:
            self._sensors = _labelled(self._base)
            self._slow, self._link = dict(self._read_slow(progress)), dict(slot_link(self.address))
            self._due = now + PACE
        with self._reading:
            self.table = self._read_table(now, progress)
        files = {**self._slow, **dict(self._read_fast(progress))}
        self.shown = any(map(_answered, files.values())) or (self.table is not NO_TABLE and _answered(self.table))
        self.record = {**files, **self._link, **converted(self.table)}

    def table_at(self, now: float, progress: list[Any]) -> gpu_metrics.Table | Unavailable:
        """The card's table, or why there is none; read once for all that is read together."""
        with self._reading:
            read_at, table = self._latest
            return table if 0 <= now - read_at < TOGETHER else self._read_table(now, progress)

    def _read_fast(self, progress: list[Any]) -> Iterator[tuple[str, object]]:
        yield from self._present(FAST, progress)
        for place, path in self._sensors.items():
            if FAST_SENSORS.fullmatch(path.rpartition("/")[2]):
                yield place, self._read(path, progress)

    def _read_slow(self, progress: list[Any]) -> Iterator[tuple[str, object]]:
        yield from self._present(SLOW, progress)
        for place, path in self._sensors.items():
            if SLOW_SENSORS.fullmatch(path.rpartition("/")[2]):
                yield place, self._read(path, progress)
        for name, clock in CLOCKS.items():
            yield from _levels(clock, self._read(name, progress))
        yield from self._errors(progress)

    def _present(self, names: tuple[str, ...], progress: list[Any]) -> Iterator[tuple[str, object]]:
        for name in names:
            said = self._read(name, progress)
            if said is not None:
                yield name, said

    def _errors(self, progress: list[Any]) -> Iterator[tuple[str, object]]:
        """Counts of errors, added up over the blocks of the chip."""
        found: dict[str, Value] = {}
        for block in list_directory(f"{self._base}/ras"):
            said = self._read(f"ras/{block}", progress) if block.endswith("_err_count") else None
            if isinstance(said, Unavailable):
                found.update({"ras:ce": said, "ras:ue": said})
            for kind, count in _ERRORS.findall(said) if isinstance(said, str) else ():
                before = found.get(f"ras:{kind}", 0)
                found[f"ras:{kind}"] = before if isinstance(before, Unavailable) else before + int(count)
        yield from found.items()

    def _read_table(self, now: float, progress: list[Any]) -> gpu_metrics.Table | Unavailable:
        data = self._bytes("gpu_metrics", progress)
        table = gpu_metrics.parse(data) if isinstance(data, bytes) else data or NO_TABLE
        self._latest = (now, table)
        return table

    def _read(self, name: str, progress: list[Any]) -> str | Unavailable | None:
        data = self._bytes(name, progress)
        return data.decode("utf-8", "replace").strip() if isinstance(data, bytes) else data

    def _bytes(self, name: str, progress: list[Any]) -> bytes | Unavailable | None:
        """A file's content, why it cannot be read, or None when there is no such file."""
        file = self._kept.get(name)
        if file is None:
            file = self._kept[name] = self._files.keep(f"{self._base}/{name}")
        try:
            data = file.read()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            return _why(error, name)
        finally:
            progress.append(name)
        return data


def _answered(said: object) -> bool:
    """Whether there was still a driver to answer."""
    return not isinstance(said, Unavailable) or said.reason != Reason.DEVICE_LOST


def converted(table: gpu_metrics.Table | Unavailable) -> dict[str, object]:
    """What is taken from ``gpu_metrics``, in the units of the sensor files."""
    if isinstance(table, Unavailable):
        return {}
    found: dict[str, object] = {}
    for name, factor in (
        ("gfx", 1),
        ("umc", 1),
        ("hotspot", 1000),
        ("mem", 1000),
        ("power", 1_000_000),
        ("uclk", 1_000_000),
        ("replays", 1),
    ):
        if name in table:
            found[f"gpu_metrics:{name}"] = table[name][0] * factor
    if "gfxclk" in table:
        found["gpu_metrics:gfxclk"] = table["gfxclk"][0] * 1_000_000
    for name in ("xgmi_read", "xgmi_write"):
        if name in table:
            found[f"gpu_metrics:{name}"] = sum(table[name]) * 1024
    # On cards without HBM nobody documents what the counter counts.
    hbm = [degrees for degrees in table.get("hbm", ()) if degrees]
    if hbm:
        found["gpu_metrics:hbm"] = max(hbm) * 1000
    if "energy" in table and ("power" in table or hbm):
        found["gpu_metrics:energy"] = table["energy"][0] / gpu_metrics.JOULE * 1e6
    return found


def _labelled(base: str) -> dict[str, str]:
    """The card's sensor files by their labels: ``hwmon:edge`` is at ``hwmon/hwmon3/temp1_input``."""
    found: dict[str, str] = {}
    for directory in list_directory(f"{base}/hwmon"):
        files = list_directory(f"{base}/hwmon/{directory}")
        for file in files:
            sensor, _, what = file.partition("_")
            if not (FAST_SENSORS.fullmatch(file) or SLOW_SENSORS.fullmatch(file)):
                continue
            label = file
            if sensor.startswith(("temp", "freq")):
                named = read_text(f"{base}/hwmon/{directory}/{sensor}_label") or _unlabelled(sensor)
                label = named.lower() if what == "input" else f"{named.lower()}_{what}"
            found.setdefault(f"hwmon:{label}", f"hwmon/{directory}/{file}")
    return found


def _unlabelled(sensor: str) -> str:
    """What a sensor without a label is: the first temperature of a driver that labels none is the core's."""
    return {"temp1": "edge", "freq1": "sclk", "freq2": "mclk"}.get(sensor, sensor)


def _levels(clock: str, said: str | Unavailable | None) -> Iterator[tuple[str, object]]:
    """The level marked as active, which may be that of sleep (``S``), and the highest, in hertz."""
    if isinstance(said, Unavailable):
        yield from ((f"pp_dpm_{clock}:active", said), (f"pp_dpm_{clock}:top", said))
    found = _LEVEL.findall(said) if isinstance(said, str) else []
    for _, frequency, mark in found:
        if mark:
            yield f"pp_dpm_{clock}:active", int(frequency) * 1_000_000
    if found:
        yield f"pp_dpm_{clock}:top", max(int(frequency) for _, frequency, _ in found) * 1_000_000


def _why(error: OSError, name: str) -> Unavailable:
    if error.errno == errno.EACCES:
        return Unavailable(Reason.NO_PERMISSION, f"{name} may not be read by this user")
    if error.errno == errno.EPERM:
        return Unavailable(Reason.DRIVER_ERROR, f"{name}: the kernel driver answers nothing while it resets the card")
    if error.errno in (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.ENODATA):
        return Unavailable(Reason.NOT_SUPPORTED, f"{name}: the kernel driver has no value for this card")
    if error.errno in GONE:
        return Unavailable(Reason.DEVICE_LOST, f"{name}: the device has gone")
    return Unavailable(Reason.DRIVER_ERROR, f"{name}: {error.strerror or error}")
