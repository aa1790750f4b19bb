"""Xid and SXid errors in the kernel's log, and how they add up with those that NVML reports.

NVML reports what happens after a GPU was registered for events. The driver also prints each error into the kernel's log (``/dev/kmsg``),
which goes back to the start of the machine, or to where older records were overwritten. ``accelmetrics serve`` follows it where it may.
"""

from __future__ import annotations

import errno
import os
import re
import time
from collections import deque
from collections.abc import Mapping

from accelmetrics.backends.kit.system import sysroot
from accelmetrics.schemas.identity import pci_address
from accelmetrics.schemas.named_tuple import NamedTuple

PATH = "/dev/kmsg"
LONGEST_RECORD = 8192
"""Bytes of a record with its prefix; the kernel makes none that is longer."""
LONGEST_LOOK = 0.2
"""Seconds that a look takes at most; the next one goes on."""
MOST_RECENT = 64
LARGEST_CODE = 1023
"""Above this no Xid is believed. Such an error is counted, and not as one of a code."""
_RECORD = re.compile(r"(\d+),(\d+),(\d+),[^;]*;(.*)", re.ASCII)
_XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]+)[^)]*\): (\d{1,4})\b,? ?(.*)")
# A switch prints several lines for one error; the first says how severe it is.
_SXID = re.compile(r"nvidia-nvswitch\d+: SXid \((?:PCI:)?([0-9a-fA-F:.]+)\): (\d{1,6}), ((?:Non-fatal|Fatal),? ?.*)")


class KernelError(NamedTuple):
    """An error that the NVIDIA driver printed.

    Attributes:
        time: When, in seconds since 1970.
        address: The PCI address of the GPU or the NVSwitch.
        code: The Xid, or the SXid.
        switch: Whether it is an NVSwitch's.
        words: What stands behind the code.
    """

    time: float
    address: str
    code: int
    switch: bool
    words: str


class KernelLog:
    """The kernel's log, read without ever waiting for a record.

    Args:
        after: The number of the last record that is known already; -1 for none.

    Attributes:
        sequence: The number of the last record that was read.

    Raises:
        OSError: It is not there, or may not be read.
    """

    def __init__(self, after: int = -1) -> None:
        self.sequence = after
        self._rest = b""
        # Windows has neither flag, and no such file.
        self._file = os.open(sysroot() + PATH, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))

    def read(self) -> list[KernelError]:
        """Return the errors in what was printed since the last look, as far as that is gone through in time."""
        found: list[KernelError] = []
        until = time.monotonic() + LONGEST_LOOK
        while time.monotonic() < until:
            try:
                data = os.read(self._file, LONGEST_RECORD)
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno in (
                    errno.EPIPE,
                    errno.EINVAL,
                ):  # overwritten before it was read, or too long: the next read goes on behind it
                    continue
                break
            if not data:  # a file in its place has an end
                break
            *lines, self._rest = (self._rest + data).split(b"\n")
            self._rest = self._rest[-LONGEST_RECORD:]
            found += filter(None, map(self._error, lines))
        return found

    def close(self) -> None:
        """Close it."""
        os.close(self._file)

    def _error(self, line: bytes) -> KernelError | None:
        record = _RECORD.fullmatch(line.decode("utf-8", "replace"))
        if record is None:  # what a record says beside its message
            return None
        known, self.sequence = self.sequence, max(self.sequence, int(record[2]))
        # Programs may write into the log too; the kernel's own records have facility 0.
        if int(record[2]) <= known or int(record[1]) >> 3:
            return None
        for form in (_XID, _SXID):
            if said := form.match(record[4]):
                address = said[1] if "." in said[1] else f"{said[1]}.0"
                printed = time.time() - max(0.0, time.clock_gettime(time.CLOCK_MONOTONIC) - int(record[3]) / 1e6)
                return KernelError(printed, pci_address(address), int(said[2]), form is _SXID, said[3].strip())
        return None


class KnownXids:
    """Xid errors by PCI address that were counted before NVML's events, or beside them. Empty in most programs.

    Attributes:
        before: How many of each code were counted before this process began, since the machine started.
        recent: When the last ones were, in seconds since 1970, and their codes.
        log: The kernel's log, where it is followed.
    """

    def __init__(self) -> None:
        self.before: dict[str, Mapping[int, int]] = {}
        self.recent: dict[str, deque[tuple[float, int]]] = {}
        self.log: KernelLog | None = None
        self._logged: dict[str, Mapping[int, int]] = {}

    def look(self) -> list[KernelError]:
        """Count what the kernel's log has since the last look, and return it."""
        errors = [] if self.log is None else self.log.read()
        for error in errors:
            if not error.switch:
                code = error.code if error.code <= LARGEST_CODE else 0
                counts = self._logged.get(error.address, {})
                others = {known: count for known, count in counts.items() if known != code}
                self._logged[error.address] = {**others, code: counts.get(code, 0) + 1}  # the newest code last
                self.note(error.address, error.time, code)
        return errors

    def note(self, address: str, when: float, code: int) -> None:
        """Note when an error was."""
        self.recent.setdefault(address, deque(maxlen=MOST_RECENT)).append((when, code))

    @property
    def addresses(self) -> set[str]:
        """Whose errors were counted."""
        return {*self.before, *self._logged}

    def total(self, address: str, events: Mapping[int, int]) -> dict[int, int]:
        """Return how many errors of each code there were, the newest code last.

        An error that NVML reports is in the kernel's log too: of both counts the larger one holds.

        Args:
            address: The GPU's.
            events: What NVML has reported to this process.
        """
        before, logged = self.before.get(address, {}), self._logged.get(address, {})
        codes = list(dict.fromkeys(reversed((*before, *events, *logged))))[::-1]
        return {code: before.get(code, 0) + max(events.get(code, 0), logged.get(code, 0)) for code in codes}


KNOWN_XIDS = KnownXids()
"""Those of this process: NVML's readers add to them, rules look there when the last ones were."""
