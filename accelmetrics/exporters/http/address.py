"""Where a listener listens."""

from __future__ import annotations

import errno
import ipaddress
import re
import socket
from collections.abc import Iterable
from typing import Any, NamedTuple

from accelmetrics.schemas.errors import InvalidOptionError

LOOPBACK = "127.0.0.1"
_FORM = re.compile(r"(?:\[(?P<six>[^\]]+)\]|(?P<host>[^:\[\]]*))(?::(?P<port>\d{1,5}))?")
_BACKLOG = 128
_ABSENT = frozenset({errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT})
Endpoint = tuple[int, int, int, Any]
"""Family, kind, protocol and address, as sockets take them."""


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

    def resolve(self, kind: socket.SocketKind, flags: int = 0) -> list[Endpoint]:
        """What the host's name stands for, in the system's order.

        Raises:
            OSError: There is no such host.
        """
        try:
            found = socket.getaddrinfo(self.host, self.port, type=kind, flags=flags)
        except (socket.gaierror, UnicodeError) as error:  # UnicodeError: a label is empty or too long
            why = error.strerror if isinstance(error, OSError) else error
            raise OSError(f"the host {self.host!r} is not found: {why}") from error
        return [(family, kind, protocol, where) for family, kind, protocol, _, where in found]

    def listen(self) -> list[socket.socket]:
        """Sockets that listen there, not blocking: one for each address of the host, such as both of ``localhost``, on one port.

        Addresses that this machine does not have are passed over, if it has another one.

        Raises:
            OSError: The port is in use or may not be used, or there is no such host here.
        """
        opened: list[socket.socket] = []
        absent: OSError | None = None
        ends = list(dict.fromkeys(self.resolve(socket.SOCK_STREAM, socket.AI_PASSIVE)))
        for family, kind, _, (host, port, *rest) in ends:
            try:
                opened.append(_listening(family, kind, (host, opened[0].getsockname()[1] if opened else port, *rest), len(ends) > 1))
            except OSError as error:
                if error.errno in _ABSENT:
                    absent = error
                    continue
                close_all(opened)
                raise self._told(error) from error
        if absent is not None and not opened:
            raise self._told(absent) from absent
        return opened

    def _told(self, error: OSError) -> OSError:
        why = "is in use by another program" if error.errno == errno.EADDRINUSE else f"cannot be used: {error.strerror}"
        return OSError(error.errno, f"port {self.port} of {self.host} {why}")


def close_all(sockets: Iterable[socket.socket]) -> None:
    """Close them."""
    for one in sockets:
        one.close()


def _listening(family: int, kind: int, where: tuple[Any, ...], one_of_many: bool) -> socket.socket:
    listening = socket.socket(family, kind)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if one_of_many and family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)  # version 4 has a socket of its own
        listening.bind(where)
        listening.listen(_BACKLOG)
        listening.setblocking(False)
    except OSError:
        listening.close()
        raise
    return listening
