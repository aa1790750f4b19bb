"""A machine with TPU chips, as far as its files show: a PCI bus, and processes that hold device nodes."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

VENDOR = "0x1ae0"


class Ids(NamedTuple):
    """PCI ids of one generation."""

    device: str
    subsystem: str = "0x0001"
    vfio: bool = True


GENERATIONS = {
    "v2": Ids("0x0027", "0x004e", vfio=False),
    "v3": Ids("0x0027", "0x004f", vfio=False),
    "v4": Ids("0x005e", vfio=False),
    "v5p": Ids("0x0062"),
    "v5e": Ids("0x0063"),
    "v6e": Ids("0x006f"),
    "7x": Ids("0x0076"),
}


class TpuMachine:
    """The files below ``/sys``, ``/proc`` and ``/dev``.

    Args:
        root: What stands in front of them.

    Attributes:
        nodes: Whether chips that are put in have their device nodes; in a container that was not given any they do not.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.nodes = True
        self._namespace("pid:[4026531836]")  # the one of the whole machine

    def contain(self) -> None:
        """Put this process into a container, whose ``/proc`` has its own processes and which was given no device node."""
        self.nodes = False
        self._namespace("pid:[4026532209]")

    def _namespace(self, name: str) -> None:
        link = self.root / "proc/1/ns/pid"
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        self.link(link, name)

    def chips(self, generation: str, count: int) -> list[str]:
        """Put in so many chips; returns their device nodes."""
        return [self.chip(generation, f"0000:00:{4 + position:02x}.0", position) for position in range(count)]

    def chip(self, generation: str, address: str, node: int) -> str:
        """Put in one chip; returns its device node."""
        ids = GENERATIONS[generation]
        device = self.function(address, ids.device, ids.subsystem, "0x120000")
        if ids.vfio:
            self.link(device / "iommu_group", f"../../../../kernel/iommu_groups/{node}")
            self.link(device / "driver", "../../../../bus/pci/drivers/vfio-pci")
            return self._node(f"/dev/vfio/{node}")
        (device / "accel" / f"accel{node}").mkdir(parents=True)
        return self._node(f"/dev/accel{node}")

    def _node(self, path: str) -> str:
        if self.nodes:
            file = self.root / path.lstrip("/")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch()
        return path

    def function(self, address: str, device: str, subsystem: str = "0x0001", kind: str = "0x120000", vendor: str = VENDOR) -> Path:
        """Put in any PCI function."""
        directory = self.root / "sys/bus/pci/devices" / address
        directory.mkdir(parents=True)
        facts = {"vendor": vendor, "device": device, "subsystem_device": subsystem, "class": kind, "numa_node": "0"}
        for name, text in facts.items():
            (directory / name).write_text(f"{text}\n", encoding="ascii")
        return directory

    def process(self, pid: int, *nodes: str) -> Path:
        """Have a process with some device nodes open; returns the directory of its descriptors."""
        directory = self.root / "proc" / str(pid) / "fd"
        directory.mkdir(parents=True, exist_ok=True)
        for target in ("/dev/null", *nodes):
            self.link(directory / str(len(list(directory.iterdir()))), target)
        return directory

    @classmethod
    def two_v5e(cls, root: Path) -> TpuMachine:
        """Two chips of a program, on a host that is this machine otherwise."""
        (root / "proc").mkdir(parents=True)
        machine = cls(root)
        for node in machine.chips("v5e", 2):
            machine.process(4711, node)
        for path in Path("/proc").iterdir():
            if not (root / "proc" / path.name).exists():
                (root / "proc" / path.name).symlink_to(path)
        return machine

    def end(self, pid: int) -> None:
        """End a process."""
        directory = self.root / "proc" / str(pid) / "fd"
        for link in directory.iterdir():
            link.unlink()
        directory.rmdir()
        directory.parent.rmdir()

    def link(self, path: Path, target: str) -> None:
        path.symlink_to(target)
