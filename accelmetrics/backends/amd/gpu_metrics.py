"""Parser of ``gpu_metrics``: the binary table that the card's firmware fills and the kernel driver shows.

A header of four bytes has the length and the revision of the table, and nothing else describes it. A revision does not extend the one
before, so a field's offset depends on the exact revision. A table with another length than its revision is rejected: kernels have shipped
different tables under one revision. All bits are set in a field that the firmware does not fill.

Units are degrees, watts, percent and megahertz; energy is in 1/65536 J, xGMI in KiB.

The cause of low clocks has two forms. Cards and APUs have a mask of current causes, with the kernel's numbering of bits. MI300 and later
count how long each cause was active: a cause was active between two readings if its counter rose.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

from accelmetrics.schemas.errors import Reason, Unavailable

HEADER = struct.Struct("<HBB")
JOULE = 65536
"""Steps of the energy counter per joule: one step is 15.259 µJ."""

TOOLS_JOULE = 15.3e-6 * JOULE
"""The same according to ROCm's tools, which in every release so far take a step as 15.3 µJ."""

MetricsTable = Mapping[str, Sequence[int]]
"""Values of each field, without fields that the firmware does not fill."""


FieldLayout = tuple[str, int]
"""Format of a field for :mod:`struct`, and its offset."""
TableLayout = tuple[tuple[int, ...], Mapping[str, FieldLayout], int]
"""Layout of a revision: allowed lengths, empty for any; the fields that are read; the offset of the first partition, 0 without partitions.
"""


def _instinct(energy: int, replays: int, xgmi: int, clocks: int, **more: FieldLayout) -> dict[str, FieldLayout]:
    """Return the fields of MI300 and later. Their revisions have different offsets."""
    return {
        "hotspot": ("H", 4),
        "mem": ("H", 6),
        "power": ("H", 10),
        "gfx": ("H", 12),
        "umc": ("H", 14),
        "energy": ("Q", energy),
        "replays": ("Q", replays),
        "xgmi_read": ("8Q", xgmi),
        "xgmi_write": ("8Q", xgmi + 64),
        "gfxclk": ("8H", clocks),
        "uclk": ("H", clocks + 40),
        **more,
    }


def _residencies(start: int) -> dict[str, FieldLayout]:
    names = ("prochot_residency", "ppt_residency", "socket_thm_residency", "vr_thm_residency", "hbm_thm_residency")
    return {name: ("I", start + 4 * number) for number, name in enumerate(names)}


NOTHING: TableLayout = ((), {}, 0)
"""A revision with no value that the sensor files do not have."""
_LATE = _instinct(24, 112, 136, 296, **_residencies(44))
_CARD = {"energy": ("Q", 24), "hbm": ("4H", 88)}
_THROTTLE = {"throttle": ("Q", 120)}

LAYOUTS: Mapping[tuple[int, int], TableLayout] = {
    (1, 0): NOTHING,
    (1, 1): ((96,), _CARD, 0),
    (1, 2): ((104,), _CARD, 0),
    (1, 3): ((120,), {**_CARD, "throttle": ("Q", 112)}, 0),
    (1, 4): ((288,), _instinct(24, 88, 104, 240), 0),
    (1, 5): ((360,), _instinct(88, 152, 176, 312), 0),
    (1, 6): ((1664,), _instinct(16, 104, 128, 264, **_residencies(36)), 312),
    (1, 7): ((2208,), _LATE, 344),
    (1, 8): ((3360, 3872), _LATE, 344),
    (2, 0): NOTHING,
    (2, 1): NOTHING,
    (2, 2): ((128,), _THROTTLE, 0),
    (2, 3): ((152,), _THROTTLE, 0),
    (2, 4): ((168,), _THROTTLE, 0),
    (3, 0): ((264,), {"average_uclk": ("H", 186)}, 0),
}
FACTORS = {
    **{"gfx": 1, "umc": 1, "replays": 1, "hotspot": 1000, "mem": 1000},
    **{"power": 1_000_000, "gfxclk": 1_000_000, "uclk": 1_000_000, "average_uclk": 1_000_000},
}
"""Factors from the units of the table to those of the sensor files."""
BITS = {
    "throttle.swPowerCap": range(8),
    "throttle.currentLimit": range(16, 24),
    "throttle.swThermalSlowdown": range(32, 44),
    "throttle.hwThermalSlowdown": range(44, 48),
}
"""Bits of the mask: PPT, SPL; TDC, EDC; temperatures; VRHOT, PROCHOT."""
RESIDENCIES = {
    "throttle.swPowerCap": ("ppt_residency",),
    "throttle.swThermalSlowdown": ("socket_thm_residency", "hbm_thm_residency"),
    "throttle.hwThermalSlowdown": ("prochot_residency", "vr_thm_residency"),
}
PARTITIONS = 8
BUSY = "xcp{}"
"""Field with the utilisation of each compute die of a partition, in percent."""


def parse(data: bytes) -> MetricsTable | Unavailable:
    """Parse a table, or return the reason why it cannot be parsed. Accepts any bytes."""
    if len(data) < HEADER.size:
        return Unavailable(Reason.PARSE_ERROR, f"gpu_metrics has {len(data)} bytes")
    size, form, content = HEADER.unpack_from(data)
    layout = LAYOUTS.get((form, content))
    if layout is None:
        return Unavailable(Reason.NOT_SUPPORTED, f"gpu_metrics has revision {form}.{content}, which this release does not know")
    sizes, fields, partitions = layout
    # Kernels have shipped different tables under one revision, so the length must fit too.
    if sizes and size not in sizes:
        return Unavailable(Reason.NOT_SUPPORTED, f"gpu_metrics of revision {form}.{content} is {size} bytes long, not {sizes[0]}")
    if len(data) < size:
        return Unavailable(Reason.PARSE_ERROR, f"gpu_metrics was cut: {len(data)} of {size} bytes")
    places = dict(fields)
    if partitions:
        stride = (size - partitions - 8) // PARTITIONS  # eight bytes follow the partitions
        # The parts of all partitions have the same length.
        places |= {BUSY.format(number): ("8I", partitions + number * stride) for number in range(PARTITIONS)}
    found = {}
    for name, (kind, offset) in places.items():
        ones = (1 << 8 * struct.calcsize(kind[-1])) - 1
        values = tuple(value for value in struct.unpack_from(f"<{kind}", data, offset) if value != ones)
        if values:
            found[name] = values
    return found


def readings(table: MetricsTable) -> dict[str, object]:
    """Return the values of a table in the units of the sensor files: 0.001 °C, microwatts, hertz, microjoules."""
    found: dict[str, object] = {name: table[name][0] * factor for name, factor in FACTORS.items() if name in table}
    found |= {name: sum(table[name]) * 1024 for name in ("xgmi_read", "xgmi_write") if name in table}
    # For cards without HBM the meaning of the energy counter is not documented.
    hbm = [degrees for degrees in table.get("hbm", ()) if degrees]
    if hbm:
        found["hbm"] = max(hbm) * 1000
    if "energy" in table and ("power" in table or hbm):
        found["energy"] = table["energy"][0] / JOULE * 1e6
    if "throttle" in table:
        found |= {cause: int(any(table["throttle"][0] >> bit & 1 for bit in bits)) for cause, bits in BITS.items()}
        found["throttled"] = int(any(found[cause] for cause in BITS))
    for cause, names in RESIDENCIES.items():
        if all(name in table for name in names):
            found[f"{cause} residency"] = sum(table[name][0] for name in names)
    return found
