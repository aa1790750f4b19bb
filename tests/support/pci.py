"""A PCI bus below a directory, for ``ACCELMETRICS_SYSROOT``: devices behind host bridges and switches, and network cards."""

from __future__ import annotations

from pathlib import Path


def plug(root: Path, *way: str, node: int | None = None, cpus: str = "") -> Path:
    """Put a PCI function where the kernel shows it. Returns its directory.

    Args:
        root: The directory.
        way: The host bridge (``pci0000:00``), each bridge below it, the function.
        node: NUMA node of its host bridge.
        cpus: CPUs near to it.
    """
    home = root / "sys/devices" / Path(*way)
    home.mkdir(parents=True, exist_ok=True)
    (home / "numa_node").write_text(f"{-1 if node is None else node}\n")
    (home / "local_cpulist").write_text(f"{cpus}\n")
    link = root / "sys/bus/pci/devices" / way[-1]
    link.parent.mkdir(parents=True, exist_ok=True)
    if link.is_dir() and not link.is_symlink():  # a simulated driver's files of the same device
        for file in link.iterdir():
            file.rename(home / file.name)
        link.rmdir()
    link.symlink_to(home)
    return home


def rdma_card(root: Path, name: str, *way: str, node: int) -> None:
    """Put a network card with RDMA where the kernel shows it."""
    function = plug(root, *way, node=node)
    shown = root / "sys/class/infiniband" / name
    shown.mkdir(parents=True)
    (shown / "device").symlink_to(function)


def numa_nodes(root: Path, number: int) -> None:
    """Let the machine have so many NUMA nodes."""
    for node in range(number):
        (root / f"sys/devices/system/node/node{node}").mkdir(parents=True)


def function(root: Path, address: str, vendor: str, device: str = "0x0001", kind: str = "0x120000") -> Path:
    """Put a bare PCI function on the bus, with no driver. Returns its directory."""
    home = root / "sys/bus/pci/devices" / address
    home.mkdir(parents=True, exist_ok=True)
    for name, said in {"vendor": vendor, "device": device, "class": kind}.items():
        (home / name).write_text(f"{said}\n", encoding="utf-8")
    return home
