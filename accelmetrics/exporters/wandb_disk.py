"""The file that W&B's process writes a run to, watched from outside: a write that fails there is told to nobody."""

from __future__ import annotations

import time
from pathlib import Path

from accelmetrics.exporters.tracker_room import need_room

MOST_WAITING = 1 << 17
PATIENCE_SECONDS = 10.0
"""So many bytes may be logged, for so long, without the file growing: W&B's process writes blocks of 32 KiB."""


class RunFile:
    """A run's file.

    Args:
        path: The file; a run that is disabled has none.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._size = 0
        self._grew = time.monotonic()
        self._waiting = 0
        self._was_full = False

    def writes(self, coming: int) -> bool:
        """Whether W&B's process still writes to it, as far as can be seen. After a full disk it may have given up for good.

        Args:
            coming: How many bytes, at least, are logged next.

        Raises:
            OSError: The disk is full.
        """
        if not self._path.is_file():
            return True
        size, now = self._path.stat().st_size, time.monotonic()
        if size != self._size:
            self._size, self._grew, self._waiting = size, now, 0
        try:
            need_room(self._path.parent)
        except OSError:
            self._was_full = True
            raise
        self._waiting += coming
        stuck = self._waiting > MOST_WAITING and now - self._grew > PATIENCE_SECONDS
        return not (stuck or self._was_full)

    def has_room(self, least: int) -> None:
        """See that so many bytes fit.

        Raises:
            OSError: They do not.
        """
        if self._path.is_file():
            need_room(self._path.parent, least)
