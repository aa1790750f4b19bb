"""What the vendors' tools print, written from their documented formats; each device has values of its own."""

from __future__ import annotations

MIB = 1 << 20


def ixsmi(*numbers: int, **changes: str) -> str:
    """`ixsmi -q -x`."""
    return f"""<?xml version="1.0" ?>
<!DOCTYPE ixsmi_log SYSTEM "ixsmi_device.dtd">
<ixsmi_log>
  <driver_version>4.4.0</driver_version>
  <attached_gpus>{len(numbers)}</attached_gpus>
{"".join(_ixsmi_gpu(number, **changes) for number in numbers)}</ixsmi_log>
"""


def _ixsmi_gpu(number: int, power: str = "", temp: str = "", limit: str = "205 W", used: str = "1024 MiB") -> str:
    return f"""  <gpu id="00000000:{0x26 + number:X}:00.0">
    <product_name>Iluvatar BI-V150S</product_name>
    <serial>0000000000000B</serial>
    <uuid>GPU-00000000-0000-5000-8000-00000000000{number}</uuid>
    <minor_number>{number}</minor_number>
    <fan_speed>N/A</fan_speed>
    <temperature><memory_temp>38 C</memory_temp><gpu_temp>{temp or f"{40 + number} C"}</gpu_temp></temperature>
    <memory_usage><total>32768 MiB</total><used>{used}</used><free>31744 MiB</free></memory_usage>
    <utilization><gpu_util>{30 + number} %</gpu_util><memory_util>12 %</memory_util></utilization>
    <ecc_mode><current_ecc>Enabled</current_ecc></ecc_mode>
    <ecc_errors><single_bit>3</single_bit><double_bit>0</double_bit></ecc_errors>
    <power_readings>
      <board_power_draw>153 W</board_power_draw><current_board_power_limit>450 W</current_board_power_limit>
      <gpu_power_draw>{power or f"{60 + number} W"}</gpu_power_draw><current_gpu_power_limit>{limit}</current_gpu_power_limit>
    </power_readings>
    <clocks><sm_clock>1500 MHz</sm_clock><mem_clock>1600 MHz</mem_clock></clocks>
    <pci><pci_gpu_link_info><pcie_gen><current_link_gen>4</current_link_gen></pcie_gen>
      <link_widths><current_link_width>16x</current_link_width></link_widths></pci_gpu_link_info></pci>
    <compute_mode>Exclusive_Process</compute_mode><performance_state>P0</performance_state>
  </gpu>
"""


PPU = {
    **{"index": "{n}", "uuid": "GPU-0190{n}", "name": "PPU-ZW810E", "pci.bus_id": "00000000:{n}8:00.0", "driver_version": "1.5.2"},
    **{"ppu_serial": "PPU0042", "utilization.ppu": "3{n} %", "utilization.memory": "12 %", "memory.total": "98304 MiB"},
    **{"memory.used": "1024 MiB", "temperature.ppu": "4{n}", "power.draw": "6{n}.00 W", "power.limit": "400.00 W"},
    "clocks.current.cu": "1500 MHz",
}
"""By field of a query, what a release of ppu-smi answers that has none of nvidia-smi's names."""
PPU_SMI = """\
import sys
ROWS, KNOWN = {rows!r}, {known!r}
asked = next((each.partition("=")[2].split(",") for each in sys.argv[1:] if each.startswith("--query-ppu=")), [])
for field in asked:
    if field not in KNOWN:
        sys.exit('Field "' + field + '" is not a valid field to query.')
for row in ROWS:
    print(", ".join(row[field] for field in asked))
"""


def ppu_smi(*numbers: int, **changes: str) -> str:
    """A program that answers queries as ppu-smi does: one unknown field costs the whole answer."""
    known = PPU | changes
    rows = [{field: text.replace("{n}", str(number)) for field, text in known.items()} for number in numbers]
    return PPU_SMI.format(rows=rows, known=sorted(known))


def efsmi(*numbers: int, used: str = "1024 MiB", temp: str = "", power: str = "", limit: str = "300 W", old: bool = False) -> str:
    """`efsmi -q`, of driver 1.4 or of 1.2."""
    memory = f"Mem Size : 42976 MiB\n        Mem Usage : {used}" if old else f"Total Size : 42976 MiB\n        Used Size : {used}"
    return "".join(
        f"""DEV ID {number}
    Device Info
        Dev Name : S60
        Dev UUID : T6R23015090{number}
        Dev SN : A0A165051067{number}
    PCIe Info
        Domain : 0000
        Bus : 1{number}
        Dev : 00
        Func : 0
        Cur Link Speed : Gen5
        Cur Link Width : X16
    Clock Info
        Mem CLK : 8000 MHz
    Power Info
        Power Capa : {limit}
        Cur Power : {power or f"6{number} W"}
        Dpm Level : Active
    Device Mem Info
        {memory}
    Temperature Info
        GCU Temp : {temp or f"4{number} ℃"}
    Device Usage Info
        GCU Usage : 3{number} %
"""
        for number in numbers
    )


def efsmi_table(*numbers: int) -> str:
    """`efsmi` by itself, of 1.7."""
    rule = "+-----------------------------+-------------------+---------------------------+"
    rows = "\n".join(
        f"""| {n}      Enflame L300         | 40.2.8.3          | 00:1{n}:00.0  Enable        |
| 4{n}℃    LP1      6{n}W / 300W  | 147456MiB Disable | 3{n}%         A000X0000000{n} |
{rule}"""
        for n in numbers
    )
    return f"""\
+2026-03-06, 10:12:03 CST-----------------------------------------------------+
| EFSMI: 1.7.2.14          Driver Ver: 1.7.2.14                               |
{rule}
| DEV    NAME                 | Boot FW VER       | BUS-ID      ECC           |
| TEMP   Lpm   Pwr(Usage/Cap) | Mem      GCU Virt | DUsed       SN            |
|=============================================================================|
{rows}
"""
