"""Machines with AMD's and Hygon's GPUs, file by file.

The sets of files follow what the kernel shows for each kind of card; the numbers are made up, and each is used once, so that
no value can stand in for another.
"""

from tests.simulators.amdgpu import Device, Tree, location
from tests.simulators.amdgpu.tables import table

GIB = 2**30
SLOT, BRIDGE, CARD = "0000:00:01.1", "0000:01:00.0", "0000:03:00.0"


def rx_7900(tree: Tree) -> Device:
    """A card behind a switch of its own, in a slot of generation 3."""
    device = tree.device(
        CARD,
        {
            **{"device": "0x744c", "revision": "0xc8", "unique_id": "7d4e1f2a90b3c611", "vbios_version": "113-EXT85427-100"},
            **{"gpu_busy_percent": 83, "mem_busy_percent": 41, "pcie_replay_count": 5, "pp_mclk_od": 2, "numa_node": 0},
            **{"mem_info_vram_used": 6 * GIB, "mem_info_vram_total": 24 * GIB, "mem_info_gtt_used": GIB, "mem_info_gtt_total": 32 * GIB},
            "pp_dpm_sclk": "0: 500Mhz \n1: 2410Mhz *\n2: 2526Mhz ",
            "pp_dpm_mclk": "0: 96Mhz \n1: 456Mhz \n2: 1249Mhz *",
            "gpu_metrics": table(1, 3, energy_accumulator=123456, indep_throttle_status=1 << 36 | 1 << 17, temperature_hbm=[0, 0, 0, 0]),
            **{"current_link_speed": "16.0 GT/s PCIe", "current_link_width": 16, "max_link_speed": "16.0 GT/s PCIe", "max_link_width": 16},
        },
    )
    device.sensors(
        {
            **{"name": "amdgpu", "temp1_label": "edge", "temp1_input": 51000, "temp1_crit": 100000, "temp1_emergency": 105000},
            **{"temp2_label": "junction", "temp2_input": 68000, "temp2_crit": 110000, "temp2_emergency": 115000},
            **{"temp3_label": "mem", "temp3_input": 74000, "temp3_crit": 108000, "power1_average": 241000000, "power1_cap": 303000000},
            **{"pwm1": 102, "fan1_input": 1450, "freq1_label": "sclk", "freq1_input": 2411000000, "freq2_label": "mclk"},
            **{"freq2_input": 1249000000, "in0_label": "vddgfx", "in0_input": 787},
        }
    )
    nest(tree, device)
    tree.node(1, {"simd_count": 192, "vendor_id": 4098, "location_id": location(3), "domain": 0, "gfx_target_version": 110000})
    tree.write("/usr/share/libdrm/amdgpu.ids", "# Version\n1.0.0\n744C,\tC0,\tAnother\n744C,\tC8,\tAMD Radeon RX 7900 XTX")
    return device


def nest(tree: Tree, device: Device) -> None:
    """Put a device behind a port of the processor and a bridge of the card, as ``/sys/devices`` has it."""
    home = tree.root / "sys/devices/pci0000:00" / SLOT / BRIDGE
    home.mkdir(parents=True)
    device.path.rename(home / CARD)
    device.path.symlink_to(home / CARD)
    for address, path, vendor in ((SLOT, home.parent, "0x1022"), (BRIDGE, home, "0x1002")):
        (device.path.parent / address).symlink_to(path)
        Device(path).write({"vendor": vendor, "class": "0x060400", "current_link_width": 8, "max_link_width": 16})
        Device(path).write({"current_link_speed": "8.0 GT/s PCIe", "max_link_speed": "16.0 GT/s PCIe"})


