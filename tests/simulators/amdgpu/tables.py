"""The kernel's ``gpu_metrics`` tables, written out whole as C structures: the compiler's rules say where each field is.

From the kernel's public interface (``kgd_pp_interface.h``). As the kernel does, a table is filled with ones first, so that a
field that is not set is one that the firmware does not fill.
"""

import ctypes
from typing import Any

U16, U32, U64 = ctypes.c_uint16, ctypes.c_uint32, ctypes.c_uint64
Fields = list[tuple[str, Any]]

HEADER: Fields = [("structure_size", U16), ("format_revision", ctypes.c_uint8), ("content_revision", ctypes.c_uint8)]


def u16(*names: str) -> Fields:
    return [(name, U16) for name in names]


def u32(*names: str) -> Fields:
    return [(name, U32) for name in names]


def u64(*names: str) -> Fields:
    return [(name, U64) for name in names]


CARD = [
    *HEADER,
    *u16("temperature_edge", "temperature_hotspot", "temperature_mem", "temperature_vrgfx", "temperature_vrsoc", "temperature_vrmem"),
    *u16("average_gfx_activity", "average_umc_activity", "average_mm_activity", "average_socket_power"),
    *u64("energy_accumulator", "system_clock_counter"),
    *u16("average_gfxclk_frequency", "average_socclk_frequency", "average_uclk_frequency", "average_vclk0_frequency"),
    *u16("average_dclk0_frequency", "average_vclk1_frequency", "average_dclk1_frequency"),
    *u16("current_gfxclk", "current_socclk", "current_uclk", "current_vclk0", "current_dclk0", "current_vclk1", "current_dclk1"),
    *u32("throttle_status"),
    *u16("current_fan_speed", "pcie_link_width", "pcie_link_speed", "padding"),
    *u32("gfx_activity_acc", "mem_activity_acc"),
    ("temperature_hbm", U16 * 4),
]
CARD_2 = [*CARD, *u64("firmware_timestamp")]
CARD_3 = [*CARD_2, *u16("voltage_soc", "voltage_gfx", "voltage_mem", "padding1"), *u64("indep_throttle_status")]

HEAT = [*HEADER, *u16("temperature_hotspot", "temperature_mem", "temperature_vrsoc", "curr_socket_power")]
ACTIVITY = [*HEAT, *u16("average_gfx_activity", "average_umc_activity")]
LINKS = u16("pcie_link_width", "pcie_link_speed", "xgmi_link_width", "xgmi_link_speed")
PCIE = [
    *u32("gfx_activity_acc", "mem_activity_acc"),
    *u64("pcie_bandwidth_acc", "pcie_bandwidth_inst", "pcie_l0_to_recov_count_acc", "pcie_replay_count_acc", "pcie_replay_rover_count_acc"),
]
NAKS = u32("pcie_nak_sent_count_acc", "pcie_nak_rcvd_count_acc")
XGMI: Fields = [("xgmi_read_data_acc", U64 * 8), ("xgmi_write_data_acc", U64 * 8)]
CLOCKS: Fields = [
    *u64("firmware_timestamp"),
    *[("current_gfxclk", U16 * 8), ("current_socclk", U16 * 4), ("current_vclk0", U16 * 4), ("current_dclk0", U16 * 4)],
    *u16("current_uclk"),
]
ENERGY = u64("energy_accumulator", "system_clock_counter")
MASK = u32("throttle_status", "gfxclk_lock_status")
RESIDENCIES = u32(
    *("accumulation_counter", "prochot_residency_acc", "ppt_residency_acc", "socket_thm_residency_acc"),
    *("vr_thm_residency_acc", "hbm_thm_residency_acc", "gfxclk_lock_status"),
)
OTHER_END = u32("pcie_lc_perf_other_end_recovery")


def partition(jpegs: int, accumulators: int) -> Any:
    fields = [("gfx_busy_inst", U32 * 8), ("jpeg_busy", U16 * jpegs), ("vcn_busy", U16 * 4)]
    more = [(f"accumulator_{number}", U64 * 8) for number in range(accumulators)]
    return structure([*fields, *more]) * 8


def structure(fields: Fields) -> Any:
    return type("Table", (ctypes.Structure,), {"_fields_": fields})


PARTITIONS = u16("num_partition")
LATE = [
    *ACTIVITY, *u64("mem_max_bandwidth"), *ENERGY, *RESIDENCIES, *LINKS, *PCIE, *NAKS, *XGMI,
    ("xgmi_link_status", U16 * 8), *u16("padding"), *CLOCKS, *PARTITIONS,
]  # fmt: skip

