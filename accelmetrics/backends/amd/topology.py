"""The compute driver's view of the GPUs: what they are called by compilers, and how they are partitioned.

``/sys/class/kfd/kfd/topology/nodes/N`` describes a processor, or a GPU, or one partition of a GPU (XCP). The nodes of one
GPU's partitions carry its bus address; their number stands in the upper bits of ``location_id``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from accelmetrics.backends.kit.system import list_directory, read_text

NODES = "/sys/class/kfd/kfd/topology/nodes"
AMD = 0x1002
PARTITION_SHIFT = 28
LOCAL_HEAPS = ("1", "2")
"""Memory of the GPU itself: the part that the processor reaches, and the part that it does not."""


class Node(NamedTuple):
    """A GPU, or a partition of one.

    Attributes:
        path: Where its files are.
        address: PCI address.
        vendor: PCI vendor id, 0 where the kernel does not say.
        partition: Number of the partition, 0 for a whole GPU.
        architecture: As compilers name it: ``gfx942``.
        memory: Bytes of its memory, None where the kernel does not say.
    """

    path: str
    address: str
    vendor: int
    partition: int
    architecture: str
    memory: int | None


def gpu_nodes() -> list[Node]:
    """The GPUs and their partitions, in the kernel's order."""
    return list(_nodes())


def compute_nodes() -> int:
    """How many of AMD's GPUs the compute driver knows: they are visible where the PCI bus is hidden."""
    return sum(node.vendor == AMD for node in gpu_nodes())


def _nodes() -> Iterator[Node]:
    for name in sorted(filter(str.isdecimal, list_directory(NODES)), key=int):
        found = properties(f"{NODES}/{name}/properties")
        if not found.get("simd_count", 0):
            continue
        location = found.get("location_id", 0)
        address = f"{found.get('domain', 0):04x}:{location >> 8 & 0xFF:02x}:{location >> 3 & 0x1F:02x}.{location & 7:x}"
        path, gfx = f"{NODES}/{name}", architecture(found.get("gfx_target_version", 0))
        yield Node(path, address, found.get("vendor_id", 0), location >> PARTITION_SHIFT, gfx, _memory(path))


def properties(path: str) -> dict[str, int]:
    """A file of names and numbers."""
    words = [line.split() for line in (read_text(path) or "").splitlines()]
    return {pair[0]: int(pair[1]) for pair in words if len(pair) == 2 and pair[1].isdecimal() and len(pair[1]) <= 20}


def architecture(version: int) -> str:
    """``gfx942`` of 90402: two decimal digits each for the minor version and the stepping, which compilers write in hexadecimal."""
    major, minor, stepping = version // 10000, version // 100 % 100, version % 100
    return f"gfx{major}{minor:x}{stepping:x}" if major else ""


def used_memory(node: Node) -> int | None:
    """Bytes that are in use of a node's memory; None where the kernel does not say."""
    said = read_text(f"{node.path}/mem_banks/0/used_memory")
    return int(said) if said and said.isdecimal() and len(said) <= 20 else None


def _memory(path: str) -> int | None:
    banks = [properties(f"{path}/mem_banks/{bank}/properties") for bank in list_directory(f"{path}/mem_banks")]
    local = [bank.get("size_in_bytes", 0) for bank in banks if str(bank.get("heap_type", 0)) in LOCAL_HEAPS]
    return sum(local) or None
