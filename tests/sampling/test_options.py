"""Whether a process was named is kept apart from which one it is."""

import os

import pytest

from accelmetrics.sampling.options import Options, checked


def options(pid: int | None) -> Options:
    return checked(gpus=None, pid=pid, children=False, disk_paths=("/",), timeout=1.0, open_timeout=1.0)


@pytest.mark.parametrize(("pid", "told", "watched"), [(None, os.getpid(), False), (4711, 4711, True), (os.getpid(), os.getpid(), True)])
def test_sources_are_told_whether_the_process_was_named(pid: int | None, told: int, watched: bool) -> None:
    read = options(pid).read_options()
    assert (read.pid, read.watched) == (told, watched)


def test_a_child_process_that_is_told_our_number_does_not_watch_us() -> None:
    """With ``isolation="process"`` the number is filled in, since the child has another."""
    assert options(None)._replace(pid=4711).read_options()[::3] == (4711, False)
