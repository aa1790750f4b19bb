"""Sources that need no process of their own: the kernel driver's files, and the module ``amdsmi``.

They are merged metric by metric: a value comes from the files, and a value that the files do not have from the module, if one matches
(:mod:`~accelmetrics.backends.amd.amdsmi`). The module is called on its own thread. Opening its library wakes cards, so it is opened only
when no card sleeps. While opening takes too long, the files are read, and the other metrics are ``timed_out``; the module is used once it
is open.

A sleeping card is not read: every metric has the reason ``suspended``. A card that its driver released is lost. If the driver releases
all cards, the driver is gone, and it is opened again when it is back.

For a card with partitions (XCP), power, temperature and similar metrics belong to the card, so that sums are correct. A partition has its
own memory and utilisation.

The use by processes is read once a second (:mod:`~accelmetrics.backends.kit.processes`). Engine time is that of the graphics and compute
rings. Work that a runtime submits through its own queues (ROCm) does not pass through these rings, so only its memory is visible.

Files: a card's files are below ``/sys/bus/pci/devices``. Values that change quickly are read each time, others every ten seconds.
``pcie_bw`` is never read, since the kernel takes a second to answer. A missing file is looked up again every ten seconds, because it may
appear later (sensors appear when the card wakes).

Places in the record are the names of files. ``hwmon:`` precedes the label of a sensor, ``gpu_metrics:`` a field of that table in the
units of the sensor files (0.001 °C, microwatts, hertz, microjoules).

Known traps:

- The second die of an MI250 has a power, a cap and an energy counter of 0. The values of the package are those of the first die.
- Cards since Navi contain a PCIe switch. The link of the GPU itself is inside the card and always at its best. The link that matters is
  that of the outermost bridge with AMD's vendor id. If no bridge can be read (in a virtual machine, or a container without them),
  ``pp_dpm_pcie`` has this link.
- ``ras/*_err_count`` exists for every block that the driver knows, but counts only for blocks with a bit in ``ras/features``. Only these
  are added, as in AMD's library; the counts of other blocks are left over from before they were switched off. Without the mask all are
  added. With a mask of 0 nothing counts errors.
"""

from __future__ import annotations

import errno
import math
import re
import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from accelmetrics.backends.amd import gpu_metrics
from accelmetrics.backends.amd.amdsmi import ATTEMPTS, METRICS, OVERDUE, AmdsmiCard, Attempt, Trust, open_cards
from accelmetrics.backends.amd.cards import (
    AMD,
    MAKERS,
    Maker,
    TopologyNode,
    card_name,
    compute_memory,
    device_path,
    gpu_nodes,
    gpus,
    is_driven,
    is_integrated,
    xgmi_links,
)
from accelmetrics.backends.amd.values import TOTAL, compute_pools, device_memory, memory_rows
from accelmetrics.backends.contract import NOT_NEEDED, SYSTEM_CLOCK, Clock, Processes, Reading, ReadOptions, Value
from accelmetrics.backends.kit.fields import (
    Chosen,
    Counters,
    Derived,
    DeviceRecord,
    Field,
    Rate,
    Table,
    make_reading,
    number,
    pcie_generation,
    text,
)
from accelmetrics.backends.kit.processes import DrmClients, DrmKeys, ProcessTree, process_values
from accelmetrics.backends.kit.system import ASLEEP, Files, KeptFile, exists, is_asleep, link_name, list_directory, read_text, system_path
from accelmetrics.schemas.catalogue import coverage_of
from accelmetrics.schemas.errors import DriverGoneError, Reason, SourceError, Unavailable
from accelmetrics.schemas.identity import DeviceIdentity
from accelmetrics.schemas.topology import Details, SupportedClocks

PACE = 9.95
"""Seconds for which slow values are kept. Slightly below ten, so that a sampler that reads every second finds them outdated each ten
seconds.
"""
TOGETHER = 0.05
"""Seconds within which the partitions of a card share one reading of the table."""

FAST = ("gpu_busy_percent", "mem_busy_percent", "mem_info_vram_used", "mem_info_gtt_used")
SLOW = ("mem_info_vram_total", "mem_info_gtt_total", "pcie_replay_count", "pp_mclk_od")
LINK = ("current_link_speed", "current_link_width", "max_link_speed", "max_link_width")
FAST_SENSORS = re.compile(r"(temp\d+_input|power1_average|power1_input|pwm1|freq\d+_input|energy1_input)", re.ASCII)
SLOW_SENSORS = re.compile(r"(temp\d+_(crit|emergency)|power1_cap)", re.ASCII)
UNLABELLED = {"temp1": "edge", "freq1": "sclk", "freq2": "mclk"}
"""Labels of sensors without one. The first temperature of a driver without labels is the core's."""
SHOWN = ("gpu_busy_percent", "mem_info_vram_total", "hwmon", "gpu_metrics")
"""Every card has at least one of these files. A container may show the card's directory without them."""
BRIDGE = "0x0604"
NO_TABLE = Unavailable(Reason.NOT_SUPPORTED, "the kernel driver shows no gpu_metrics for this card")
_NO_VALUE = (Reason.NOT_SUPPORTED, "the kernel driver has no value for this card")
_GONE = (Reason.DEVICE_LOST, "the device has gone")
ERRORS = {
    errno.EACCES: (Reason.NO_PERMISSION, "may not be read by this user"),
    errno.EPERM: (Reason.DRIVER_ERROR, "the kernel driver answers nothing while it resets the card"),
    **dict.fromkeys((errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.ENODATA), _NO_VALUE),
    **dict.fromkeys((errno.ENODEV, errno.ENXIO), _GONE),
}

