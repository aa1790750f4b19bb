"""Facts about files: whether other users can read or change them, and whether they have changed."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

from accelmetrics.schemas.log import log


def warn_if_loose(file: str | Path, what: str, secret: bool = True) -> None:
    """Log a warning about a file that other users can change, or read although it contains secrets.

    The group may have access if it is this process's main group, or a group of this process without a name: Kubernetes mounts a
    Secret for a pod's ``fsGroup`` like that.

    Args:
        file: The file. A missing file is reported elsewhere.
        what: The content, in words.
        secret: Whether other users must not read it.
    """
    try:
        status = Path(file).stat()
    except OSError:
        return
    if sys.platform == "win32" or not stat.S_ISREG(status.st_mode):
        return
    others = stat.S_IRWXO if _is_own(status.st_gid) else stat.S_IRWXG | stat.S_IRWXO
    loose = others if secret else others & (stat.S_IWGRP | stat.S_IWOTH)
    mode = stat.S_IMODE(status.st_mode)
    if mode & loose:
        verb = "change" if mode & loose & (stat.S_IWGRP | stat.S_IWOTH) else "read"
        log.warning("other users can %s %s in %s (mode %04o): chmod %o %s", verb, what, file, mode, mode & ~loose, file)


def _is_own(group: int) -> bool:
    """Return whether a group has no other users, as far as is known."""
    if group == os.getegid():
        return True
    if group not in os.getgroups():
        return False
    import grp

    try:
        # A group with a name may have other members; one without a name has none that are known.
        return not grp.getgrgid(group)
    except KeyError:
        return True


def file_state(path: Path | None) -> tuple[int, ...]:
    """Return time, size and inode of a file, to detect changes; empty if there is no file."""
    try:
        status = path.stat() if path else None
    except OSError:
        status = None
    return (status.st_mtime_ns, status.st_size, status.st_ino) if status else ()
