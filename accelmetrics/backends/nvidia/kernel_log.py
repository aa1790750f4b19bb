"""Xid and SXid errors in the kernel's log.

NVML reports what happens after a GPU was registered for events. The driver also prints each error into the kernel's log (``/dev/kmsg``),
which goes back to the start of the machine, or to where older records were overwritten. ``accelmetrics serve`` follows it where it may;
``schemas/xid.py`` adds both up.
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
"""Bytes of a record with its prefix; the kernel makes none that is longer."""
LONGEST_LOOK, LONGEST_FIRST_LOOK = 0.2, 2.0
"""Seconds that a look takes at most; that reading what the log holds at the start takes. The next look goes on."""
ABSENT = (errno.ENOENT, errno.ENXIO)
_RECORD = re.compile(r"(\d+),(\d+),(\d+),[^;]*;(.*)", re.ASCII)
_XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]+)[^)]*\): (\d{1,4})\b,? ?(.*)")
# A switch prints several lines for one error; the first says how severe it is.
_SXID = re.compile(r"nvidia-nvswitch\d+: SXid \((?:PCI:)?([0-9a-fA-F:.]+)\): (\d{1,6}), ((?:Non-fatal|Fatal),? ?.*)")


def unreadable() -> str:
    """Return why the kernel's log may not be read; empty where it may, and where there is none."""
    try:
        KernelLog().close()
    except OSError as error:
        return "" if error.errno in ABSENT else f"{PATH}: {error.strerror}"
    return ""


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

    def count(self) -> list[KernelError]:
        """Count the errors of GPUs in what was printed since the last look, and return all errors."""
        errors = self.read()
        KNOWN_XIDS.sequence = self.sequence
        for one in errors:
            if not one.switch:
                KNOWN_XIDS.add(one.address, one.time, one.code)
        return errors

    def count_all(self) -> list[KernelError]:
        """Count the errors in all that the log holds, as far as that is gone through in time."""
        found: list[KernelError] = []
        until, before = time.monotonic() + LONGEST_FIRST_LOOK, None
        while time.monotonic() < until and (before is None or before != self.sequence):
            before = self.sequence
            found += self.count()
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
