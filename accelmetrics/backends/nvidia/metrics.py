"""The metrics of an NVIDIA GPU: one row per metric, with its source in NVML, its unit, its bounds and its interval.

Everything else follows from the rows: the calls, their place in the buffer, the decoding, the bounds, the names of a reading, and
the documentation of the sources. The conversion of the fast rows is generated from them (``make generate``).

Layouts are those of NVIDIA's header in ``struct`` notation, without the compiler's padding unless it is written out.
"""

from __future__ import annotations

import math
from functools import lru_cache

from accelmetrics.backends.contract import Coverage
from accelmetrics.backends.nvidia import Maker
from accelmetrics.schemas.named_tuple import NamedTuple
from accelmetrics.schemas.selection import MetricSelection

ALL_ONES = 0xFFFFFFFF
"""NVML's "not available" for 32 bits. As the scope of a field, it means all links."""
LARGEST = 2**63 - 1
"""Largest plausible 64-bit answer: sentinels have all bits set, and JSON and Prometheus readers end here."""
LARGEST_32 = ALL_ONES - 1
HOTTEST, COLDEST = 150, -100
"""Highest and lowest plausible °C. All-ones and byte-sized sentinels are outside."""
ABOVE_ICE = 1
"""Lowest plausible °C of a working chip. A sensor that does not exist reads 0."""
MOST_MEMORY = 2**47
"""Bytes, more than any board has."""
FASTEST = 50_000
"""MHz, above any clock of a GPU."""
MOST_POWER, LEAST_LIMIT = 50_000_000, 1000
"""mW: more than any board draws, and the lowest plausible limit."""
MOST_ENERGY = 10**17
"""mJ, sixty years of the highest power."""
KIB, MIB = 1024, 2.0**20
MEGA = 10**6
NANOSECONDS = 10**9
"""Nanoseconds in a second."""

READING, SECOND, TEN_SECONDS, ONCE = 0.0, 1.0, 10.0, math.inf
"""Seconds between two calls for a value; ``ONCE`` is for values that never change while the driver is open."""


class NvmlField(NamedTuple):
    """A value of ``nvmlDeviceGetFieldValues``.

    Attributes:
        identifier: Its number in the header.
        symbol: Its name there, after ``NVML_FI_DEV_``.
        scope: Its scope: a link, or all of them.
    """

    identifier: int
    symbol: str
    scope: int = 0

    @property
    def function(self) -> str:
        """The function that returns it, for messages."""
        return "nvmlDeviceGetFieldValues"

    @property
    def words(self) -> str:
        """Its source in words, for the documentation."""
        return f"NVML_FI_DEV_{self.symbol} ({self.identifier}){' over all links' if self.scope == ALL_ONES else ''}"


class Call(NamedTuple):
    """A function with its arguments, and the layout of its answer.

    Attributes:
        functions: The function's names, the newest first; a driver has some of them.
        layout: The answer, as a ``struct`` format without byte order.
        members: The numbers in ``layout``, by their names in NVML's structure; a single one without a name by default.
        arguments: The numbers between the handle and the pointers, each after its name in the header.
        pointers: The offset of each pointer into the answer, in bytes.
        version: Written once into the first four bytes of a versioned structure.
        structure: The class in ``pynvml`` of the same layout, if there is one.
        fallback: An older form with another layout and the same members, for drivers that lack the newer ones or fail in them.
        fields: The fields of a batch of ``nvmlDeviceGetFieldValues``, which has no ``layout``.
    """

    functions: tuple[str, ...]
    layout: str = "I"
    members: tuple[str, ...] = ("",)
    arguments: tuple[tuple[str, int], ...] = ()
    pointers: tuple[int, ...] = (0,)
    version: int | None = None
    structure: str = ""
    fallback: Call | None = None
    fields: tuple[NvmlField, ...] = ()

    @property
    def function(self) -> str:
        """Its name in messages."""
        return self.functions[0]

    @property
    def words(self) -> str:
        """The source of its values in words, for the documentation."""
        called = self.arguments or self.members != ("",)
        return f"{self.function}({', '.join(name for name, _ in self.arguments)})" if called else self.function


