"""A C library with the functions of Ascend's ``libdcmi``; its values are those that ``tests.simulators.ascend`` prints."""

from __future__ import annotations

from pathlib import Path

from tests.simulators.stated import Answers, compiled


def build(directory: Path) -> Path:
    """Compile the library."""
    return compiled(Path(__file__).parent / "dcmi.c", directory / "libdcmi.so")


class Dcmi(Answers):
    """The library and its answers: ``power 0 1200``, ``fail.dcmi_get_device_hbm_info 0 -8255``, ``v2 0 1``.

    Args:
        directory: Where both are put.
    """

    def __init__(self, directory: Path) -> None:
        self.path = build(directory)
        super().__init__(directory / "dcmi-state")
