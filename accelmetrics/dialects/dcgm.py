"""``dcgm``: the metrics of dcgm-exporter with its labels, so that dashboards and alerts made for it show devices of any vendor.

Every field of dcgm-exporter's default list (``etc/default-counters.csv`` of 4.5), those that it has commented out among them, is in
``DEFAULT`` with what it is read from, or in ``UNMAPPED`` with the reason why it is left out. ``BEYOND`` are fields of DCGM that the
list does not have and dashboards often do; ``OLDER`` those that it had before, and that are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache

from accelmetrics.dialects.contract import Dialect, Number, Point, series
from accelmetrics.dialects.tables import MEMORY_RESERVED, Computed, DialectRow, DialectTable, Values, parent_and_partition
from accelmetrics.schemas.identity import DeviceIdentity
from accelmetrics.schemas.record import Record
from accelmetrics.schemas.snapshot import DeviceSlot


def _last_xid(values: Values, _: DeviceIdentity) -> Number | None:
    return values.get("lastXid", 0 if values.get("xidErrors") == 0 else None)


def _used_share(values: Values, _: DeviceIdentity) -> Number | None:
    used, free = values.get("memoryAllocatedBytes"), values.get("memoryFreeBytes")
    return used / (used + free) if used is not None and free is not None and used + free else None


_LAST_XID = Computed("lastXid; 0 while xidErrors is 0", "1", _last_xid)
_USED_SHARE = Computed("memoryAllocatedBytes / (memoryAllocatedBytes + memoryFreeBytes)", "1", _used_share)

DEFAULT = (
    DialectRow("DCGM_FI_DEV_SM_CLOCK", "gpu.{i}.smClock", otherwise=("gpu.{i}.freq",), whole=True),
    DialectRow("DCGM_FI_DEV_MEM_CLOCK", "gpu.{i}.memoryClock", whole=True),
    DialectRow("DCGM_FI_DEV_MEMORY_TEMP", "gpu.{i}.memoryTemp", whole=True),
    DialectRow("DCGM_FI_DEV_GPU_TEMP", "gpu.{i}.temp", whole=True),
    DialectRow("DCGM_FI_DEV_POWER_USAGE", "gpu.{i}.powerWatts"),
    DialectRow("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "gpu.{i}.energyJoules", "mJ", whole=True),
    DialectRow("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "gpu.{i}.pcieReplays"),
    DialectRow("DCGM_FI_DEV_GPU_UTIL", "gpu.{i}.gpu", whole=True),
    DialectRow("DCGM_FI_DEV_MEM_COPY_UTIL", "gpu.{i}.memory", whole=True),
    DialectRow("DCGM_FI_DEV_ENC_UTIL", "gpu.{i}.encoderUtilization", whole=True),
    DialectRow("DCGM_FI_DEV_DEC_UTIL", "gpu.{i}.decoderUtilization", whole=True),
    DialectRow("DCGM_FI_DEV_XID_ERRORS", _LAST_XID, meaning="Code of the newest Xid error, 0 before the first."),
    DialectRow("DCGM_FI_DEV_FB_FREE", "gpu.{i}.memoryFreeBytes", "MiBy", whole=True),
    DialectRow("DCGM_FI_DEV_FB_USED", "gpu.{i}.memoryAllocatedBytes", "MiBy", whole=True),
    DialectRow("DCGM_FI_DEV_FB_RESERVED", MEMORY_RESERVED, "MiBy", whole=True, meaning="Memory that the driver keeps for itself."),
    DialectRow("DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", "gpu.{i}.nvlinkCrcErrors"),
    DialectRow("DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL", "gpu.{i}.nvlinkReplayErrors"),
    DialectRow("DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL", "gpu.{i}.nvlinkRecoveryErrors"),
    DialectRow("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", "gpu.{i}.remappedRowsUncorrected"),
    DialectRow("DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", "gpu.{i}.remappedRowsCorrected"),
    DialectRow("DCGM_FI_PROF_SM_ACTIVE", "gpu.{i}.smActive", "1"),
    DialectRow("DCGM_FI_PROF_SM_OCCUPANCY", "gpu.{i}.smOccupancy", "1"),
    DialectRow("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "gpu.{i}.pipeTensorActive", "1"),
    DialectRow("DCGM_FI_PROF_DRAM_ACTIVE", "gpu.{i}.dramActive", "1"),
    DialectRow("DCGM_FI_PROF_PIPE_FP64_ACTIVE", "gpu.{i}.pipeFp64Active", "1"),
    DialectRow("DCGM_FI_PROF_PIPE_FP32_ACTIVE", "gpu.{i}.pipeFp32Active", "1"),
    DialectRow("DCGM_FI_PROF_PIPE_FP16_ACTIVE", "gpu.{i}.pipeFp16Active", "1"),
    DialectRow("DCGM_FI_PROF_PCIE_TX_BYTES", "gpu.{i}.pcieTxBytes"),
    DialectRow("DCGM_FI_PROF_PCIE_RX_BYTES", "gpu.{i}.pcieRxBytes"),
)
"""Fields of the list, in its order, with what each is read from."""

BEYOND = (
    DialectRow("DCGM_FI_DEV_FB_TOTAL", "gpu.{i}.memoryTotalBytes", "MiBy", whole=True),
    DialectRow("DCGM_FI_DEV_FB_USED_PERCENT", _USED_SHARE, meaning="Share of the memory that can be allocated which is allocated, 0 to 1."),
    DialectRow("DCGM_FI_DEV_BAR1_USED", "gpu.{i}.bar1UsedBytes", "MiBy", whole=True),
    DialectRow("DCGM_FI_DEV_ENFORCED_POWER_LIMIT", "gpu.{i}.enforcedPowerLimitWatts"),
    DialectRow("DCGM_FI_DEV_SLOWDOWN_TEMP", "gpu.{i}.tempLimit.slowdown", whole=True),
    DialectRow("DCGM_FI_DEV_SHUTDOWN_TEMP", "gpu.{i}.tempLimit.shutdown", whole=True),
    DialectRow("DCGM_FI_DEV_FAN_SPEED", "gpu.{i}.fanSpeed", whole=True),
    DialectRow("DCGM_FI_DEV_PSTATE", "gpu.{i}.performanceState"),
    DialectRow("DCGM_FI_DEV_MAX_SM_CLOCK", "gpu.{i}.maxSmClock", whole=True),
    DialectRow("DCGM_FI_DEV_MAX_MEM_CLOCK", "gpu.{i}.maxMemoryClock", whole=True),
    DialectRow("DCGM_FI_DEV_PCIE_LINK_GEN", "gpu.{i}.pcieLinkGen"),
    DialectRow("DCGM_FI_DEV_PCIE_LINK_WIDTH", "gpu.{i}.pcieLinkWidth"),
    DialectRow("DCGM_FI_DEV_PCIE_MAX_LINK_GEN", "gpu.{i}.maxPcieLinkGen"),
    DialectRow("DCGM_FI_DEV_PCIE_MAX_LINK_WIDTH", "gpu.{i}.maxPcieLinkWidth"),
    DialectRow("DCGM_FI_DEV_ECC_SBE_VOL_DEV", "gpu.{i}.correctedMemoryErrors"),
    DialectRow("DCGM_FI_DEV_ECC_DBE_VOL_DEV", "gpu.{i}.uncorrectedMemoryErrors"),
    DialectRow("DCGM_FI_DEV_ECC_SBE_AGG_DEV", "gpu.{i}.correctedMemoryErrorsAggregate"),
    DialectRow("DCGM_FI_DEV_ECC_DBE_AGG_DEV", "gpu.{i}.uncorrectedMemoryErrorsAggregate"),
    DialectRow("DCGM_FI_PROF_PIPE_TENSOR_HMMA_ACTIVE", "gpu.{i}.pipeTensorHmmaActive", "1"),
    DialectRow("DCGM_FI_PROF_NVLINK_TX_BYTES", "gpu.{i}.nvlinkTxBytes"),
    DialectRow("DCGM_FI_PROF_NVLINK_RX_BYTES", "gpu.{i}.nvlinkRxBytes"),
)
"""Fields that the list does not have."""

LABELS = {
    "DCGM_FI_DRIVER_VERSION": "the driver's version",
}
"""Fields of the list that are labels of every series."""

_TIME = "a time in nanoseconds; no key has it: `throttle.…` says whether it happens, not for how long"
_WINDOWED = "counted by dcgm-exporter itself over a window of its own"
_ALL_MEMORIES = "counts errors of all memories of the chip, the keys those of the device memory: see DCGM_FI_DEV_ECC_{}_DEV"
_PAGES = "pages are retired on GPUs before Ampere alone; no key has it"
_NOT_READ = "not read"
_LABEL_OFF = "a label that the list has switched off; {}"

UNMAPPED = {
    "DCGM_FI_DEV_POWER_VIOLATION": _TIME,
    "DCGM_FI_DEV_THERMAL_VIOLATION": _TIME,
    "DCGM_FI_DEV_SYNC_BOOST_VIOLATION": _TIME,
    "DCGM_FI_DEV_BOARD_LIMIT_VIOLATION": _TIME,
    "DCGM_FI_DEV_LOW_UTIL_VIOLATION": _TIME,
    "DCGM_FI_DEV_RELIABILITY_VIOLATION": _TIME,
    "DCGM_EXP_CLOCK_EVENTS_COUNT": _WINDOWED,
    "DCGM_EXP_XID_ERRORS_COUNT": f"{_WINDOWED}; `xidErrors` counts them since the start",
    "DCGM_EXP_GPU_HEALTH_STATUS": "a verdict of DCGM's own health checks",
    "DCGM_EXP_P2P_STATUS": "between pairs of GPUs; no key has it",
    "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL": _ALL_MEMORIES.format("SBE_VOL"),
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": _ALL_MEMORIES.format("DBE_VOL"),
    "DCGM_FI_DEV_ECC_SBE_AGG_TOTAL": _ALL_MEMORIES.format("SBE_AGG"),
    "DCGM_FI_DEV_ECC_DBE_AGG_TOTAL": _ALL_MEMORIES.format("DBE_AGG"),
    "DCGM_FI_DEV_RETIRED_SBE": _PAGES,
    "DCGM_FI_DEV_RETIRED_DBE": _PAGES,
    "DCGM_FI_DEV_RETIRED_PENDING": _PAGES,
    "DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL": _NOT_READ,
    "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL": (
        "a rate in thousands of KiB per second, taken by DCGM over an interval of its own and listed as a counter: "
        "see DCGM_FI_PROF_NVLINK_TX_BYTES and …RX_BYTES, or `nvlinkTxBytesTotal` and `…RxBytesTotal`"
    ),
    "DCGM_FI_DEV_NVLINK_BANDWIDTH_L0": "as DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL: see `nvlink.{link}.txBytesTotal` and `…rxBytesTotal`",
    "DCGM_FI_DEV_VGPU_LICENSE_STATUS": "about guests with a virtual GPU, which no backend tells of",
    "DCGM_FI_DEV_ROW_REMAP_FAILURE": _NOT_READ,
    "DCGM_FI_NVML_VERSION": _LABEL_OFF.format("not read"),
    "DCGM_FI_DEV_BRAND": _LABEL_OFF.format("not read"),
    "DCGM_FI_DEV_SERIAL": _LABEL_OFF.format("`list --json` has it"),
    "DCGM_FI_DEV_OEM_INFOROM_VER": _LABEL_OFF.format("not read"),
    "DCGM_FI_DEV_ECC_INFOROM_VER": _LABEL_OFF.format("not read"),
    "DCGM_FI_DEV_POWER_INFOROM_VER": _LABEL_OFF.format("not read"),
    "DCGM_FI_DEV_INFOROM_IMAGE_VER": _LABEL_OFF.format("not read"),
    "DCGM_FI_DEV_VBIOS_VERSION": _LABEL_OFF.format("`list --json` has it"),
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE": "GPM's metric for it is not read; `DCGM_FI_DEV_GPU_UTIL` is the nearest, and not the same",
}
"""Fields of the list that are left out, each with the reason."""

_NEVER_FILLED = 'DCGM has no value for it on any GPU (`DcgmCacheManager.cpp` answers "not supported"), and withdrew it: see {}'

OLDER = {
    "DCGM_FI_DEV_PCIE_TX_THROUGHPUT": _NEVER_FILLED.format("DCGM_FI_PROF_PCIE_TX_BYTES, or `pcieTxBytesTotal`"),
    "DCGM_FI_DEV_PCIE_RX_THROUGHPUT": _NEVER_FILLED.format("DCGM_FI_PROF_PCIE_RX_BYTES, or `pcieRxBytesTotal`"),
}
"""Fields of the lists up to 3.3 that dashboards of that time ask for, each with the reason why it is left out."""

_PROFILE = " MIG "
"""What stands before a partition's profile in its name: ``NVIDIA H100 80GB HBM3 MIG 3g.40gb``."""


