"""Why a card holds its clocks down, from two forms of telling it.

Cards and APUs have a mask of what limits them now, in the kernel's own numbering of bits. MI300 and later count, for each
cause, for how long it has: a cause whose count rose since the last reading was in force in between. That is a comparison
between two readings of one consumer, so its first reading has none.
"""

from __future__ import annotations

from collections.abc import Mapping

from accelmetrics.backends.amd.gpu_metrics import Table
from accelmetrics.backends.amd.table import Values
from accelmetrics.schemas.reasons import Reason, Unavailable

BITS = {
    "throttle.swPowerCap": range(8),
    "throttle.currentLimit": range(16, 24),
    "throttle.swThermalSlowdown": range(32, 44),
    "throttle.hwThermalSlowdown": range(44, 48),
}
"""PPT, SPL; TDC, EDC; temperatures; VRHOT, PROCHOT."""
RESIDENCIES = {
    "throttle.swPowerCap": ("ppt_residency",),
    "throttle.swThermalSlowdown": ("socket_thm_residency", "hbm_thm_residency"),
    "throttle.hwThermalSlowdown": ("prochot_residency", "vr_thm_residency"),
}
UNTOLD = Unavailable(Reason.NOT_SUPPORTED, "this revision of gpu_metrics does not say it in a form that is the same on every chip")
FIRST = Unavailable(Reason.NEEDS_INTERVAL, "told by comparison with the last reading")

Counts = Mapping[str, int]


def counts_of(table: Table) -> dict[str, int]:
    """The counts that a later reading is compared with."""
    return {name: table[name][0] for names in RESIDENCIES.values() for name in names if name in table}


def throttling(table: Table | Unavailable, before: Counts) -> Values:
    """Each cause, or why it is not known.

    Args:
        table: The card's table.
        before: The counts of this consumer's last reading; empty for its first.
    """
    if isinstance(table, Unavailable):
        return dict.fromkeys(BITS, table)
    if "throttle" in table:
        mask = table["throttle"][0]
        return {name: int(any(mask >> bit & 1 for bit in bits)) for name, bits in BITS.items()}
    return dict.fromkeys(BITS, UNTOLD) | _by_counts(counts_of(table), before)


def _by_counts(now: Counts, before: Counts) -> Values:
    found: Values = {}
    for cause, names in RESIDENCIES.items():
        known = [name for name in names if name in now]
        if known:
            found[cause] = int(any(now[name] != before[name] for name in known)) if all(name in before for name in known) else FIRST
    return found