APU = [
    *HEADER,
    *u16("temperature_gfx", "temperature_soc"),
    *[("temperature_core", U16 * 8), ("temperature_l3", U16 * 2)],
    *u16("average_gfx_activity", "average_mm_activity"),
    *u64("system_clock_counter"),
    *u16("average_socket_power", "average_cpu_power", "average_soc_power", "average_gfx_power"),
    ("average_core_power", U16 * 8),
    *u16("average_gfxclk_frequency", "average_socclk_frequency", "average_uclk_frequency", "average_fclk_frequency"),
    *u16("average_vclk_frequency", "average_dclk_frequency"),
    *u16("current_gfxclk", "current_socclk", "current_uclk", "current_fclk", "current_vclk", "current_dclk"),
    *[("current_coreclk", U16 * 8), ("current_l3clk", U16 * 2)],
    *u32("throttle_status"),
    *u16("fan_pwm"),
    ("padding", U16 * 3),
]
APU_2 = [*APU, *u64("indep_throttle_status")]
APU_3 = [*APU_2, *u16("average_temperature_gfx", "average_temperature_soc"), ("cores", U16 * 8), ("l3", U16 * 2)]
APU_4 = [*APU_3, *u16("cpu_voltage", "soc_voltage", "gfx_voltage", "cpu_current", "soc_current", "gfx_current")]

STRIX = [
    *HEADER,
    *u16("temperature_gfx", "temperature_soc"),
    ("temperature_core", U16 * 16),
    *u16("temperature_skin", "average_gfx_activity", "average_vcn_activity"),
    *(("average_ipu_activity", U16 * 8), ("average_core_c0_activity", U16 * 16)),
    *u16("average_dram_reads", "average_dram_writes", "average_ipu_reads", "average_ipu_writes"),
    *u64("system_clock_counter"),
    *u32("average_socket_power"),
    *u16("average_ipu_power"),
    *u32("average_apu_power", "average_gfx_power", "average_dgpu_power", "average_all_core_power"),
    ("average_core_power", U16 * 16),
    *u16("average_sys_power", "stapm_power_limit", "current_stapm_power_limit"),
    *u16("average_gfxclk_frequency", "average_socclk_frequency", "average_vpeclk_frequency", "average_ipuclk_frequency"),
    *u16("average_fclk_frequency", "average_vclk_frequency", "average_uclk_frequency", "average_mpipu_frequency"),
    ("current_coreclk", U16 * 16),
    *u16("current_core_maxfreq", "current_gfx_maxfreq"),
    ("throttle_residencies", U32 * 7),
    *u32("time_filter_alphavalue"),
]

TABLES: dict[tuple[int, int], Any] = {
    (1, 1): structure(CARD),
    (1, 2): structure(CARD_2),
    (1, 3): structure(CARD_3),
    (1, 4): structure([*ACTIVITY, ("vcn_activity", U16 * 4), *ENERGY, *MASK, *LINKS, *PCIE, *XGMI, *CLOCKS, *u16("padding")]),
    (1, 5): structure(
        [*ACTIVITY, ("vcn", U16 * 4), ("jpeg", U16 * 32), *ENERGY, *MASK, *LINKS, *PCIE, *NAKS, *XGMI, *CLOCKS, *u16("padding")]
    ),
    (1, 6): structure(
        [*ACTIVITY, *ENERGY, *RESIDENCIES, *LINKS, *PCIE, *NAKS, *XGMI, *CLOCKS, *PARTITIONS, ("xcp_stats", partition(32, 1)), *OTHER_END]
    ),
    (1, 7): structure([*LATE, ("xcp_stats", partition(32, 2)), *OTHER_END]),
    (1, 8): structure([*LATE, ("xcp_stats", partition(40, 4)), *OTHER_END]),
    (2, 1): structure(APU),
    (2, 2): structure(APU_2),
    (2, 3): structure(APU_3),
    (2, 4): structure(APU_4),
    (3, 0): structure(STRIX),
}


def table(form: int, content: int, **values: Any) -> bytes:
    """A table as the kernel hands it out.

    Args:
        form: The format's revision.
        content: The content's.
        values: Fields that the firmware fills; ``busy`` is each partition's compute dies, in percent.
    """
    kind = TABLES[form, content]
    filled = kind.from_buffer(bytearray(b"\xff" * ctypes.sizeof(kind)))
    filled.structure_size, filled.format_revision, filled.content_revision = ctypes.sizeof(kind), form, content
    for number, dies in enumerate(values.pop("busy", ())):
        filled.xcp_stats[number].gfx_busy_inst[: len(dies)] = dies
    for name, value in values.items():
        field = getattr(filled, name)
        if isinstance(value, list):
            field[: len(value)] = value
        else:
            setattr(filled, name, value)
    return bytes(filled)
