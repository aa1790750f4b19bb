"""What ``dxrt-cli -s`` prints, line for line as the vendor's source writes it."""

from __future__ import annotations

from collections.abc import Sequence


def device(number: int, temperatures: Sequence[object] = (38, 41, 40), memory: str = "3.92GiB", link: str = "Gen3 X4 [10:00:00]") -> str:
    """A device of three cores; ``link`` has the bus in decimal."""
    cores = "".join(
        f"NPU {core}: voltage 750 mV, clock {1000 + core} MHz, temperature {degrees}'C\n" for core, degrees in enumerate(temperatures)
    )
    return f"""=======================================================
 * Device {number}: M1, Accelerator type
---------------------   Version   ---------------------
 * RT Driver version   : v1.3.1
 * PCIe Driver version : v1.2.0
-------------------------------------------------------
 * FW version          : v1.6.0
--------------------- Device Info ---------------------
 * Memory : LPDDR5 5800 MHz, {memory}
 * Board  : M.2, Rev 1.0
 * PCIe   : {link}

{cores}dvfs Disabled
=======================================================
"""


def listing(*devices: str) -> str:
    """The whole output."""
    return f"DXRT v2.6.3\n{''.join(devices)}"