class NvmlMetric(NamedTuple):
    """A metric that NVML reports.

    Attributes:
        name: The metric.
        source: The call or the field that returns it.
        member: The name of its number in the call's answer.
        every: Seconds between two calls.
        maximum: The largest possible raw answer.
        minimum: The smallest possible raw answer.
        divisor: Divides the raw answer; 1 leaves it a whole number.
        factor: Multiplies the raw answer.
        within: A metric that this one is a part of, and cannot exceed.
        aliases: Other names for the same value.
        flags: The metrics of the answer's bits, from the lowest. ``name`` then says whether any bit in ``mask`` is set.
        mask: The bits for ``name``.
        note: Words about the source that do not follow from the row.
        otherwise: For a field that older drivers or some GPUs lack: the row with the call for the same value.
    """

    name: str
    source: Call | NvmlField
    member: str = ""
    every: float = READING
    maximum: int = LARGEST_32
    minimum: int = 0
    divisor: int = 1
    factor: int = 1
    within: str = ""
    aliases: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    mask: int = 0
    note: str = ""
    otherwise: NvmlMetric | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Every metric that the row gives."""
        return (*self.flags, self.name, *self.aliases)

    def bits(self, answer: int) -> tuple[int, ...]:
        """Decode an answer of flags, in the order of ``names``."""
        return (*[answer >> bit & 1 for bit in range(len(self.flags))], int(answer & self.mask != 0))

    @property
    def words(self) -> str:
        """The source, unit and interval in words, for the documentation."""
        member = f".{self.member}" if self.member else ""
        unit = f" / {self.divisor}" if self.divisor != 1 else {KIB: ", KiB × 1024", MEGA: ", MB/s × 1000000"}.get(self.factor, "")
        pace = {READING: "", SECOND: ", 1 s", TEN_SECONDS: ", 10 s", ONCE: ", once"}[self.every]
        otherwise = f", else {self.otherwise.source.words}" if self.otherwise is not None else ""
        return f"{self.source.words}{otherwise}{member}{unit}{self.note}{pace}"


UTILIZATION = Call(("nvmlDeviceGetUtilizationRates",), "II", ("gpu", "memory"), structure="c_nvmlUtilization_t")
MEMORY = Call(
    ("nvmlDeviceGetMemoryInfo_v2",),
    "8xQ8xQQ",
    ("total", "free", "used"),
    version=0x02000028,
    structure="c_nvmlMemory_v2_t",
    fallback=Call(("nvmlDeviceGetMemoryInfo",), "QQQ", ("total", "free", "used"), structure="c_nvmlMemory_t"),
)
"""Bytes. The second version leaves the driver's reserve out of ``used``; older drivers have only the first version."""
SRAM = Call(
    ("nvmlDeviceGetSramEccErrorStatus",),
    "8x11QI4x",
    (
        *("aggregateUncParity", "aggregateUncSecDed", "aggregateCor", "volatileUncParity", "volatileUncSecDed", "volatileCor"),
        *("aggregateUncBucketL2", "aggregateUncBucketSm", "aggregateUncBucketPcie", "aggregateUncBucketMcu", "aggregateUncBucketOther"),
        "bThresholdExceeded",
    ),
    version=0x01000068,
    structure="c_nvmlEccSramErrorStatus_v1_t",
)
# NVML renamed throttle reasons to event reasons. Older drivers have only the second name.
EVENT_REASONS = Call(("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"), "Q")
# Total and free bytes come first and are skipped.
BAR1 = Call(("nvmlDeviceGetBAR1MemoryInfo",), "16xQ", ("bar1Used",), structure="c_nvmlBAR1Memory_t")

THROTTLE = (
    "throttle.gpuIdle",
    "throttle.applicationsClocksSetting",
    "throttle.swPowerCap",
    "throttle.hwSlowdown",
    "throttle.syncBoost",
    "throttle.swThermalSlowdown",
    "throttle.hwThermalSlowdown",
    "throttle.hwPowerBrakeSlowdown",
    "throttle.displayClockSetting",
)
"""The flags of ``nvmlClocksEventReasons``, from the lowest bit."""
THROTTLED = sum(1 << bit for bit, name in enumerate(THROTTLE) if not name.endswith(("Idle", "Setting")))
"""The bits that slow the GPU down; the others are states of its clocks."""

_HOST_TOTAL = "; unified memory, where NVML has no total: MemTotal of /proc/meminfo"
_HELD = "; unified memory, where NVML does not report it: the sum over the processes, 1 s"
_LINKS = "; the sum of the links, 10 s, if it is refused or stays 0"


def _call(function: str, *arguments: tuple[str, int], layout: str = "I", pointers: tuple[int, ...] = (0,)) -> Call:
    """Make a call that writes one number: unsigned with 32 bits, unless ``layout`` says otherwise."""
    return Call((function,), layout, arguments=arguments, pointers=pointers)


def _by_field(row: NvmlMetric, identifier: int, symbol: str) -> NvmlMetric:
    """Read a row from a field of the batch, and by its own call if there is no field."""
    # One call reads a whole batch of fields, so a row in the batch costs no call.
    return row._replace(source=NvmlField(identifier, symbol), otherwise=row)


_CORRECTED, _UNCORRECTED = ("NVML_MEMORY_ERROR_TYPE_CORRECTED", 0), ("NVML_MEMORY_ERROR_TYPE_UNCORRECTED", 1)
# Volatile counts start at 0 when the driver is loaded; aggregate counts cover the board's lifetime.
_VOLATILE, _AGGREGATE = ("NVML_VOLATILE_ECC", 0), ("NVML_AGGREGATE_ECC", 1)


def _memory_errors(name: str, kind: tuple[str, int], counter: tuple[str, int], identifier: int, symbol: str, *aliases: str) -> NvmlMetric:
    call = _call("nvmlDeviceGetMemoryErrorCounter", kind, counter, ("NVML_MEMORY_LOCATION_DEVICE_MEMORY", 2), layout="Q")
    return _by_field(NvmlMetric(name, call, every=TEN_SECONDS, maximum=LARGEST, aliases=aliases), identifier, symbol)


def _sram(name: str, member: str, maximum: int = LARGEST) -> NvmlMetric:
    return NvmlMetric(name, SRAM, member, every=TEN_SECONDS, maximum=maximum)


