"""Xid and SXid errors in the kernel's log.

NVML reports only errors after a GPU was registered for events. The driver also prints each error into the kernel's log
(``/dev/kmsg``). The log goes back to the start of the machine, or to the oldest record that was not overwritten. ``accelmetrics
serve`` follows it if it has the permission; ``schemas/xid.py`` adds up both sources.
"""

from __future__ import annotations

import errno
import os
import re
import time

from accelmetrics.backends.kit.system import sysroot
from accelmetrics.schemas.identity import pci_address
from accelmetrics.schemas.named_tuple import NamedTuple
from accelmetrics.schemas.xid import KNOWN_XIDS

PATH = "/dev/kmsg"
LONGEST_RECORD = 8192
"""Bytes of the longest record with its prefix; the kernel makes no longer one."""
LONGEST_LOOK, LONGEST_FIRST_LOOK = 0.2, 2.0
"""Most seconds of one look, and of reading the log's content at the start. The next look continues from there."""
ABSENT = (errno.ENOENT, errno.ENXIO)
_RECORD = re.compile(r"(\d+),(\d+),(\d+),[^;]*;(.*)", re.ASCII)
_XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]+)[^)]*\): (\d{1,4})\b,? ?(.*)")
# A switch prints several lines for one error. Only the first has the severity, so only that one is counted.
_SXID = re.compile(r"nvidia-nvswitch\d+: SXid \((?:PCI:)?([0-9a-fA-F:.]+)\): (\d{1,6}), ((?:Non-fatal|Fatal),? ?.*)")


def unreadable() -> str:
    """Return why the kernel's log may not be read; empty if it may, or if there is none."""
    try:
        KernelLog().close()
    except OSError as error:
        return "" if error.errno in ABSENT else f"{PATH}: {error.strerror}"
    return ""


class KernelError(NamedTuple):
    """An error printed by the NVIDIA driver.

    Attributes:
        time: When, in seconds since 1970.
        address: The PCI address of the GPU or the NVSwitch.
        code: The Xid, or the SXid.
        switch: Whether it is an NVSwitch's.
        words: The text after the code.
    """

    time: float
    address: str
    code: int
    switch: bool
    words: str


class KernelLog:
    """The kernel's log, read without ever waiting for a record.

    Args:
        after: The number of the last known record; -1 for none.

    Attributes:
        sequence: The number of the last record that was read.

    Raises:
        OSError: It does not exist, or may not be read.
    """

    def __init__(self, after: int = -1) -> None:
        self.sequence = after
        self._rest = b""
        # Windows has neither flag, and no such file.
        self._file = os.open(sysroot() + PATH, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))

    def read(self) -> list[KernelError]:
        """Return the errors printed since the last look, as far as the time allows."""
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
                ):  # overwritten before it was read, or too long: the next read continues after it
                    continue
                break
            if not data:  # only an ordinary file in its place has an end
                break
            *lines, self._rest = (self._rest + data).split(b"\n")
            self._rest = self._rest[-LONGEST_RECORD:]
            found += filter(None, map(self._error, lines))
        return found

    def count(self) -> list[KernelError]:
        """Count the GPU errors printed since the last look, and return them with the switches' errors."""
        errors = self.read()
        KNOWN_XIDS.sequence = self.sequence
        for error in errors:
            if not error.switch:
                KNOWN_XIDS.add(error.address, error.time, error.code)
        return errors

    def count_all(self) -> list[KernelError]:
        """Count the errors in the whole log, as far as the time allows."""
        found: list[KernelError] = []
        until, before = time.monotonic() + LONGEST_FIRST_LOOK, None
        while time.monotonic() < until and (before is None or before != self.sequence):
            before = self.sequence
            found += self.count()
        return found

    def close(self) -> None:
        """Close the log."""
        os.close(self._file)

    def _error(self, line: bytes) -> KernelError | None:
        record = _RECORD.fullmatch(line.decode("utf-8", "replace"))
        if record is None:  # a continuation line with a record's properties
            return None
        known, self.sequence = self.sequence, max(self.sequence, int(record[2]))
        # Programs may write into the log too. Only the kernel's own records have facility 0.
        if int(record[2]) <= known or int(record[1]) >> 3:
            return None
        for form in (_XID, _SXID):
            if match := form.match(record[4]):
                address = match[1] if "." in match[1] else f"{match[1]}.0"
                # Records have the monotonic time since the start of the machine.
                printed = time.time() - max(0.0, time.clock_gettime(time.CLOCK_MONOTONIC) - int(record[3]) / 1e6)
                return KernelError(printed, pci_address(address), int(match[2]), form is _SXID, match[3].strip())
        return None
