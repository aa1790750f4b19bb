"""Intel GPUs (integrated, Arc, Flex, Max), through the files of the kernel drivers ``i915`` and ``xe``, which any user may read.

Reading wakes no device. The use of the GPU by each process is in the ``fdinfo`` files of the process. Root can read those of all processes,
and so their sum; a user only his own. If not all are readable, ``gpu`` is the share of time in which the GT of render and compute was
awake. This is more than the time in which its engines worked, since the GT falls asleep some time after its work ends. No file has the
memory of a card. The driver is asked for it through the card's render node, which is opened for a moment while the card is awake.

- Energy is the card's. If its counter is missing or stays 0 (B580, Linux 6.16), energy is the package's.
- A discrete card shows its internal link, 2.5 GT/s with one lane. The link to the slot is that of the switch on the card.
- A clock of 0 means that the GT is asleep.

``xpu-smi`` is used only if it is pinned, for example by ``verify``: it opens the cards, and a run takes a second or more.

The layout is that of the drivers' sources and of published trees of A380, B580, Comet Lake and Tiger Lake.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import time
from collections.abc import Iterable, Mapping
from math import inf
from typing import Any

from accelmetrics.backends.contract import Number
from accelmetrics.backends.kit import (
    MEMORY,
    POWER_SHARE,
    Command,
    Derived,
    DeviceDirectory,
    DrmKeys,
    Field,
    PolledBackend,
    Query,
    Rate,
    Row,
    Source,
    SourcesBackend,
    directories,
    each_device,
    json_document,
    pcie_generation,
    rows,
    text,
)
from accelmetrics.backends.kit.parsing import parsed
from accelmetrics.backends.kit.system import is_asleep, link_name, list_directory, reason_of, sysroot
from accelmetrics.schemas.errors import Reason, Unavailable

INTEGRATED = "0000:00:02.0"
"""PCI address of the GPU in every Intel processor that has one."""
MODELS = {
    **{"56a0": "Arc A770", "56a1": "Arc A750", "56a2": "Arc A580", "56a5": "Arc A380", "56a6": "Arc A310"},
    **{"5690": "Arc A770M", "5691": "Arc A730M", "5692": "Arc A550M", "5693": "Arc A370M", "5694": "Arc A350M"},
    **{"56b0": "Arc Pro A30M", "56b1": "Arc Pro A40/A50", "56b2": "Arc Pro A60M", "56b3": "Arc Pro A60"},
    **{"e20b": "Arc B580", "e20c": "Arc B570", "e211": "Arc Pro B60", "e212": "Arc Pro B50", "e223": "Arc Pro B70"},
    **{"56c0": "Data Center GPU Flex 170", "56c1": "Data Center GPU Flex 140", "0b69": "Data Center GPU Max 1450"},
    **dict.fromkeys(("0bd5", "0bd6"), "Data Center GPU Max 1550"),
    **dict.fromkeys(("0bd9", "0bda", "0bdb"), "Data Center GPU Max 1100"),
}
"""Names by PCI device id. Integrated GPUs are left out, since they have too many names."""
HWMON = "device/hwmon/hwmon"
XE, ANY = f"{HWMON}[name=xe]", f"{HWMON}[name=*]"
# A tile has a GT for render and compute (`rc`) and one for media (`mc`).
GT, MEDIA = "device/tile0/gt[gtidle/name=*-rc]", "device/tile0/gt[gtidle/name=*-mc]"
SLOT = ("device/../../[device=0x4fa?]", "device/../../[device=0xe2ff]", "device/[device=0x0b??]")
"""Switch of an Arc A or Flex, and of an Arc B. A Max has none."""
ENERGY = (f"{XE}/energy[_label=card]_input", f"{XE}/energy[_label=pkg]_input", f"{ANY}/energy1_input")
LIMIT = tuple(f"{XE}/power[_label={part}]_{limit}" for limit in ("max", "cap") for part in ("card", "pkg"))
IDLE = (f"{GT}/gtidle/idle_residency_ms", "gt/gt0/[rc6_enable=1]/rc6_residency_ms", "power/[rc6_enable=1]/rc6_residency_ms")
# i915 names engines by their class (`render`), xe by a short name (`rcs`).
ENGINES = ("render", "rcs", "compute", "ccs", "copy", "bcs", "video", "vcs", "video-enhance", "vecs")
KEYS = DrmKeys(
    {"graphics": ENGINES[:2], "compute": ENGINES[2:4], "busy": ENGINES},
    (("local0", "local1", "vram0", "vram1"), ("system0", "system", "gtt")),
)


def awake(idle: Number, residency: Number, asleep: Number) -> Number:
    """Return the percentage of time in which the GT was awake.

    Args:
        idle: Share of time in which it slept.
        residency: Total time for which it has slept. It stays 0 if sleep is disabled; then the result is unknown.
        asleep: Whether it sleeps now.
    """
    # The counter of some GPUs stands still until they wake up. So a sleeping GT with a constant counter was asleep all
    # the time.
    return 0 if asleep and not idle else 100 * max(0, 1 - idle) / min(1, residency)


def throttle(metric: str, *reasons: str) -> tuple[Row, ...]:
    """Return the rows of one cause of low clocks, for which the drivers may have several reasons."""
    places = {name: (f"{GT}/freq0/throttle/reason_{name}", f"gt/gt0/throttle_reason_{name}") for name in reasons}
    rows = (Field(f"_{name}", where) for name, where in places.items())
    words = f"sysfs freq0/throttle/reason_{', '.join(reasons)}"
    return (*rows, Derived(metric, tuple(f"_{name}" for name in reasons), lambda *flags: max(flags), words))


FIELDS = (
    Field("gpu", "@clients.busy", "%", words="the busiest class of engines, drm-engine-* or drm-cycles-* of all in /proc/*/fdinfo"),
    Rate("_idle", IDLE, "ms"),
    Field("_residency", IDLE, "ms"),
    Field("_asleep", (f"{GT}/gtidle/idle_status", *IDLE[1:]), convert=lambda printed: int(printed == "gt-c6")),
    Derived("gpu", ("_idle", "_residency", "_asleep"), awake, "time awake: 1 - rise of gtidle/idle_residency_ms or rc6_residency_ms"),
    Rate("powerWatts", ENERGY, "uJ", zero_is_missing=True, words="sysfs hwmon, rise of energy*_input of the card, else of the package"),
    Field("energyJoules", ENERGY, "uJ", words="sysfs hwmon, energy*_input of the card, else of the package"),
    Field("enforcedPowerLimitWatts", (*LIMIT[:2], f"{ANY}/power1_max", *LIMIT[2:]), "uW", words="sysfs hwmon, power*_max, else power*_cap"),
    POWER_SHARE,
    Field("temp", (f"{XE}/temp[_label=pkg]_input", f"{HWMON}[name=i915]/temp1_input"), "mC", words="sysfs hwmon, temp*_input, pkg"),
    Field("memoryTemp", f"{XE}/temp[_label=vram]_input", "mC", words="sysfs hwmon, temp*_input, vram"),
    Field("tempLimit.slowdown", f"{XE}/temp[_label=pkg]_crit", "mC", words="sysfs hwmon, temp*_crit, pkg"),
    Field("tempLimit.shutdown", f"{XE}/temp[_label=pkg]_emergency", "mC", words="sysfs hwmon, temp*_emergency, pkg"),
    Field("fanSpeedRpm", f"{ANY}/fan1_input", words="sysfs hwmon, fan1_input"),
    *(
        Field(metric, (*xe, *i915), "MHz", zero_is_missing=True, words=f"sysfs {xe[0].rpartition(']/')[2]}, else {i915[0]}")
        for metric, xe, i915 in (
            ("smClock", (f"{GT}/freq0/act_freq", "device/tile0/gt0/freq0/act_freq"), ("gt/gt0/rps_act_freq_mhz", "gt_act_freq_mhz")),
            ("maxSmClock", (f"{GT}/freq0/rp0_freq", "device/tile0/gt0/freq0/rp0_freq"), ("gt/gt0/rps_RP0_freq_mhz", "gt_RP0_freq_mhz")),
            ("videoClock", (f"{MEDIA}/freq0/act_freq",), ("gt/gt1/rps_act_freq_mhz",)),
            ("maxVideoClock", (f"{MEDIA}/freq0/rp0_freq",), ("gt/gt1/rps_RP0_freq_mhz", "gt/gt0/media_RP0_freq_mhz")),
        )
    ),
    Field("throttled", (f"{GT}/freq0/throttle/status", "gt/gt0/throttle_reason_status"), words="sysfs freq0/throttle/status"),
    *throttle("throttle.swPowerCap", "pl1", "pl2"),
    *throttle("throttle.currentLimit", "pl4", "vr_tdc"),
    *throttle("throttle.swThermalSlowdown", "thermal"),
    *throttle("throttle.hwThermalSlowdown", "prochot", "vr_thermalert"),
    *(
        Field(metric, tuple(f"{port}/{file}" for port in SLOT), convert=convert, words=f"sysfs {file} of the link to the slot")
        for metric, file, convert in (
            ("pcieLinkGen", "current_link_speed", pcie_generation),
            ("pcieLinkWidth", "current_link_width", None),
            ("maxPcieLinkGen", "max_link_speed", pcie_generation),
            ("maxPcieLinkWidth", "max_link_width", None),
        )
    ),
    Field(
        "memoryAllocatedBytes",
        ("vram.used", "@clients.memory"),
        "B",
        words="DRM_IOCTL_XE_DEVICE_QUERY, DRM_IOCTL_I915_QUERY; else drm-resident-* or drm-total-* of all in /proc/*/fdinfo",
    ),
    Field(
        "memoryTotalBytes",
        ("lmem_total_bytes", "device/tile0/vram0/total_bytes", "vram.total"),
        "B",
        words="DRM_IOCTL_XE_DEVICE_QUERY, DRM_IOCTL_I915_QUERY",
    ),
    *MEMORY,
)
IDENTITY = {"pci_bus_id": "@pci", "name": "model", "unified": "integrated"}


XE_QUERY, I915_QUERY = 0xC0286440, 0xC0106479
"""Numbers of ``DRM_IOCTL_XE_DEVICE_QUERY`` and ``DRM_IOCTL_I915_QUERY``."""
XE_REGIONS, I915_REGIONS = 1, 4
"""Query for memory regions of each driver."""
REGION, REGION_SIZE, OF_DEVICE = struct.Struct("@HHIQQ"), 88, 1
"""Layout of a region: its class, its number, its size, and the bytes in use (``xe``) or free (``i915``); the size of its struct; and the
class of a card's own memory.
"""
MOST_BYTES = 1 << 16
SHARED = Unavailable(Reason.NOT_SUPPORTED, "the GPU has no memory of its own: it shares the host's")


def _ask_xe(fd: int, answer: Any, size: int) -> int:
    """Ask ``xe`` for the regions. Return the length of the answer."""
    from fcntl import ioctl  # missing on Windows

    # struct drm_xe_device_query: extensions, query, size, address of the answer, reserved
    question = bytearray(struct.pack("@QIIQ2Q", 0, XE_REGIONS, size, ctypes.addressof(answer), 0, 0))
    ioctl(fd, XE_QUERY, question)
    return int(struct.unpack_from("@I", question, 12)[0])


def _ask_i915(fd: int, answer: Any, size: int) -> int:
    """Ask ``i915`` for the regions. Return the length of the answer."""
    from fcntl import ioctl

    # struct drm_i915_query_item: query, length, flags, address of the answer
    item = ctypes.create_string_buffer(struct.pack("@QiIQ", I915_REGIONS, size, 0, ctypes.addressof(answer)), 24)
    # struct drm_i915_query: number of items, flags, address of the items
    ioctl(fd, I915_QUERY, bytearray(struct.pack("@IIQ", 1, 0, ctypes.addressof(item))))
    return int(struct.unpack_from("@i", item, 8)[0])


def card_memory(node: str, driver: str) -> tuple[int, int]:
    """Return the memory of a card in bytes, and its part in use; 0 if this user may not read it.

    Raises:
        OSError: The render node cannot be opened, or the driver refuses.
    """
    ask, head = (_ask_xe, 8) if driver == "xe" else (_ask_i915, 16)
    fd = os.open(sysroot() + node, os.O_RDWR | os.O_CLOEXEC)
    try:
        # A query with size 0 returns the size that the answer needs.
        size = ask(fd, ctypes.create_string_buffer(1), 0)
        if not head <= size <= MOST_BYTES:
            raise OSError(errno.EOPNOTSUPP, "the driver lists no regions of memory")
        answer = ctypes.create_string_buffer(size)
        ask(fd, answer, size)
    finally:
        os.close(fd)
    (count,) = struct.unpack_from("@I", answer)
    regions = [REGION.unpack_from(answer, head + REGION_SIZE * each) for each in range(min(count, (size - head) // REGION_SIZE))]
    own = [(all_, all_ - rest if driver == "i915" else rest) for kind, _, _, all_, rest in regions if kind == OF_DEVICE]
    return sum(all_ for all_, _ in own), sum(used for _, used in own)


class Card(DeviceDirectory):
    """Files of a card, extended by its name, its memory, and whether it is part of the processor."""

    _memory: tuple[object, object] = (None, None)
    _valid_until = -inf
    """Time until which the memory is not read again, on the monotonic clock."""

    def _query_memory(self) -> tuple[object, object]:
        """Return the card's memory and its part in use. Read once a second, or only once if the part in use is unknown."""
        now = time.monotonic()
        if now >= self._valid_until:
            self._memory, self._valid_until = (None, None), now + 1.0
            names = [name for name in list_directory(f"{self.path}/device/drm") if name.startswith("renderD")]
            address = str(super().get("@pci"))
            if address == INTEGRATED:
                self._memory, self._valid_until = (SHARED, None), inf
            # Opening the render node would wake the card.
            elif names and not is_asleep(address):
                try:
                    size, used = card_memory(f"/dev/dri/{names[0]}", link_name(f"{self.path}/device/driver"))
                    # Without rights the driver reports 0 bytes in use. This does not change, so the total is read only
                    # once.
                    self._memory, self._valid_until = (size or SHARED, used or None), self._valid_until if used else inf
                except OSError as error:
                    self._memory = reason_of(error, f"/dev/dri/{names[0]}"), None
        return self._memory

    def get(self, place: str) -> object:
        """Return the value at a place. ``model`` is the card's name, ``integrated`` whether it is part of the processor."""
        if place.startswith("vram."):
            return self._query_memory()[place == "vram.used"]
        if place not in ("model", "integrated"):
            return super().get(place)
        number = text(super().get("device/device"))
        # Only a discrete card has sensors, so a device with sensors is discrete even at this address.
        integrated = super().get("@pci") == INTEGRATED and super().get(f"{ANY}/name") is None
        model = MODELS.get(number.removeprefix("0x"), f"{'Graphics' if integrated else 'GPU'} ({number})")
        return f"Intel {model}" if place == "model" else integrated


