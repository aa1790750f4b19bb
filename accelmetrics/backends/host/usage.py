"""How much CPU time a family of processes used between two readings, though members come and go.

A process that ends hands its time, with what its own children had handed to it, to the parent that waits for it. So what an
ended member used after the last reading is what its parent's waited-for time rose by, less what had been counted already.
Time of a member that nobody in the family waited for is lost with it, and the sum never falls below 0 for that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from accelmetrics.backends.host.process import Process

Key = tuple[int, int]


class FamilyUsage:
    """CPU time by member, as one reader last saw it.

    Args:
        look: Reads one process by number; asked about members that are no longer listed.
    """

    def __init__(self, look: Callable[[int], Process | None]) -> None:
        self._look = look
        self._last: dict[Key, Process] = {}

    def advance(self, members: Iterable[Process], possible: float, children: bool) -> tuple[int, list[Process]]:
        """Take a new reading.

        Args:
            members: The watched process first, then its descendants.
            possible: Nanoseconds that all CPUs together had in the interval. A member that is new to us with more than
                that has not used it here: it was adopted, and counts from now on.
            children: Whether descendants are watched, so that time handed up by ended ones counts.

        Returns:
            The nanoseconds used since the last call, and the members, with those that the listing had missed.
        """
        now = {process.key: process for process in members}
        last, self._last = self._last, now
        handed = self._settle_missing(last, now) if children else {}
        used = 0
        for key, process in now.items():
            before = last.get(key)
            if before is not None:
                used += max(process.own - before.own, 0)
                if children:
                    used += max(process.waited - before.waited - handed.get(key, 0), 0)
            elif last and process.own + process.waited <= possible:
                used += process.own + process.waited
        return used, list(now.values())

    def _settle_missing(self, last: dict[Key, Process], now: dict[Key, Process]) -> dict[Key, int]:
        """By surviving member: the time handed to it by ended ones that had been counted already."""
        by_pid = {process.pid: process for process in last.values()}
        handed: dict[Key, int] = {}
        for key in last.keys() - now.keys():
            process = self._look(key[0])
            if process is not None and process.key == key:
                # Still there: either the listing raced with an exit and missed it, or it left for another parent.
                if any(member.pid == process.parent for member in now.values()):
                    now[key] = process
                continue
            heir = _heir(last[key], by_pid, now)
            if heir is not None:
                handed[heir] = handed.get(heir, 0) + last[key].own + last[key].waited
        return handed


def _heir(ended: Process, by_pid: dict[int, Process], now: dict[Key, Process]) -> Key | None:
    """The nearest ancestor that is still here."""
    seen: set[int] = set()
    while ended.pid not in seen:
        seen.add(ended.pid)
        parent = by_pid.get(ended.parent)
        if parent is None or parent.key in now:
            return parent.key if parent else None
        ended = parent
    return None
