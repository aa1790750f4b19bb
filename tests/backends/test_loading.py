"""Imports and libraries are loaded one after the other, and a fork waits for them."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from accelmetrics.backends.loading import LoadingLock
from tests.support.programs import Program

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="platform: no fork")

IMPORTING = """
    import os, sys, threading, types
    from accelmetrics.backends import loading
    gates = types.ModuleType("gates")
    gates.entered, gates.go_on = threading.Event(), threading.Event()
    sys.modules["gates"] = gates
    thread = threading.Thread(target=loading.import_modules, args=(["slow_to_import"],), daemon=True)
    thread.start()
    gates.entered.wait()

    def child():
        pid = os.fork()
        if pid == 0:
            with loading.loading:
                loading.import_modules(["json"])
            if "waits" in sys.argv:
                import slow_to_import
            os._exit(7)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
"""
"""A program in which a thread is in the middle of an import."""


def importing(rest: str, directory: Path, *arguments: str) -> Program:
    (directory / "slow_to_import.py").write_text("import gates\ngates.entered.set()\ngates.go_on.wait()\n")
    path = os.pathsep.join(filter(None, (str(directory), os.environ.get("PYTHONPATH"))))
    return Program(IMPORTING + rest, *arguments, env={**os.environ, "PYTHONPATH": path})


def test_a_fork_waits_for_an_import(tmp_path: Path) -> None:
    """Or the module would stay locked in the child by a thread that is not there."""
    with importing(
        """
    loading.FORK_PATIENCE = 60.0
    threading.Timer(0.3, gates.go_on.set).start()
    tell(child())
    """,
        tmp_path,
        "waits",
    ) as program:
        assert program.told() == [7]


def test_forks_do_not_wait_for_an_import_that_hangs(tmp_path: Path) -> None:
    """All of them together not longer than the patience; the children import what they need."""
    with importing(
        """
    loading.FORK_PATIENCE = 0.2
    tell([child() for _ in range(3)])
    """,
        tmp_path,
    ) as program:
        assert program.told() == [[7, 7, 7]]


def test_forks_of_several_threads_leave_the_lock_free() -> None:
    """One does not wait for the other, and gives back what it holds itself."""
    lock = LoadingLock()

    def fork() -> None:
        lock.before_fork()
        lock.after_in_parent()

    lock.before_fork()
    other = threading.Thread(target=fork)
    other.start()
    other.join()
    lock.after_in_parent()
    free: list[bool] = []
    third = threading.Thread(target=lambda: free.append(lock.is_free()))
    third.start()
    third.join()
    assert free == [True]
