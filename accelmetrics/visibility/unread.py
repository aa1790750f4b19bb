"""Accelerators on the PCI bus that no backend of this release reads, by name: a machine that has one is not taken for one without."""

from __future__ import annotations

from typing import NamedTuple

from accelmetrics.backends.built_in import BUILT_IN
from accelmetrics.backends.kit.system import PCI, find_pci, pci_vendors, read_text

OWN_DETECTION = frozenset({"0x10de", "0x1002", "0x1d94", "0x1ae0", "0x1d0f"})
"""Vendors whose accelerators a backend finds by rules of its own, and reads, or tells why not."""
RECOGNISED: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Intel GPU", ("8086:*:03",)),
    ("Intel NPU", ("8086:*:12",)),
    ("AMD XDNA NPU", ("1022:1502", "1022:17f0")),
    ("Intel Gaudi", ("1da3:*:12",)),
    ("Huawei Ascend", ("19e5:*:12",)),
    ("Cambricon MLU", ("cabc:*:12", "cabc:0270", "cabc:0370")),
    ("Kunlunxin XPU", ("1d22:3684", "1d22:3685", "1d22:3688", "2057:3686")),
    ("MetaX GPU", ("9999:*:03", "9999:*:12")),
    ("Moore Threads GPU", ("1ed5:*:03", "1ed5:*:12")),
    ("Iluvatar GPU", ("1e3e:*:03", "1e3e:*:12")),
    ("Enflame GCU", ("1e36:*:12",)),
    ("T-Head PPU", ("1ded:6001", "1ded:*:12")),
    ("Tenstorrent", ("1e52:*:12",)),
    ("FuriosaAI NPU", ("1ed2:*:12",)),
    ("Qualcomm Cloud AI", ("17cb:a080", "17cb:a100", "17cb:a110")),
    ("Vastai", ("1ec6:*:03", "1ec6:*:12")),
    ("Hailo", ("1e60:*:12",)),
    ("DEEPX", ("1ff4:*:12",)),
    ("Mobilint", ("209f:*:12",)),
    ("Axelera", ("1f9d:*:12",)),
    ("Sophgo", ("1f1c:*:12", "1e30:*:12")),
    ("Groq", ("1de0:*:12",)),
    ("SambaNova", ("1e0d:*:12",)),
    ("d-Matrix", ("1f82:*:12",)),
    ("Sapeon", ("1f56:*:12",)),
)
"""By name, PCI ids as :func:`find_pci` takes them. Where a vendor makes other things too, or has ids that are not published, the class
decides: display (03) or processing accelerator (12)."""


class UnreadDevice(NamedTuple):
    """An accelerator that is on the PCI bus and that no backend reads.

    Attributes:
        name: The vendor and what it is; of a vendor that is not known, its PCI id.
        pci_bus_id: Its PCI address.
        pci_id: Vendor and device id: ``1da3:1020``.
    """

    name: str
    pci_bus_id: str
    pci_id: str


def unread_devices() -> tuple[UnreadDevice, ...]:
    """List the accelerators on the PCI bus that no built-in backend reads, by address; each once."""
    read = {address for row in BUILT_IN.values() for address in find_pci(row.pci)}
    found: dict[str, str] = {}
    for name, ids in RECOGNISED:
        for address in find_pci(ids):
            found.setdefault(address, name)
    for vendor in pci_vendors() - OWN_DETECTION:
        for address in find_pci((f"{vendor.removeprefix('0x')}:*:12",)):
            found.setdefault(address, f"an accelerator of vendor {vendor}")
    return tuple(UnreadDevice(name, address, _id(address)) for address, name in sorted(found.items()) if address not in read)


def _id(address: str) -> str:
    vendor, device = ((read_text(f"{PCI}/{address}/{name}") or "").removeprefix("0x") for name in ("vendor", "device"))
    return f"{vendor}:{device}"