def _violation(reason: str, identifier: int, symbol: str, policy: int) -> NvmlMetric:
    # Newer drivers refuse fields 77 to 79, and the older call still answers. The throttling counters that NVIDIA added later
    # (NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN and the two behind it) are not read. Their numbers are 251 to 253 in the
    # header of 575 and the binding of 580.65, and 269 to 271 in the binding from 580.82 on, where 251 to 253 are power smoothing
    # again, as in 570. Headers of 580 differ, so a driver's version does not tell which register a number stands for.
    call = Call(
        ("nvmlDeviceGetViolationStatus",),
        "8xQ",
        ("violationTime",),
        ((f"NVML_PERF_POLICY_{symbol}", policy),),
        structure="c_nvmlViolationTime_t",
    )
    row = NvmlMetric(f"violationSeconds.{reason}", call, "violationTime", every=TEN_SECONDS, maximum=LARGEST, divisor=NANOSECONDS)
    return _by_field(row, identifier, f"PERF_POLICY_{symbol}")


def _limit(name: str, threshold: str, number: int) -> NvmlMetric:
    call = _call("nvmlDeviceGetTemperatureThreshold", (f"NVML_TEMPERATURE_THRESHOLD_{threshold}", number))
    return NvmlMetric(name, call, every=ONCE, maximum=HOTTEST, minimum=ABOVE_ICE)


def _power_limit(name: str, call: Call, member: str, identifier: int, symbol: str) -> NvmlMetric:
    row = NvmlMetric(name, call, member, every=ONCE, minimum=LEAST_LIMIT, maximum=MOST_POWER, divisor=1000)
    return _by_field(row, identifier, f"POWER_{symbol}_LIMIT")


# Two unsigned numbers through two pointers.
_ECC_MODE = Call(("nvmlDeviceGetEccMode",), "II", ("current", "pending"), pointers=(0, 4))
_MIG_MODE = Call(("nvmlDeviceGetMigMode",), "II", ("currentMode", "pendingMode"), pointers=(0, 4))
_POWER_RANGE = Call(("nvmlDeviceGetPowerManagementLimitConstraints",), "II", ("minLimit", "maxLimit"), pointers=(0, 4))
MARGIN = NvmlMetric(
    "tempMargin",
    Call(
        ("nvmlDeviceGetMarginTemperature",),
        "4xi",
        ("marginTemperature",),
        version=0x01000008,
        structure="c_nvmlMarginTemperature_v1_t",
    ),
    "marginTemperature",
    every=TEN_SECONDS,
    maximum=HOTTEST,
    minimum=COLDEST,
)
T_LIMITS = {
    "tempLimit.shutdown": NvmlField(193, "TEMPERATURE_SHUTDOWN_TLIMIT"),
    "tempLimit.slowdown": NvmlField(194, "TEMPERATURE_SLOWDOWN_TLIMIT"),
    "maxOpTemp": NvmlField(196, "TEMPERATURE_GPU_MAX_TLIMIT"),
}
"""The field with the margin at a limit, by limit: Ada and later have these instead of thresholds."""

