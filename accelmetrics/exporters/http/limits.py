"""How much a client may cost: numbers as they are usual among exporters of the field."""

from __future__ import annotations

import sys
from typing import NamedTuple

_LEAST = 16


class Limits(NamedTuple):
    """Counts, bytes and seconds.

    Attributes:
        connections: Open at once; one more closes the one that has kept us waiting longest.
        in_flight: Requests being answered at once; one more is refused with 503.
        guesses: Passwords waiting to be tried at once; one more is refused with 503.
        head_bytes: Request line and headers.
        head: Seconds for the TLS handshake, and again for the request line and headers.
        answer: Seconds for computing an answer.
        write: Seconds for a client to take the answer.
        stalled: Seconds after which a client that does not take its answer makes room for others.
        idle: Seconds between two requests on one connection.
        linger: Seconds that a client has to close a connection that we have ended.
    """

    connections: int = 256
    in_flight: int = 40
    guesses: int = 8
    head_bytes: int = 8192
    head: float = 10.0
    answer: float = 10.0
    write: float = 15.0
    stalled: float = 1.0
    idle: float = 60.0
    linger: float = 1.0

    @property
    def affordable_connections(self) -> int:
        """Connections that leave three quarters of the files that this process may open to the program that we live in."""
        if sys.platform == "win32":
            return self.connections
        import resource

        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return self.connections if soft == resource.RLIM_INFINITY else min(self.connections, max(_LEAST, soft // 4))