FDINFO = "in /proc/*/fdinfo, 1 s"
SYSFS = PolledBackend(
    "intel",
    kind="gpu",
    source="sysfs",
    connect=directories("/sys/class/drm/card*", drivers=("i915", "xe"), clients=KEYS, record=Card),
    fields=FIELDS,
    identity=IDENTITY,
    processes={
        "gpu": f"drm-engine-* or drm-cycles-* of render and compute {FDINFO}",
        "memoryAllocatedBytes": f"drm-resident-* or drm-total-* {FDINFO}",
        "memoryAllocated": f"drm-resident-* or drm-total-* {FDINFO} / total",
    },
    advice="load the kernel driver: sudo modprobe xe, or i915 for GPUs before Lunar Lake and Battlemage",
)

# The tool. Release 2 is asked for fields by name. The dump of release 1 is read by its column headings, since the numbers of its metrics
# differ between releases.

COMMAND = Command(
    "xpu-smi",
    proof=("-h", r"(?i)\bintel\b"),  # Kunlunxin's tool has the same name
    install="install Intel's xpu-smi (package xpu-smi, formerly xpumanager)",
    timeout=10.0,
)
QUERIED = (
    Field("gpu", "utilization.gpu", "%"),
    Field("memory", "memory.bandwidth.utilization", "%"),
    Field("memoryTotalBytes", "memory.total", "MiB"),
    Field("memoryAllocatedBytes", "memory.used", "MiB"),
    Field("temp", "temperature.gpu", "C"),
    Field("memoryTemp", "temperature.memory", "C"),
    Field("powerWatts", "power.draw", "W"),
    Field("enforcedPowerLimitWatts", "power.limit", "W"),
    Field("energyJoules", "energy.consumed", "J"),
    Field("smClock", "clocks.current.graphics", "MHz", zero_is_missing=True),
    Field("videoClock", "clocks.current.media", "MHz", zero_is_missing=True),
    Field("maxSmClock", "clocks.max.graphics", "MHz"),
    Field("fanSpeed", "fan.speed", "%"),
    Field("correctedEccErrorsAggregate", "ecc.errors.corrected.aggregate.total"),
    Field("uncorrectedEccErrorsAggregate", "ecc.errors.uncorrected.aggregate.total"),
    Field("pcieLinkGen", "pcie.link.gen.current"),
    Field("pcieLinkWidth", "pcie.link.width.current"),
    Field("maxPcieLinkGen", "pcie.link.gen.max"),
    Field("maxPcieLinkWidth", "pcie.link.width.max"),
    Field("pcieTxBytes", "pcie.tx.throughput", "MB/s"),
    Field("pcieRxBytes", "pcie.rx.throughput", "MB/s"),
    Field("pcieReplays", "pcie.replay.counter"),
)
DUMPED = (
    Field("gpu", "GPU Utilization", "%"),
    Field("memory", "GPU Memory Bandwidth Utilization", "%"),
    Field("memoryAllocatedBytes", "GPU Memory Used", "MiB"),
    Field("temp", "GPU Core Temperature", "C"),
    Field("memoryTemp", "GPU Memory Temperature", "C"),
    Field("powerWatts", "GPU Power", "W"),
    Field("smClock", "GPU Frequency", "MHz", zero_is_missing=True),
    Field("pcieRxBytes", "PCIe Read", "kB/s"),  # "read" is traffic to the card, "write" from it, as in release 2
    Field("pcieTxBytes", "PCIe Write", "kB/s"),
)
DISCOVERED = {"vendor_index": "device_id", "pci_bus_id": "pci_bdf_address", "name": "device_name", "uuid": "uuid"}
OF_CARD = ("-d", "{device_id}")