# Raw units: percent, bytes, °C, mW, mJ, MHz, KiB over NVLink, ns of violations; PCIe's byte counters may wrap.
METRICS = (
    NvmlMetric("gpu", UTILIZATION, "gpu", maximum=100),
    NvmlMetric("memory", UTILIZATION, "memory", maximum=100),
    NvmlMetric("memoryTotalBytes", MEMORY, "total", maximum=MOST_MEMORY, minimum=1, note=_HOST_TOTAL),
    NvmlMetric("memoryFreeBytes", MEMORY, "free", maximum=MOST_MEMORY, within="memoryTotalBytes"),
    NvmlMetric("memoryAllocatedBytes", MEMORY, "used", maximum=MOST_MEMORY, note=_HELD),
    NvmlMetric("temp", _call("nvmlDeviceGetTemperature", ("NVML_TEMPERATURE_GPU", 0)), maximum=HOTTEST, minimum=ABOVE_ICE),
    # NVML documents both as the mean of a second, on Ampere (except GA100) and later. Other GPUs have only the call.
    # A field that answers 0 W has no value, hence the minimum.
    _by_field(NvmlMetric("powerWatts", _call("nvmlDeviceGetPowerUsage"), maximum=MOST_POWER, divisor=1000), 185, "POWER_AVERAGE")._replace(
        minimum=1
    ),
    NvmlMetric("smClock", _call("nvmlDeviceGetClockInfo", ("NVML_CLOCK_SM", 1)), maximum=FASTEST),
    NvmlMetric("memoryClock", _call("nvmlDeviceGetClockInfo", ("NVML_CLOCK_MEM", 2)), maximum=FASTEST),
    NvmlMetric("throttled", EVENT_REASONS, maximum=LARGEST, flags=THROTTLE, mask=THROTTLED),
    NvmlMetric("memoryTemp", NvmlField(82, "MEMORY_TEMP"), maximum=HOTTEST, minimum=ABOVE_ICE),
    NvmlMetric("energyJoules", NvmlField(83, "TOTAL_ENERGY_CONSUMPTION"), maximum=MOST_ENERGY, divisor=1000),
    NvmlMetric("pcieTxBytesTotal", NvmlField(197, "PCIE_COUNT_TX_BYTES"), maximum=LARGEST),
    NvmlMetric("pcieRxBytesTotal", NvmlField(198, "PCIE_COUNT_RX_BYTES"), maximum=LARGEST),
    NvmlMetric("nvlinkTxBytesTotal", NvmlField(138, "NVLINK_THROUGHPUT_DATA_TX", ALL_ONES), maximum=LARGEST, factor=KIB, note=_LINKS),
    NvmlMetric("nvlinkRxBytesTotal", NvmlField(139, "NVLINK_THROUGHPUT_DATA_RX", ALL_ONES), maximum=LARGEST, factor=KIB, note=_LINKS),
    NvmlMetric("graphicsClock", _call("nvmlDeviceGetClockInfo", ("NVML_CLOCK_GRAPHICS", 0)), every=SECOND, maximum=FASTEST),
    # P0 to P15; NVML_PSTATE_UNKNOWN is 32.
    NvmlMetric("performanceState", _call("nvmlDeviceGetPerformanceState"), every=SECOND, maximum=15),
    # The sampling period, which comes through a second pointer, is not used.
    NvmlMetric("encoderUtilization", _call("nvmlDeviceGetEncoderUtilization", layout="I4x", pointers=(0, 4)), every=SECOND, maximum=100),
    NvmlMetric("decoderUtilization", _call("nvmlDeviceGetDecoderUtilization", layout="I4x", pointers=(0, 4)), every=SECOND, maximum=100),
    # Percent of the noise tolerance speed. NVML documents that it may exceed 100.
    NvmlMetric("fanSpeed", _call("nvmlDeviceGetFanSpeed"), every=SECOND, maximum=1000),
    _by_field(
        NvmlMetric(
            "enforcedPowerLimitWatts",
            _call("nvmlDeviceGetEnforcedPowerLimit"),
            every=TEN_SECONDS,
            maximum=MOST_POWER,
            minimum=LEAST_LIMIT,
            divisor=1000,
        ),
        *(190, "POWER_CURRENT_LIMIT"),
    ),
    _memory_errors("correctedMemoryErrors", _CORRECTED, _VOLATILE, 11, "ECC_SBE_VOL_DEV"),
    _memory_errors("uncorrectedMemoryErrors", _UNCORRECTED, _VOLATILE, 12, "ECC_DBE_VOL_DEV", "unCorrectedMemoryErrors"),
    _memory_errors("correctedMemoryErrorsAggregate", _CORRECTED, _AGGREGATE, 22, "ECC_SBE_AGG_DEV"),
    _memory_errors("uncorrectedMemoryErrorsAggregate", _UNCORRECTED, _AGGREGATE, 23, "ECC_DBE_AGG_DEV"),
    NvmlMetric("pcieLinkGen", _call("nvmlDeviceGetCurrPcieLinkGeneration"), every=TEN_SECONDS, maximum=15, minimum=1),
    NvmlMetric("pcieLinkWidth", _call("nvmlDeviceGetCurrPcieLinkWidth"), every=TEN_SECONDS, maximum=32, minimum=1),
    NvmlMetric("bar1UsedBytes", BAR1, "bar1Used", every=TEN_SECONDS, maximum=MOST_MEMORY),
    NvmlMetric("pcieReplays", NvmlField(94, "PCIE_REPLAY_COUNTER"), every=TEN_SECONDS, maximum=LARGEST),
    NvmlMetric("remappedRowsCorrected", NvmlField(142, "REMAPPED_COR"), every=TEN_SECONDS, maximum=LARGEST),
    NvmlMetric("remappedRowsUncorrected", NvmlField(143, "REMAPPED_UNC"), every=TEN_SECONDS, maximum=LARGEST),
    NvmlMetric("rowRemapPending", NvmlField(144, "REMAPPED_PENDING"), every=TEN_SECONDS, maximum=1),
    NvmlMetric("rowRemapFailure", NvmlField(145, "REMAPPED_FAILURE"), every=TEN_SECONDS, maximum=1),
    NvmlMetric("recoveryAction", NvmlField(230, "GET_GPU_RECOVERY_ACTION"), every=TEN_SECONDS, maximum=255),
    NvmlMetric("correctedEccErrors", NvmlField(3, "ECC_SBE_VOL_TOTAL"), every=TEN_SECONDS, maximum=LARGEST),
    NvmlMetric("uncorrectedEccErrors", NvmlField(4, "ECC_DBE_VOL_TOTAL"), every=TEN_SECONDS, maximum=LARGEST),
    NvmlMetric("correctedEccErrorsAggregate", NvmlField(5, "ECC_SBE_AGG_TOTAL"), every=TEN_SECONDS, maximum=LARGEST),
    NvmlMetric("uncorrectedEccErrorsAggregate", NvmlField(6, "ECC_DBE_AGG_TOTAL"), every=TEN_SECONDS, maximum=LARGEST),
    _sram("correctedSramErrors", "volatileCor"),
    _sram("uncorrectedSramParityErrors", "volatileUncParity"),
    _sram("uncorrectedSramSecDedErrors", "volatileUncSecDed"),
    _sram("correctedSramErrorsAggregate", "aggregateCor"),
    _sram("uncorrectedSramParityErrorsAggregate", "aggregateUncParity"),
    _sram("uncorrectedSramSecDedErrorsAggregate", "aggregateUncSecDed"),
    _sram("uncorrectedSramErrorsAggregate.l2", "aggregateUncBucketL2"),
    _sram("uncorrectedSramErrorsAggregate.sm", "aggregateUncBucketSm"),
    _sram("uncorrectedSramErrorsAggregate.microcontroller", "aggregateUncBucketMcu"),
    _sram("uncorrectedSramErrorsAggregate.pcie", "aggregateUncBucketPcie"),
    _sram("uncorrectedSramErrorsAggregate.other", "aggregateUncBucketOther"),
    _sram("sramThresholdExceeded", "bThresholdExceeded", 1),
    _violation("power", 74, "POWER", 0),
    _violation("thermal", 75, "THERMAL", 1),
    _violation("syncBoost", 76, "SYNC_BOOST", 2),
    _violation("boardLimit", 77, "BOARD_LIMIT", 3),
    _violation("lowUtilization", 78, "LOW_UTILIZATION", 4),
    _violation("reliability", 79, "RELIABILITY", 5),
    # In addition to the mean of a second. It is in the same batch of fields, so it costs no call.
    NvmlMetric("powerInstantWatts", NvmlField(186, "POWER_INSTANT"), minimum=1, maximum=MOST_POWER, divisor=1000),
    MARGIN,
    NvmlMetric("jpegUtilization", _call("nvmlDeviceGetJpgUtilization", layout="I4x", pointers=(0, 4)), every=TEN_SECONDS, maximum=100),
    NvmlMetric("ofaUtilization", _call("nvmlDeviceGetOfaUtilization", layout="I4x", pointers=(0, 4)), every=TEN_SECONDS, maximum=100),
    NvmlMetric("videoClock", _call("nvmlDeviceGetClockInfo", ("NVML_CLOCK_VIDEO", 3)), every=TEN_SECONDS, maximum=FASTEST),
    NvmlMetric("persistenceMode", _call("nvmlDeviceGetPersistenceMode"), every=TEN_SECONDS, maximum=1),
    NvmlMetric("computeMode", _call("nvmlDeviceGetComputeMode"), every=TEN_SECONDS, maximum=3),
    NvmlMetric("migMode", _MIG_MODE, "currentMode", every=TEN_SECONDS, maximum=1),
    NvmlMetric("migModePending", _MIG_MODE, "pendingMode", every=TEN_SECONDS, maximum=1),
    _by_field(NvmlMetric("eccMode", _ECC_MODE, "current", every=TEN_SECONDS, maximum=1), 1, "ECC_CURRENT"),
    _by_field(NvmlMetric("eccModePending", _ECC_MODE, "pending", every=TEN_SECONDS, maximum=1), 2, "ECC_PENDING"),
    NvmlMetric("retiredPagesSingleBit", NvmlField(29, "RETIRED_SBE"), every=TEN_SECONDS, maximum=LARGEST),
    NvmlMetric("retiredPagesDoubleBit", NvmlField(30, "RETIRED_DBE"), every=TEN_SECONDS, maximum=LARGEST),
    NvmlMetric("retiredPagesPending", NvmlField(31, "RETIRED_PENDING"), every=TEN_SECONDS, maximum=1),
    _limit("maxOpTemp", "GPU_MAX", 3),
    _limit("memoryMaxOpTemp", "MEM_MAX", 2),
    NvmlMetric("maxVideoClock", _call("nvmlDeviceGetMaxClockInfo", ("NVML_CLOCK_VIDEO", 3)), every=ONCE, maximum=FASTEST, minimum=1),
    _power_limit("minPowerLimitWatts", _POWER_RANGE, "minLimit", 187, "MIN"),
    _power_limit("maxPowerLimitWatts", _POWER_RANGE, "maxLimit", 188, "MAX"),
    _power_limit("defaultPowerLimitWatts", _call("nvmlDeviceGetPowerManagementDefaultLimit"), "", 189, "DEFAULT"),
    NvmlMetric("c2cMode", _call("nvmlDeviceGetC2cModeInfoV"), every=ONCE, maximum=1),
    NvmlMetric("c2cLinks", NvmlField(170, "C2C_LINK_COUNT"), every=ONCE, maximum=255),
    NvmlMetric("c2cLinkSpeed", NvmlField(172, "C2C_LINK_GET_MAX_BW"), every=ONCE, factor=MEGA, note=" of the first link"),
    NvmlMetric("maxSmClock", _call("nvmlDeviceGetMaxClockInfo", ("NVML_CLOCK_SM", 1)), every=ONCE, maximum=FASTEST, minimum=1),
    NvmlMetric("maxMemoryClock", _call("nvmlDeviceGetMaxClockInfo", ("NVML_CLOCK_MEM", 2)), every=ONCE, maximum=FASTEST, minimum=1),
    _limit("tempLimit.shutdown", "SHUTDOWN", 0),
    _limit("tempLimit.slowdown", "SLOWDOWN", 1),
    NvmlMetric("maxPcieLinkGen", _call("nvmlDeviceGetMaxPcieLinkGeneration"), every=ONCE, maximum=15, minimum=1),
    NvmlMetric("maxPcieLinkWidth", _call("nvmlDeviceGetMaxPcieLinkWidth"), every=ONCE, maximum=32, minimum=1),
)
POWER_LIMIT = "enforcedPowerLimitWatts"
BOARD_METRICS = ("temp", "powerWatts", "powerPercent")
"""The fast metrics that W&B repeats for the watched process, in addition to the power limit."""
SHARES = {"memoryAllocated": ("memoryAllocatedBytes", "memoryTotalBytes"), "powerPercent": ("powerWatts", POWER_LIMIT)}
"""Metrics in percent, each with its part and its whole. If used memory exceeds the total, it is unknown which of the two is wrong, so
neither is reported.
"""

