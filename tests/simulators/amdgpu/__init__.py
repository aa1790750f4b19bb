"""A stand-in for the kernel's view of AMD's GPUs: trees of files below a directory, for ``ACCELMETRICS_SYSROOT``.

Each function of :mod:`tests.simulators.amdgpu.machines` writes one machine; :class:`Tree` is what they are written with, and
what a test changes them with while they are read.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

Content = str | bytes | int
OF_THE_DRIVER = ("gpu_", "mem_", "pp_", "pcie_", "unique_id", "product_", "serial_number", "vbios_version")
"""How the names of a driver's files begin: the others are the PCI bus's."""


class Device:
    """One PCI device's files.

    Args:
        path: Its directory.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.address = path.name

    def write(self, files: Mapping[str, Content]) -> None:
        """Write files, as the kernel does with a line's end."""
        for name, content in files.items():
            target = self.path / name
            target.parent.mkdir(parents=True, exist_ok=True)
            # Written over in place: a reader keeps its descriptor, as it does on a real machine.
            target.write_bytes(content if isinstance(content, bytes) else f"{content}\n".encode())

    def sensors(self, files: Mapping[str, Content]) -> None:
        """Write files of the card's sensors."""
        self.write({f"hwmon/hwmon3/{name}": content for name, content in files.items()})

    def remove(self, *names: str) -> None:
        """Take files away."""
        for name in names:
            (self.path / name).unlink()

    def unbind(self) -> None:
        """The kernel driver lets go of it: its files go, those of the PCI bus stay."""
        (self.path / "driver").unlink()
        for path in self.path.iterdir():
            if path.is_dir() and path.name != "power":
                shutil.rmtree(path)
            elif path.name.startswith(OF_THE_DRIVER):
                path.unlink()

    def vanish(self) -> None:
        """The device falls off the bus."""
        shutil.rmtree(self.path)


class Tree:
    """A machine's ``/sys``, ``/proc`` and ``/dev``."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, path: str, content: Content) -> None:
        """One file, by its absolute path."""
        target = self.root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content if isinstance(content, bytes) else f"{content}\n".encode())

    def device(self, address: str, files: Mapping[str, Content], vendor: str = "0x1002", driver: str = "amdgpu") -> Device:
        """A PCI device that a driver drives."""
        made = Device(self.root / "sys/bus/pci/devices" / address)
        made.write({"vendor": vendor, "class": "0x030000", "power/runtime_status": "active", **files})
        home = self.root / "sys/bus/pci/drivers" / driver
        home.mkdir(parents=True, exist_ok=True)
        if driver:
            (made.path / "driver").symlink_to(home)
            (self.root / "sys/module" / driver).mkdir(parents=True, exist_ok=True)
        return made

    def node(self, number: int, properties: Mapping[str, int], memory: int | None = None, used: int | None = None) -> None:
        """A GPU, or a partition of one, in the compute driver's topology."""
        base = f"/sys/class/kfd/kfd/topology/nodes/{number}"
        self.write(f"{base}/properties", "\n".join(f"{name} {value}" for name, value in properties.items()))
        if memory is not None:
            self.write(f"{base}/mem_banks/0/properties", f"heap_type 1\nsize_in_bytes {memory}\nflags 0\nwidth 8192")
        if used is not None:
            self.write(f"{base}/mem_banks/0/used_memory", used)

    def whole_machine(self) -> None:
        """Make it a ``/proc`` of the whole machine, and not of a container."""
        self.link("/proc/1/ns/pid", "pid:[4026531836]")

    def link(self, path: str, target: str) -> None:
        """A link, by its absolute path."""
        link = self.root / path.lstrip("/")
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(target)

    def process(self, pid: int, descriptors: Mapping[int, tuple[str, str]], parent: int = 1) -> None:
        """A process: by descriptor, what it refers to and what the kernel says of it."""
        base = f"/proc/{pid}"
        self.write(f"{base}/status", f"Name:\tpython\nPPid:\t{parent}\nNSpid:\t{pid}")
        for number, (target, information) in descriptors.items():
            self.link(f"{base}/fd/{number}", target)
            self.write(f"{base}/fdinfo/{number}", information)


def location(bus: int, device: int = 0, partition: int = 0) -> int:
    """``location_id`` as the compute driver makes it."""
    return partition << 28 | bus << 8 | device << 3


def client(address: str, number: int, vram: int, gtt: int = 0, **engines: int) -> str:
    """``fdinfo`` of one client.

    Args:
        address: The device's PCI address.
        number: The client's number.
        vram: KiB of its memory.
        gtt: KiB of the host's memory.
        engines: By engine, nanoseconds.
    """
    lines = [
        *("pos:\t0", "flags:\t02100002", "mnt_id:\t24", "ino:\t1094", "drm-driver:\tamdgpu", f"drm-client-id:\t{number}"),
        *(f"drm-pdev:\t{address}", "pasid:\t32770", f"drm-memory-vram:\t{vram} KiB", f"drm-memory-gtt: \t{gtt} KiB"),
        *(f"drm-engine-{name}:\t{time} ns" for name, time in engines.items()),
    ]
    return "\n".join(lines)
