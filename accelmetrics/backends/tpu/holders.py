"""Who holds the chips: the processes that have a device node open, by the links below ``/proc/<pid>/fd``."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import NamedTuple

from accelmetrics.backends.kit.system import list_directory, system_path


class Holders(NamedTuple):
    """What a look at all processes came to.

    Attributes:
        pids: By device node, the processes that have it open, in order.
        complete: Whether there can be no other. Without root, other users' processes cannot be looked into; where the device nodes
            are not there (a container that was not given them), who holds them is somewhere else.
    """

    pids: dict[str, tuple[int, ...]]
    complete: bool

    def of(self, node: str) -> tuple[int, ...]:
        """The processes that hold one device node."""
        return self.pids.get(node, ())


def find_holders(nodes: Iterable[str]) -> Holders:
    """Look who has one of these device nodes open."""
    wanted = frozenset(nodes)
    found: dict[str, list[int]] = {}
    complete = all(system_path(node).exists() for node in wanted)
    for pid in sorted(int(name) for name in list_directory("/proc") if name.isdecimal()):
        links = _open_files(pid)
        complete = complete and links is not None
        for node in wanted & (links or set()):
            found.setdefault(node, []).append(pid)
    return Holders({node: tuple(pids) for node, pids in found.items()}, complete)


def _open_files(pid: int) -> set[str] | None:
    """What a process has open; nothing when it has just ended, None when this user may not know."""
    directory = system_path(f"/proc/{pid}/fd")
    found = set()
    try:
        names = os.listdir(directory)  # noqa: PTH208  names alone are wanted, and there are thousands
    except PermissionError:
        return None
    except OSError:
        return set()
    for name in names:
        try:
            found.add(os.readlink(f"{directory}/{name}"))  # noqa: PTH115  as above
        except OSError:  # closed since
            continue
    return found