LINK_STATE = NvmlField(165, "NVLINK_GET_STATE")
LINK_STATE_CALL = Call(("nvmlDeviceGetNvLinkState",))
"""The state of one link, on drivers without the field."""
LINK_TRAFFIC = {"txBytesTotal": NvmlField(138, "NVLINK_THROUGHPUT_DATA_TX"), "rxBytesTotal": NvmlField(139, "NVLINK_THROUGHPUT_DATA_RX")}
"""KiB of payload. The scope is a link, or all links."""
LINK_COUNTS = {
    "nvlinkCrcErrors": (NvmlField(163, "NVLINK_ERROR_DL_CRC"),),
    "nvlinkReplayErrors": (NvmlField(161, "NVLINK_ERROR_DL_REPLAY"),),
    # Blackwell has only the second.
    "nvlinkRecoveryErrors": (NvmlField(162, "NVLINK_ERROR_DL_RECOVERY"), NvmlField(215, "NVLINK_COUNT_LINK_RECOVERY_EVENTS")),
    "nvlinkRecoverySuccesses": (NvmlField(213, "NVLINK_COUNT_LINK_RECOVERY_SUCCESSFUL_EVENTS"),),
    "nvlinkRecoveryFailures": (NvmlField(214, "NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS"),),
    "nvlinkMalformedErrors": (NvmlField(206, "NVLINK_COUNT_MALFORMED_PACKET_ERRORS"),),
    "nvlinkOverrunErrors": (NvmlField(207, "NVLINK_COUNT_BUFFER_OVERRUN_ERRORS"),),
    "nvlinkReceiveErrors": (NvmlField(208, "NVLINK_COUNT_RCV_ERRORS"),),
    "nvlinkRemoteErrors": (NvmlField(209, "NVLINK_COUNT_RCV_REMOTE_ERRORS"),),
    "nvlinkHeaderErrors": (NvmlField(210, "NVLINK_COUNT_RCV_GENERAL_ERRORS"),),
    "nvlinkIntegrityErrors": (NvmlField(211, "NVLINK_COUNT_LOCAL_LINK_INTEGRITY_ERRORS"),),
    "nvlinkDiscardErrors": (NvmlField(212, "NVLINK_COUNT_XMIT_DISCARDS"),),
    "nvlinkEffectiveErrors": (NvmlField(219, "NVLINK_COUNT_EFFECTIVE_ERRORS"),),
    "nvlinkSymbolErrors": (NvmlField(221, "NVLINK_COUNT_SYMBOL_ERRORS"),),
    **{f"nvlinkFec.bin{bin_}": (NvmlField(235 + bin_, f"NVLINK_COUNT_FEC_HISTORY_{bin_}"),) for bin_ in range(16)},
}
"""Fields of one link. The first field that the GPU has is added up over the links. All but the first three counts need NVLink 5."""
LINK_COUNTS_OF_ALL = {
    "nvlinkCrcErrors": NvmlField(38, "NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL"),
    "nvlinkReplayErrors": NvmlField(52, "NVLINK_REPLAY_ERROR_COUNT_TOTAL"),
    "nvlinkRecoveryErrors": NvmlField(59, "NVLINK_RECOVERY_ERROR_COUNT_TOTAL"),
}
"""Fields for all links together, which older GPUs have instead."""
LINK_RATIOS = {
    "nvlinkEffectiveErrorRatio": NvmlField(220, "NVLINK_COUNT_EFFECTIVE_BER"),
    "nvlinkSymbolErrorRatio": NvmlField(222, "NVLINK_COUNT_SYMBOL_BER"),
}
"""Bit error ratios of one link: the exponent in the lower eight bits, the mantissa in the four bits above."""

