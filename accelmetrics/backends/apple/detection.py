"""Whether this is a Mac with Apple's chip: the kernel says so. Nothing is started to find out."""

from __future__ import annotations

from accelmetrics.backends.apple import machine
from accelmetrics.backends.contract import Detection
from accelmetrics.schemas.errors import SourceError
from accelmetrics.schemas.reasons import Reason

BACKEND = "apple"


def detect() -> Detection:
    """Look at what the kernel is, and at which of the tools are there."""
    if not machine.uname().is_apple_silicon:
        return Detection(False, _not_ours())
    from accelmetrics.backends.apple.tools import INSTALL_MACMON, find  # not needed anywhere else

    macmon = find("macmon")
    if macmon is None:
        return Detection(True, "macOS on Apple silicon, no macmon: no power without root", 1, INSTALL_MACMON)
    return Detection(True, f"macOS on Apple silicon, {macmon}", 1)


def require() -> None:
    """Make sure of it, for those who ask for this source by name.

    Raises:
        SourceError: It is another machine.
    """
    if not machine.uname().is_apple_silicon:
        raise SourceError(Reason.DRIVER_UNAVAILABLE, _not_ours(), backend=BACKEND)


def _not_ours() -> str:
    here = machine.uname()
    if here.is_mac:
        return "a Mac with an Intel processor: only Apple silicon is read"
    return f"{here.system} {here.architecture}".strip() + ": not macOS on Apple silicon"
