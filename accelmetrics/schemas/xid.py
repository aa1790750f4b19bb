"""NVIDIA's Xid errors: short meanings of the codes, and errors of this machine that NVML did not report as events."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

LARGEST_CODE = 1023
"""Largest valid code. An error with a larger one is counted without a code."""
MOST_RECENT = 64

MEANINGS = {
    1: "a command buffer was invalid",
    2: "a command buffer was invalid",
    6: "a command buffer was invalid",
    7: "a command buffer had an invalid address",
    8: "the GPU stopped working on a command",
    9: "the driver set the GPU up wrongly",
    11: "a command buffer was invalid",
    12: "the driver failed to handle an exception of the GPU",
    13: "the compute or graphics engine met an error, mostly of the program",
    16: "the display engine hung",
    18: "the GPU may not begin transfers on the PCI bus",
    19: "the display engine met an error",
    24: "a wait of the GPU took too long",
    25: "a command was not allowed",
    26: "the GPU's memory did not answer in time",
    30: "the GPU could not reach a semaphore",
    31: "a program used an address that is not mapped",
    32: "a command buffer was damaged",
    33: "the GPU's own controller met an error",
    37: "the driver's firmware met an error",
    38: "the driver's firmware met an error",
    43: "a program's work on the GPU was stopped",
    44: "the engine failed while it changed programs",
    45: "what a program left was cleared away after other errors",
    46: "the GPU stopped working on a command",
    48: "a memory error that could not be corrected",
    54: "the board's power cable is not connected",
    56: "the display engine met an error",
    57: "the memory interface could not be set up",
    58: "the memory interface is unstable",
    59: "the GPU's own controller met an error",
    61: "the GPU's own controller gave a warning",
    62: "the GPU's own controller halted",
    63: "a bad piece of memory was noted down to be replaced",
    64: "a bad piece of memory could not be noted down to be replaced",
    65: "a video engine met an error",
    66: "the driver used an address that is not allowed",
    67: "the driver used an address that is not allowed",
    68: "a video decoder met an error",
    69: "an engine met a command of the wrong class",
    70: "a copy engine met an error",
    71: "a copy engine met an error",
    72: "a copy engine met an error",
    73: "a video encoder met an error",
    74: "an NVLink failed",
    78: "a virtual GPU could not be started",
    79: "the GPU has fallen off the bus",
    80: "data reached the GPU damaged",
    81: "the VGA part met an error",
    82: "the JPEG decoder met an error",
    86: "the optical-flow engine met an error",
    92: "memory errors are corrected more often than is usual",
    93: "the board's own records are written too often",
    94: "a memory error was kept to the programs that it met",
    95: "a memory error may have met any program",
    109: "changing between programs took too long",
    110: "a fault of security",
    119: "the GPU's system processor did not answer in time",
    120: "the GPU's system processor met an error",
    121: "the link to the processor met an error",
    122: "the board's flash memory could not be read",
    123: "the board's flash memory could not be written",
    124: "the board's flash memory could not be erased",
    125: "the board's own records could not be used",
    136: "an NVLink could not be trained",
    137: "an access over NVLink was refused",
    140: "a memory error was not recovered from",
    143: "the GPU could not be initialised",
    144: "an NVLink met an error",
    145: "an NVLink met an error",
    146: "an NVLink met an error",
    147: "an NVLink met an error",
    148: "an NVLink met an error",
    149: "an NVLink met an error",
    150: "an NVLink met an error",
    151: "a key could not be exchanged for a new one",
    154: "what the driver asks for to recover the GPU has changed",
    155: "an NVLink met an error that software defines",
    156: "a part of the GPU was retired",
    157: "a part of the GPU could not be retired",
    158: "the GPU gave no answer in time and must be reset",
}
"""Meanings by code. Other codes are rare, reserved, or newer than this table."""


def meaning(code: int) -> str:
    """Return the meaning of a code. Codes that are not in the table are described as unknown."""
    return MEANINGS.get(code, "a code that is not known here")


class KnownXids:
    """Xid errors by PCI address, counted before or independently of NVML's events. Empty in most programs.

    Attributes:
        before: How many errors of each code were counted before this process began, since the machine started.
        recent: The times of the latest errors, in seconds since 1970, and their codes.
        sequence: The number of the last record read from the kernel's log; None if the log is not read.
    """

    def __init__(self) -> None:
        self.begin({}, {})

    def begin(self, before: Mapping[str, Mapping[int, int]], recent: Mapping[str, deque[tuple[float, int]]]) -> None:
        """Start with the errors counted so far. NVML's events start over too, since no driver is open."""
        self.before = before
        self.recent = dict(recent)
        self.sequence: int | None = None
        self._logged: dict[str, Mapping[int, int]] = {}

    def add(self, address: str, when: float, code: int) -> None:
        """Count an error found in the kernel's log."""
        code = code if code <= LARGEST_CODE else 0
        counts = self._logged.get(address, {})
        others = {known: count for known, count in counts.items() if known != code}
        self._logged[address] = {**others, code: counts.get(code, 0) + 1}  # the newest code last
        self.note(address, when, code)

    def note(self, address: str, when: float, code: int) -> None:
        """Record when an error occurred."""
        self.recent.setdefault(address, deque(maxlen=MOST_RECENT)).append((when, code))

    @property
    def addresses(self) -> set[str]:
        """The PCI addresses of GPUs with counted errors."""
        return {*self.before, *self._logged}

    def total(self, address: str, events: Mapping[int, int]) -> dict[int, int]:
        """Return the number of errors of each code, the newest code last.

        An error reported by NVML is in the kernel's log too, so the larger of both counts is used.

        Args:
            address: The GPU's PCI address.
            events: The errors that NVML has reported to this process.
        """
        before, logged = self.before.get(address, {}), self._logged.get(address, {})
        # From the back, since `dict.fromkeys` keeps the first of equal codes and the newest code must come last.
        codes = list(dict.fromkeys(reversed((*before, *events, *logged))))[::-1]
        # NVML's events are in the kernel's log too, so adding both counts would count errors twice.
        return {code: before.get(code, 0) + max(events.get(code, 0), logged.get(code, 0)) for code in codes}


KNOWN_XIDS = KnownXids()
"""The errors known to this process. NVML's readers add to them; rules read when the latest ones occurred."""
