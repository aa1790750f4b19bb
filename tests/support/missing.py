"""What a machine lacks."""

from __future__ import annotations


class MissingHere(RuntimeError):  # noqa: N818 - it says what is the case, for a skip's reason
    """Something that tests need is not on this machine; the message says what, and how to get it.

    A test that raises it, itself or in a fixture, is skipped (`tests/conftest.py`).
    """
