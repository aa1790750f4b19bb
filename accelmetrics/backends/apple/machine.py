"""What kind of machine this is, and who we are on it. Tests replace :func:`uname` and :func:`is_root`."""

from __future__ import annotations

import os
from typing import NamedTuple


class Machine(NamedTuple):
    """What the kernel says it is.

    Attributes:
        system: ``Darwin`` on macOS.
        architecture: ``arm64``, ``x86_64``.
        version: The kernel's own words.
    """

    system: str
    architecture: str
    version: str

    @property
    def is_mac(self) -> bool:
        """Whether it runs macOS."""
        return self.system == "Darwin"

    @property
    def is_apple_silicon(self) -> bool:
        """Whether it is a Mac with Apple's chip; a translated (Rosetta) program is told of an Intel processor there."""
        return self.is_mac and (self.architecture == "arm64" or "ARM64" in self.version)


def uname() -> Machine:
    """What this machine is."""
    if not hasattr(os, "uname"):
        return Machine("this system", "", "")
    found = os.uname()
    return Machine(found.sysname, found.machine, found.version)


def is_root() -> bool:
    """Whether we may do everything here."""
    return hasattr(os, "geteuid") and os.geteuid() == 0