FABRIC_CALL = "nvmlDeviceGetGpuFabricInfoV"
FABRIC_FLAGS = {"degradedBandwidth": 0, "routeRecovery": 2, "routeUnhealthy": 4, "accessTimeoutRecovery": 6}
"""Position of each flag's two bits in the health mask: 0 not supported, 1 true, 2 false."""
FABRIC_CONFIGURATION = 8
"""Position of the four bits of ``incorrectConfiguration`` in the health mask."""
OF_FABRIC = (
    *("fabricState", "fabricHealthMask", "fabricHealthSummary"),
    *(f"fabricHealth.{name}" for name in (*FABRIC_FLAGS, "incorrectConfiguration")),
)

FAST_ROWS = tuple(row for row in METRICS if row.every == READING)
SLOW_ROWS = {pace: tuple(row for row in METRICS if row.every == pace) for pace in (SECOND, TEN_SECONDS, ONCE)}
CALLED_ROWS = tuple(row.otherwise or row for row in FAST_ROWS)
"""The fast rows by call, for GPUs or drivers that lack the fields."""
ENERGY_ROWS = tuple(row for row in FAST_ROWS if row.name == "energyJoules")
MODULE_ENERGY = "moduleEnergyJoules"
MEMORY_ROWS = tuple(row for row in FAST_ROWS if row.source is MEMORY)
"""The fast rows of a MIG instance. The other values belong to the board and stay with the GPU, so that sums over devices are right."""