def discovered() -> Iterable[Mapping[str, Any]]:
    """Return the cards that release 1 lists."""
    return list(parsed("xpu-smi", lambda printed: json_document(printed)["device_list"], COMMAND.run("discovery", "-j").stdout))


TOOL = PolledBackend(
    "intel",
    kind="gpu",
    source="xpu-smi",
    connect=Query(
        COMMAND, ("index", "pci.bus_id", "uuid", "name", *(str(row.where) for row in QUERIED)), "--query-gpu={fields}", "--format=csv"
    ),
    fields=(*QUERIED, *MEMORY, POWER_SHARE),
    identity={"vendor_index": "index", "pci_bus_id": "pci.bus_id", "name": "name", "uuid": "uuid"},
    interval=2.0,
    also=(
        Source(
            "xpu-smi dump",
            each_device(COMMAND, discovered, ("dump", *OF_CARD, "-m", "0,1,2,3,4,17,18,19,20", "-n", "1"), rows),
            DUMPED,
            identity=DISCOVERED,
            # Release 1 refuses the query above.
            instead_of="xpu-smi",
        ),
        Source(
            "xpu-smi discovery",
            each_device(COMMAND, discovered, ("discovery", *OF_CARD, "-j"), lambda printed: [json_document(printed)]),
            (Field("memoryTotalBytes", "memory_physical_size_byte", "B"),),
            interval=600.0,
            identity=DISCOVERED,
            instead_of="xpu-smi",
        ),
    ),
    advice="check whether xpu-smi discovery lists any GPU",
)


backend = SourcesBackend("intel", "gpu", {"sysfs": SYSFS, "xpu-smi": TOOL})