_LEVEL = re.compile(r"^\s*\w+\s*:\s*(\d{1,6})\s*mhz\s*(\*?)", re.IGNORECASE | re.MULTILINE | re.ASCII)
_CLOCK = re.compile(r"^\s*\d+\s*:\s*(\d{1,6})\s*mhz\s*(\*?)", re.IGNORECASE | re.MULTILINE | re.ASCII)
"""Pattern of a clock level. The sleep level has a letter instead of a number and does not match."""
NO_LEVELS = Unavailable(Reason.NOT_SUPPORTED, "pp_dpm_sclk and pp_dpm_mclk do not exist")
_STACK = re.compile(r"hwmon:hbm_?\d+", re.ASCII)
_PCIE_LEVEL = re.compile(r"^\s*\d+\s*:\s*(\d+(?:\.\d+)?) *GT/s,\s*x(\d+)[^*\n]*(\*?)", re.IGNORECASE | re.MULTILINE | re.ASCII)
_FEATURES = re.compile(r"feature mask: *0x([0-9a-f]{1,16})\s*", re.IGNORECASE | re.ASCII)
_BLOCKS = (
    *("umc", "sdma", "gfx", "mmhub", "athub", "pcie_bif", "hdp", "xgmi_wafl", "df", "smn", "sem", "mp0", "mp1", "fuse", "mca", "vcn"),
    *("jpeg", "ih", "mpio", "mmsch"),
)
"""Blocks with error counters, in the order of their bits in ``ras/features``."""
_RAS = re.compile(r"^(ue|ce)\s*:\s*(\d{1,18})\s*$", re.MULTILINE | re.ASCII)


def _fan(duty: object) -> Value:
    """Return a fan's speed in percent from its duty (0 to 255)."""
    found = number(duty)
    return found if isinstance(found, Unavailable) else 100 * found / 255


