"""The option ``--visible``, which several commands have."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from argparse import ArgumentParser

HELP = "only the devices that the watched process sees by its *_VISIBLE_DEVICES; with =renumber under its own numbers"


def add_visible(parser: ArgumentParser) -> None:
    """Add it."""
    parser.add_argument("--visible", nargs="?", const=True, default=False, choices=("renumber",), help=HELP)
