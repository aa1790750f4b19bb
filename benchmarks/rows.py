"""What a row of the table is, and how it is judged."""

from __future__ import annotations

from typing import NamedTuple


class Row(NamedTuple):
    """One measurement.

    Attributes:
        what: What was measured.
        measured: The number.
        unit: What stands behind it: `×`, ` ms`.
        reach: What it has to be at most; None for a row that only informs.
        stretch: What it would ideally be at most.
        note: The absolute numbers behind it.
    """

    what: str
    measured: float
    unit: str = "×"
    reach: float | None = None
    stretch: float | None = None
    note: str = ""

    @property
    def verdict(self) -> str:
        """How the number stands to its targets."""
        if self.reach is None or self.stretch is None:
            return ""
        if self.measured <= self.stretch:
            return "stretch"
        return "reached" if self.measured <= self.reach else "**missed**"


class Scale(NamedTuple):
    """How much is measured.

    Attributes:
        gpus: Simulated GPUs.
        processes: Fresh processes per measurement.
        readings: Readings per turn.
        turns: Turns per process.
        busy: Readings beside a busy thread.
        seconds: How long a steady pace is kept.
        rounds: How often either side keeps it.
        starts: How often a program is started.
        ticks: Ticks of a monitor between the two looks at resident memory, the first after a hundredth of them.
        history: Readings in a history that is weighed.
        peers: Samples taken with another tool.
    """

    gpus: int = 8
    processes: int = 5
    readings: int = 100
    turns: int = 10
    busy: int = 100
    seconds: float = 10.0
    rounds: int = 2
    starts: int = 25
    ticks: int = 100_000
    history: int = 3600
    peers: int = 20


FULL = Scale()
QUICK = Scale(gpus=8, processes=2, readings=50, turns=4, busy=30, seconds=4.0, rounds=1, starts=7, ticks=20_000, peers=5)
SMOKE = Scale(gpus=2, processes=1, readings=5, turns=1, busy=3, seconds=0.5, rounds=1, starts=1, ticks=1000, history=100, peers=1)


def cell(number: float | None, unit: str) -> str:
    """A number with so many digits as say something."""
    if number is None:
        return ""
    digits = 0 if number == int(number) and unit != "×" else 2 if abs(number) < 10 else 1
    return f"{number:.{digits}f}{unit}"
