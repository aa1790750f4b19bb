"""``disk.{path}.usagePercent`` and ``.usageGB``: how full the file system below each watched path is.

As ``df`` counts: used ÷ (used + what is left to ordinary users), so that the administrators' reserve is not free space.
"""

from __future__ import annotations

import os

from accelmetrics.backends.host.numbers import GIB
from accelmetrics.backends.host.part import Moment
from accelmetrics.backends.kit.system import reason_of
from accelmetrics.schemas.reasons import Reason, Unavailable


def usage_of(path: str) -> tuple[int, int]:
    """Bytes used, and bytes left to ordinary users, on the file system below a path. Raises ``OSError`` and ``ValueError``."""
    if not hasattr(os, "statvfs"):
        # Windows. Not on top: shutil loads three compression libraries with it.
        import shutil

        usage = shutil.disk_usage(path)
        return usage.used, usage.free
    stat = os.statvfs(path)
    return (stat.f_blocks - stat.f_bfree) * stat.f_frsize, stat.f_bavail * stat.f_frsize


class DiskUsagePart:
    """File systems of the watched paths. A path names the user's own view, so no other root is put in front of it."""

    def __init__(self, paths: tuple[str, ...]) -> None:
        self._paths = [(path, f"disk.{path}.usagePercent", f"disk.{path}.usageGB") for path in dict.fromkeys(paths)]

    def read(self, moment: Moment) -> None:
        for path, percent_key, used_key in self._paths:
            moment.progress.append(None)
            try:
                used, left = usage_of(path)
            except (OSError, ValueError) as error:
                moment.miss((percent_key, used_key), reason_of(error, path))
                continue
            if used + left <= 0:
                moment.miss((percent_key, used_key), Unavailable(Reason.NOT_SUPPORTED, f"{path} lies on a file system without a size"))
                continue
            moment.values[percent_key] = 100.0 * used / (used + left)
            moment.values[used_key] = used / GIB
