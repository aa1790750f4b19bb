"""``dcgm``: every field of dcgm-exporter's list, with its labels and units, or the reason why not."""

from __future__ import annotations

import pytest

from accelmetrics.dialects.contract import Point
from accelmetrics.dialects.dcgm import BEYOND, COUNT, DEFAULT, HEALTH, HEALTH_STATUS
from accelmetrics.dialects.registry import dialect
from accelmetrics.schemas.record import Record
from tests.dialects.listed import DCGM_LABELS, DCGM_NOT_WATCHED, DCGM_OLDER, DCGM_UNMAPPED
from tests.dialects.scenes import GPU_0, H100, PAGE, Numbers, amd, instance, nvidia, record, tpu

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
    *(f"DCGM_FI_DEV_{reason}_VIOLATION" for reason in ("POWER", "THERMAL", "SYNC_BOOST", "BOARD_LIMIT", "LOW_UTIL", "RELIABILITY")),
    *(f"DCGM_FI_DEV_RETIRED_{cause}" for cause in ("SBE", "DBE", "PENDING")),
    *(f"DCGM_FI_DEV_ECC_{kind}_{scope}_TOTAL" for kind in ("SBE", "DBE") for scope in ("VOL", "AGG")),
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
    "DCGM_FI_DEV_POWER_VIOLATION": "ns",
}
ALL_VALUES: Numbers = {
    **dict.fromkeys(("smClock", "memoryClock", "memoryTemp", "temp", "powerWatts", "energyJoules", "pcieReplays", "gpu", "memory"), 1),
    **dict.fromkeys(("encoderUtilization", "decoderUtilization", "xidErrors", "lastXid", "nvlinkCrcErrors", "nvlinkReplayErrors"), 1),
    **dict.fromkeys(("nvlinkRecoveryErrors", "remappedRowsUncorrected", "remappedRowsCorrected", "smActive", "smOccupancy"), 1),
    **dict.fromkeys(("pipeTensorActive", "dramActive", "pipeFp64Active", "pipeFp32Active", "pipeFp16Active"), 1),
    **dict.fromkeys(("pcieTxBytes", "pcieRxBytes", "rowRemapFailure", "grEngineActive"), 1),
    **dict.fromkeys(("retiredPagesSingleBit", "retiredPagesDoubleBit", "retiredPagesPending"), 1),
    **{f"violationSeconds.{name}": 1.5 for name in ("power", "thermal", "syncBoost", "boardLimit", "lowUtilization", "reliability")},
    **dict.fromkeys((f"{kind}EccErrors{scope}" for kind in ("corrected", "uncorrected") for scope in ("", "Aggregate")), 1),
    **{"memoryTotalBytes": 10 * 2**20, "memoryAllocatedBytes": 4 * 2**20, "memoryFreeBytes": 5 * 2**20},
}


def told(one: Record) -> dict[str, Point]:
    """By name."""
    return {point.name: point for point in dialect("dcgm").points(one)}


def test_every_field_of_the_list_is_told_or_has_a_reason() -> None:
    """In exactly one of the tables, and nothing stands there that is not on the list."""
    tables = (tuple(entry.name for entry in DEFAULT), tuple(DCGM_LABELS), tuple(DCGM_UNMAPPED), (HEALTH_STATUS,))
    everything = [name for table in tables for name in table]
    assert len(set(everything)) == len(everything)
    assert set(everything) == {*LIST, *SWITCHED_OFF}
    assert all(DCGM_UNMAPPED.values())
    assert not {entry.name for entry in BEYOND} & set(everything)


def test_what_older_lists_had_is_not_told_either() -> None:
    """DCGM never had a value for these two: a number under their names would be ours alone."""
    assert set(DCGM_OLDER) == {"DCGM_FI_DEV_PCIE_TX_THROUGHPUT", "DCGM_FI_DEV_PCIE_RX_THROUGHPUT"}
    assert not set(DCGM_OLDER) & {entry.name for entry in (*DEFAULT, *BEYOND)}


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
    assert flat['DCGM_FI_DEV_CLOCKS_EVENT_REASONS{gpu="0"}'] == 4
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
    """As the exporter labels a MIG instance: by the driver's id of it, and by our number where that is not known."""
    board = nvidia(0)
    known, unknown = instance(board, 0, gpu_instance=9), instance(board, 1)
    one = record({board: {}, known: {"memoryAllocatedBytes": 2**20}, unknown: {"memoryAllocatedBytes": 2**21}})
    first, second = dialect("dcgm").points(one)
    assert first.labels["gpu"] == "0"
    assert first.labels["UUID"] == board.identity.uuid
    assert (first.labels["GPU_I_ID"], first.labels["GPU_I_PROFILE"], first.labels["modelName"]) == ("9", "1g.10gb", H100)
    assert second.labels["GPU_I_ID"] == "1"
    assert set(dialect("dcgm").flat(one)) == {'DCGM_FI_DEV_FB_USED{gpu="0",GPU_I_ID="9"}', 'DCGM_FI_DEV_FB_USED{gpu="0",GPU_I_ID="1"}'}


