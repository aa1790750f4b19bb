"""Where a file that is written really is, and whom it belongs to.

In a folder that every user may write to, such as ``/tmp``, another user may have put a link or a file under the name that is written to.
Linux can refuse these (``fs.protected_symlinks``, ``fs.protected_regular``); here they are refused wherever that is switched off
too, and where a link is looked up before it is opened, which the system's own protection does not see.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from accelmetrics.schemas.errors import InvalidOptionError

LINKS = 40
"""Links that the system follows."""
OPEN_TO_ALL = stat.S_ISVTX | stat.S_IWOTH


def absolute(path: str | os.PathLike[str]) -> Path:
    """Return where it is, whatever directory the program goes to later; ``~`` is the user's home."""
    return Path(os.path.abspath(os.path.expanduser(path)))  # noqa: PTH100, PTH111 - those of pathlib raise where there is no home


def followed(path: Path) -> Path:
    """Return where a path leads, as an absolute one.

    Raises:
        PermissionError: On the way is another user's link, or at its end another user's file, in a folder that all may write to.
        OSError: It cannot be looked up.
    """
    path = path.absolute()
    at, rest, links = Path(path.anchor), list(path.parts[:0:-1]), 0
    while rest:
        name = rest.pop()
        step = at.parent if name == ".." else at / name
        if not step.is_symlink():
            at = step
            continue
        check_owner(step.lstat(), step)
        links += 1
        if links > LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
        target = step.readlink()
        at = Path(target.anchor) if target.anchor else at
        rest += target.parts[: 0 if target.anchor else None : -1]
    if at.exists():
        check_owner(at.stat(), at)
    return at


def folder_for_files(path: str | os.PathLike[str]) -> Path:
    """Return where a folder is that new files are made in, or will be.

    Raises:
        InvalidOptionError: There can be no such folder.
    """
    try:
        found = followed(absolute(path))
        if found.exists() and not found.is_dir():
            raise InvalidOptionError(f"{path} is no directory: the files are made in one")
    except OSError as error:
        raise InvalidOptionError(f"{path} cannot be written to: {error.strerror or error}") from error
    return found


def make_folder(path: Path) -> None:
    """Make a folder where it is missing: for its owner alone in a folder that is open to all.

    Raises:
        PermissionError: Another user was quicker there.
        OSError: It cannot be made.
    """
    if not path.is_dir():
        make_folder(path.parent)
        path.mkdir(0o700 if is_open_to_all(path.parent.stat()) else 0o777, exist_ok=True)
    followed(path)


def check_owner(status: os.stat_result, path: Path) -> None:
    """Refuse what another user has put into a folder that all may write to; the folder's owner may.

    Raises:
        PermissionError: It is such a link or file.
    """
    folder = path.parent.stat()
    if is_open_to_all(folder) and status.st_uid not in (os.geteuid(), folder.st_uid):
        raise PermissionError(errno.EACCES, "it is another user's, in a folder that all users may write to", str(path))


def is_open_to_all(folder: os.stat_result) -> bool:
    """Return whether a folder is such as ``/tmp``: all users may put files there, and remove only their own."""
    return folder.st_mode & OPEN_TO_ALL == OPEN_TO_ALL


def mode_of_new(folder: Path) -> int:
    """Return the mode of a new file, from which the user's mask is still taken: for its owner alone in a folder that is open to all."""
    return 0o600 if is_open_to_all(folder.stat()) else 0o666
