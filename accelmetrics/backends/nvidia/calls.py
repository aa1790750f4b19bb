"""The calls of a reading, as data: which function, with which arguments, what it writes, which metrics come of it.

The layouts are those of NVIDIA's header in ``struct`` notation, without the compiler's padding where it is not written
out. ``structure`` names the class of ``pynvml`` that a test compares size and offsets with.
"""

from __future__ import annotations

from typing import NamedTuple

ALL_ONES = 0xFFFFFFFF
"""All ones: NVML's "not available", and as the scope of a field "all links"."""
LARGEST = 2**63 - 1
"""Above this no 64-bit answer is believed. Sentinels are all-ones, and JSON and Prometheus readers end here."""
LARGEST_32 = ALL_ONES - 1
HOTTEST = 250
COLDEST = -100
"""°C. No sensor on a GPU reads more, or less; all-ones and byte-sized sentinels do."""


class Value(NamedTuple):
    """One number among those that a call writes.

    Attributes:
        names: The metrics that carry it: several spellings of one.
        maximum: The largest raw answer that is possible.
        minimum: The smallest one.
        divisor: What the raw answer is divided by, 1 to leave it a whole number.
    """

    names: tuple[str, ...]
    maximum: int
    minimum: int = 0
    divisor: int = 1


class Field(NamedTuple):
    """One field of a batched ``nvmlDeviceGetFieldValues``.

    Attributes:
        identifier: The field's number in the header (``NVML_FI_…``).
        value: What comes of it.
        scope: The field's scope: a link, or all of them.
    """

    identifier: int
    value: Value
    scope: int = 0


class Call(NamedTuple):
    """One call of a reading.

    Attributes:
        functions: The function's names, the newest first; drivers have some of them.
        layout: What it writes, as a ``struct`` format without byte order.
        values: One per number in ``layout``.
        arguments: What stands between the handle and the pointers.
        pointers: Where in the slot each pointer points.
        version: Written once into the first four bytes of the slot, for versioned structures.
        structure: The class in ``pynvml`` of the same layout, if it has one.
        fallback: The call for drivers that have none of ``functions``.
        fields: The fields of a batch; ``layout`` and ``values`` are then empty.
    """

    functions: tuple[str, ...]
    layout: str = ""
    values: tuple[Value, ...] = ()
    arguments: tuple[int, ...] = ()
    pointers: tuple[int, ...] = (0,)
    version: int | None = None
    structure: str = ""
    fallback: Call | None = None
    fields: tuple[Field, ...] = ()

    @property
    def function(self) -> str:
        """The name it goes by in messages."""
        return self.functions[0]

    @property
    def metrics(self) -> tuple[str, ...]:
        """Every metric that comes of it."""
        carried = self.values or tuple(field.value for field in self.fields)
        return tuple(name for value in carried for name in value.names)


FIELD_HEAD = "24xQ"
"""``nvmlFieldValue_t`` up to its value: type and return code as one number, the code in the upper half."""
FIELD_STRUCTURE = "c_nvmlFieldValue_t"
MEMORY_V2 = 0x02000028
"""``nvmlMemory_v2``: the structure's size and its version."""


def _one(
    function: str, name: str, maximum: int = LARGEST_32, *arguments: int, minimum: int = 0, divisor: int = 1, wide: bool = False
) -> Call:
    """A call that writes one unsigned number for one metric."""
    return Call((function,), "Q" if wide else "I", (Value((name,), maximum, minimum, divisor),), arguments)


def _fields(*fields: Field) -> Call:
    return Call(("nvmlDeviceGetFieldValues",), structure=FIELD_STRUCTURE, fields=fields)


def _utilization(function: str, name: str) -> Call:
    """Percent; the sampling period that comes with it is not used."""
    return Call((function,), "I4x", (Value((name,), 100),), pointers=(0, 4))


_MEMORY_VALUES = (Value(("memoryTotalBytes",), LARGEST), Value(("memoryFreeBytes",), LARGEST), Value(("memoryAllocatedBytes",), LARGEST))
_MEMORY_V1 = Call(("nvmlDeviceGetMemoryInfo",), "QQQ", _MEMORY_VALUES, structure="c_nvmlMemory_t")

MEMORY = Call(
    ("nvmlDeviceGetMemoryInfo_v2",), "8xQ8xQQ", _MEMORY_VALUES, version=MEMORY_V2, structure="c_nvmlMemory_v2_t", fallback=_MEMORY_V1
)
"""Bytes. The second version leaves the driver's reserve out of ``used``; older drivers have the first alone."""

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
"""In the order of the bits of ``nvmlClocksEventReasons``, from the lowest."""