def test_what_instances_have_is_not_told_of_their_gpu_too() -> None:
    """Sums over the devices of a machine count each byte once; what instances do not have stays with the GPU."""
    board, whole = nvidia(0), nvidia(1)
    values: Numbers = {**GPU_0, "smActive": 50.0, "nvlinkTxBytes": 5.0, "grEngineActive": 50.0}
    parts = {instance(board, number, gpu_instance=number + 1): {"memoryAllocatedBytes": 2**30, "smActive": 25.0} for number in range(2)}
    points = list(dialect("dcgm").points(record({board: values, whole: values, **parts})))
    of_board = {point.name for point in points if point.labels["gpu"] == "0" and "GPU_I_ID" not in point.labels}
    of_whole = {point.name for point in points if point.labels["gpu"] == "1"}
    assert {name for name in of_board if name.startswith(("DCGM_FI_DEV_FB_", "DCGM_FI_PROF_"))} == {
        "DCGM_FI_PROF_PCIE_TX_BYTES",
        "DCGM_FI_PROF_NVLINK_TX_BYTES",
    }
    missing = of_whole - of_board
    assert {"DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_RESERVED", "DCGM_FI_PROF_SM_ACTIVE", "DCGM_FI_PROF_GR_ENGINE_ACTIVE"} <= missing
    assert all(name.startswith(("DCGM_FI_DEV_FB_", "DCGM_FI_PROF_")) for name in missing)
    used = sum(point.value for point in points if point.name == "DCGM_FI_DEV_FB_USED" and point.labels["gpu"] == "0")
    assert used == 2 * 1024
    assert {point.value for point in points if point.name == COUNT} == {2}


def test_a_gpu_whose_instances_are_gone_tells_of_itself() -> None:
    """They keep their places, and have nothing to say."""
    board = nvidia(0)
    points = told(record({board: GPU_0, instance(board, 0): {}}))
    assert points["DCGM_FI_DEV_FB_USED"].value == 20_480


def test_compute_instances_of_one_gpu_instance_are_told_once() -> None:
    """They share its memory and what is measured, and the exporter's labels would not tell them apart."""
    board = nvidia(0)
    shared = [instance(board, number, gpu_instance=3, profile="1c.2g.20gb") for number in range(2)]
    points = list(dialect("dcgm").points(record({board: {}, **{each: {"memoryAllocatedBytes": 2**20} for each in shared}})))
    assert [(point.labels["GPU_I_ID"], point.labels["GPU_I_PROFILE"]) for point in points] == [("3", "2g.20gb")]


def test_devices_of_other_vendors() -> None:
    """An AMD GPU is a GPU; a TPU is called by its key, so that it is not taken for GPU 0; nothing is without an identity."""
    points = list(dialect("dcgm").points(record({amd(0): {"gpu": 12, "smClock": 2100}, tpu(0): {"dutyCycle": 50.0}})))
    assert [(point.value, point.labels["gpu"]) for point in points if point.name == COUNT] == [(2, "0"), (2, "tpu.0")]
    points = [point for point in points if point.name != COUNT]
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
    assert told(record({board: {"xidErrors": 0}}))[field].labels["err_code"] == "0"
    assert told(record({board: {"xidErrors": 2, "lastXid": 79}}))[field].value == 79
    assert field not in told(record({board: {"temp": 1}}))