GPM_SUPPORT = NvmlMetric(
    "gpm",
    Call(("nvmlGpmQueryDeviceSupport",), "4xI", ("isSupportedDevice",), version=1, structure="c_nvmlGpmSupport_t"),
    "isSupportedDevice",
    every=ONCE,
    maximum=1,
)
"""Whether the GPU has profiling metrics; not reported as a metric."""
MOST_PCIE, MOST_NVLINK = 2.0**41, 2.0**46
"""Bytes per second, several times the fastest links' rate in one direction."""
GPM_METRICS = {
    "grEngineActive": (1, "GRAPHICS_UTIL"),
    "smActive": (2, "SM_UTIL"),
    "smOccupancy": (3, "SM_OCCUPANCY"),
    "dramActive": (10, "DRAM_BW_UTIL"),
    "pipeTensorActive": (5, "ANY_TENSOR_UTIL"),
    "pipeTensorHmmaActive": (7, "HMMA_TENSOR_UTIL"),
    "pipeFp64Active": (11, "FP64_UTIL"),
    "pipeFp32Active": (12, "FP32_UTIL"),
    "pipeFp16Active": (13, "FP16_UTIL"),
    "pcieTxBytes": (20, "PCIE_TX_PER_SEC"),
    "pcieRxBytes": (21, "PCIE_RX_PER_SEC"),
    "nvlinkTxBytes": (61, "NVLINK_TOTAL_TX_PER_SEC"),
    "nvlinkRxBytes": (60, "NVLINK_TOTAL_RX_PER_SEC"),
}
"""Profiling metrics with number and name in the header. All except the rates are in percent."""
GPM_RATES = {"pcieTxBytes": MOST_PCIE, "pcieRxBytes": MOST_PCIE, "nvlinkTxBytes": MOST_NVLINK, "nvlinkRxBytes": MOST_NVLINK}
"""Largest plausible rate in bytes per second; NVML reports MiB per second."""
GPM_OF_INSTANCES = tuple(name for name in GPM_METRICS if name not in GPM_RATES)
"""Profiling metrics of a MIG instance: NVML does not measure its share of PCIe and NVLink."""
GPM_PACE = 0.19
"""Seconds between two samples: every second reading at 10 a second, with a margin for one that comes a little early."""


OF_LINKS = frozenset(
    {
        *("nvlinkTxBytesTotal", "nvlinkRxBytesTotal"),
        *(*LINK_COUNTS, *LINK_RATIOS),
        *(f"nvlink.{{link}}.{way}" for way in ("state", *LINK_TRAFFIC)),
    }
)
OF_XIDS = frozenset({"xidErrors", "lastXid", "xid.{code}.errors"})
PCIE_COUNTERS = tuple(row for row in FAST_ROWS if row.name in ("pcieTxBytesTotal", "pcieRxBytesTotal"))
PCIE_RATES = {"pcieTxBytes": ("NVML_PCIE_UTIL_TX_BYTES", 0), "pcieRxBytes": ("NVML_PCIE_UTIL_RX_BYTES", 1)}
"""Rates that are measured on GPUs without GPM and counters, with the name and number of the call's counter."""
PCIE_EACH_SECOND = "PCIe throughput each second"
"""Marker in the needed metrics: a PCIe rate is selected by name."""
PROCESSES = "process"
"""Marker in the needed metrics: the lists of processes are needed."""


@lru_cache(maxsize=8)
def needed_for(metrics: MetricSelection, maker: Maker) -> frozenset[str]:
    """Find the metrics to read for a selection: wanted ones, and the inputs of wanted shares."""
    covered, device = coverage(maker), f"{maker.kind}.{{i}}"
    parts = (device, f"{device}.mig.{{i}}")
    names = {name for name in (*covered.devices, *covered.optional) if any(metrics.wants_some(f"{part}.{name}") for part in parts)}
    of_process = {name for name in covered.processes if metrics.wants_some(f"{maker.kind}.process.{{i}}.{name}")}
    if of_process or metrics.processes:
        names |= {PROCESSES, *of_process.intersection((*BOARD_METRICS, POWER_LIMIT))}
    names.update(part for share, parts in SHARES.items() if share in names for part in parts)
    # A selection by name asks for the rates on purpose, so they are measured each second. A pattern for all metrics does not.
    by_name = [item for item in metrics.items if "pcie" in item and not item.startswith("-")]
    if by_name and any(name in names and MetricSelection(by_name).wants_some(f"{device}.{name}") for name in PCIE_RATES):
        names.add(PCIE_EACH_SECOND)
    return frozenset(names)


