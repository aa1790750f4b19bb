"""``dcgm``: every field of dcgm-exporter's list, with its labels and units, or the reason why not."""

from __future__ import annotations

from accelmetrics.dialects.contract import Point
from accelmetrics.dialects.dcgm import BEYOND, DEFAULT, LABELS, OLDER, UNMAPPED
from accelmetrics.dialects.registry import dialect
from accelmetrics.schemas.record import Record
from tests.dialects.scenes import GPU_0, H100, Numbers, amd, instance, nvidia, record, tpu

LIST = frozenset(
    """
DCGM_FI_DEV_SM_CLOCK DCGM_FI_DEV_MEM_CLOCK DCGM_FI_DEV_MEMORY_TEMP DCGM_FI_DEV_GPU_TEMP DCGM_FI_DEV_POWER_USAGE
DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION DCGM_FI_DEV_PCIE_REPLAY_COUNTER DCGM_FI_DEV_GPU_UTIL DCGM_FI_DEV_MEM_COPY_UTIL
DCGM_FI_DEV_ENC_UTIL DCGM_FI_DEV_DEC_UTIL DCGM_FI_DEV_XID_ERRORS DCGM_FI_DEV_FB_FREE DCGM_FI_DEV_FB_USED
DCGM_FI_DEV_FB_RESERVED DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL DCGM_FI_DEV_VGPU_LICENSE_STATUS
DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS DCGM_FI_DEV_ROW_REMAP_FAILURE
DCGM_FI_DRIVER_VERSION DCGM_FI_PROF_GR_ENGINE_ACTIVE DCGM_FI_PROF_PIPE_TENSOR_ACTIVE DCGM_FI_PROF_DRAM_ACTIVE
DCGM_FI_PROF_PCIE_TX_BYTES DCGM_FI_PROF_PCIE_RX_BYTES
""".split()  # noqa: SIM905 a column of names reads better
)
"""What ``etc/default-counters.csv`` of dcgm-exporter 4.5.3 has switched on."""

SWITCHED_OFF = frozenset(
    """
DCGM_FI_DEV_POWER_VIOLATION DCGM_FI_DEV_THERMAL_VIOLATION DCGM_FI_DEV_SYNC_BOOST_VIOLATION DCGM_FI_DEV_BOARD_LIMIT_VIOLATION
DCGM_FI_DEV_LOW_UTIL_VIOLATION DCGM_FI_DEV_RELIABILITY_VIOLATION DCGM_EXP_CLOCK_EVENTS_COUNT DCGM_EXP_XID_ERRORS_COUNT
DCGM_EXP_GPU_HEALTH_STATUS DCGM_EXP_P2P_STATUS DCGM_FI_DEV_ECC_SBE_VOL_TOTAL DCGM_FI_DEV_ECC_DBE_VOL_TOTAL
DCGM_FI_DEV_ECC_SBE_AGG_TOTAL DCGM_FI_DEV_ECC_DBE_AGG_TOTAL DCGM_FI_DEV_RETIRED_SBE DCGM_FI_DEV_RETIRED_DBE
DCGM_FI_DEV_RETIRED_PENDING DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL
DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL DCGM_FI_DEV_NVLINK_BANDWIDTH_L0
DCGM_FI_NVML_VERSION DCGM_FI_DEV_BRAND DCGM_FI_DEV_SERIAL DCGM_FI_DEV_OEM_INFOROM_VER DCGM_FI_DEV_ECC_INFOROM_VER
DCGM_FI_DEV_POWER_INFOROM_VER DCGM_FI_DEV_INFOROM_IMAGE_VER DCGM_FI_DEV_VBIOS_VERSION DCGM_FI_PROF_SM_ACTIVE
DCGM_FI_PROF_SM_OCCUPANCY DCGM_FI_PROF_PIPE_FP64_ACTIVE DCGM_FI_PROF_PIPE_FP32_ACTIVE DCGM_FI_PROF_PIPE_FP16_ACTIVE
""".split()  # noqa: SIM905
)
"""What that file has commented out."""

COUNTERS = {
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
    "DCGM_FI_DEV_PCIE_REPLAY_COUNTER",
    "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL",
    "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL",
    "DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL",
    "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS",
    "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS",
}
"""Those of the told ones that the list types so; the others are gauges."""

UNITS = {
    "DCGM_FI_DEV_SM_CLOCK": "MHz",
    "DCGM_FI_DEV_POWER_USAGE": "W",
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": "mJ",
    "DCGM_FI_DEV_GPU_UTIL": "%",
    "DCGM_FI_DEV_FB_USED": "MiBy",
    "DCGM_FI_DEV_FB_RESERVED": "MiBy",
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": "1",
    "DCGM_FI_PROF_PCIE_TX_BYTES": "By/s",
    "DCGM_FI_DEV_GPU_TEMP": "Cel",
}
ALL_VALUES: Numbers = {
    **dict.fromkeys(("smClock", "memoryClock", "memoryTemp", "temp", "powerWatts", "energyJoules", "pcieReplays", "gpu", "memory"), 1),
    **dict.fromkeys(("encoderUtilization", "decoderUtilization", "xidErrors", "lastXid", "nvlinkCrcErrors", "nvlinkReplayErrors"), 1),
    **dict.fromkeys(("nvlinkRecoveryErrors", "remappedRowsUncorrected", "remappedRowsCorrected", "smActive", "smOccupancy"), 1),
    **dict.fromkeys(("pipeTensorActive", "dramActive", "pipeFp64Active", "pipeFp32Active", "pipeFp16Active"), 1),
    **dict.fromkeys(("pcieTxBytes", "pcieRxBytes"), 1),
    **{"memoryTotalBytes": 10 * 2**20, "memoryAllocatedBytes": 4 * 2**20, "memoryFreeBytes": 5 * 2**20},
}


