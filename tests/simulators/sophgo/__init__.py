"""The files of Sophgo's kernel driver, as its source writes them."""

from __future__ import annotations

import shutil
from pathlib import Path


class SophgoTree:
    """Nothing at first.

    Args:
        root: What stands in front of ``/proc`` and ``/sys``.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self.proc = root / "proc/bmsophon"

    def write(self, path: str, text: str) -> None:
        """One file below the driver's directory."""
        file = self.proc / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n", encoding="utf-8")

    def card(self, number: int, **changed: str) -> None:
        """The files of a card."""
        said = {"board_power": "61 W", "max_board_power": "70 W", "board_temp": "43 C", "board_type": "SC7 PRO", "chipid": "0x1684x"}
        said |= {"sn": f"HQATEV{number:04}", "tpu_maxclk": "1000MHz", "fan_speed": "duty  45\nfan_speed  2800", **changed}
        for name, text in said.items():
            self.write(f"card{number}/{name}", text)

    def chip(self, card: int, number: int, **changed: str) -> None:
        """The files of a chip, in decimal and hexadecimal as the driver prints each."""
        said = {"tpuid": f"{number}", "dbdf": f"000:{0x0A + number:02x}:00.0", "chip_temp": f"{51 + number} C", "chip_power": "17 W"}
        said |= {"tpu_power": "9 W", "tpu_freq": "950 MHz", "ecc": "on", "ddr_capacity": "4g, 4g, 4g, 4g, 16g", "status": "Active"}
        said |= {"pcie_link_speed": "gen3", "pcie_link_width": "x8", "pcie_cap_speed": "gen4", "pcie_cap_width": "x16", **changed}
        for name, text in said.items():
            self.write(f"card{card}/bmsophon{number}/{name}", text)
        self.usage(number, "usage:63 avusage:12")

    def usage(self, number: int, said: str) -> None:
        """What the driver has counted of a chip's time."""
        directory = self._root / f"sys/class/bm-sophon/bm-sophon{number}/device"
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "npu_usage").write_text(f"{said}\n", encoding="utf-8")

    def remove(self, card: int, number: int) -> None:
        """A chip that is gone."""
        shutil.rmtree(self.proc / f"card{card}/bmsophon{number}")
