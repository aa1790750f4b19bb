"""Who a card is, from what the kernel shows without waking it."""

from __future__ import annotations

from collections.abc import Iterable

from accelmetrics.backends.amd import sysfs
from accelmetrics.backends.amd.topology import Node
from accelmetrics.backends.amd.values import text
from accelmetrics.backends.kit.system import read_text
from accelmetrics.schemas.identity import DeviceIdentity

NAMES = ("/usr/share/libdrm/amdgpu.ids", "/opt/amdgpu/share/libdrm/amdgpu.ids")
"""Market names by device and revision: ``744C,	C8,	AMD Radeon RX 7900 XTX``."""
SHOWN = ("gpu_busy_percent", "mem_info_vram_total", "hwmon", "gpu_metrics")
"""Of which every card has at least one."""


def identify(number: int, address: str, nodes: Iterable[Node]) -> DeviceIdentity:
    """One card.

    Args:
        number: Its position among the cards, in the order of their addresses.
        address: Its PCI address.
        nodes: What the compute driver knows.
    """
    base, vendor = sysfs.device_path(address), sysfs.vendor_of(address)
    unified = bool(sysfs.is_integrated(address))
    return DeviceIdentity(
        kind="gpu",
        vendor=vendor,
        vendor_index=number,
        name=_name(base, vendor),
        uuid=_unique_id(base),
        pci_bus_id=address,
        serial=_text(base, "serial_number"),
        architecture=next((node.architecture for node in nodes if node.address == address), ""),
        driver_version=_driver_version(),
        firmware=_text(base, "vbios_version"),
        memory_total_bytes=None if sysfs.is_suspended(address) else _memory(base, unified),
        numa_node=sysfs.numa_node(address),
        unified=unified,
    )


def partition(parent: DeviceIdentity, node: Node, mode: str) -> DeviceIdentity:
    """One partition of a card.

    Args:
        parent: The card.
        node: The partition.
        mode: How the card is partitioned (``CPX``); empty when the kernel does not say.
    """
    return parent._replace(
        vendor_index=node.partition,
        name=f"{parent.name} ({f'{mode} ' if mode else ''}partition {node.partition})",
        uuid=f"{parent.anchor}/xcp{node.partition}",
        serial="",
        architecture=node.architecture,
        memory_total_bytes=node.memory,
        parent=parent.anchor,
    )


def _text(base: str, file: str) -> str:
    return text(read_text(f"{base}/{file}"))


def _unique_id(base: str) -> str:
    """The id as ``rocm-smi`` prints it; 0 stands for none."""
    printed = _text(base, "unique_id").lower().removeprefix("0x")
    return f"0x{printed}" if printed.strip("0") else ""


def _driver_version() -> str:
    """Of a driver that was installed apart from the kernel; the kernel's own has no version."""
    return next((found for driver in sysfs.DRIVERS if (found := read_text(f"/sys/module/{driver}/version"))), "")


def _name(base: str, vendor: str) -> str:
    device = (read_text(f"{base}/device") or "").removeprefix("0x").upper()
    revision = (read_text(f"{base}/revision") or "").removeprefix("0x").upper()
    listed = (read_text(path) or "" for path in NAMES)
    market = (name for table in listed for name in _market_names(table, device, revision))
    return _text(base, "product_name") or next(market, f"{sysfs.MAKERS[vendor]} {device}".strip())


def _market_names(table: str, device: str, revision: str) -> list[str]:
    rows = [[part.strip() for part in line.split(",", 2)] for line in table.splitlines()]
    return [row[2] for row in rows if len(row) == 3 and row[2] and (row[0].upper(), row[1].upper()) == (device, revision)]


def _memory(base: str, unified: bool) -> int | None:
    sizes = [read_text(f"{base}/mem_info_{pool}_total") for pool in ("vram", "gtt")[: 2 if unified else 1]]
    if not all(size and size.isdecimal() and len(size) <= 20 for size in sizes):
        return None
    return sum(int(size or 0) for size in sizes) or None


def partition_mode(address: str) -> str:
    """How a card is partitioned, in the vendor's word; empty when it cannot be."""
    return _text(sysfs.device_path(address), "current_compute_partition")


def cards() -> list[str]:
    """Addresses of the cards whose values the kernel shows."""
    return [address for address in sysfs.gpus() if sysfs.is_driven(address)]


def shows_values(address: str) -> bool:
    """Whether there is anything to read of a card: a container may show who is there, and nothing of them."""
    return any(sysfs.exists(f"{sysfs.device_path(address)}/{name}") for name in SHOWN)
