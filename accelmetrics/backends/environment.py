"""The environment of a process, as far as the system shows it: what it was started with, not what it has set since."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import NamedTuple

from accelmetrics.backends.kit.system import system_path


class Environment(NamedTuple):
    """A process's environment, or why it is not known.

    Attributes:
        values: The variables; None where they cannot be read.
        why: Why not, in words.
        gone: Whether that is since there is no such process.
    """

    values: Mapping[str, str] | None
    why: str = ""
    gone: bool = False


def environment_of(pid: int) -> Environment:
    """Read the environment of a process; this process's own is the one that it has now.

    Args:
        pid: The process, as our own PID namespace numbers it.
    """
    if pid == os.getpid():
        return Environment(dict(os.environ))
    from accelmetrics.backends.kit.processes import number_here

    number = number_here(pid)
    return _gone(pid) if number is None else environment_at(number, pid)


def environment_at(number: int, pid: int) -> Environment:
    """Read the environment of a process by its number in the mounted ``/proc``; messages call it ``pid``."""
    if sys.platform != "linux":
        return _from_psutil(pid)
    try:
        data = system_path(f"/proc/{number}/environ").read_bytes()
        ended = not data and not system_path(f"/proc/{number}/cmdline").read_bytes()
    except PermissionError:
        return Environment(None, f"the environment of process {pid} may not be read: it belongs to another user")
    except (FileNotFoundError, ProcessLookupError):
        return _gone(pid)
    except OSError as error:
        return Environment(None, f"the environment of process {pid} cannot be read: {error.strerror or error}")
    return _gone(pid) if ended else Environment(parse(data))


def parse(data: bytes) -> dict[str, str]:
    """Parse variables as the kernel keeps them: the first of a name counts, as for ``getenv``; other text is left out."""
    values: dict[str, str] = {}
    for entry in data.split(b"\0"):
        name, sign, value = entry.partition(b"=")
        if sign and name:
            values.setdefault(os.fsdecode(name), os.fsdecode(value))
    return values


def _from_psutil(pid: int) -> Environment:
    import psutil

    try:
        return Environment(psutil.Process(pid).environ())
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return _gone(pid)
    except (psutil.Error, OSError) as error:
        return Environment(None, f"the environment of process {pid} cannot be read: {error}")


def _gone(pid: int) -> Environment:
    return Environment(None, f"there is no process {pid}", gone=True)
