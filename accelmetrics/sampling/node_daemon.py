"""A daemon's socket: one process that reads for all of a machine, whatever job they are of."""

from __future__ import annotations

import grp
import os
import pwd
import stat
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from accelmetrics.sampling.node import connected, listening, shared_options
from accelmetrics.sampling.node_server import NodeServer
from accelmetrics.sampling.node_wire import Credentials
from accelmetrics.schemas.errors import AccelMetricsError, InvalidOptionError


class NodeDaemon:
    """Serves readings at a path: to this user's processes and root's, and to those of a group.

    Args:
        path: Where.
        group: The group's name; empty for none.
        options: Those of :class:`~accelmetrics.sampling.sampler.Sampler`, for its readings.

    Raises:
        InvalidOptionError: There is no such group.
    """

    def __init__(self, path: str, group: str, options: Mapping[str, Any]) -> None:
        self._path = Path(path)
        try:
            self._group = grp.getgrnam(group).gr_gid if group else None
        except KeyError:
            raise InvalidOptionError(f"there is no group {group!r} for the socket") from None
        self._options = options
        self._server: NodeServer | None = None

    def open(self) -> None:
        """Listen. A socket that a daemon before has left behind is replaced.

        Raises:
            AccelMetricsError: The socket cannot be made there, or another daemon listens.
        """
        try:
            self._path.parent.mkdir(exist_ok=True)
            self._remove_left()
            with ExitStack() as undo:
                listener = undo.enter_context(listening(str(self._path)))
                undo.callback(self._path.unlink, missing_ok=True)
                self._path.chmod(0o600 if self._group is None else 0o660)
                if self._group is not None:
                    os.chown(self._path, -1, self._group)
                server = NodeServer(listener, shared_options(self._options), self._lets_in)
                server.start()
                undo.pop_all()
        except (OSError, RuntimeError) as error:
            words = error.strerror if isinstance(error, OSError) else None
            raise AccelMetricsError(f"cannot listen on {self._path}: {words or error}") from error
        self._server = server

    def close(self) -> None:
        """End all connections, and remove the socket."""
        if self._server is not None:
            self._server.close()
            self._path.unlink(missing_ok=True)

    def _remove_left(self) -> None:
        with suppress(FileNotFoundError):
            if not stat.S_ISSOCK(self._path.lstat().st_mode):
                raise AccelMetricsError(f"cannot listen on {self._path}: a file that is no socket stands there")
            try:
                connected(str(self._path)).close()
            except ConnectionRefusedError:
                self._path.unlink()
            else:
                raise AccelMetricsError(f"cannot listen on {self._path}: another process does")

    def _lets_in(self, peer: Credentials) -> bool:
        """Decide by the user and the groups that the kernel says are at the other end."""
        if peer.uid in {0, os.geteuid()}:
            return True
        if self._group is None or peer.gid == self._group:
            return self._group is not None
        try:
            return self._group in os.getgrouplist(pwd.getpwuid(peer.uid).pw_name, peer.gid)
        except KeyError:  # a user that has no name here
            return False
