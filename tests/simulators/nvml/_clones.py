"""The libraries of other vendors that have NVML's form: their names, their functions and a product each.

A function in `clones/<library>.txt`, the list of what the vendor's header declares (of T-Head: its library exports), is the simulated
NVML's under another name; what differs stands in `clones/<library>.c`.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from ._profiles import Product

FOLDER = Path(__file__).parent / "clones"


@dataclasses.dataclass(frozen=True)
class Clone:
    """A library: its name, what stands for NVML's spelling in it, and the device that it drives."""

    name: str
    spelling: tuple[tuple[str, str], ...]
    product: Product

    @property
    def soname(self) -> str:
        """The file's name."""
        return f"lib{self.name}.so"

    @property
    def functions(self) -> dict[str, str]:
        """By the function's name, NVML's."""
        found = {}
        for name in (FOLDER / f"{self.name}.txt").read_text().split():
            found[name] = name
            for own, nvidias in self.spelling:
                found[name] = found[name].replace(own, nvidias)
        return found


CLONES = {
    clone.name: clone
    for clone in (
        Clone(
            "ixml",
            (),
            Product(
                name="Iluvatar BI-V150", brand=0, architecture=0, capability=(7, 0), cores=4096, pci_device_id=0x00031E3E,
                memory_mib=32768, limit_watts=(100, 350, 350), max_clocks=(1500, 1500, 1600, 1500), pcie_gen=4, gpm=True,
            ),
        ),
        Clone(
            "hgml",
            (("hgml", "nvml"), ("HGML", "NVML"), ("IcnLink", "NvLink"), ("Hggc", "Cuda")),
            Product(
                name="PPU-ZW810E", brand=0, architecture=10, capability=(8, 0), cores=6912, pci_device_id=0x60011DED,
                memory_mib=98304, limit_watts=(100, 400, 400), max_clocks=(1700, 1700, 1800, 1200), pcie_gen=5,
                links=7, link_version=4, link_mbps=25781, gpm=True, mig=True,
            ),
        ),
        Clone(
            "efml",
            (("efml", "nvml"),),
            Product(
                name="S60", brand=0, architecture=40, capability=(0, 0), cores=0, pci_device_id=0xC0351E36,
                memory_mib=42976, limit_watts=(100, 300, 300), max_clocks=(1500, 1500, 8000, 1200), pcie_gen=5, fans=1, ecc=False,
            ),
        ),
    )
}  # fmt: skip
