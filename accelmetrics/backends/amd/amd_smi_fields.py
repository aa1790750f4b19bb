"""What each metric is read from in the output of ``amd-smi metric`` and ``amd-smi static``.

Units as printed: watts, degrees, MHz, joules; "MB" of 1,048,576 bytes; PCIe speeds in GT/s. An energy of 0 is how the tool
prints that there is no counter. Power limits stand in ``static`` alone, as they were when the source was opened.
"""

from __future__ import annotations

from accelmetrics.backends.amd import sysfs, table
from accelmetrics.backends.amd.table import (
    CELSIUS,
    COUNT,
    GENERATION,
    LANES,
    MEGAHERTZ,
    NO_ENERGY,
    NO_LIMIT,
    NO_POWER,
    PERCENT,
    WATTS,
    Field,
    Record,
    Values,
    complete,
    pools,
)
from accelmetrics.backends.amd.values import Bounds, is_absent, pcie_generation, rounded, text, whole
from accelmetrics.schemas.identity import DeviceIdentity

ABSENT = "amd-smi does not print {} for this card"
NOT_PRINTED = "amd-smi does not print it"
MIB = 1024 * 1024

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
    Field("pcieLinkGen", ("pcie.speed",), GENERATION, pcie_generation),
    Field("maxPcieLinkWidth", ("bus.max_pcie_width",), LANES, whole),
    Field("maxPcieLinkGen", ("bus.max_pcie_speed",), GENERATION, pcie_generation),
    Field("memoryOverDrive", ("overdrive.mem_overdrive", "mem_overdrive"), PERCENT),
)
POOLS = pools("mem_usage.used_{}", "mem_usage.total_{}", convert=rounded(MIB))


def read_card(card: Record, unified: bool) -> Values:
    """Every metric of one card: its value, or why there is none."""
    return complete(table.read_card(card, FIELDS, POOLS, unified, ABSENT), NOT_PRINTED)


def identify(index: int, card: Record) -> DeviceIdentity:
    """One card, from all that was printed of it."""
    address = text(card.get("bus.bdf")).lower()
    unified = bool(sysfs.is_integrated(address))
    total = table.card_memory(card, POOLS, unified, ABSENT).total
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
