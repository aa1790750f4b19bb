"""The output of Kunlunxin's ``xpu-smi``, after published outputs of the P800, and the help of Intel's tool of that name."""

from __future__ import annotations

HELP = "xpu-smi: KUNLUN XPU device status\n  -q  query\n  -x  XML\n  -m  machine readable\n"
INTEL = """\
Intel XPU System Management Interface -- v1.3
Intel XPU System Management Interface provides the Intel data center GPU model.
Usage: xpu-smi [Options]
"""


def xml(*numbers: int, processes: str = "\n", **changed: str) -> str:
    """``xpu-smi -q -x``; each device has values of its own."""
    return f"""<?xml version="1.0" ?>
<!DOCTYPE xpu_smi_log SYSTEM "xpusmi_device_v11.dtd">
<xpu_smi_log>
\t<timestamp>Fri Sep 18 06:44:44 2026</timestamp>
\t<driver_version>5.19.1.0</driver_version>
\t<cuda_version>10.2</cuda_version>
\t<attached_xpus>{len(numbers)}</attached_xpus>
{"".join(_xpu(number, processes, changed) for number in numbers)}</xpu_smi_log>
"""


def _values(number: int, changed: dict[str, str]) -> dict[str, str]:
    values = {
        **{
            "util": f"3{number} %",
            "total": "98304 MiB",
            "used": f"{1024 * (1 + number)} MiB",
            "free": f"{98304 - 1024 * (1 + number)} MiB",
        },
        **{"temp": f"4{number} C", "power": f"9{number}.50 W", "limit": "400.00 W", "cluster": "1450 MHz", "ecc": "Enabled"},
        **{"uuid": f"GPU-00000000-0000-5000-8000-00000000000{number}", "gen": "3", "width": "8x", "corrected": "4"},
    }
    return values | changed


def _xpu(number: int, processes: str, changed: dict[str, str]) -> str:
    said = _values(number, changed)
    return f"""\t<xpu id="00000000:{3 + number:02X}:00.0">
\t\t<product_name>P800 OAM</product_name>
\t\t<product_architecture>KL3</product_architecture>
\t\t<serial>02K00000000{number}</serial>
\t\t<uuid>{said["uuid"]}</uuid>
\t\t<minor_number>{number}</minor_number>
\t\t<xpu_part_number>B0010</xpu_part_number>
\t\t<firmware_version><pbl_version>1.0</pbl_version><all_version>1.0.2.15</all_version></firmware_version>
\t\t<pci>
\t\t\t<pci_device>00</pci_device><pci_device>0</pci_device>
\t\t\t<pci_xpu_link_info>
\t\t\t\t<pcie_gen><max_link_gen>4</max_link_gen><current_link_gen>{said["gen"]}</current_link_gen></pcie_gen>
\t\t\t\t<link_widths><max_link_width>16x</max_link_width><current_link_width>{said["width"]}</current_link_width></link_widths>
\t\t\t</pci_xpu_link_info>
\t\t</pci>
\t\t<fb_memory_usage>
\t\t\t<total>{said["total"]}</total><reserved>0 MiB</reserved><used>{said["used"]}</used><free>{said["free"]}</free>
\t\t</fb_memory_usage>
\t\t<l3_usage><total>96 MiB</total><used>12 MiB</used><free>84 MiB</free></l3_usage>
\t\t<utilization><xpu_util>{said["util"]}</xpu_util></utilization>
\t\t<ecc_mode><current_ecc>{said["ecc"]}</current_ecc><pending_ecc>Enabled</pending_ecc></ecc_mode>
\t\t<ecc_errors>
\t\t\t<volatile><dram_correctable>{said["corrected"]}</dram_correctable><dram_uncorrectable>0</dram_uncorrectable></volatile>
\t\t\t<aggregate><dram_correctable>9</dram_correctable><dram_uncorrectable>1</dram_uncorrectable></aggregate>
\t\t</ecc_errors>
\t\t<temperature><xpu_temp>{said["temp"]}</xpu_temp></temperature>
\t\t<power_readings>
\t\t\t<enforced_power_limit>{said["limit"]}</enforced_power_limit><power_draw>{said["power"]}</power_draw>
\t\t</power_readings>
\t\t<clocks><cluster_clock>{said["cluster"]}</cluster_clock><cdnn_clock>1300 MHz</cdnn_clock></clocks>
\t\t<processes>{processes}</processes>
\t</xpu>

"""


def text(*numbers: int, processes: str = " : None", **changed: str) -> str:
    """``xpu-smi -q``, with the same values."""
    return f"""
==============XPUSMI LOG==============

Timestamp                                 : Tue Feb  3 18:20:01 2026
Driver Version                            : 5.19.1.0
XPU-RT Version                            : 10.2

Attached XPUs                             : {len(numbers)}
{"".join(_section(number, processes, changed) for number in numbers)}"""


def _section(number: int, processes: str, changed: dict[str, str]) -> str:
    said = _values(number, changed)
    return f"""XPU 00000000:{3 + number:02X}:00.0
    Product Name                          : P800 OAM
    Product Architecture                  : KL3
    Serial Number                         : 02K00000000{number}
    XPU UUID                              : {said["uuid"]}
    Minor Number                          : {number}
    XPU Part Number                       : B0010
    Firmware Version
        PBL Version                       : 1.0
        ALL Version                       : 1.0.2.15
    PCI
        Bus Id                            : 00000000:{3 + number:02X}:00.0
        XPU Link Info
            PCIe Generation
                Max                       : 4
                Current                   : {said["gen"]}
            Link Width
                Max                       : 16x
                Current                   : {said["width"]}
    Memory Usage
        Total                             : {said["total"]}
        Reserved                          : 0 MiB
        Used                              : {said["used"]}
        Free                              : {said["free"]}
    L3 Usage
        Total                             : 96 MiB
        Used                              : 12 MiB
    Utilization
        Xpu                               : {said["util"]}
    Ecc Mode
        Current                           : {said["ecc"]}
        Pending                           : Enabled
    ECC Errors
        Volatile
            DRAM Correctable              : {said["corrected"]}
            DRAM Uncorrectable            : 0
        Aggregate
            DRAM Correctable              : 9
            DRAM Uncorrectable            : 1
    Temperature
        XPU Current Temp                  : {said["temp"]}
    Power Readings
        Enforced Power Limit              : {said["limit"]}
        Power Draw                        : {said["power"]}
    Clocks
        Cluster                           : {said["cluster"]}
        CDNN                              : 1300 MHz
    Processes                            {processes}
"""
