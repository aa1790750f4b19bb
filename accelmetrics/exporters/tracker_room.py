"""Whether there is room on a disk, asked before a tracker's library writes: some of them lose what does not fit without a word."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

MARGIN = 1 << 20
"""Bytes that must be free: more than a library writes between two times that this is asked."""


def need_room(directory: Path, least: int = MARGIN) -> None:
    """See that a disk has room. One that does not say how large it is, is taken to have it.

    Args:
        directory: A directory on it.
        least: The bytes that must be free for a user without privileges.

    Raises:
        OSError: It has not (``ENOSPC``), or the directory is not there.
    """
    usage = shutil.disk_usage(directory)
    if usage.total and usage.free < least:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(directory))