FIELDS = (
    Field("gpu", ("gpu_busy_percent", "gpu_metrics:gfx"), "%"),
    Field("memory", ("mem_busy_percent", "gpu_metrics:umc"), "%"),
    Field("memoryReadWriteActivity", ("mem_busy_percent", "gpu_metrics:umc"), "%"),
    Field("memoryOverDrive", "pp_mclk_od", "%", high=100, words="sysfs pp_mclk_od, 10 s"),
    Field("temp", ("hwmon:edge", "hwmon:junction", "gpu_metrics:hotspot"), "mC"),
    Field("hotspotTemp", ("hwmon:junction", "gpu_metrics:hotspot"), "mC"),
    Field("memoryTemp", ("hwmon:mem", "gpu_metrics:mem", "gpu_metrics:hbm", "hwmon:hbm"), "mC"),
    Field("tempLimit.slowdown", "hwmon:crit", "mC", words="sysfs hwmon: temp*_crit of `temp`'s sensor, 10 s"),
    Field("tempLimit.shutdown", "hwmon:emergency", "mC", words="sysfs hwmon: temp*_emergency of `temp`'s sensor, 10 s"),
    Field("fanSpeed", "hwmon:pwm1", "%", _fan, high=100, words="sysfs hwmon: pwm1 / 255"),
    # Older cards have `power1_average`, newer ones `power1_input`. The second die of an MI250 reports 0: its power is
    # counted by the first die.
    Field("powerWatts", ("hwmon:power1_average", "hwmon:power1_input", "gpu_metrics:power"), "uW", zero_is_missing=True),
    Field("enforcedPowerLimitWatts", "hwmon:power1_cap", "uW", words="sysfs hwmon: power1_cap, 10 s"),
    Field("energyJoules", ("hwmon:energy1_input", "gpu_metrics:energy"), "uJ"),
    Field("smClock", ("hwmon:sclk", "pp_dpm_sclk:active", "gpu_metrics:gfxclk"), "Hz"),
    Field("memoryClock", ("hwmon:mclk", "pp_dpm_mclk:active", "gpu_metrics:uclk", "gpu_metrics:average_uclk"), "Hz"),
    Field("maxSmClock", "pp_dpm_sclk:top", "Hz", words="sysfs: highest level of pp_dpm_sclk, 10 s"),
    Field("maxMemoryClock", "pp_dpm_mclk:top", "Hz", words="sysfs: highest level of pp_dpm_mclk, 10 s"),
    *(Field(cause, f"gpu_metrics:{cause}", words="sysfs gpu_metrics: indep_throttle_status") for cause in gpu_metrics.BITS),
    *(
        Rate(cause, f"gpu_metrics:{cause} residency", "1", rose=True, words=f"gpu_metrics: {'_acc or '.join(names)}_acc rose (MI300)")
        for cause, names in gpu_metrics.RESIDENCIES.items()
    ),
    Field("throttled", "gpu_metrics:throttled", words="sysfs gpu_metrics: indep_throttle_status"),
    Derived("throttled", tuple(gpu_metrics.RESIDENCIES), max, "any of the residencies rose (MI300)"),
    Field("correctedMemoryErrors", "ras:ce", words="sysfs ras/*_err_count: ce over the blocks in ras/features, 10 s"),
    Field("uncorrectedMemoryErrors", "ras:ue", words="sysfs ras/*_err_count: ue over the blocks in ras/features, 10 s"),
    *(
        Field(metric, place, convert=pcie_generation if "speed" in place else None, words=f"sysfs {place} of the link to the slot, 10 s")
        for metric, place in zip(("pcieLinkGen", "pcieLinkWidth", "maxPcieLinkGen", "maxPcieLinkWidth"), LINK, strict=True)
    ),
    Field("pcieReplays", ("pcie_replay_count", "gpu_metrics:replays"), words="sysfs pcie_replay_count, 10 s"),
    Field("xgmiTxBytesTotal", "gpu_metrics:xgmi_write", high=2**63, words="sysfs gpu_metrics: xgmi_write_data_acc over all links"),
    Field("xgmiRxBytesTotal", "gpu_metrics:xgmi_read", high=2**63, words="sysfs gpu_metrics: xgmi_read_data_acc over all links"),
    *memory_rows(
        "sysfs mem_info_vram_used; an APU: the pool that compute uses, else with mem_info_gtt_used",
        "sysfs mem_info_vram_total; an APU: the pool that compute uses, else with mem_info_gtt_total",
    ),
)
PARTITION_FIELDS = (
    Field("gpu", "busy", "%", words="sysfs gpu_metrics: mean of the partition's gfx_busy_inst"),
    *memory_rows("used_memory of its compute node", "size_in_bytes of its compute node's memory")[:-1],
)
CARDS, PARTITIONS = Table("sysfs", "gpu", FIELDS), Table("sysfs", "gpu", PARTITION_FIELDS)


