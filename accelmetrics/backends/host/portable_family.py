"""Processes as psutil reads them, in the same terms as ``/proc`` gives them."""

from __future__ import annotations

from typing import Any

from accelmetrics.backends.host.process import Process


class PortableFamily:
    """The watched process, and how its descendants are found.

    Attributes:
        page: ``Process.rss`` is in bytes here.
    """

    page = 1

    def __init__(self, psutil: Any, pid: int) -> None:
        self._psutil = psutil
        self._pid = pid
        self._process: Any = None

    def root(self) -> Process:
        """The watched process. Raises ``OSError``."""
        psutil = self._psutil
        try:
            if self._process is None:
                self._process = psutil.Process(self._pid)
            return self._read(self._process)
        except psutil.NoSuchProcess as error:
            raise ProcessLookupError(self._pid) from error
        except psutil.AccessDenied as error:
            raise PermissionError(self._pid) from error

    def look(self, pid: int) -> Process | None:
        """A process, None when it has ended or may not be read."""
        try:
            return self._read(self._psutil.Process(pid))
        except self._psutil.Error:
            return None

    def descendants(self, root: Process, progress: list[Any]) -> list[Process]:
        """Everything below the process; those that end or may not be read cost themselves only."""
        found = []
        try:
            children = self._process.children(recursive=True)
        except self._psutil.Error:
            children = []
        for child in children:
            progress.append(None)
            process = self.look(child.pid)
            if process is not None:
                found.append(process)
        return found

    def allowed(self) -> list[tuple[int, int]]:
        """The CPUs it may run on, where the system has an affinity (Windows, FreeBSD). Raises ``OSError``."""
        affinity = getattr(self._process, "cpu_affinity", None)
        if affinity is None:
            return []
        try:
            return [(cpu, cpu) for cpu in affinity()]
        except self._psutil.Error as error:
            raise OSError(str(error)) from error

    def _read(self, process: Any) -> Process:
        with process.oneshot():
            times = process.cpu_times()
            ended = process.status() == self._psutil.STATUS_ZOMBIE
            return Process(
                pid=process.pid,
                start=round(process.create_time() * 1e6),
                parent=process.ppid(),
                own=round((times.user + times.system) * 1e9),
                waited=round((getattr(times, "children_user", 0.0) + getattr(times, "children_system", 0.0)) * 1e9),
                threads=process.num_threads(),
                rss=process.memory_info().rss,
                ended=ended,
            )