def told(one: Record) -> dict[str, Point]:
    """By name."""
    return {point.name: point for point in dialect("dcgm").points(one)}


def test_every_field_of_the_list_is_told_or_has_a_reason() -> None:
    """In exactly one of the tables, and nothing stands there that is not on the list."""
    tables = (tuple(entry.name for entry in DEFAULT), tuple(LABELS), tuple(UNMAPPED))
    everything = [name for table in tables for name in table]
    assert len(set(everything)) == len(everything)
    assert set(everything) == {*LIST, *SWITCHED_OFF}
    assert all(UNMAPPED.values())
    assert not {entry.name for entry in BEYOND} & set(everything)


def test_what_older_lists_had_is_not_told_either() -> None:
    """DCGM never had a value for these two: a number under their names would be ours alone."""
    assert set(OLDER) == {"DCGM_FI_DEV_PCIE_TX_THROUGHPUT", "DCGM_FI_DEV_PCIE_RX_THROUGHPUT"}
    assert not set(OLDER) & {entry.name for entry in (*DEFAULT, *BEYOND)}


def test_types_and_units_are_the_lists() -> None:
    """A GPU that says everything has every field that is told, counters as counters."""
    points = told(record({nvidia(0): ALL_VALUES}))
    fields = {entry.name for entry in DEFAULT}
    assert fields <= set(points)
    assert {name for name in fields if points[name].kind == "counter"} == COUNTERS
    assert {name: points[name].unit for name in UNITS} == UNITS


def test_values_are_in_dcgms_units() -> None:
    """mJ, whole MiB, shares from 0 to 1, bytes per second."""
    flat = dialect("dcgm").flat(record({nvidia(0): GPU_0}))
    assert flat['DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{gpu="0"}'] == 1_234_567
    assert flat['DCGM_FI_DEV_FB_USED{gpu="0"}'] == 20_480
    assert flat['DCGM_FI_DEV_FB_RESERVED{gpu="0"}'] == 1023
    assert flat['DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{gpu="0"}'] == 0.625
    assert flat['DCGM_FI_PROF_PCIE_TX_BYTES{gpu="0"}'] == 1_000_000.0
    assert flat['DCGM_FI_DEV_POWER_USAGE{gpu="0"}'] == 300.25
    assert flat['DCGM_FI_DEV_GPU_UTIL{gpu="0"}'] == 85
    assert 'DCGM_FI_PROF_DRAM_ACTIVE{gpu="0"}' not in flat


def test_the_exporters_labels() -> None:
    """Those that its dashboards select and name by; the host under the old spelling and the new one."""
    board = nvidia(1)
    labels = told(record({board: {"temp": 40}}))["DCGM_FI_DEV_GPU_TEMP"].labels
    assert labels == {
        "gpu": "1",
        "UUID": board.identity.uuid,
        "pci_bus_id": "00000000:C1:00.0",
        "device": "nvidia1",
        "modelName": H100,
        "Hostname": "node-1",
        "hostname": "node-1",
        "DCGM_FI_DRIVER_VERSION": "570.124.06",
    }


def test_a_partition_has_its_gpus_labels_and_two_of_its_own() -> None:
    """As the exporter labels a MIG instance."""
    board = nvidia(0)
    (point,) = dialect("dcgm").points(record({board: {}, instance(board, 3): {"memoryAllocatedBytes": 2**20}}))
    assert point.labels["gpu"] == "0"
    assert point.labels["UUID"] == board.identity.uuid
    assert (point.labels["GPU_I_ID"], point.labels["GPU_I_PROFILE"], point.labels["modelName"]) == ("3", "1g.10gb", H100)


def test_devices_of_other_vendors() -> None:
    """An AMD GPU is a GPU; a TPU is called by its key, so that it is not taken for GPU 0; nothing is without an identity."""
    points = list(dialect("dcgm").points(record({amd(0): {"gpu": 12, "smClock": 2100}, tpu(0): {"dutyCycle": 50.0}})))
    assert [(point.name, point.labels["gpu"], point.labels["device"], point.labels["UUID"]) for point in points] == [
        ("DCGM_FI_DEV_SM_CLOCK", "0", "amd0", "0x5a"),
        ("DCGM_FI_DEV_GPU_UTIL", "0", "amd0", "0x5a"),
        ("DCGM_FI_DEV_GPU_UTIL", "tpu.0", "google0", "0000:00:05.0"),
    ]


def test_the_last_xid() -> None:
    """0 only where the driver's errors are listened to and none came; absent where nothing listens."""
    board = nvidia(0)
    field = "DCGM_FI_DEV_XID_ERRORS"
    assert told(record({board: {"xidErrors": 0}}))[field].value == 0
    assert told(record({board: {"xidErrors": 2, "lastXid": 79}}))[field].value == 79
    assert field not in told(record({board: {"temp": 1}}))