class Card:
    """Files of a card, shared by its partitions and by all readers, which never read it at the same time.

    Args:
        address: Its PCI address.
        files: Keeps the files open.
        others: Addresses of the driver's other cards.

    Attributes:
        address: Its PCI address.
    """

    def __init__(self, address: str, files: Files, others: Sequence[str] = ()) -> None:
        self.address = address
        self._others = others
        self._base = device_path(address)
        self._files = files
        self._kept: dict[str, KeptFile] = {}
        self._slow: dict[str, object] = {}
        self._link: Mapping[str, object] = {}
        self._compute: int | None = None
        self._sensors: dict[str, str] = {}
        self._due = -math.inf
        self._absent: set[str] = set()
        self._reading = threading.Lock()
        self._latest: tuple[float, gpu_metrics.MetricsTable | Unavailable] = (-math.inf, NO_TABLE)

    def is_awake(self, progress: list[Any]) -> bool:
        """Return whether the card can be read without waking it.

        Raises:
            SourceError: It no longer exists, or its driver released it (``device_lost``).
            DriverGoneError: The driver released all cards.
        """
        # Files of the PCI bus (link, power state) remain after the driver is unloaded, so the driver itself is checked.
        if not is_driven(self.address):
            if read_text(f"{self._base}/vendor") is None:
                raise SourceError(Reason.DEVICE_LOST, f"{self.address} is no longer on the PCI bus", backend="amd")
            raise self._lost(f"{self.address} is no longer driven by its kernel driver")
        # A kernel without power management does not have this file.
        return self._read("power/runtime_status", progress) not in ASLEEP

    def _lost(self, words: str) -> SourceError:
        """Return the error for a card that its driver released: ``DriverGoneError`` if all cards are released, else a lost device."""
        self._due = -math.inf  # a card that returns may have other sensor numbers
        if any(map(is_driven, self._others)):
            return SourceError(Reason.DEVICE_LOST, words, backend="amd")
        return DriverGoneError(Reason.DRIVER_UNAVAILABLE, words, backend="amd")

    def record(self, now: float, unified: bool, progress: list[Any], chosen: Chosen) -> DeviceRecord:
        """Read the files that are due and return the record with all values.

        Args:
            now: Current time.
            unified: Whether the card shares the host's memory.
            progress: List for progress, extended after each file.
            chosen: Where each metric is read. The temperature limits belong to the sensor of ``temp``.

        Raises:
            SourceError: The driver no longer shows any value of the card.
        """
        if now >= self._due:
            self._absent.clear()
            self._sensors = self._labels()
            self._slow = self._read_slow(progress)
            self._link = self._read_link(progress)
            self._compute = compute_memory(self.address) if unified else None
            self._due = now + PACE
        table = self.table(now, progress, anew=True)
        found = {**self._slow, **self._read_files(FAST, FAST_SENSORS, progress)}
        if all(map(_is_lost, found.values())) and (table is NO_TABLE or _is_lost(table)):
            raise self._lost(f"the kernel driver no longer shows {self.address}")
        if isinstance(table, Unavailable):
            found |= {f"gpu_metrics:{cause.lower()}": table for cause in gpu_metrics.BITS}
        else:
            found |= {f"gpu_metrics:{name.lower()}": value for name, value in gpu_metrics.readings(table).items()}
        sensor = chosen.get("temp", ("", "hwmon:edge" if "hwmon:edge" in found else "hwmon:junction"))[1]
        found |= {f"hwmon:{limit}": found.get(f"{sensor}_{limit}") for limit in ("crit", "emergency")}
        # Each stack of HBM may have a sensor. The hottest one is the memory's temperature.
        stacks = [number(reading) for place, reading in found.items() if _STACK.fullmatch(place)]
        found["hwmon:hbm"] = max((degrees for degrees in stacks if not isinstance(degrees, Unavailable)), default=None)
        memory = device_memory(found.get, unified, "mem_info_{}_used", "mem_info_{}_total", compute=self._compute)
        return DeviceRecord({**found, **self._link, **memory})

    def partition(self, node: TopologyNode, now: float, progress: list[Any]) -> DeviceRecord:
        """Read a partition: its memory, and the mean utilisation of its compute dies."""
        used = read_text(f"{node.path}/mem_banks/0/used_memory")
        progress.append(node.path)
        table = self.table(now, progress)
        busy = table if isinstance(table, Unavailable) else table.get(gpu_metrics.BUSY.format(node.partition))
        mean = sum(busy) / len(busy) if busy and not isinstance(busy, Unavailable) else busy
        values = {"busy": mean, "used_memory": used, "size_in_bytes": node.memory}
        return DeviceRecord({**values, **device_memory(values.get, False, "used_memory", "size_in_bytes")})

    def clocks(self, progress: list[Any]) -> SupportedClocks | Unavailable:
        """Return the levels of the card's clocks."""
        texts = [self._read(name, progress) for name in ("pp_dpm_sclk", "pp_dpm_mclk")]
        graphics, memory = (_CLOCK.findall(each) if isinstance(each, str) else [] for each in texts)
        # Since Navi, and on Instincts, the core clock is a range: its two ends and, marked and between them, the
        # current clock if it is neither (`smu_v11_0`, `smu_v13_0`). The current clock is no level.
        if len(graphics) == 3 and graphics[1][1]:
            del graphics[1]
        if not graphics and not memory:
            return next((each for each in texts if isinstance(each, Unavailable)), NO_LEVELS)
        memory_mhz, graphics_mhz = (tuple(sorted({int(clock) for clock, _ in levels}, reverse=True)) for levels in (memory, graphics))
        return SupportedClocks(memory_mhz, graphics_mhz)

    def table(self, now: float, progress: list[Any], anew: bool = False) -> gpu_metrics.MetricsTable | Unavailable:
        """Return ``gpu_metrics``, or why there is none. Values of one moment share a reading unless the caller wants a new one."""
        # Partitions of one card are separate units, so several workers may come here at once.
        with self._reading:
            if anew or not 0 <= now - self._latest[0] < TOGETHER:
                data = self._bytes("gpu_metrics", progress)
                self._latest = (now, gpu_metrics.parse(data) if isinstance(data, bytes) else data or NO_TABLE)
            return self._latest[1]

    def _read_files(self, names: Iterable[str], sensors: re.Pattern[str], progress: list[Any]) -> dict[str, object]:
        paths = {name: name for name in names}
        paths |= {place: path for place, path in self._sensors.items() if sensors.fullmatch(path.rpartition("/")[2])}
        return {place: content for place, path in paths.items() if (content := self._read(path, progress)) is not None}

    def _read_slow(self, progress: list[Any]) -> dict[str, object]:
        found = self._read_files(SLOW, SLOW_SENSORS, progress)
        for name in ("pp_dpm_sclk", "pp_dpm_mclk"):
            printed = self._read(name, progress)
            if isinstance(printed, Unavailable):
                found |= {f"{name}:active": printed, f"{name}:top": printed}
            # The active level may be the sleep level (`S`).
            levels = [(int(frequency) * 1_000_000, mark) for frequency, mark in _LEVEL.findall(printed)] if isinstance(printed, str) else []
            found |= {f"{name}:active": hertz for hertz, mark in levels if mark}
            if levels:
                found[f"{name}:top"] = max(levels)[0]
        return found | self._read_errors(progress)

    def _read_errors(self, progress: list[Any]) -> dict[str, object]:
        """Return the sums of the error counts over the blocks that count errors."""
        files = [file for file in list_directory(f"{self._base}/ras") if file.endswith("_err_count")]
        printed = self._read("ras/features", progress) if files else None
        mask = _FEATURES.match(printed) if isinstance(printed, str) else None
        enabled = int(mask[1], 16) if mask else None
        if enabled == 0:
            off = Unavailable(Reason.NOT_SUPPORTED, "ras/features is 0: the card counts no errors")
            return {"ras:ce": off, "ras:ue": off}
        counts = Counter[str]()
        for file in files:
            block = file.removesuffix("_err_count")
            # The driver has a file for every block it knows. Counts of disabled blocks are left over from before they
            # were disabled, so they are left out, as in AMD's library.
            if enabled is None or (block in _BLOCKS and enabled >> _BLOCKS.index(block) & 1):
                printed = self._read(f"ras/{file}", progress)
                if isinstance(printed, Unavailable):
                    return {"ras:ce": printed, "ras:ue": printed}
                for kind, count in _RAS.findall(printed or ""):
                    counts[f"ras:{kind}"] += int(count)
        return dict(counts)

    def _read_link(self, progress: list[Any]) -> Mapping[str, object]:
        """Return the link to the slot: that of the outermost bridge, else from the driver's table of levels, else the card's own."""
        # Cards since Navi contain a PCIe switch. The card's own link is the one inside the card, which is always at its
        # best.
        port = outermost(self.address)
        printed = self._read("pp_dpm_pcie", progress) if port is None else None
        levels = _PCIE_LEVEL.findall(printed) if isinstance(printed, str) else ()
        if not levels:
            return {file: read_text(f"{device_path(port or self.address)}/{file}") for file in LINK}
        # Several levels may be marked as active if they are the same link at different clocks.
        now, top = {(speed, width) for speed, width, mark in levels if mark}, max((float(speed), int(width)) for speed, width, _ in levels)
        return dict(zip(LINK, (*(now.pop() if len(now) == 1 else (None, None)), *top), strict=True))

    def _labels(self) -> dict[str, str]:
        """Return the paths of the card's sensor files by label: ``hwmon:edge`` is ``hwmon/hwmon3/temp1_input``."""
        found: dict[str, str] = {}
        for directory in list_directory(f"{self._base}/hwmon"):
            for file in list_directory(f"{self._base}/hwmon/{directory}"):
                if not (FAST_SENSORS.fullmatch(file) or SLOW_SENSORS.fullmatch(file)):
                    continue
                # A sensor file and its limits share the sensor's label.
                sensor, _, what = file.partition("_")
                label = file
                if sensor.startswith(("temp", "freq")):
                    label = read_text(f"{self._base}/hwmon/{directory}/{sensor}_label") or UNLABELLED.get(sensor, sensor)
                    label = label if what == "input" else f"{label}_{what}"
                found.setdefault(f"hwmon:{label.lower()}", f"hwmon/{directory}/{file}")
        return found

    def _read(self, name: str, progress: list[Any]) -> str | Unavailable | None:
        data = self._bytes(name, progress)
        return data.decode("utf-8", "replace").strip() if isinstance(data, bytes) else data

    def _bytes(self, name: str, progress: list[Any]) -> bytes | Unavailable | None:
        """Return a file's content, or why it cannot be read; None if the file does not exist."""
        if name in self._absent:
            return None
        if name not in self._kept:
            self._kept[name] = self._files.keep(f"{self._base}/{name}")
        try:
            return self._kept[name].read()
        except (FileNotFoundError, NotADirectoryError):
            # A card has a third of the files. Looking for the others at every reading costs as much as reading these.
            self._absent.add(name)
            return None
        except OSError as error:
            reason, words = ERRORS.get(error.errno or 0, (Reason.DRIVER_ERROR, error.strerror or str(error)))
            return Unavailable(reason, f"{name}: {words}")
        finally:
            progress.append(name)