def own_rows(rows: tuple[NvmlMetric, ...], maker: Maker) -> tuple[NvmlMetric, ...]:
    """Return rows as they are in a maker's library."""
    return tuple([maker.rows.get(row.name, row) for row in rows]) if maker.rows else rows


def fast_names(rows: tuple[NvmlMetric, ...]) -> tuple[str, ...]:
    """List the metrics of fast rows in the order of their conversion, without flags."""
    plain = tuple(name for row in rows if not row.flags for name in row.names)
    return (*plain, *(share for share, (part, _) in SHARES.items() if part in plain))


def coverage(maker: Maker) -> Coverage:
    """Return every metric that a maker's library reports, with its source in words."""
    rows = {name: row.words for row in own_rows(METRICS, maker) for name in row.names if not row.flags}
    for bit, name in enumerate(THROTTLE):
        reason = name.removeprefix("throttle.")
        rows[name] = f"{EVENT_REASONS.function}, bit nvmlClocksEventReason{reason[0].upper()}{reason[1:]} (0x{1 << bit:x})"
    rows["throttled"] = f"{EVENT_REASONS.function}, any of 0x{THROTTLED:x}"
    for name, field in T_LIMITS.items():
        rows[name] += f"; else temp + {MARGIN.source.words} - {field.words}"
    shares = {share: f"{part} / {whole}" for share, (part, whole) in SHARES.items()}
    gpm = {
        name: f"GPM, NVML_GPM_METRIC_{symbol} ({identifier}){f', MiB/s × {MIB:.0f}' if name in GPM_RATES else ''}, {GPM_PACE} s"
        for name, (identifier, symbol) in GPM_METRICS.items()
    }
    for name, (counter, _) in PCIE_RATES.items():
        gpm[name] += f"; without GPM and counters nvmlDeviceGetPcieThroughput({counter}), KB/s × 1024, 10 s, 1 s if selected by name"
    links = {}
    for name, fields in LINK_COUNTS.items():
        first, *others = (f"{field.words} over the links" for field in fields)
        of_all = [LINK_COUNTS_OF_ALL[name].words] if name in LINK_COUNTS_OF_ALL else []
        links[name] = f"the sum of {', else '.join((first, *of_all, *others))}, 10 s"
    links |= {name: f"the largest {field.words} of the links, 10 s" for name, field in LINK_RATIOS.items()}
    mask = f"{FABRIC_CALL}().healthMask"
    fabric = {
        "fabricState": f"{FABRIC_CALL}().state",
        "fabricHealthMask": mask,
        "fabricHealthSummary": f"{FABRIC_CALL}().healthSummary of version 3",
        **{f"fabricHealth.{name}": f"{mask}, bits {shift} and {shift + 1}" for name, shift in FABRIC_FLAGS.items()},
        "fabricHealth.incorrectConfiguration": f"{mask}, bits {FABRIC_CONFIGURATION} to {FABRIC_CONFIGURATION + 3}",
    }
    traffic = {f"nvlink.{{link}}.{way}": f"{field.words} of the link, KiB × 1024, 10 s" for way, field in LINK_TRAFFIC.items()}
    held = (
        "usedGpuMemory of nvmlDeviceGetComputeRunningProcesses, 1 s, "
        "and of …GraphicsRunningProcesses and …MPSComputeRunningProcesses, 1 s, 10 s while empty"
    )
    whole = Coverage(
        devices={
            **rows,
            **shares,
            **gpm,
            **links,
            **{name: f"{words} on drivers from 550 on, 10 s" for name, words in fabric.items()},
            "xidErrors": "events nvmlEventTypeXidCriticalError of an event set, 1 s",
        },
        partitions={name: {**rows, **shares}[name] for name in fast_names(MEMORY_ROWS)} | {name: gpm[name] for name in GPM_OF_INSTANCES},
        processes={
            maker.called("gpu"): "nvmlDeviceGetProcessUtilization().smUtil, 1 s",
            "memory": "nvmlDeviceGetProcessUtilization().memUtil, 1 s",
            "memoryAllocated": "memoryAllocatedBytes / total",
            "memoryAllocatedBytes": held,
            **{name: f"as `{maker.kind}.{{i}}.{name}`" for name in (*BOARD_METRICS, POWER_LIMIT)},
        },
        optional={
            "lastXid": "nvmlEventData_t.eventData, 1 s",
            MODULE_ENERGY: f"{ENERGY_ROWS[0].words} on GH200",
            "xid.{code}.errors": "nvmlEventData_t.eventData, 1 s",
            "nvlink.{link}.state": f"{LINK_STATE.words}, else {LINK_STATE_CALL.words}, 10 s",
            **traffic,
        },
    )
    devices, partitions, machine, processes, optional = (
        {name: maker.spell(words) for name, words in part.items() if maker.covers(f"process.{name}" if part is whole.processes else name)}
        for part in whole
    )
    return Coverage(devices, partitions, machine, processes, optional)
