"""The work that logged steps tell of, and how fast it was done, of all processes of a run together."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite

from accelmetrics.schemas.named_tuple import NamedTuple
from accelmetrics.schemas.record import Step, StepSource

WORK = ("tokens", "samples")
"""What is counted per second and per joule."""


class Done(NamedTuple):
    """Work that a process did.

    Attributes:
        amount: How much.
        seconds: In which time.
        paid: How much of it is of steps whose energy is known.
        joules: And that energy.
    """

    amount: float = 0.0
    seconds: float = 0.0
    paid: float = 0.0
    joules: float = 0.0


Totals = Mapping[tuple[str, StepSource], Done]
"""By kind of work and process, what was done so far."""


def add_work(totals: dict[tuple[str, StepSource], Done], step: Step) -> None:
    """Add the work of a step, if it says both how much was done and how fast.

    Each process has totals of its own: ranks work side by side, so that their rates add up and not their times.
    """
    for name in WORK:
        amount, rate, per_joule = (step.values.get(f"{name}{of}") for of in ("", "_per_second", "_per_joule"))
        if amount and rate and isfinite(amount):
            paid, joules = (amount, amount / per_joule) if per_joule else (0.0, 0.0)
            gained, done = (amount, amount / rate, paid, joules), totals.get((name, step.source), Done())
            totals[name, step.source] = Done(*map(sum, zip(done, gained, strict=True)))


def rates(after: Totals, before: Totals = {}) -> dict[str, dict[str, float | None]]:  # noqa: B006  # never changed
    """Return, by kind of work, what was done between two states of the totals; without those in which nothing was.

    ``per_second`` is the sum of what each process did in a second, ``per_joule`` is over the energy of all selected devices, and None where
    that is not known.
    """
    found: dict[str, list[Done]] = {}
    for key, done in after.items():
        gained = Done(*(now - then for now, then in zip(done, before.get(key, Done()), strict=True)))
        if gained.seconds > 0:
            found.setdefault(key[0], []).append(gained)
    sums = {name: Done(*map(sum, zip(*each, strict=True))) for name, each in found.items()}
    return {
        name: {
            "per_second": sum(done.amount / done.seconds for done in found[name]),
            "per_joule": total.paid / total.joules if total.joules > 0 else None,
        }
        for name, total in sums.items()
    }