def _is_lost(value: object) -> bool:
    return isinstance(value, Unavailable) and value.reason == Reason.DEVICE_LOST


def outermost(address: str) -> str | None:
    """Return the address of the outermost bridge of the card; the card's own without one; None if nothing above it can be read."""
    try:
        parents = system_path(device_path(address)).resolve().parents
    except (OSError, RuntimeError):  # links form a loop
        return None
    found = None
    for parent in parents:
        base = device_path(parent.name)
        vendor = read_text(f"{base}/vendor")
        if vendor not in MAKERS or not (read_text(f"{base}/class") or "").startswith(BRIDGE):
            return found if found or vendor is None else address
        found = parent.name
    return found


# Identity, read without waking a card


def identify(position: int, address: str, nodes: Iterable[TopologyNode]) -> DeviceIdentity:
    """Return the identity of a card.

    Args:
        position: Its position among the cards, ordered by address.
        address: Its PCI address.
        nodes: GPUs of the compute driver's topology.
    """

    def read(file: str) -> str:
        return text(read_text(f"{device_path(address)}/{file}"))

    maker, unified = MAKERS.get(read("vendor"), AMD), bool(is_integrated(address))
    unique_id, serial = read("unique_id").lower().removeprefix("0x"), read("serial_number")
    memory = None
    # A sleeping card is not read. `InProcessDriver.identify_awake` adds its memory later.
    if not is_asleep(address):
        compute = compute_memory(address) if unified else None
        memory = device_memory(read, unified, "mem_info_{}_used", "mem_info_{}_total", compute=compute)[TOTAL]
    return DeviceIdentity(
        kind="gpu",
        vendor=maker.name,
        vendor_index=position,
        name=read("product_name") or card_name(read("device"), read("revision"), maker.brand),
        uuid=f"0x{unique_id}" if unique_id.strip("0") else "",
        pci_bus_id=address,
        serial=serial if serial.strip("0x") else "",
        architecture=next((node.architecture for node in nodes if node.address == address), ""),
        # Only a driver that was installed separately has a version; the kernel's own has none.
        driver_version=read_text(f"/sys/module/{link_name(f'{device_path(address)}/driver')}/version") or "",
        firmware=read("vbios_version"),
        part_number=read("product_number"),
        memory_total_bytes=memory if isinstance(memory, int) else None,
        unified=unified,
    )


