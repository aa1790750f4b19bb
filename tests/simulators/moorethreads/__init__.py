"""What ``mthreads-gmi`` prints: the document of its query, and its table as releases 1.14 to 2.4 draw it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any


def gpu(number: int, **changed: Any) -> dict[str, Any]:
    """One GPU of ``mthreads-gmi -q --json``."""
    return {
        "Index": str(number),
        "Product Name": "MTT S4000",
        "GPU UUID": f"a1b2c3d4-0000-4000-8000-{number:012x}",
        "Serial Number": f"MT24{number:08}",
        "Performance State": "P2",
        "PCI": {"PCI/Bus Id": address(number), "Device ID": "0x0327"},
        "FB Memory Usage": {"Total": "49152MiB", "Used": "12288MiB", "Free": "36864MiB"},
        "Utilization": {"Gpu": f"{63 + number}%", "Memory": "25%"},
        "Temperature": {"GPU Current Temp": f"{54 + number}C"},
        "Power Readings": {
            "Power Draw ": f"{188.5 + number}W",
            "Current Power Limit": "450W",
            "Default Power Limit": "450W",
            "Max Power Limit": "470W",
        },
        "Clocks": {"Graphics": "1750MHz", "Memory": "8000MHz"},
        "Thermal Slowdown Stats": {"Count": "0"},
    } | changed


def address(number: int) -> str:
    """The PCI address of a GPU, as both outputs write it."""
    return f"0000{'0000'}:{0x2A + number:02x}:00.0"


def query(*gpus: object) -> str:
    """The whole document."""
    return json.dumps({"Driver Version": "3.3.5-server", "GPU": list(gpus)}, indent=4)


RULE = "+-------------------------------------------------------------------+"
LINE = RULE.replace("+", "-")
IDLE = "   No running processes found"


def table(*numbers: int, processes: Iterable[str] = (IDLE,), changes: Mapping[str, str] | None = None, perf: bool = True) -> str:
    """The table of some GPUs.

    Args:
        numbers: The GPUs.
        processes: The rows of the table below.
        changes: Cells that are others, by heading.
        perf: whether it has the column ``Perf``, as releases for servers have.
    """
    heads = (
        "ID   Name                 |PCIe                |%GPU  Mem",
        f"     Device Type{'   Perf   ' if perf else '          '}|Pcie Lane Width     |Temp  MPC Capable",
        "                                               |      ECC Mode",
    )
    lines = [LINE, "    mthreads-gmi:2.4.0           Driver Version:3.3.5-server", LINE, *heads]
    for number in numbers:
        cells = {
            **{"Name": "MTT S4000", "PCIe": address(number), "%GPU": f"{63 + number}%", "Mem": "12288MiB(49152MiB)", "Perf": "P2"},
            **{"Width": "8x(16x)", "Temp": f"{54 + number}C", "ECC Mode": "On-die, EDC"},
            **(changes or {}),
        }
        lines += [
            RULE,
            f"{number:<5}{cells['Name']:<21}|{cells['PCIe']:<20}|{cells['%GPU']:<6}{cells['Mem']}",
            f"     Physical      {cells['Perf'] if perf else '':<7}|{cells['Width']:<20}|{cells['Temp']:<6}YES",
            f"                                               |      {cells['ECC Mode']}",
        ]
    title = "ID   PID           Process name                           GPU Memory"
    return "\n".join(
        ["Mon Nov  2 09:15:00 2026", *lines, LINE, "", LINE, "Processes:", title, f"{'Usage':>68}", RULE, *processes, LINE, ""]
    )


def process(gpu_: int, pid: int, memory: str = "134MiB", name: str = "python3 train.py --fast") -> str:
    """One row of the processes."""
    return f"{gpu_:<5}{pid:<14}{name:<37}{memory:>11}"
