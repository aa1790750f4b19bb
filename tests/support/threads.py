"""The threads of ours that began during the test that asks.

Other tests of the same process may leave threads behind that are idle by design (those of shared samplers): they do not count.
`tests/conftest.py` calls `remember` before each test.
"""

from __future__ import annotations

import threading

from tests.support.waiting import wait_for

_KNOWN: set[threading.Thread] = set()


def remember() -> None:
    """Count only the threads that begin from now on."""
    _KNOWN.clear()
    _KNOWN.update(threading.enumerate())


def own_threads(prefix: str = "accelmetrics-") -> list[str]:
    """Return the sorted names of the threads with this prefix that began during this test and still run."""
    return sorted(
        thread.name for thread in threading.enumerate() if thread.is_alive() and thread.name.startswith(prefix) and thread not in _KNOWN
    )


def wait_for_no_threads(prefix: str = "accelmetrics-") -> None:
    """Wait until the threads with this prefix that began during this test have ended."""
    wait_for(lambda: not own_threads(prefix), what=lambda: f"still running: {own_threads(prefix)}")
