"""What the module ``amdsmi`` says of a card: a table of calls, and of which metric is read from which answer.

A call is made only for metrics that are asked for, and only once per reading. One that answers "not supported" is not made
again for that card until the driver is opened anew. Units are the library's: watts, but microwatts for the cap; degrees;
MHz; the energy counter times its resolution is in microjoules; memory in bytes, PCIe speed in millions of transfers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from accelmetrics.backends.amd.table import (
    CELSIUS,
    COUNT,
    GENERATION,
    LANES,
    MEGAHERTZ,
    MICROJOULES,
    NO_ENERGY,
    NO_LIMIT,
    NO_POWER,
    PERCENT,
    WATTS,
    Field,
    Value,
    Values,
    complete,
    pools,
    read_card,
)
from accelmetrics.backends.amd.values import Bounds, pcie_generation, whole
from accelmetrics.backends.guard import guarded
from accelmetrics.schemas.errors import SourceError
from accelmetrics.schemas.reasons import Reason, Unavailable

ABSENT = "amdsmi has no {} for this card"
NOT_SAID = "amdsmi does not say it"
NO_PERMISSION, BUSY = 10, 30
NOT_SUPPORTED = (2, 3)
LOST = (31, 32)
"""Status codes: the device was not found, the library is not initialised (any more)."""
Call = Callable[[Any, Any], Mapping[str, object]]


def generation(value: object) -> Value:
    """The PCIe generation of a speed in millions of transfers a second."""
    return pcie_generation(value, 1000)


def _temperature(module: Any, handle: Any, sensor: str) -> Mapping[str, object]:
    kind, metric = getattr(module.AmdSmiTemperatureType, sensor), module.AmdSmiTemperatureMetric.CURRENT
    return {sensor.lower(): module.amdsmi_get_temp_metric(handle, kind, metric)}


def _energy(module: Any, handle: Any) -> Mapping[str, object]:
    said = module.amdsmi_get_energy_count(handle)
    counter = said.get("energy_accumulator", said.get("power"))  # "power" up to 6.2
    return {"microjoules": counter * said["counter_resolution"]}


def _fan(module: Any, handle: Any) -> Mapping[str, object]:
    top = module.amdsmi_get_gpu_fan_speed_max(handle, 0)
    return {"percent": 100 * module.amdsmi_get_gpu_fan_speed(handle, 0) / top} if top > 0 else {}


def _pool(module: Any, handle: Any, kind: str) -> Mapping[str, object]:
    pool_kind = getattr(module.AmdSmiMemoryType, kind)
    return {"used": module.amdsmi_get_gpu_memory_usage(handle, pool_kind), "total": module.amdsmi_get_gpu_memory_total(handle, pool_kind)}


def _pcie(module: Any, handle: Any) -> Mapping[str, object]:
    said = module.amdsmi_get_pcie_info(handle)
    return {**said.get("pcie_static", {}), **said.get("pcie_metric", {})}


CALLS: Mapping[str, Call] = {
    "activity": lambda module, handle: module.amdsmi_get_gpu_activity(handle),
    "edge": lambda module, handle: _temperature(module, handle, "EDGE"),
    "junction": lambda module, handle: _temperature(module, handle, "JUNCTION"),
    "memory": lambda module, handle: _temperature(module, handle, "VRAM"),
    "power": lambda module, handle: module.amdsmi_get_power_info(handle),
    "cap": lambda module, handle: module.amdsmi_get_power_cap_info(handle),
    "energy": _energy,
    "fan": _fan,
    "sclk": lambda module, handle: module.amdsmi_get_clock_info(handle, module.AmdSmiClkType.GFX),
    "mclk": lambda module, handle: module.amdsmi_get_clock_info(handle, module.AmdSmiClkType.MEM),
    "ecc": lambda module, handle: module.amdsmi_get_gpu_total_ecc_count(handle),
    "pcie": _pcie,
    "vram": lambda module, handle: _pool(module, handle, "VRAM"),
    "gtt": lambda module, handle: _pool(module, handle, "GTT"),
}
"""By the first word of a place in the record, the call whose answer has it."""

POWER = ("power.average_socket_power", "power.current_socket_power", "power.socket_power")
FIELDS = (
    Field("gpu", ("activity.gfx_activity",), PERCENT),
    Field("memory", ("activity.umc_activity",), PERCENT),
    Field("memoryReadWriteActivity", ("activity.umc_activity",), PERCENT),
    Field("temp", ("edge.edge", "junction.junction"), CELSIUS),
    Field("hotspotTemp", ("junction.junction",), CELSIUS),
    Field("memoryTemp", ("memory.vram",), CELSIUS),
    Field("powerWatts", POWER, WATTS, zero=NO_POWER),
    Field("enforcedPowerLimitWatts", ("cap.power_cap",), Bounds(0, 4e9), zero=NO_LIMIT, divisor=1e6),
    Field("energyJoules", ("energy.microjoules",), MICROJOULES, zero=NO_ENERGY, divisor=1e6),
    Field("fanSpeed", ("fan.percent",), Bounds(0, 200)),
    Field("smClock", ("sclk.clk",), MEGAHERTZ, whole),
    Field("maxSmClock", ("sclk.max_clk",), MEGAHERTZ, whole),
    Field("memoryClock", ("mclk.clk",), MEGAHERTZ, whole),
    Field("maxMemoryClock", ("mclk.max_clk",), MEGAHERTZ, whole),
    Field("correctedMemoryErrors", ("ecc.correctable_count",), COUNT, whole),
    Field("uncorrectedMemoryErrors", ("ecc.uncorrectable_count",), COUNT, whole),
    Field("unCorrectedMemoryErrors", ("ecc.uncorrectable_count",), COUNT, whole),
    Field("pcieReplays", ("pcie.pcie_replay_count",), COUNT, whole),
    Field("pcieLinkGen", ("pcie.pcie_speed",), GENERATION, generation),
    Field("maxPcieLinkGen", ("pcie.max_pcie_speed",), GENERATION, generation),
    Field("pcieLinkWidth", ("pcie.pcie_width",), LANES, whole),
    Field("maxPcieLinkWidth", ("pcie.max_pcie_width",), LANES, whole),
)
POOLS = pools("{}.used", "{}.total")
DERIVED = {
    **dict.fromkeys(("memoryAllocated", "memoryAllocatedBytes", "memoryTotalBytes", "memoryFreeBytes"), ("vram", "gtt")),
    "powerPercent": ("power", "cap"),
}
NEEDED = {**{field.name: tuple(dict.fromkeys(key.partition(".")[0] for key in field.keys)) for field in FIELDS}, **DERIVED}
"""By metric, the calls that it needs."""


class AmdsmiCard:
    """One card behind the module.

    Args:
        module: The module.
        handle: The library's handle.
    """

    def __init__(self, module: Any, handle: Any) -> None:
        self._module = module
        self._handle = handle
        self._unsupported: dict[str, Unavailable] = {}

    def read(self, wanted: Collection[str], unified: bool, progress: list[Any]) -> Values:
        """The metrics that are asked for, each a value or why there is none.

        Raises:
            SourceError: The library no longer knows the card.
        """
        calls = dict.fromkeys(call for name in wanted for call in NEEDED.get(name, ()))
        if not unified:
            calls.pop("gtt", None)
        record: dict[str, object] = {}
        for call in calls:
            record.update(self._ask(call, progress))
        values = complete(read_card(record, FIELDS, POOLS, unified, ABSENT), NOT_SAID)
        return {name: value for name, value in values.items() if name in wanted}

    def _ask(self, call: str, progress: list[Any]) -> dict[str, object]:
        """One call's answer; the reason under each place that is read from it, when there is none."""
        if call in self._unsupported:
            return dict.fromkeys(PLACES[call], self._unsupported[call])
        outcome = guarded(_said, call, self._module, self._handle)  # the module throws what comes to pass in it, not its own errors alone
        progress.append(call)
        if outcome.failure is None:
            return outcome.value or {}
        return dict.fromkeys(PLACES[call], self._reason(call, outcome.failure, outcome.error))

    def _reason(self, call: str, failure: Unavailable, error: BaseException | None) -> Unavailable:
        code = getattr(error, "err_code", None)
        if code is None:
            return failure._replace(detail=f"amdsmi, {call}: {failure.detail}")
        words = " ".join(failure.detail.partition(": ")[2].split())
        if code in LOST:
            raise SourceError(Reason.DEVICE_LOST, f"amdsmi: {words}", backend="amd") from error
        if code in NOT_SUPPORTED:
            self._unsupported[call] = Unavailable(Reason.NOT_SUPPORTED, words)
            return self._unsupported[call]
        return Unavailable(Reason.NO_PERMISSION if code == NO_PERMISSION else Reason.DRIVER_ERROR, words)


def _said(call: str, module: Any, handle: Any) -> dict[str, object]:
    return {f"{call}.{name}": value for name, value in CALLS[call](module, handle).items()}


def _places() -> dict[str, tuple[str, ...]]:
    keys = [key for field in (*FIELDS, *POOLS.video, *POOLS.shared) for key in field.keys]
    return {call: tuple(key for key in keys if key.partition(".")[0] == call) for call in CALLS}


PLACES = _places()
