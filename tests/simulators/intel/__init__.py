"""A stand-in for the kernel's view of Intel's GPUs and NPUs: trees of files below a directory, for ``ACCELMETRICS_SYSROOT``.

Layouts are those of the drivers ``xe``, ``i915`` and ``intel_vpu``; the values are made up.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Mapping
from pathlib import Path

from tests.simulators.amdgpu import Content
from tests.simulators.drm import DrmTree

INTEGRATED, CARD = "0000:00:02.0", "0000:03:00.0"
CALM: Mapping[str, Content] = dict.fromkeys(("pl1", "pl2", "pl4", "prochot", "ratl", "thermal", "vr_tdc", "vr_thermalert"), 0)
"""Reasons for low clocks, of which there is none."""


class IntelTree(DrmTree):
    """A machine with Intel's devices."""

    def xe(self, number: int = 0, address: str = CARD, device: str = "0xe20b", *, integrated: bool = False) -> Path:
        """A card of the driver ``xe``, behind the switch on it, or a GPU of a processor."""
        way = () if integrated else self._switch(address, "0xe2ff", "0xe2f0")
        files: dict[str, Content] = {"vendor": "0x8086", "device": device, "class": "0x030000", "power/runtime_status": "active"}
        files |= self._gt(0, "rc", 1750, 2850) | self._gt(1, "mc", 1210, 1500)
        home = self.add(address, "xe", files | self._inner_link(), number=number, below=way)
        if not integrated:
            self.sensors(home, number + 2, {"name": "xe", **_SENSORS})
        return home

    def i915(self, number: int = 0, address: str = CARD, device: str = "0x56a5", *, integrated: bool = False) -> Path:
        """A card of the driver ``i915``, behind the switch on it, or a GPU of a processor."""
        way = () if integrated else self._switch(address, "0x4fa1", "0x4fa4")
        gt: dict[str, Content] = {"rps_act_freq_mhz": 950, "rps_RP0_freq_mhz": 2450, "media_RP0_freq_mhz": 1400}
        gt |= {"rc6_enable": 1, "rc6_residency_ms": 5000, "throttle_reason_status": 0}
        gt |= {f"throttle_reason_{name}": value for name, value in CALM.items()}
        files: dict[str, Content] = {"vendor": "0x8086", "device": device, "class": "0x030000", "power/runtime_status": "active"}
        files |= {f"{{}}/gt/gt0/{name}": value for name, value in gt.items()}
        files |= {"{}/gt_act_freq_mhz": 950, "{}/gt_RP0_freq_mhz": 2450}
        home = self.add(address, "i915", files | self._inner_link(), number=number, below=way)
        if not integrated:
            sensors = {
                "energy1_input": 700_000_000,
                "power1_max": 66_000_000,
                "power1_rated_max": 0,
                "temp1_input": 51_000,
                "fan1_input": 0,
            }
            self.sensors(home, number + 2, {"name": "i915", **sensors})
        return home

    def npu(self, files: Mapping[str, Content], number: int = 0, device: str = "0x643e") -> Path:
        """An NPU of the driver ``intel_vpu``; its files came with different kernels."""
        about: dict[str, Content] = {"vendor": "0x8086", "device": device, "class": "0x120000", "power/runtime_status": "active"}
        return self.add("0000:00:0b.0", "intel_vpu", {**about, **files}, number=number, node="accel/accel")

    def set(self, device: Path, files: Mapping[str, Content]) -> None:
        """Write files of a device over in place, by path below its directory."""
        for name, content in files.items():
            self.write(f"/{device.relative_to(self.root)}/{name}", content)

    def _switch(self, address: str, up: str, down: str) -> tuple[str, str]:
        """The switch on a card, whose own link is that to the slot."""
        bus = int(address.split(":")[1], 16)
        way = (f"0000:{bus - 2:02x}:00.0", f"0000:{bus - 1:02x}:01.0")
        base = "/sys/devices/pci0000:00"
        link: dict[str, Content] = {
            "current_link_speed": "16.0 GT/s PCIe",
            "current_link_width": 8,
            "max_link_speed": "16.0 GT/s PCIe",
            "max_link_width": 8,
        }
        for name, content in (link | {"device": up}).items():
            self.write(f"{base}/{way[0]}/{name}", content)
        self.write(f"{base}/{way[0]}/{way[1]}/device", down)
        return way

    @staticmethod
    def _inner_link() -> dict[str, Content]:
        speed, width = "2.5 GT/s PCIe", 1
        return {"current_link_speed": speed, "current_link_width": width, "max_link_speed": speed, "max_link_width": width}

    @staticmethod
    def _gt(number: int, kind: str, clock: int, highest: int) -> dict[str, Content]:
        below = f"tile0/gt{number}"
        told: dict[str, Content] = {"freq0/act_freq": clock, "freq0/rp0_freq": highest, "freq0/throttle/status": 0}
        told |= {f"freq0/throttle/reason_{name}": value for name, value in CALM.items()}
        told |= {"gtidle/name": f"gt{number}-{kind}", "gtidle/idle_status": "gt-c0", "gtidle/idle_residency_ms": 40_000}
        return {f"{below}/{name}": value for name, value in told.items()}


