"""One process: CPU time, threads and resident memory, in one read of ``/proc/<pid>/stat``."""

from __future__ import annotations

from typing import NamedTuple

from accelmetrics.backends.host.numbers import count


class Process(NamedTuple):
    """A process as it stands now.

    Attributes:
        pid: Its number.
        start: When it began: with the number, what tells it from a later one of the same number.
        parent: Its parent's number.
        own: CPU time in nanoseconds.
        waited: CPU time of children that have ended and were waited for, with theirs, in nanoseconds.
        threads: Number of threads.
        rss: Resident memory in pages.
        ended: Whether nothing but its entry is left (a zombie).
    """

    pid: int
    start: int
    parent: int
    own: int
    waited: int
    threads: int
    rss: int
    ended: bool

    @property
    def key(self) -> tuple[int, int]:
        """What stays the same while it lives and never comes again."""
        return self.pid, self.start


def parse_process(data: bytes, tick: int, own: int | None = None) -> Process:
    """Read a ``stat`` file. The name in brackets may hold spaces and brackets itself.

    Args:
        data: The file.
        tick: The kernel's clock tick in nanoseconds.
        own: The CPU time in nanoseconds from a finer clock than the file's, where there is one.

    Raises:
        ValueError: It has too few fields, or one is not a number.
    """
    pid, _, rest = data.partition(b" (")
    fields = rest[rest.rfind(b")") + 1 :].split()
    if len(fields) < 22:
        raise ValueError(f"{len(fields)} fields after the name, 22 are needed")
    threads = count(fields[17])
    # The first thread of a process may end before the others: it is a zombie then, the process is not.
    ended = fields[0] in (b"Z", b"X") and threads <= 1
    if own is None:
        own = (count(fields[11]) + count(fields[12])) * tick
    waited = (count(fields[13]) + count(fields[14])) * tick
    return Process(count(pid), count(fields[19]), count(fields[1]), own, waited, threads, count(fields[21]), ended)


def parse_allowed(data: bytes) -> list[tuple[int, int]]:
    """The CPUs of ``Cpus_allowed_list`` in a ``status`` file, as first and last of each range.

    Raises:
        ValueError: There is no such line, or it is not a list of ranges.
    """
    for line in data.split(b"\n"):
        if line.startswith(b"Cpus_allowed_list:"):
            return [_range(word.strip()) for word in line[18:].split(b",")]
    raise ValueError("Cpus_allowed_list is missing")


def _range(word: bytes) -> tuple[int, int]:
    first, dash, last = word.partition(b"-")
    return count(first), count(last if dash else first)
