"""Whose NeuronCores: all programs' on the machine, unless a process is watched or ``LOCAL_RANK`` picks a core.

W&B reads the first program of the list, and with ``LOCAL_RANK`` the core of that number, at 0 where it finds none. Here a
watched process (``pid=…``, with ``children=True`` its descendants too) selects programs; ``LOCAL_RANK`` selects the core
of that number, if there is one, and the programs on it. What nobody uses then is missing, not 0.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from typing import NamedTuple

from accelmetrics.backends.contract import ReadOptions
from accelmetrics.backends.neuron.report import Runtime

NOBODY = "no program uses the Neuron devices"


class Chosen(NamedTuple):
    """Some programs, what to say when there are none, and whose they are; empty where that is everybody's."""

    runtimes: tuple[Runtime, ...]
    nobody: str
    who: str = ""


def picked_core(cores: Collection[int]) -> int | None:
    """The core that ``LOCAL_RANK`` stands for; None where it is unset, no number, or no core has that number."""
    rank = os.environ.get("LOCAL_RANK", "").strip()
    return int(rank) if rank.isascii() and rank.isdecimal() and int(rank) in cores else None


def choose(runtimes: Sequence[Runtime], options: ReadOptions, core: int | None) -> Chosen:
    """The programs that a consumer wants.

    Args:
        runtimes: All there are.
        options: What the consumer asked for.
        core: The core that was picked, if one was.
    """
    chosen, nobody, who = tuple(runtimes), NOBODY, ""
    if options.watched:
        family = _family(options) if chosen else {options.pid}
        chosen = tuple(runtime for runtime in chosen if runtime.pid in family)
        who = f"process {options.pid}"
        nobody = f"{who} uses no NeuronCore"
    if core is not None:
        # One that failed may be the one on the core: better its error than nothing.
        on_core = tuple(runtime for runtime in chosen if runtime.uses(core))
        chosen = on_core or tuple(runtime for runtime in chosen if runtime.errors)
        nobody = f"{who} does not use core {core}" if who else f"no program uses core {core}"
        nobody += ", which LOCAL_RANK picks"
    return Chosen(chosen, nobody, who)


def _family(options: ReadOptions) -> set[int]:
    if not options.children:
        return {options.pid}
    import psutil  # needed for this alone

    try:
        return {options.pid, *(child.pid for child in psutil.Process(options.pid).children(recursive=True))}
    except psutil.Error:
        return {options.pid}