FAST_FIELDS = _fields(
    Field(82, Value(("memoryTemp",), HOTTEST, COLDEST)),
    Field(83, Value(("energyJoules",), LARGEST, divisor=1000)),
    Field(197, Value(("pcieTxBytesTotal",), LARGEST)),
    Field(198, Value(("pcieRxBytesTotal",), LARGEST)),
    Field(138, Value(("nvlinkTxBytesTotal",), LARGEST), ALL_ONES),
    Field(139, Value(("nvlinkRxBytesTotal",), LARGEST), ALL_ONES),
)
"""°C; mJ; bytes, which NVML says may wrap; KiB of payload over all links."""

FAST = (
    Call(("nvmlDeviceGetUtilizationRates",), "II", (Value(("gpu",), 100), Value(("memory",), 100)), structure="c_nvmlUtilization_t"),
    MEMORY,
    _one("nvmlDeviceGetTemperature", "temp", HOTTEST, 0),
    _one("nvmlDeviceGetPowerUsage", "powerWatts", divisor=1000),
    _one("nvmlDeviceGetClockInfo", "smClock", LARGEST_32, 1),
    _one("nvmlDeviceGetClockInfo", "memoryClock", LARGEST_32, 2),
    _one("nvmlDeviceGetClockInfo", "graphicsClock", LARGEST_32, 0),
    Call(("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"), "Q", (Value(THROTTLE, LARGEST),)),
    _one("nvmlDeviceGetPerformanceState", "performanceState", 15),
    FAST_FIELDS,
)
"""Every reading. The decoder in ``fast`` counts on this order."""

EVERY_SECOND = (
    _utilization("nvmlDeviceGetEncoderUtilization", "encoderUtilization"),
    _utilization("nvmlDeviceGetDecoderUtilization", "decoderUtilization"),
    # Percent of the noise tolerance speed, which NVML says may be exceeded.
    _one("nvmlDeviceGetFanSpeed", "fanSpeed", 1000),
)

_ECC = "nvmlDeviceGetMemoryErrorCounter"
_DEVICE_MEMORY = 2

EVERY_TEN_SECONDS = (
    _one("nvmlDeviceGetEnforcedPowerLimit", "enforcedPowerLimitWatts", LARGEST_32, minimum=1, divisor=1000),
    _one(_ECC, "correctedMemoryErrors", LARGEST, 0, 0, _DEVICE_MEMORY, wide=True),
    Call((_ECC,), "Q", (Value(("uncorrectedMemoryErrors", "unCorrectedMemoryErrors"), LARGEST),), (1, 0, _DEVICE_MEMORY)),
    _one(_ECC, "correctedMemoryErrorsAggregate", LARGEST, 0, 1, _DEVICE_MEMORY, wide=True),
    _one(_ECC, "uncorrectedMemoryErrorsAggregate", LARGEST, 1, 1, _DEVICE_MEMORY, wide=True),
    _one("nvmlDeviceGetCurrPcieLinkGeneration", "pcieLinkGen", 255, minimum=1),
    _one("nvmlDeviceGetCurrPcieLinkWidth", "pcieLinkWidth", 32, minimum=1),
    Call(("nvmlDeviceGetBAR1MemoryInfo",), "16xQ", (Value(("bar1UsedBytes",), LARGEST),), structure="c_nvmlBAR1Memory_t"),
    _fields(
        Field(94, Value(("pcieReplays",), LARGEST)),
        Field(142, Value(("remappedRowsCorrected",), LARGEST)),
        Field(143, Value(("remappedRowsUncorrected",), LARGEST)),
    ),
)
"""mW; counts of errors in device memory, volatile then aggregate; PCIe link; bytes of BAR1; counts."""

ONCE = (
    _one("nvmlDeviceGetMaxClockInfo", "maxSmClock", LARGEST_32, 1),
    _one("nvmlDeviceGetMaxClockInfo", "maxMemoryClock", LARGEST_32, 2),
    _one("nvmlDeviceGetTemperatureThreshold", "tempLimit.shutdown", HOTTEST, 0),
    _one("nvmlDeviceGetTemperatureThreshold", "tempLimit.slowdown", HOTTEST, 1),
    _one("nvmlDeviceGetMaxPcieLinkGeneration", "maxPcieLinkGen", 255, minimum=1),
    _one("nvmlDeviceGetMaxPcieLinkWidth", "maxPcieLinkWidth", 32, minimum=1),
)
"""MHz, °C, PCIe link: what does not change while the driver is open."""

GPM_SUPPORT = Call(("nvmlGpmQueryDeviceSupport",), "4xI", (Value(("gpm",), 1),), version=1, structure="c_nvmlGpmSupport_t")
"""Not a metric: whether the GPU has GPM."""
