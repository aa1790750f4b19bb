"""Notifications to systemd that the service is ready, reloads, ends, or is alive."""

from __future__ import annotations

import os
import socket
import time
from contextlib import suppress

PATIENCE = 30.0
"""Seconds, in addition to three intervals, that may pass between two readings. Drivers may take this long to open."""


class ServiceManager:
    """Client of the service manager at ``NOTIFY_SOCKET``. Without this variable it sends nothing.

    The protocol is that of ``sd_notify(3)``: datagrams of ``NAME=value`` lines.
    """

    def __init__(self) -> None:
        self._address = os.environ.get("NOTIFY_SOCKET", "")
        period = os.environ.get("WATCHDOG_USEC", "")
        mine = os.environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        # WATCHDOG_PID tells a child process, which inherits the variables, that the watchdog is not for it. With three beats in
        # a period, one that comes late does no harm.
        self._period = int(period) / 1e6 / 3 if period.isdecimal() and mine else 0.0
        self._count, self._counted, self._beaten = -1, 0.0, float("-inf")

    def tell(self, *lines: str) -> None:
        """Send lines in one datagram. An error is ignored: systemd acts on the datagrams that it receives."""
        if not self._address.startswith(("/", "@")):
            return
        # A leading @ marks an abstract socket, whose address begins with a zero byte.
        where = f"\0{self._address[1:]}" if self._address.startswith("@") else self._address
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.sendto("\n".join(lines).encode(), where)

    def beat(self, readings: int, failing: bool, interval: float) -> None:
        """Report that the service is alive, three times per watchdog period, unless readings have stopped.

        Args:
            readings: Number of readings up to now.
            failing: Whether the monitor reports an error, which explains missing readings.
            interval: Seconds between readings.
        """
        if not self._period:
            return
        now = time.monotonic()
        if readings != self._count or failing:
            self._count, self._counted = readings, now
        if now - self._beaten >= self._period and now - self._counted <= 3 * interval + PATIENCE:
            self._beaten = now
            self.tell("WATCHDOG=1")
