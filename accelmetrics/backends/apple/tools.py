"""Where the commands are, and how one is run once."""

from __future__ import annotations

import os
from collections.abc import Sequence

from accelmetrics.backends.kit import commands
from accelmetrics.schemas.errors import SourceError
from accelmetrics.schemas.reasons import Reason

INSTALL_MACMON = "for power, temperature and clocks without root: brew install macmon"

_SYSTEM = ("/usr/sbin", "/usr/bin")
_INSTALLED = ("/opt/homebrew/bin", "/usr/local/bin", "/opt/local/bin")


def find(name: str) -> str | None:
    """The absolute path of a command: on ``PATH``, where macOS has it, or where package managers put it."""
    cargo = f"{os.environ.get('HOME', '')}/.cargo/bin"
    return commands.find(name, (*_SYSTEM, *_INSTALLED, cargo))


def output(name: str, arguments: Sequence[str], timeout: float) -> str:
    """What a command prints on standard output.

    Raises:
        SourceError: It is not there, was late, or printed nothing.
    """
    path = find(name)
    if path is None:
        raise SourceError(Reason.DRIVER_UNAVAILABLE, f"{name} is not installed")
    completed = commands.run([path, *arguments], timeout=timeout)
    if completed.stdout.strip():
        return completed.stdout
    words = " ".join(completed.stderr.split())[-200:]
    # powermetrics for one: "must be invoked as the superuser".
    reason = Reason.NO_PERMISSION if "superuser" in words else Reason.DRIVER_ERROR
    raise SourceError(reason, f"{name} printed nothing (exit status {completed.returncode})" + (f": {words}" if words else ""))