def mi250(tree: Tree) -> tuple[Device, Device]:
    """One package of two dies: its power, cap and energy are the first die's."""
    dies = []
    for die, (address, unique) in enumerate((("0000:2f:00.0", "1f9d5c0e77aa0001"), ("0000:32:00.0", "1f9d5c0e77aa0002"))):
        device = tree.device(
            address,
            {
                **{"class": "0x038000", "device": "0x7408", "revision": "0x00", "unique_id": unique, "gpu_busy_percent": 97 + die},
                **{"product_name": "AMD INSTINCT MI250 (MCM) OAM AC MBA", "serial_number": "PCB031144-0021", "mem_busy_percent": 31 + die},
                **{"product_number": "102-D65208-0C"},
                **{"mem_info_vram_used": (11 + die) * GIB, "mem_info_vram_total": 64 * GIB, "pcie_replay_count": 0},
                "ras/umc_err_count": f"ue: {die}\nce: 7",
                "ras/gfx_err_count": "ue: 0\nce: 4",
                "ras/features": "feature mask: 0x5",
                "gpu_metrics": table(1, 3, energy_accumulator=0 if die else 65536 * 5000, temperature_hbm=[51, 54, 52, 50]),
            },
        )
        device.sensors(
            {
                **{"temp1_label": "edge", "temp1_input": 45000 + die, "temp2_label": "junction", "temp2_input": 61000},
                **{"power1_average": 0 if die else 429000000, "power1_cap": 0 if die else 560000000},
                **{"freq1_label": "sclk", "freq1_input": 1700000000},
            }
        )
        dies.append(device)
    return dies[0], dies[1]


MI300X = "0000:05:00.0"


def mi300_table(**changes: int) -> bytes:
    """The table of an MI300X whose two first partitions work."""
    values = {
        **{"curr_socket_power": 612, "temperature_hotspot": 57, "temperature_mem": 49, "average_gfx_activity": 94},
        **{"average_umc_activity": 61, "energy_accumulator": 65536 * 7000 + 32768, "pcie_replay_count_acc": 3, "current_uclk": 1300},
        **{"prochot_residency_acc": 10, "ppt_residency_acc": 20, "socket_thm_residency_acc": 30, "vr_thm_residency_acc": 40},
        **{"hbm_thm_residency_acc": 50},
    }
    return table(
        1,
        7,
        **{**values, **changes},
        xgmi_read_data_acc=[100, 200, 300],
        xgmi_write_data_acc=[1, 2, 3],
        current_gfxclk=[2100, 2090],
        busy=[[80, 60], [10]],
    )