class Dcgm(Dialect):
    """Series as dcgm-exporter serves them."""

    name = "dcgm"
    summary = "the metrics of NVIDIA's dcgm-exporter with its labels: DCGM_FI_DEV_GPU_UTIL"
    _table = DialectTable((*DEFAULT, *BEYOND))

    def flat(self, record: Record) -> dict[str, Number]:
        """Give series with the labels that tell devices of one machine apart: ``DCGM_FI_DEV_GPU_TEMP{gpu="0"}``."""
        found: dict[str, Number] = {}
        for slot in record.snapshot.identities:
            whole, partition = parent_and_partition(slot)
            labels = {"gpu": whole, "GPU_I_ID": partition} if partition else {"gpu": whole}
            found.update((series(point.name, labels), point.value) for point in self._table.points(record.snapshot, slot))
        return found

    def points(self, record: Record) -> Iterator[Point]:
        """Give each field of each device with the exporter's labels."""
        parents = {slot.key: slot for slot in record.snapshot.identities}
        for slot in record.snapshot.identities:
            whole, _ = parent_and_partition(slot)
            labels = _labels(slot, parents.get(f"gpu.{whole}", slot), record.snapshot.hostname)
            yield from self._table.points(record.snapshot, slot, labels)


@lru_cache(maxsize=1024)
def _labels(slot: DeviceSlot, parent: DeviceSlot, hostname: str) -> Mapping[str, str]:
    """Name a device as the exporter does. A partition has the labels of its GPU, and two of its own. Not to be changed.

    The exporter wrote ``Hostname`` up to 4.5 and writes ``hostname`` since; both are given.
    """
    who = parent.identity
    whole, partition = parent_and_partition(slot)
    labels = {
        "gpu": whole,
        "UUID": parent.unique_id,
        "pci_bus_id": who.pci_bus_id,
        "device": f"{who.vendor}{who.vendor_index}",
        "modelName": who.name,
        "GPU_I_PROFILE": slot.identity.name.rpartition(_PROFILE)[2] if partition else "",
        "GPU_I_ID": partition,
        "Hostname": hostname,
        "hostname": hostname,
        "DCGM_FI_DRIVER_VERSION": who.driver_version,
    }
    return {label: value for label, value in labels.items() if value}


DCGM = Dcgm()
