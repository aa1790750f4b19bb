"""Where a listener listens."""

from __future__ import annotations

import errno
import ipaddress
import re
import socket
from typing import NamedTuple

from accelmetrics.schemas.errors import InvalidOptionError

LOOPBACK = "127.0.0.1"
_FORM = re.compile(r"(?:\[(?P<six>[^\]]+)\]|(?P<host>[^:\[\]]*))(?::(?P<port>\d{1,5}))?")
_BACKLOG = 128


class Address(NamedTuple):
    """A host and a port.

    Attributes:
        host: A name or an address.
        port: 0 lets the system choose.
    """

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str, port: int) -> Address:
        """From ``HOST:PORT``, ``[ADDRESS]:PORT``, ``HOST`` or ``PORT``; what is left out is loopback, or ``port``.

        Raises:
            InvalidOptionError: The text is none of these.
        """
        found = _FORM.fullmatch(f":{text}" if text.isascii() and text.isdigit() else text)
        number = int(found["port"] or port) if found else -1
        if found is None or not 0 <= number <= 65535:
            raise InvalidOptionError(f"the address {text!r} is not HOST:PORT, such as {LOOPBACK}:{port} or [::1]:{port}")
        return cls(found["six"] or found["host"] or LOOPBACK, number)

    @property
    def is_loopback(self) -> bool:
        """Whether only programs on this machine can reach it."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def listen(self) -> socket.socket:
        """A socket that listens there, not blocking.

        Raises:
            OSError: The port is in use or may not be used, or there is no such host here.
        """
        try:
            family, kind, _, _, where = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        except socket.gaierror as error:
            raise OSError(f"cannot listen on {self}: {error}") from error
        listening = socket.socket(family, kind)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(where)
            listening.listen(_BACKLOG)
            listening.setblocking(False)
        except OSError as error:
            listening.close()
            why = "is in use by another program" if error.errno == errno.EADDRINUSE else f"cannot be used: {error.strerror}"
            raise OSError(error.errno, f"port {self.port} of {self.host} {why}") from error
        return listening