def pools(address: str) -> tuple[str, ...]:
    """Return the memory pools that a GPU uses which shares the host's memory."""
    totals = {kind: number(read_text(f"{device_path(address)}/mem_info_{kind}_total"), "B", "B") for kind in ("vram", "gtt")}
    return compute_pools(totals, compute_memory(address))


def partition(parent: DeviceIdentity, node: TopologyNode) -> DeviceIdentity:
    """Return the identity of a partition of a card."""
    mode = text(read_text(f"{device_path(node.address)}/current_compute_partition"))
    return parent._replace(
        vendor_index=node.partition,
        name=f"{parent.name} ({f'{mode} ' if mode else ''}partition {node.partition})",
        uuid=f"{parent.anchor}/xcp{node.partition}",
        serial="",
        architecture=node.architecture,
        memory_total_bytes=node.memory,
        parent=parent.anchor,
    )


# The driver

SYSFS, AMDSMI = "sysfs", "amdsmi"
RELIST = 30.0
"""Seconds between two searches for new cards. A search reads the whole PCI bus."""
SLEEPS = "{} is powered down, and reading it would wake it"
OF_PARTITION = Unavailable(Reason.NOT_SUPPORTED, "a partition has none of its own: see those of its card")
NO_ANSWER = Unavailable(Reason.NOT_SUPPORTED, "amdsmi gives nothing")
KEYS = DrmKeys({"compute": ("compute",), "graphics": ("gfx",)}, (("vram",),))
"""The driver's names of engines and memory. An APU's memory is counted in the pools of the device."""
FIRST_OPENING, LATER_OPENING = 4.0, 0.4
"""Seconds to wait for the module if there are files too: when the driver is opened, and during a reading."""


class DriverUnit:
    """A device of the driver.

    Attributes:
        identity: Its identity.
        card: Its files, or the files of the card that it is a partition of.
        library: The card in the module, if the module is open; on its own thread if the files are read too.
        node: The partition; None for a whole card.
        table: The rows that are read.
        chosen: Where each metric was read first. It keeps this place until the driver is opened again or the card returns.
    """

    def __init__(self, identity: DeviceIdentity, card: Card, node: TopologyNode | None = None) -> None:
        self.identity = identity
        self.card = card
        self.library: AmdsmiCard | None = None
        self.node = node
        self.table: Table = CARDS if node is None else PARTITIONS
        self.unsure = node is None and identity.memory_total_bytes is None
        self.chosen: Chosen = {}