def mi300x(tree: Tree, mode: str = "SPX", partitions: int = 1) -> Device:
    """An accelerator that shows its power as ``power1_input``, whole or in partitions."""
    device = tree.device(
        MI300X,
        {
            **{"class": "0x120000", "device": "0x74a1", "revision": "0x00", "unique_id": "18ef14e9dec61d7e", "gpu_busy_percent": 95},
            **{"product_name": "AMD Instinct MI300X OAM", "mem_busy_percent": 62, "mem_info_vram_used": 30 * GIB},
            "product_number": "102-G30211-0C",
            **{"mem_info_vram_total": 192 * GIB, "current_compute_partition": mode, "gpu_metrics": mi300_table()},
            **{"pp_dpm_sclk": "S: 132Mhz *\n0: 500Mhz \n1: 2100Mhz ", "pp_dpm_mclk": "0: 900Mhz \n1: 1300Mhz *"},
        },
    )
    device.sensors(
        {
            **{"temp2_label": "junction", "temp2_input": 58000, "temp2_crit": 100000, "temp3_label": "mem", "temp3_input": 47000},
            **{"power1_label": "PPT", "power1_input": 611000000, "power1_cap": 750000000},
        }
    )
    for number in range(partitions):
        tree.node(
            2 + number,
            {"simd_count": 1216 // partitions, "location_id": location(5, 0, number), "domain": 0, "gfx_target_version": 90402},
            192 * GIB // partitions,
            (1 + number) * GIB,
        )
    return device


def phoenix(tree: Tree) -> Device:
    """A processor with a GPU: a carve-out of half a gibibyte, and the rest through the GTT."""
    device = tree.device(
        "0000:c4:00.0",
        {
            **{
                "device": "0x15bf",
                "revision": "0xc1",
                "gpu_busy_percent": 7,
                "mem_info_vram_used": GIB // 4,
                "unique_id": "0000000000000000",
            },
            **{"mem_info_vram_total": GIB // 2, "mem_info_gtt_used": 3 * GIB, "mem_info_gtt_total": 15 * GIB},
            **{"pp_dpm_sclk": "0: 800Mhz *\n1: 1100Mhz \n2: 2800Mhz ", "gpu_metrics": table(2, 2, indep_throttle_status=1 << 6)},
        },
    )
    device.sensors(
        {
            "temp1_label": "edge",
            "temp1_input": 42000,
            "power1_label": "PPT",
            "power1_input": 9100000,
            "freq1_label": "sclk",
            "freq1_input": 801000000,
        }
    )
    return device


def hygon(tree: Tree, kind: str = "0x0b4000", driver: str = "hycu") -> Device:
    """Hygon's accelerator, and a bridge of the same vendor that is none."""
    tree.device("0000:00:01.0", {"class": "0x060400"}, vendor="0x1d94", driver="pcieport")
    device = tree.device(
        "0000:06:00.0",
        {
            **{"class": kind, "device": "0x6320", "revision": "0x01", "unique_id": "5c88007bd1f20a43", "gpu_busy_percent": 64},
            **{"mem_info_vram_used": 5 * GIB, "mem_info_vram_total": 64 * GIB},
        },
        vendor="0x1d94",
        driver=driver,
    )
    device.sensors({"temp1_input": 39000, "power1_average": 152000000, "power1_cap": 400000000})
    return device


def laptop(tree: Tree) -> tuple[Device, Device]:
    """A processor's GPU at work and a card asleep."""
    card = tree.device("0000:01:00.0", {"device": "0x73ef", "power/runtime_status": "suspended", "unique_id": "a1b2c3d4e5f60718"})
    card.write({"gpu_busy_percent": 0, "mem_info_vram_total": 8 * GIB, "gpu_metrics": table(1, 3)})
    card.sensors({"temp1_label": "edge", "temp1_input": 30000})
    return card, phoenix(tree)


PAIR = ("0000:43:00.0", "0000:83:00.0")


def mi210_pair(tree: Tree) -> tuple[Device, Device]:
    """Two accelerators alike, of which the second is nearly idle; neither counts its energy."""
    cards = []
    for number, address in enumerate(PAIR):
        device = tree.device(
            address,
            {
                **{"class": "0x038000", "device": "0x740f", "revision": "0x02", "unique_id": f"8e5520cb71d2aa0{number}"},
                **{"product_name": "AMD Instinct MI210", "serial_number": f"PCB0311{number}", "vbios_version": "113-D67301-063"},
                **{"gpu_busy_percent": (83, 7)[number], "mem_busy_percent": (41, 3)[number], "pcie_replay_count": number},
                **{"mem_info_vram_used": (16380, 12)[number] << 20, "mem_info_vram_total": 65520 << 20, "numa_node": number},
                **{"current_link_speed": "16.0 GT/s PCIe", "current_link_width": 16, "max_link_speed": "16.0 GT/s PCIe"},
                **{"max_link_width": 16, "ras/umc_err_count": "ue: 0\nce: 2", "ras/features": "feature mask: 0x1"},
            },
        )
        device.sensors(
            {
                **{"name": "amdgpu", "temp1_label": "edge", "temp1_input": (47000, 31000)[number], "temp1_crit": 100000},
                **{"temp1_emergency": 105000, "temp3_label": "mem", "temp3_input": (52000, 33000)[number]},
                **{"power1_average": (212000000, 43000000)[number], "power1_cap": 300000000},
                **{"freq1_label": "sclk", "freq1_input": 1700000000, "freq2_label": "mclk", "freq2_input": 1600000000},
            }
        )
        cards.append(device)
    tree.write("/sys/module/amdgpu/version", "6.8.5")
    return cards[0], cards[1]
