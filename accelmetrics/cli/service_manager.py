"""systemd, where it started this process: told that the service is ready, reloads or ends, and that it is alive."""

from __future__ import annotations

import os
import socket
import time
from contextlib import suppress

PATIENCE = 30.0
"""Seconds beside three intervals within which a reading must follow another one: drivers may take that long to open."""


class ServiceManager:
    """The service manager that is named in ``NOTIFY_SOCKET``; without one, nothing is said to anybody.

    The protocol is that of ``sd_notify(3)``: datagrams of ``NAME=value`` lines.
    """

    def __init__(self) -> None:
        self._address = os.environ.get("NOTIFY_SOCKET", "")
        period = os.environ.get("WATCHDOG_USEC", "")
        mine = os.environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        self._period = int(period) / 1e6 / 3 if period.isdecimal() and mine else 0.0
        self._count, self._counted, self._beaten = -1, 0.0, float("-inf")

    def tell(self, *lines: str) -> None:
        """Send lines. One that does not arrive is lost, as systemd acts by what it gets."""
        if not self._address.startswith(("/", "@")):
            return
        where = f"\0{self._address[1:]}" if self._address.startswith("@") else self._address
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.sendto("\n".join(lines).encode(), where)

    def beat(self, readings: int, failing: bool, interval: float) -> None:
        """Say that the service is alive, three times in the time that systemd waits, unless readings have come to a halt.

        Args:
            readings: How many were taken.
            failing: Whether it is known why there are none.
            interval: Seconds from one to the next.
        """
        if not self._period:
            return
        now = time.monotonic()
        if readings != self._count or failing:
            self._count, self._counted = readings, now
        if now - self._beaten >= self._period and now - self._counted <= 3 * interval + PATIENCE:
            self._beaten = now
            self.tell("WATCHDOG=1")