class InProcessDriver:
    """The open source.

    Args:
        clock: Clock for intervals.
        sources: The sources to use. If there are two, one of them may fail to open.
        maker: The maker of the cards.

    Attributes:
        failure: Why the module is not used, or not yet.

    Raises:
        SourceError: There is no card, or the only source cannot be opened.
    """

    machine_wide = False
    interval = 0.0

    def __init__(self, clock: Clock = SYSTEM_CLOCK, sources: Sequence[str] = (SYSFS, AMDSMI), maker: Maker = AMD) -> None:
        self.clock = clock
        self._maker = maker
        self._files = Files()
        self._listed = _list(maker)
        self._addresses = sorted(self._listed)
        self._trust = Trust()
        self._library: Mapping[str, AmdsmiCard] = {}
        self.units: list[DriverUnit] = []
        if not self._addresses:
            raise SourceError(Reason.DRIVER_UNAVAILABLE, f"no GPU is driven by {' or '.join(maker.drivers)} here", backend=maker.name)
        nodes = gpu_nodes()
        for position, address in enumerate(self._addresses):
            card = Card(address, self._files, [other for other in self._addresses if other != address])
            identity = identify(position, address, nodes)
            parts = [node for node in nodes if node.address == address]
            self.units += [DriverUnit(identity, card, node) for node in (None, *(parts if len(parts) > 1 else ()))]
        shown = any(exists(f"{device_path(address)}/{name}") for address in self._addresses for name in SHOWN)
        self.with_files = SYSFS in sources and shown
        self._attempt: Attempt | None = None
        self.failure = self._open_library(FIRST_OPENING) if AMDSMI in sources else None
        if not self.with_files and not self._library:
            if SYSFS not in sources and self.failure is not None:
                raise self.failure
            words = f"the kernel driver's files are not visible here: {', '.join(self._addresses)}"
            advice = "" if self.failure is None else self.failure.advice
            raise SourceError(Reason.DRIVER_UNAVAILABLE, "; ".join(filter(None, (words, self.remark))), backend=maker.name, advice=advice)
        self._name_units()
        self.devices: Sequence[DeviceIdentity] = tuple(unit.identity for unit in self.units)
        self._relist_at = clock.monotonic() + RELIST
        self._relist_lock = threading.Lock()
        shared = {unit.card.address: pools(unit.card.address) for unit in self.units if unit.identity.unified}
        self.processes = DrmClients(KEYS, shared, clock=clock)

    @property
    def source(self) -> str:
        return "+".join(name for name, used in ((SYSFS, self.with_files), (AMDSMI, self._library)) if used)

    @property
    def remark(self) -> str:
        """A remark for ``doctor``: why ``amdsmi`` is not used, or that it hangs; empty if all is well."""
        if self.failure is not None:
            return f"amdsmi is not used: {self.failure.message}"
        return OVERDUE.detail if any(card.hangs for card in self._library.values()) else ""

    def reader(self, options: ReadOptions) -> InProcessReader:
        return InProcessReader(self, options)

    def details(self, unit: int, progress: list[Any]) -> Details:
        device = self.units[unit]
        if not device.card.is_awake(progress):
            raise SourceError(Reason.SUSPENDED, SLEEPS.format(device.card.address), backend=self._maker.name)
        if device.node is not None:
            return Details(OF_PARTITION, OF_PARTITION)
        return Details(xgmi_links(device.card.address), device.card.clocks(progress))

    def close(self) -> None:
        self._files.close()
        for card in self._library.values():
            card.close()

    def _open_library(self, seconds: float) -> SourceError | None:
        """Open the module and assign its cards to the units.

        Args:
            seconds: How long to wait for it if the files are read too.

        Returns:
            Why it cannot be opened, or is not open yet; None if it is open.
        """
        try:
            if self.with_files:
                # A second attempt would hang at the same place.
                if self._attempt is None and ATTEMPTS:
                    raise SourceError(Reason.TIMED_OUT, "an earlier attempt to open it has not returned", backend="amd")
                self._attempt = self._attempt or Attempt(self._addresses)
                self._library = self._attempt.cards(seconds)
            else:
                self._library = open_cards(self._addresses)
        except SourceError as error:
            return error.with_traceback(None)  # its frames would keep this driver alive
        finally:
            if self._attempt is not None and self._attempt.outcome is not None:
                self._attempt = None
        for unit in self.units:
            # The module knows whole cards only. With files, it is called on a thread, so that a call that hangs delays
            # no file.
            unit.library = self._library.get(unit.card.address) if unit.node is None else None
            if unit.library is not None and self.with_files:
                unit.library.use_thread(self._trust)
        return None

    def _name_units(self) -> None:
        """Set the UUIDs: from the files, else from the module. Set the identities of partitions from their card's."""
        cards = {unit.card.address: unit for unit in self.units if unit.node is None}
        known = {address: card.uuid for address, card in self._library.items()}
        uuids = {address: card.identity.uuid or known.get(address, "") for address, card in cards.items()}
        ids = Counter(uuids.values())
        for address, card in cards.items():  # an id of two cards identifies neither
            card.identity = card.identity._replace(uuid=uuids[address] if ids[uuids[address]] == 1 else "")
        for unit in self.units:
            if unit.node is not None:
                unit.identity = partition(cards[unit.card.address].identity, unit.node)

    def relist(self, now: float) -> None:
        """Search for new cards and partitions every :data:`RELIST` seconds, and use the module when it has been opened.

        Raises:
            DriverGoneError: There are new cards or partitions, so the driver must be opened again. A missing card only gets lost.
        """
        opened = self._attempt is not None and self._attempt.outcome is not None
        # Only one reader searches at a time. The others do not wait for it.
        if (now < self._relist_at and not opened) or not self._relist_lock.acquire(blocking=False):
            return
        try:
            if opened:
                self.failure = self._open_library(0.0)
                return
            self._relist_at = now + RELIST
            if any(partitions != self._listed.get(address) for address, partitions in _list(self._maker).items()):
                raise DriverGoneError(
                    Reason.DRIVER_UNAVAILABLE, "there are new cards or partitions: the driver is opened again", backend=self._maker.name
                )
            # The module was not opened because a card slept, or because an earlier attempt took too long.
            if self.failure is not None and self.failure.reason in (Reason.SUSPENDED, Reason.TIMED_OUT):
                self.failure = self._open_library(LATER_OPENING)
        finally:
            self._relist_lock.release()

    def identify_awake(self, unit: DriverUnit) -> None:
        """Complete the identity of a card that slept when it was listed: its memory, and whether the memory is the host's."""
        found = identify(unit.identity.vendor_index, unit.card.address, gpu_nodes())
        unit.identity = found._replace(uuid=unit.identity.uuid)
        unit.unsure = False
        if unit.identity.unified:
            self.processes.pools[unit.card.address] = pools(unit.card.address)
        devices = tuple(each.identity for each in self.units)
        if devices != self.devices:
            self.devices = devices