def test_xids_between_two_readings_are_all_told() -> None:
    """A series for each code, with the code and its meaning as labels; a recording from before codes were counted has the newest."""
    board = nvidia(0)
    one = record({board: {"xidErrors": 3, "lastXid": 45, "xid.79.errors": 1, "xid.45.errors": 2}})
    points = [point for point in dialect("dcgm").points(one) if point.name == "DCGM_FI_DEV_XID_ERRORS"]
    assert [(point.value, point.labels["err_code"], point.labels["err_msg"]) for point in points] == [
        (79, "79", "the GPU has fallen off the bus"),
        (45, "45", "what a program left was cleared away after other errors"),
    ]
    assert {name for name in dialect("dcgm").flat(one) if "XID" in name} == {
        'DCGM_FI_DEV_XID_ERRORS{gpu="0",err_code="79"}',
        'DCGM_FI_DEV_XID_ERRORS{gpu="0",err_code="45"}',
    }


HEALTHY: Numbers = {
    **{"pcieLinkWidth": 16, "maxPcieLinkWidth": 16, "uncorrectedEccErrors": 0, "rowRemapFailure": 0, "rowRemapPending": 0},
    **{"throttle.hwThermalSlowdown": 0, "throttle.swThermalSlowdown": 0, "throttle.hwPowerBrakeSlowdown": 0, "recoveryAction": 0},
    **{f"nvlink.{link}.state": 1 for link in range(4)},
}


def verdicts(values: Numbers) -> dict[str, tuple[int | float, str]]:
    points = [point for point in dialect("dcgm").points(record({nvidia(0): values})) if point.name == HEALTH_STATUS]
    return {point.labels["health_watch"]: (point.value, point.labels["health_error_code"]) for point in points}


def test_a_healthy_gpu() -> None:
    """0 on each watch of which something is known, and nothing of the others."""
    watches = {"PCIE", "NVLINK", "MEM", "THERMAL", "POWER", "DRIVER"}
    assert verdicts(HEALTHY) == dict.fromkeys(watches, (0, "DCGM_FR_OK"))
    assert not watches & set(DCGM_NOT_WATCHED)
    assert verdicts({"temp": 40}) == {}
    assert set(verdicts({"rowRemapPending": 0})) == {"MEM"}


@pytest.mark.parametrize(
    ("values", "watch", "verdict"),
    [
        ({"pcieLinkWidth": 8}, "PCIE", (10, "DCGM_FR_PCIE_WIDTH")),
        ({"nvlink.2.state": 0}, "NVLINK", (20, "DCGM_FR_NVLINK_DOWN")),
        ({"uncorrectedEccErrors": 1, "rowRemapPending": 1}, "MEM", (20, "DCGM_FR_VOLATILE_DBE_DETECTED")),
        ({"uncorrectedMemoryErrors": 1}, "MEM", (20, "DCGM_FR_VOLATILE_DBE_DETECTED")),
        ({"rowRemapFailure": 1}, "MEM", (20, "DCGM_FR_ROW_REMAP_FAILURE")),
        ({"rowRemapPending": 1}, "MEM", (10, "DCGM_FR_PENDING_ROW_REMAP")),
        ({"throttle.swThermalSlowdown": 1}, "THERMAL", (10, "DCGM_FR_CLOCK_THROTTLE_THERMAL")),
        ({"throttle.hwPowerBrakeSlowdown": 1}, "POWER", (10, "DCGM_FR_CLOCK_THROTTLE_POWER")),
        ({"recoveryAction": 1}, "DRIVER", (20, "DCGM_FR_GPU_RECOVERY_RESET")),
        ({"recoveryAction": 4}, "DRIVER", (20, "DCGM_FR_GPU_RECOVERY_DRAIN_RESET")),
        ({"recoveryAction": 7}, "DRIVER", (20, "DCGM_FR_UNKNOWN")),
    ],
)
def test_a_gpu_that_is_not_well(values: Numbers, watch: str, verdict: tuple[int, str]) -> None:
    """The worst of what its values say, under DCGM's names; the other watches are as they were."""
    found = verdicts({**HEALTHY, **values})
    said = found.pop(watch)
    assert said == verdict
    assert {status for status, _ in found.values()} == {0}


def test_links_that_are_all_down_are_not_used() -> None:
    """A board without a bridge is well."""
    assert verdicts({f"nvlink.{link}.state": 0 for link in range(12)}) == {"NVLINK": (0, "DCGM_FR_OK")}


def test_the_page_says_what_health_follows_from() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for watch, status, code, words, _ in HEALTH:
        assert f"| `{watch}` | {status} | `{code}` | {words} |" in page
    for watch, why in DCGM_NOT_WATCHED.items():
        assert f"| `{watch}` | | | absent: {why} |" in page
