"""Helpers of exporters that use the network: addresses, and the error for a record that a peer refuses."""

from __future__ import annotations

import ipaddress
import re
import socket
from typing import Any, NamedTuple

from accelmetrics._version import __version__
from accelmetrics.schemas.errors import AccelMetricsError, InvalidOptionError

USER_AGENT = f"accelmetrics/{__version__}"
LOOPBACK = "127.0.0.1"
_FORM = re.compile(r"(?:\[(?P<six>[^\]]+)\]|(?P<host>[^:\[\]]*))(?::(?P<port>\d{1,5}))?")


class RejectedError(AccelMetricsError):
    """The peer refused a record permanently, so a retry is useless. The message contains the peer's answer."""


class Address(NamedTuple):
    """A host and a port.

    Attributes:
        host: A host name or an IP address.
        port: The port; 0 lets the system choose one.
    """

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str, port: int) -> Address:
        """Parse ``HOST:PORT``, ``[ADDRESS]:PORT``, ``HOST`` or ``PORT``. The default host is loopback, the default port is ``port``.

        Raises:
            InvalidOptionError: The text has another form.
        """
        found = _FORM.fullmatch(f":{text}" if text.isascii() and text.isdigit() else text)
        number = int(found["port"] or port) if found else -1
        if found is None or not 0 <= number <= 65535:
            raise InvalidOptionError(f"the address {text!r} is not HOST:PORT, such as {LOOPBACK}:{port} or [::1]:{port}")
        return cls(found["six"] or found["host"] or LOOPBACK, number)

    @property
    def is_loopback(self) -> bool:
        """Whether only programs on this machine can reach the address."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def resolve(self, kind: socket.SocketKind, flags: int = 0) -> list[tuple[Any, ...]]:
        """Resolve the host to a list of family, kind, protocol and socket address, in the system's order.

        Raises:
            OSError: The host is not found.
        """
        try:
            found = socket.getaddrinfo(self.host, self.port, type=kind, flags=flags)
        except (socket.gaierror, UnicodeError) as error:  # UnicodeError: a label is empty or too long
            why = error.strerror if isinstance(error, OSError) else error
            raise OSError(f"the host {self.host!r} is not found: {why}") from error
        return [(family, kind, protocol, where) for family, kind, protocol, _, where in found]


def check_timeout(exporter: str, timeout: float) -> None:
    """Check that a timeout is a finite number above 0.

    Raises:
        InvalidOptionError: It is not.
    """
    if not 0 < timeout < float("inf"):
        raise InvalidOptionError(f"{exporter}?timeout is {timeout:g}: it must be a finite number above 0")