def _list(maker: Maker) -> dict[str, frozenset[int]]:
    """Return the cards with values in the kernel's files, each with the numbers of its partitions."""
    nodes = gpu_nodes()
    return {address: frozenset(node.partition for node in nodes if node.address == address) for address in filter(is_driven, gpus(maker))}


class InProcessReader:
    """A consumer's view: the last counters for its rates, and its needs from the module and of processes."""

    def __init__(self, driver: InProcessDriver, options: ReadOptions) -> None:
        self._driver = driver
        # GPU memory and engine time always cover the whole process tree, so `options.children` has no effect.
        self._tree = ProcessTree(options.pid)
        self._counters: dict[int, Counters] = {}
        metrics = options.metrics
        of_process = any(metrics.wants_some(f"gpu.process.{{i}}.{name}") for name in coverage_of("amd")["processes"])
        self._lists = of_process or metrics.processes
        self._needed = CARDS.needed(
            lambda name: of_process or metrics.wants_some(f"gpu.{{i}}.{name}") or metrics.wants_some(f"gpu.{{i}}.mig.{{i}}.{name}")
        )

    def read(self, unit: int, progress: list[Any]) -> Reading:
        driver = self._driver
        if not self._needed and not self._lists:
            return Reading(processes=NOT_NEEDED)
        now = driver.clock.monotonic()
        driver.relist(now)
        device = driver.units[unit]
        counters = self._counters.setdefault(unit, {})
        card, table = device.card, device.table
        try:
            awake = card.is_awake(progress)
        except SourceError:
            device.chosen.clear()  # a card that returns may have other files
            raise
        if not awake:
            return make_reading(dict.fromkeys(table.words, Unavailable(Reason.SUSPENDED, SLEEPS.format(card.address))))
        processes: Processes = None
        used = None
        if device.node is not None:
            found = table.read(card.partition(device.node, now, progress), counters, now, chosen=device.chosen)
            table.derive(found, device.chosen)
        else:
            if device.unsure:
                driver.identify_awake(device)
            found = self._card(device, now, counters, progress)
            table.derive(found, device.chosen)
            processes = driver.processes.on(card.address, progress) if self._lists else NOT_NEEDED
            owned = [each for each in processes if self._tree.owns(each.pid, now)] if not isinstance(processes, Unavailable) else []
            used = process_values("gpu", owned, found) if owned else None
        return make_reading({name: value for metric, value in found.items() for name in table.names(metric)}, processes, used=used)

    def _card(self, unit: DriverUnit, now: float, counters: Counters, progress: list[Any]) -> dict[str, Value]:
        """Return the values of a card: from the files, and from the module if the files have none."""
        driver, library, unified = self._driver, unit.library, unit.identity.unified
        found: dict[str, Value] = {}
        if driver.with_files:
            found = CARDS.read(unit.card.record(now, unified, progress, unit.chosen), counters, now, chosen=unit.chosen)
        # A metric keeps its source. If the files miss a value for a moment, the module does not replace it, nor the other way round.
        wanted = {name for name in METRICS & self._needed if unit.chosen.get(name, (AMDSMI,))[0] == AMDSMI}
        if library is None or not wanted:
            failure = driver.failure
            is_late = driver.with_files and failure is not None and failure.reason == Reason.TIMED_OUT
            return {**found, **dict.fromkeys(wanted, failure.unavailable)} if failure is not None and is_late else found
        # Metrics that the module gave before stay the module's even if it fails now.
        owned = {name: NO_ANSWER for name in wanted if name in unit.chosen}
        try:
            answers = library.read(wanted, unified, progress, unit.chosen)
        except SourceError as error:
            if not driver.with_files:
                raise
            # The library no longer finds a card that the kernel still shows, so the files are used.
            return {**dict.fromkeys(owned, error.unavailable), **found}
        if not driver.with_files:
            return answers
        better = {name: value for name, value in answers.items() if not isinstance(value, Unavailable) or name in owned or value is OVERDUE}
        return {**owned, **found, **better}
