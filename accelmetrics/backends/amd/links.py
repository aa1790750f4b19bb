"""The link between a card and its slot.

Cards since Navi carry a PCIe switch of their own, and the link that the GPU itself shows is the one inside the card, which is
always at its best. What matters is the link of the outermost bridge that carries AMD's GPU vendor id.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from accelmetrics.backends.amd import sysfs
from accelmetrics.backends.amd.values import pcie_generation
from accelmetrics.backends.kit.system import read_text, system_path

FILES = ("current_link_speed", "current_link_width", "max_link_speed", "max_link_width")
BRIDGE = "0x0604"

_SPEED = re.compile(r"(\d{1,3}(?:\.\d)?) GT/s.*", re.ASCII)


def slot_link(address: str) -> Iterator[tuple[str, object]]:
    """What the files of the link say; a speed as the PCIe generation."""
    port = outermost(address)
    for file in FILES:
        said = read_text(f"{sysfs.device_path(port)}/{file}")
        if said is not None:
            yield file, generation(said) if file.endswith("speed") else said


def outermost(address: str) -> str:
    """The address of the bridge at the card's edge; the card's own where it has none."""
    try:
        parents = system_path(sysfs.device_path(address)).resolve().parents
    except (OSError, RuntimeError):  # a loop of links
        return address
    for parent in parents:
        base = sysfs.device_path(parent.name)
        if read_text(f"{base}/vendor") not in sysfs.VENDORS or not (read_text(f"{base}/class") or "").startswith(BRIDGE):
            break
        address = parent.name
    return address


def generation(speed: str) -> object:
    """``16.0 GT/s PCIe`` is generation 4; anything else stays what it is."""
    match = _SPEED.fullmatch(speed)
    return pcie_generation(match.group(1)) if match else speed
