"""What ``doctor`` says of the host: which cgroup limits hold here."""

from __future__ import annotations

from accelmetrics.backends.host.cgroup import Limits, find_limits
from accelmetrics.backends.host.numbers import GIB
from accelmetrics.backends.kit.system import system_path


def cgroup_words(pid: int) -> str:
    """The cgroup limits of a process, in words."""
    if not system_path("/proc/stat").exists():
        return "/proc is not mounted"
    try:
        limits = find_limits(pid)
    except (OSError, ValueError) as error:
        return f"cgroup unreadable: {error}"
    return "no cgroup v2" if limits is None else _limit_words(limits)


def _limit_words(limits: Limits) -> str:
    words = []
    if limits.memory:
        words.append(f"{min(limit for _, limit in limits.memory) / GIB:.4g} GiB")
    if limits.quota is not None:
        words.append(f"{limits.quota:.4g} CPUs")
    return f"cgroup v2 limit {' and '.join(words)}" if words else "cgroup v2 without limits"
