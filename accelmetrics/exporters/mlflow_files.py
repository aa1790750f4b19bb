"""The metrics of a run in MLflow's store of files, a file each: kept whole, since MLflow reads no run with half a line in it."""

from __future__ import annotations

import os
from pathlib import Path

from accelmetrics.exporters.tracker_room import MARGIN, need_room

PAGE = 4096
"""Bytes that one more line may take of a disk."""


def directory_of(place: Path, run_id: str) -> Path | None:
    """The directory of a run in a store of files, whatever its experiment; None where there is none."""
    return next(place.glob(f"*/{run_id}"), None) if run_id.isalnum() else None


class MetricFiles:
    """The files of a run. MLflow adds a line to each, in one write; one that does not fit is cut, and the next one added to it.

    Args:
        directory: The run's directory.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._metrics = directory / "metrics"
        self._whole: set[str] = set()
        """Files that end in a whole line."""
        self._cut: set[str] = set()
        """Files that may not: those of a write that failed."""

    def mend(self) -> None:
        """See that every file ends in a whole line.

        Raises:
            OSError: One cannot be mended.
        """
        for path in self._metrics.rglob("*"):
            _mend(path)

    def need_room(self, lines: int = 0) -> None:
        """See that there is room for so many lines.

        Raises:
            OSError: There is none.
        """
        need_room(self._directory, MARGIN + lines * PAGE)

    def prepare(self, names: set[str]) -> None:
        """Before metrics of these names are written: see that they fit, and that what is there ends in a whole line.

        Raises:
            OSError: They do not, or it cannot be mended.
        """
        self.need_room(len(names))
        for name in (names - self._whole) | self._cut:
            _mend(self._metrics / name)
        self._whole -= names
        self._cut = names

    def written(self, names: set[str]) -> None:
        """They have been written."""
        self._whole |= names
        self._cut = set()


def _mend(path: Path) -> None:
    """Remove what follows the last whole line; a file without one goes, for MLflow takes an empty one amiss."""
    if not path.is_file():
        return
    with path.open("rb+") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - PAGE))
        tail = file.read()
        if tail.endswith(b"\n"):
            return
        whole = size - len(tail) + tail.rfind(b"\n") + 1
        file.truncate(whole)
    if not whole:
        path.unlink()
