"""What the simulated GPUs are: a table of plausible numbers per product, different on every GPU of a machine.

A value that a profile does not give is NOT_SUPPORTED, as on the product.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable, Mapping, Sequence

from ._names import Location, Ret, Threshold


@dataclasses.dataclass(frozen=True)
class Ramp:
    """A value that changes by itself: base + step × reads + rate × seconds, wrapped into [low, high) if high > low."""

    base: float
    step: float = 0
    rate: float = 0
    low: float = 0
    high: float = 0


Number = float | Ret | Ramp | None
# The types of a mapping's keys are listed one by one, since a Mapping[Location, ...] is no Mapping[int, ...].
Members = Mapping[int, Number] | Mapping[str, Number] | Mapping[Location, Number] | Mapping[Threshold, Number]
Value = Number | str | Sequence[Number] | Members
Settings = dict[str, Value]

MIB = 1024 * 1024

_LINKS = range(18)
_COUNTED = ("malformed", "overrun", "receive", "remote", "header", "integrity", "discard", "effective", "symbol")
BLACKWELL: Settings = {
    **{f"nvlink_{name}": dict.fromkeys(_LINKS, 0) for name in _COUNTED},
    **{f"nvlink_recovery_{name}": dict.fromkeys(_LINKS, 0) for name in ("success", "failure", "event")},
    "nvlink_effective_ber": dict.fromkeys(_LINKS, 15 << 8 | 255),
    "nvlink_symbol_ber": dict.fromkeys(_LINKS, 3 << 8 | 12),
    "nvlink_fec": [1_000_000, 40, 2, *[0] * 13],
    "chassis_serial": "1821325191344",
    "platform_slot": 11,
    "platform_tray": 3,
    "platform_host": 1,
    "platform_module": 2,
}
"""What NVLink 5 counts, and where in its rack the GPU is."""
HEALTHY = 0x1AA
"""The health mask of a GPU with nothing wrong in the fabric: all conditions are false, its configuration right."""

# nvmlClocksEventReason… bits
IDLE, SW_POWER_CAP, SW_THERMAL = 0x1, 0x4, 0x20


@dataclasses.dataclass(frozen=True)
class Product:
    """What distinguishes one product from another; everything else follows from the index."""

    name: str
    brand: int
    architecture: int
    capability: tuple[int, int]
    cores: int
    pci_device_id: int
    memory_mib: int | None
    limit_watts: tuple[int, int, int] | None
    """Lowest, highest and default."""
    max_clocks: tuple[int, int, int, int]
    """Graphics, SM, memory and video."""
    pcie_gen: int
    pcie_width: int = 16
    links: int = 0
    link_version: int = 0
    link_mbps: int = 0
    fans: int = 0
    ecc: bool = True
    memory_temp: bool = True
    remaps_rows: bool = True
    """Ampere and later remap rows; earlier ones retire pages."""
    gpm: bool = False
    mig: bool = False
    display: bool = False


PRODUCTS = {
    "h100": Product(
        name="NVIDIA H100 80GB HBM3", brand=14, architecture=9, capability=(9, 0), cores=16896, pci_device_id=0x233010DE,
        memory_mib=81559, limit_watts=(200, 700, 700), max_clocks=(1980, 1980, 2619, 1545), pcie_gen=5,
        links=18, link_version=6, link_mbps=26562, gpm=True, mig=True,
    ),
    "b200": Product(
        name="NVIDIA B200", brand=14, architecture=10, capability=(10, 0), cores=18944, pci_device_id=0x290110DE,
        memory_mib=183359, limit_watts=(200, 1000, 1000), max_clocks=(1965, 1965, 3996, 1965), pcie_gen=5,
        links=18, link_version=7, link_mbps=53125, gpm=True, mig=True,
    ),
    "a100": Product(
        name="NVIDIA A100-SXM4-80GB", brand=14, architecture=7, capability=(8, 0), cores=6912, pci_device_id=0x20B210DE,
        memory_mib=81920, limit_watts=(100, 400, 400), max_clocks=(1410, 1410, 1593, 1290), pcie_gen=4,
        links=12, link_version=4, link_mbps=25781, mig=True,
    ),
    "t4": Product(
        name="Tesla T4", brand=2, architecture=6, capability=(7, 5), cores=2560, pci_device_id=0x1EB810DE,
        memory_mib=15360, limit_watts=(60, 70, 70), max_clocks=(1590, 1590, 5001, 1470), pcie_gen=3,
        memory_temp=False, remaps_rows=False,
    ),
    "rtx4090": Product(
        name="NVIDIA GeForce RTX 4090", brand=5, architecture=8, capability=(8, 9), cores=16384, pci_device_id=0x268410DE,
        memory_mib=24564, limit_watts=(150, 600, 450), max_clocks=(3105, 3105, 10501, 2415), pcie_gen=4,
        fans=2, ecc=False, memory_temp=False, remaps_rows=False, display=True,
    ),
    "gb10": Product(
        name="NVIDIA GB10", brand=14, architecture=10, capability=(12, 1), cores=6144, pci_device_id=0x2E1210DE,
        memory_mib=None, limit_watts=None, max_clocks=(3003, 3003, 8533, 3003), pcie_gen=5, pcie_width=1,
        ecc=False, memory_temp=False, remaps_rows=False,
    ),
}  # fmt: skip


def settings(profile: str | Product, index: int) -> Settings:
    """The values of GPU `index`, if it is one of these products."""
    if isinstance(profile, str) and profile not in PRODUCTS:
        raise KeyError(f"no profile {profile!r}; there are: {', '.join(sorted(PRODUCTS))}")
    product = PRODUCTS[profile] if isinstance(profile, str) else profile
    parts: list[Callable[[Product, int], Settings]] = [_identity, _activity, _clocks, _modes, _pcie]
    optional: list[tuple[bool, Callable[[Product, int], Settings]]] = [
        (product.memory_mib is not None, _memory),
        (product.limit_watts is not None, _limits),
        (product.ecc, _ecc),
        (product.links > 0, _nvlink),
        (product.gpm, _gpm),
        (product.fans > 0, _fans),
    ]
    parts += [part for present, part in optional if present]
    result: Settings = {}
    for part in parts:
        result |= part(product, index)
    return result


def _identity(product: Product, index: int) -> Settings:
    return {
        "name": product.name,
        "uuid": f"GPU-{uuid.uuid5(uuid.NAMESPACE_OID, f'{product.name}/{index}')}",
        "serial": f"16523{index:02d}0{4711 + index}" if product.ecc else None,
        "pci_bus_id": f"{index // 24:08X}:{0x10 + 9 * (index % 24):02X}:00.0",
        "vbios": f"96.00.{0x40 + index:02X}.00.01",
        "board_part_number": f"692-2G520-0200-{index:03d}" if product.ecc else None,
        "inforom_image": "G520.0200.00.05" if product.ecc else None,
        "inforom_ecc": "7.16" if product.ecc else None,
        "gsp_version": "570.124.06",
        "brand": product.brand,
        "architecture": product.architecture,
        "cores": product.cores,
        "cuda_major": product.capability[0],
        "cuda_minor": product.capability[1],
        "minor_number": index,
        "board_id": 0x1000 * (index + 1),
        "module_id": index + 1 if product.links else None,
        "multi_gpu_board": 0,
        "pci_device_id": product.pci_device_id,
        "pci_subsystem_id": 0x16C110DE,
        "irq": 150 + index,
        "bus_type": 2,
        "power_source": 0,
        "uptime_s": 86400 + 60 * index,
        "numa_node": index // 4,
        "cpu_affinity": [0xFFFFFFFF << 32 * (index // 4 % 2), *[0] * 15],
        "memory_affinity": [1 << index // 4, 0, 0, 0],
    }


def _activity(product: Product, index: int) -> Settings:
    watts = (product.limit_watts[1] if product.limit_watts else 140) * 0.42
    return {
        "gpu_util": (37 + 11 * index) % 101,
        "memory_util": (21 + 7 * index) % 101,
        "encoder_util": index % 5,
        "decoder_util": 1 + index % 7,
        "jpg_util": 2 + index % 3,
        "ofa_util": 3 + index % 3,
        "sampling_period_us": 166666,
        "encoder_sessions": 0,
        "encoder_fps": 0,
        "encoder_latency_us": 0,
        "temperature": 41 + index % 40,
        "memory_temp": 52 + index % 40 if product.memory_temp else None,
        "temp_threshold": {Threshold.SHUTDOWN: 95, Threshold.SLOWDOWN: 92, Threshold.MEM_MAX: 95, Threshold.GPU_MAX: 87},
        # Ada and later tell margins too: the distance to the highest operating temperature.
        **({"temp_margin": 46 - index % 40, "temp_tlimit": [-8, -5, 0, 0]} if product.architecture >= 8 else {}),
        "power_mw": int(watts * 1000) + 1373 * index,
        # A mean over a second has Ampere, but not GA100, and what came later.
        **({} if product.architecture >= 8 else {"power_average_mw": Ret.NOT_SUPPORTED}),
        "power_instant_mw": int(watts * 1000) + 1373 * index + 2_500,
        "energy_mj": 5_000_000_000 + 123_456_789 * index,
    }


def _clocks(product: Product, index: int) -> Settings:
    graphics, sm, memory, video = product.max_clocks
    down = 15 * (1 + index % 20)
    return {
        "clock_graphics": graphics - down,
        "clock_sm": sm - down - 5,
        "clock_mem": memory - index,
        "clock_video": video - down - 10,
        "max_clock_graphics": graphics,
        "max_clock_sm": sm,
        "max_clock_mem": memory,
        "max_clock_video": video,
        "app_clock_graphics": graphics,
        "app_clock_sm": sm,
        "app_clock_mem": memory,
        "boost_clock_graphics": graphics,
        "boost_clock_sm": sm,
        "boost_clock_mem": memory,
        "boost_clock_video": video,
        "supported_memory": [memory, memory // 2],
        "supported_graphics_high": [graphics, graphics // 2],
        "supported_graphics_low": 210,
        "pstate": 0,
        "clocks_event_reasons": (IDLE, SW_POWER_CAP, SW_THERMAL)[index % 3],
        "supported_clocks_event_reasons": 0x1FF,
        "violation_ns": [1000 * index, 2000 + index, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        "clocks_event_ns": [3000 + index, 0, 0],
        "adaptive_clock": 1,
        "power_management_mode": 1,
    }


def _modes(product: Product, index: int) -> Settings:
    mig = 0 if product.mig else None
    return {
        "persistence_mode": 1,
        "compute_mode": 0,
        "display_mode": int(product.display),
        "display_active": int(product.display and index == 0),
        "mig_mode": mig,
        "mig_pending": mig,
        "max_mig_devices": 7 if product.mig else 0,
        "accounting_mode": 0,
        "accounting_buffer": 4000,
        "virtualization_mode": 0,
        "gsp_enabled": 1,
        "gsp_default": 1,
        "addressing_mode": 0,
        "c2c_enabled": 0,
        "api_restricted": [1, 1],
        "recovery_action": 0,
        "event_types": 0x1F,
    }


def _pcie(product: Product, index: int) -> Settings:
    return {
        "pcie_gen": product.pcie_gen,
        "pcie_gen_max": product.pcie_gen,
        "pcie_gen_gpu_max": product.pcie_gen,
        "pcie_width": product.pcie_width,
        "pcie_width_max": product.pcie_width,
        "pcie_speed_mbps": {3: 8000, 4: 16000, 5: 32000}[product.pcie_gen],
        "pcie_link_max_speed": product.pcie_gen,
        "pcie_replay": index,
        "pcie_replay_rollover": 0,
        "pcie_tx_kbps": 110_000 + 1_000 * index,
        "pcie_rx_kbps": 220_000 + 1_000 * index,
        # Hopper and later count bytes.
        **({"pcie_tx_bytes": 7_000_000_000 + index, "pcie_rx_bytes": 9_000_000_000 + index} if product.architecture >= 9 else {}),
        "pcie_errors": [0] * 11,
    }


def _memory(product: Product, index: int) -> Settings:
    total = (product.memory_mib or 0) * MIB
    return {
        "memory_total": total,
        "memory_used": total // 8 + (index + 1) * 512 * MIB,
        "memory_reserved": (500 + index) * MIB,
        "bar1_total": 131072 * MIB if product.ecc else 256 * MIB,
        "bar1_used": (2 + index) * MIB,
        "cc_protected_kib": 0,
        "cc_unprotected_kib": total // 1024,
        "cc_protected_used": 0,
    }


def _limits(product: Product, index: int) -> Settings:
    lowest, highest, default = product.limit_watts or (0, 0, 0)
    return {
        "power_limit_enforced_mw": (default - index % 8) * 1000,
        "power_limit_mw": default * 1000,
        "power_limit_default_mw": default * 1000,
        "power_limit_min_mw": lowest * 1000,
        "power_limit_max_mw": highest * 1000,
    }


def _ecc(product: Product, index: int) -> Settings:
    result: Settings = {
        "ecc_mode": 1,
        "ecc_pending": 1,
        "ecc_default": 1,
        "ecc_corrected_volatile": {Location.DRAM: 2 + index, Location.SRAM: 1},
        "ecc_corrected_aggregate": {Location.DRAM: 20 + index, Location.SRAM: 5},
        "ecc_uncorrected_volatile": {Location.DRAM: index % 2, Location.SRAM: 0},
        "ecc_uncorrected_aggregate": {Location.DRAM: 1 + index % 2, Location.SRAM: 0},
        "channel_repair_pending": 0,
        "tpc_repair_pending": 0,
    }
    if product.remaps_rows:
        return result | {
            "remapped_correctable": index,
            "remapped_uncorrectable": index % 3,
            "remapped_pending": 0,
            "remapped_failure": 0,
            "remap_histogram": [640 - index, index, 0, 0, 0],
            "sram_threshold_exceeded": 0,
            "sram_parity": [0, 0],
            "sram_buckets": [0] * 5,
        }
    return result | {"retired_pages": [index, index % 3], "retired_pending": 0}


def _nvlink(product: Product, index: int) -> Settings:
    links = range(product.links)
    result = BLACKWELL if product.architecture >= 10 else _older_nvlink(links)
    return result | {
        "nvlink_count": product.links,
        "nvlink_state": dict.fromkeys(links, 1),
        "nvlink_version": dict.fromkeys(links, product.link_version),
        "nvlink_speed_mbps": dict.fromkeys(links, product.link_mbps),
        "nvlink_data_tx_kib": {link: 1_000_000 * (index + 1) + link for link in links},
        "nvlink_data_rx_kib": {link: 2_000_000 * (index + 1) + link for link in links},
        "nvlink_raw_tx_kib": {link: 1_200_000 * (index + 1) + link for link in links},
        "nvlink_raw_rx_kib": {link: 2_400_000 * (index + 1) + link for link in links},
        "nvlink_xmit_bytes": {link: 1_024_000_000 * (index + 1) + link for link in links},
        "nvlink_rcv_bytes": {link: 2_048_000_000 * (index + 1) + link for link in links},
        "nvlink_capabilities": dict.fromkeys(links, 0b101111),
        "nvlink_remote_type": dict.fromkeys(links, 2),
        "nvswitch_links": product.links,
        "c2c_links": 0,
        "fabric_state": 3,
        "fabric_status": 0,
        "fabric_clique": 0,
        "fabric_cluster": 0,
        "fabric_health_mask": HEALTHY,
        "fabric_health_summary": 1,
    }


def _older_nvlink(links: range) -> Settings:
    return {
        "nvlink_replay": {link: link % 2 for link in links},
        "nvlink_recovery": dict.fromkeys(links, 0),
        "nvlink_crc_flit": {link: link % 3 for link in links},
        "nvlink_crc_data": dict.fromkeys(links, 0),
        "nvlink_ecc_data": dict.fromkeys(links, 0),
    }


# GPM metrics in percent, and in MiB per second, by nvmlGpmMetricId_t
_GPM_PERCENT = (*range(1, 14), *range(30, 38), *range(40, 48), 50, 51)
_GPM_RATE = (20, 21, 60, 61)


def _gpm(product: Product, index: int) -> Settings:
    percent = {metric: (metric * 6.25 + index * 3.125) % 100 for metric in _GPM_PERCENT}
    rate = {metric: metric * 100.0 + index * 10.5 for metric in _GPM_RATE}
    links = {62 + 2 * link + way: (rate[60 + way]) / product.links for link in range(product.links) for way in (0, 1)}
    return {"gpm_support": 1, "gpm_streaming": 0, "gpm": percent | rate | links}


def _fans(product: Product, index: int) -> Settings:
    fans = range(product.fans)
    return {
        "num_fans": product.fans,
        "fan_speed": {fan: 30 + index % 60 + fan for fan in fans},
        "fan_target": {fan: 32 + index % 60 + fan for fan in fans},
        "fan_rpm": {fan: 1200 + 10 * index + fan for fan in fans},
        "fan_policy": dict.fromkeys(fans, 0),
        "fan_min": 30,
        "fan_max": 100,
    }
