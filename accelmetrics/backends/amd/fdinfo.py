"""``/proc/PID/fdinfo/FD`` of a process that holds a GPU open: what it uses of it, in the form that all DRM drivers share.

::

    drm-driver:     amdgpu
    drm-pdev:       0000:03:00.0
    drm-client-id:  42
    drm-memory-vram:        1048576 KiB
    drm-memory-gtt:         2048 KiB
    drm-engine-gfx: 123456789 ns
    drm-engine-compute:     987654321 ns

A client is one opening of the device; descriptors that were duplicated or inherited show the same one.
"""

from __future__ import annotations

import re
from typing import NamedTuple

UNITS = {"": 1, "kib": 1024, "mib": 1024**2, "gib": 1024**3}
MEMORY = {"vram": ("drm-memory-vram", "drm-resident-vram"), "gtt": ("drm-memory-gtt", "drm-resident-gtt")}
"""The first is there on every kernel; the second is how newer ones spell it."""
MOST = 2**50
"""Bytes, and nanoseconds of an engine: thirteen days of a thousand engines; more is no count."""

_LINE = re.compile(r"^(drm-[a-z0-9-]+):[ \t]*(\S{1,64})[ \t]*([a-z]*)[ \t]*$", re.MULTILINE | re.IGNORECASE | re.ASCII)
_COUNT = re.compile(r"\d{1,19}", re.ASCII)
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.ASCII)


class Client(NamedTuple):
    """One opening of one device.

    Attributes:
        address: The device's PCI address.
        number: The kernel's number for the client.
        vram: Bytes of the device's memory, None where the kernel does not say.
        gtt: Bytes of the host's memory that the device uses.
        graphics: Nanoseconds that the graphics engine has worked for it; 0 where it never has.
        compute: The same of the compute engines.
    """

    address: str
    number: str
    vram: int | None
    gtt: int | None
    graphics: int
    compute: int


def parse(text: str) -> Client | None:
    """Read one file; None when it is not that of a GPU."""
    found = {name.lower(): (value, unit.lower()) for name, value, unit in _LINE.findall(text)}
    address, number = found.get("drm-pdev", ("", ""))[0].lower(), found.get("drm-client-id", ("", ""))[0]
    if _ADDRESS.fullmatch(address) is None or _COUNT.fullmatch(number) is None:
        return None
    vram, gtt = (next((size for name in names if (size := _bytes(found.get(name))) is not None), None) for names in MEMORY.values())
    return Client(address, number, vram, gtt, _nanoseconds(found.get("drm-engine-gfx")), _nanoseconds(found.get("drm-engine-compute")))


def _bytes(said: tuple[str, str] | None) -> int | None:
    if said is None or said[1] not in UNITS or _COUNT.fullmatch(said[0]) is None:
        return None
    size = int(said[0]) * UNITS[said[1]]
    return size if size <= MOST else None


def _nanoseconds(said: tuple[str, str] | None) -> int:
    if said is None or said[1] != "ns" or _COUNT.fullmatch(said[0]) is None:
        return 0
    return int(said[0])
