"""The files of FuriosaAI's driver for RNGD, and what ``furiosa-smi`` prints, in the form of release 2026.1."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FILES = {
    "platform_type": "FuriosaAI",
    "dev": "234:0",
    "fw_version": "2026.1.0, 5c0ffee",
    "version": "2026.1.2, 0badcafe",
    "npu_governor": "OnDemand",
    "pe_occupancy": "\n".join("00000000"),
}


class FuriosaTree:
    """No card at first.

    Args:
        root: The root in front of ``/sys``, ``/proc`` and ``/dev``.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def directory(self, number: int) -> Path:
        """The directory of a card's management device."""
        return self.root / f"sys/devices/virtual/rngd_mgmt/rngd!npu{number}mgmt"

    def card(self, number: int, *, which: int | None = None, driven: bool = True) -> None:
        """A card under a number: the physical card ``which``, that of the same number when left out."""
        which = number if which is None else which
        address = f"0000:{0x30 + which:02x}:00.0"
        for name, text in {"vendor": "0x1ed2", "device": "0x0001", "class": "0x120000", "numa_node": "0"}.items():
            self.write(self.root / f"sys/bus/pci/devices/{address}/{name}", text)
        if not driven:
            return
        about = {"busname": address, "device_uuid": f"7A1B2C3D-0000-4000-8000-00000000000{which}", "device_sn": f"RNGD00000{which}"}
        for name, text in {**FILES, **about}.items():
            self.write(self.directory(number) / name, text)
        for node in (f"npu{number}mgmt", *(f"npu{number}pe{core}" for core in range(8))):
            self.write(self.root / f"dev/rngd/{node}", "")
        link = self.root / f"sys/class/rngd_mgmt/rngd!npu{number}mgmt"
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(self.directory(number))

    def occupied(self, number: int, *cores: int) -> None:
        """Say which cores programs hold."""
        self.write(self.directory(number) / "pe_occupancy", "\n".join(str(int(core in cores)) for core in range(8)))

    def holding(self, pid: int, *nodes: str) -> None:
        """A process that has these nodes open."""
        descriptors = self.root / f"proc/{pid}/fd"
        descriptors.mkdir(parents=True)
        for descriptor, node in enumerate(nodes, 3):
            (descriptors / str(descriptor)).symlink_to(f"/dev/rngd/{node}")

    def remove(self, number: int) -> None:
        """Take a card's files away, as the driver does when it is unbound."""
        (self.root / f"sys/class/rngd_mgmt/rngd!npu{number}mgmt").unlink()
        gone = self.root / f"gone/{len(list(self.root.glob('gone/*')))}"  # which keeps its inode from the next one
        gone.parent.mkdir(exist_ok=True)
        self.directory(number).rename(gone)

    @staticmethod
    def write(file: Path, text: str) -> None:
        """Write one file, with the line's end that the kernel puts there."""
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n", "utf-8")


def info(number: int, which: int | None = None, **changed: Any) -> dict[str, Any]:
    """One device of ``furiosa-smi info --format json``."""
    which = number if which is None else which
    return {
        "arch": "rngd",
        "dev_name": f"npu{number}",
        "device_uuid": f"7A1B2C3D-0000-4000-8000-00000000000{which}",
        "device_sn": f"RNGD00000{which}",
        "firmware": "2026.1.0, 5c0ffee",
        "temperature": f"{41 + which}.25°C",
        "power": f"{39 + which}.00 W",
        "core_clock": "1000MHz",
        "governor": "OnDemand",
        "pci_bdf": f"0000:{0x30 + which:02x}:00.0",
        "pci_dev": "234:0",
    } | changed


def status(number: int, used: int = 2**30, cores: tuple[int, ...] = (), **changed: Any) -> dict[str, Any]:
    """One device of ``furiosa-smi status --format json``."""
    pes = [{"pe_core": core, "pe_occupancy": core in cores, "pe_utilization": 0.75 if core in cores else 0.0} for core in range(8)]
    dram = {"used_size": used, "total_size": 51002736640, "used_ratio": used / 51002736640}
    return {"arch": "rngd", "device": f"npu{number}", "liveness": "alive", "memory": {"DRAM": dram}, "pe_utilizations": pes} | changed


def listing(*devices: object) -> str:
    """The whole document."""
    return json.dumps(devices, indent=2, ensure_ascii=False)