class _XeQuery(ctypes.Structure):
    _fields_ = (
        *(("extensions", ctypes.c_uint64), ("query", ctypes.c_uint32), ("size", ctypes.c_uint32), ("data", ctypes.c_uint64)),
        ("reserved", ctypes.c_uint64 * 2),
    )


class _I915Item(ctypes.Structure):
    _fields_ = (("query_id", ctypes.c_uint64), ("length", ctypes.c_int32), ("flags", ctypes.c_uint32), ("data", ctypes.c_uint64))


class _I915Query(ctypes.Structure):
    _fields_ = (("items", ctypes.c_uint32), ("flags", ctypes.c_uint32), ("data", ctypes.c_uint64))


class _Region(ctypes.Structure):
    _fields_ = (
        *(("kind", ctypes.c_uint16), ("instance", ctypes.c_uint16), ("page", ctypes.c_uint32)),
        *(("size", ctypes.c_uint64), ("rest", ctypes.c_uint64), ("reserved", ctypes.c_uint64 * 8)),
    )


class RenderNodes:
    """What the drivers answer to ``ioctl`` on render nodes, with the structs of ``xe_drm.h`` and ``i915_drm.h``.

    Attributes:
        regions: By render node, the regions of memory of its card: class, size, and what is used (of ``i915`` what is free).
        asked: The render nodes, once for each call.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self.regions: dict[str, list[tuple[int, int, int]]] = {}
        self.asked: list[str] = []

    def card(self, number: int, *regions: tuple[int, int, int]) -> None:
        """Give a card these regions, behind that of the host's memory."""
        node = self._root / f"dev/dri/renderD{128 + number}"
        node.parent.mkdir(parents=True, exist_ok=True)
        node.touch()
        self.regions[node.name] = [(0, 1 << 35, 1 << 34), *regions]

    def ioctl(self, fd: int, request: int, argument: bytearray) -> int:
        """Answer, as ``fcntl.ioctl`` does."""
        name = Path(f"/proc/self/fd/{fd}").readlink().name
        self.asked.append(name)
        head = {0xC0286440: 8, 0xC0106479: 16}.get(request)
        if head is None or name not in self.regions:
            raise OSError(errno.ENOTTY, os.strerror(errno.ENOTTY))
        regions = [_Region(kind, place, 4096, size, rest) for place, (kind, size, rest) in enumerate(self.regions[name])]
        body = bytes(ctypes.c_uint32(len(regions))).ljust(head, b"\0") + b"".join(map(bytes, regions))
        if head == 8:
            question = _XeQuery.from_buffer(argument)
            if question.query != 1 or question.size not in (0, len(body)):
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
            if question.size:
                ctypes.memmove(question.data, body, len(body))
            question.size = len(body)
            return 0
        assert _I915Query.from_buffer(argument).items == 1
        item = _I915Item.from_address(_I915Query.from_buffer(argument).data)
        if item.query_id != 4 or 0 < item.length < len(body):
            item.length = -errno.EINVAL
        else:
            if item.length:
                ctypes.memmove(item.data, body, len(body))
            item.length = len(body)
        return 0


_SENSORS: Mapping[str, Content] = {
    **{"energy1_label": "card", "energy1_input": 900_000_000, "energy2_label": "pkg", "energy2_input": 600_000_000},
    **{"power1_label": "card", "power1_max": 0, "power1_cap": 190_000_000, "power2_label": "pkg"},
    **{"temp2_label": "pkg", "temp2_input": 61_000, "temp2_crit": 100_000, "temp2_emergency": 125_000},
    **{"temp3_label": "vram", "temp3_input": 70_000, "temp4_label": "vram_ch_0", "temp4_input": 99_000},
    **{"fan1_input": 1116, "fan2_input": 0},
}
