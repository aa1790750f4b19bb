"""What each metric is read from in the output of ``amd-smi metric`` and ``amd-smi static``.

Units as printed: watts, degrees, MHz, joules; "MB" of 1,048,576 bytes; PCIe speeds in GT/s. An energy of 0 is how the tool
prints that there is no counter. Power limits stand in ``static`` alone, as they were when the source was opened.
"""

from __future__ import annotations

from accelmetrics.backends.amd import sysfs
from accelmetrics.backends.amd.links import GENERATIONS
from accelmetrics.backends.amd.table import (
    CELSIUS,
    COUNT,
    LANES,
    MEGAHERTZ,
    NO_ENERGY,
    NO_LIMIT,
    NO_POWER,
    NO_TOTAL,
    PERCENT,
    WATTS,
    Field,
    Memory,
    Record,
    Value,
    Values,
    complete,
    device_memory,
    memory_values,
    pool,
    read_field,
    read_fields,
    share,
)
from accelmetrics.backends.amd.values import Bounds, is_absent, number, text, whole
from accelmetrics.schemas.identity import DeviceIdentity
from accelmetrics.schemas.reasons import Reason, Unavailable

ABSENT = "amd-smi does not print {} for this card"
NOT_PRINTED = "amd-smi does not print it"
MIB = 1024 * 1024


def mebibytes(value: object) -> Value:
    """Memory as printed, in bytes."""
    found = number(value)
    return found if isinstance(found, Unavailable) else round(found * MIB)


def generation(value: object) -> Value:
    """The PCIe generation of a speed in GT/s."""
    speed = number(value)
    if isinstance(speed, Unavailable):
        return speed
    return GENERATIONS.get(f"{speed:g}", Unavailable(Reason.INVALID_VALUE, f"a PCIe speed of {speed:g} GT/s"))


BYTES = Bounds(0, 2**50)
LIMITS = ("limit.ppt0.socket_power_limit", "limit.socket_power", "limit.max_power")
FIELDS = (
    Field("gpu", ("usage.gfx_activity",), PERCENT),
    Field("memory", ("usage.umc_activity",), PERCENT),
    Field("memoryReadWriteActivity", ("usage.umc_activity",), PERCENT),
    Field("temp", ("temperature.edge", "temperature.hotspot"), CELSIUS),
    Field("hotspotTemp", ("temperature.hotspot",), CELSIUS),
    Field("memoryTemp", ("temperature.mem",), CELSIUS),
    Field("powerWatts", ("power.socket_power", "power.current_power"), WATTS, zero=NO_POWER),
    Field("enforcedPowerLimitWatts", LIMITS, WATTS, zero=NO_LIMIT),
    Field("energyJoules", ("energy.total_energy_consumption",), Bounds(0, 1e13), zero=NO_ENERGY),
    Field("fanSpeed", ("fan.usage",), Bounds(0, 200)),
    Field("smClock", ("clock.gfx_0.clk", "clock.gfx.clk", "clock.sys.clk"), MEGAHERTZ, whole),
    Field("maxSmClock", ("clock.gfx_0.max_clk", "clock.gfx.max_clk", "clock.sys.max_clk"), MEGAHERTZ, whole),
    Field("memoryClock", ("clock.mem_0.clk", "clock.mem.clk"), MEGAHERTZ, whole),
    Field("maxMemoryClock", ("clock.mem_0.max_clk", "clock.mem.max_clk"), MEGAHERTZ, whole),
    Field("correctedMemoryErrors", ("ecc.total_correctable_count",), COUNT, whole),
    Field("uncorrectedMemoryErrors", ("ecc.total_uncorrectable_count",), COUNT, whole),
    Field("unCorrectedMemoryErrors", ("ecc.total_uncorrectable_count",), COUNT, whole),
    Field("pcieReplays", ("pcie.replay_count",), COUNT, whole),
    Field("pcieLinkWidth", ("pcie.width",), LANES, whole),
    Field("pcieLinkGen", ("pcie.speed",), Bounds(1, 7), generation),
    Field("maxPcieLinkWidth", ("bus.max_pcie_width",), LANES, whole),
    Field("maxPcieLinkGen", ("bus.max_pcie_speed",), Bounds(1, 7), generation),
    Field("memoryOverDrive", ("overdrive.mem_overdrive", "mem_overdrive"), PERCENT),
)
USED, TOTAL = "mem_usage.used_{}", "mem_usage.total_{}"


def read_card(card: Record, unified: bool) -> Values:
    """Every metric of one card: its value, or why there is none."""
    values = read_fields(card, FIELDS, ABSENT)
    values["powerPercent"] = share(values["powerWatts"], values["enforcedPowerLimitWatts"])
    return complete(values | memory_values(card_memory(card, unified)), NOT_PRINTED)


def card_memory(card: Record, unified: bool) -> Memory:
    """The memory that the card uses."""
    return device_memory(_pool(card, "vram"), _pool(card, "gtt"), unified)


def _pool(card: Record, kind: str) -> Memory:
    used = Field("used", (USED.format(kind),), BYTES, mebibytes)
    total = Field("total", (TOTAL.format(kind),), BYTES, mebibytes, NO_TOTAL)
    return pool(read_field(card, used, ABSENT), read_field(card, total, ABSENT))


def identify(index: int, card: Record) -> DeviceIdentity:
    """One card, from all that was printed of it."""
    address = text(card.get("bus.bdf")).lower()
    unified = bool(sysfs.is_integrated(address))
    total = card_memory(card, unified).total
    return DeviceIdentity(
        kind="gpu",
        vendor="amd",
        vendor_index=index,
        name=text(card.get("asic.market_name")) or text(card.get("board.product_name")),
        uuid=_unique_id(card),
        pci_bus_id=address,
        serial=text(card.get("board.product_serial")),
        architecture=text(card.get("asic.target_graphics_version")),
        driver_version=text(card.get("driver.version")),
        firmware=text(card.get("ifwi.version")) or text(card.get("vbios.version")),
        memory_total_bytes=total if isinstance(total, int) else None,
        numa_node=sysfs.numa_node(address),
        unified=unified,
    )


def _unique_id(card: Record) -> str:
    """The chip's serial number is what the kernel and ``rocm-smi`` call its unique id, in capitals."""
    serial = text(card.get("asic.asic_serial")).lower().removeprefix("0x")
    return "" if is_absent(serial) or not serial.strip("0") else f"0x{serial}"
