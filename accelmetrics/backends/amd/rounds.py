"""Sources that run a command: one run is a *round*, and serves every card and every consumer.

When a consumer reads a unit, it gets the latest round if that is fresh; otherwise the command is run, and whoever asks in
the meantime waits for that run instead of starting another. Fresh means, with ``interval`` as the source's own:

- for a unit that this consumer has not had from that round: finished less than half an interval ago, or after it asked;
- for one that it has had: begun less than half an interval before it asked.

So the units that are read one after another share a round, however long the command takes; the next pass over them makes
a new one; and a second consumer makes at most one run more. A round that failed is shared like any other, so that a
command that hangs costs its timeout once and not once per card.

Cards are matched by their numbers. When a number turns out to be another card, or a new one is there, the driver is to be
opened again: devices keep their keys by identity, not by place.

A run reads every card, and would wake one that is suspended: while one is, the command is not run.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from accelmetrics.backends.amd import sysfs
from accelmetrics.backends.amd.table import Form, Record, Values
from accelmetrics.backends.clock import Clock
from accelmetrics.backends.contract import Reading, ReadOptions
from accelmetrics.schemas.errors import DriverGoneError, SourceError
from accelmetrics.schemas.identity import DeviceIdentity
from accelmetrics.schemas.reasons import Reason

BACKEND = "amd"
INTERVAL = 2.0
"""Seconds between two runs."""


class Output(Protocol):
    """What one run of a command printed."""

    @property
    def cards(self) -> Mapping[int, Record]:
        """By card number, which is the tool's own and not a position."""
        ...

    @property
    def complete(self) -> bool:
        """Whether it was printed to its end."""
        ...


class Command(Protocol):
    """A vendor's tool, as a source of cards."""

    @property
    def name(self) -> str:
        """What it is called."""
        ...

    def identify(self) -> Sequence[DeviceIdentity]:
        """Run it and list the cards, in the order of their numbers.

        Raises:
            SourceError: It is missing, fails, hangs, or lists no cards.
        """
        ...

    def read(self) -> Output:
        """Run it. Raises as ``identify`` does, and ``DriverGoneError`` when the driver is not there any more."""
        ...

    def values(self, card: Record, device: DeviceIdentity) -> Values:
        """Every metric of one card."""
        ...

    def moved(self, card: Record, device: DeviceIdentity) -> bool:
        """Whether what was printed is another card than the one known under its number."""
        ...


class Round:
    """What one run of the command came to.

    Attributes:
        command: The command's name.
        number: Counted from 1.
        started: When the command was started, on the monotonic clock.
        finished: When it had ended.
        readings: By card number.
        error: Why there are no readings.
        complete: Whether the output was printed to its end.
    """

    __slots__ = ("command", "complete", "error", "finished", "number", "readings", "started")

    def __init__(self, command: str, number: int, started: float, finished: float) -> None:
        self.command = command
        self.number = number
        self.started = started
        self.finished = finished
        self.readings: dict[int, Reading] = {}
        self.error: SourceError | None = None
        self.complete = True

    def fresh(self, asked: float, had: bool, interval: float) -> bool:
        """Whether it may be served to someone who asked at that time; see the module's docstring."""
        return asked - (self.started if had else self.finished) < interval / 2

    def reading(self, card: int) -> Reading:
        """One card's values.

        Raises:
            SourceError: The run failed, or the card was not in its output.
        """
        if self.error is not None:
            error = copy.copy(self.error)  # it may be raised in several threads: each gets a traceback of its own
            error.backend = BACKEND
            raise error
        reading = self.readings.get(card)
        if reading is not None:
            return reading
        if self.complete:
            raise SourceError(Reason.DEVICE_LOST, f"{self.command} no longer lists card{card}", backend=BACKEND)
        raise SourceError(Reason.PARSE_ERROR, f"{self.command}'s output was cut before the end of card{card}", backend=BACKEND)


class CommandDriver:
    """The open source: the command runs once, to learn who is there. Any thread may read.

    Args:
        command: The command.
        clock: Where the age of a round is taken from.
        interval: Seconds between two runs.

    Raises:
        SourceError: The command is missing, fails, hangs, lists no cards, or would wake one.
    """

    machine_wide = False

    def __init__(self, command: Command, clock: Clock, interval: float = INTERVAL) -> None:
        self.source = command.name
        self.interval = interval
        self._command = command
        self._clock = clock
        self._lock = threading.Lock()
        _let_sleep(command.name)
        started = clock.monotonic()
        self._devices = tuple(command.identify())
        self._places = {device.vendor_index: device for device in self._devices}
        self._forms = {number: Form() for number in self._places}
        self._last = self._run(1, started)

    @property
    def devices(self) -> Sequence[DeviceIdentity]:
        return self._devices

    def reader(self, options: ReadOptions) -> CommandReader:
        """A consumer's view. The tools are not asked about processes: the options change nothing."""
        del options
        return CommandReader(self)

    def close(self) -> None:
        """Nothing is held open between runs."""

    def round(self, had: int) -> Round:
        """The latest round if it is fresh, else a new one.

        Args:
            had: Number of the round that the caller was given last for the unit it reads now.
        """
        asked = self._clock.monotonic()
        with self._lock:
            if not self._last.fresh(asked, self._last.number <= had, self.interval):
                self._last = self._run(self._last.number + 1, self._clock.monotonic())
            return self._last

    def _run(self, number: int, started: float) -> Round:
        try:
            _let_sleep(self.source)
            output = self._command.read()
        except SourceError as error:
            failed = Round(self.source, number, started, self._clock.monotonic())
            failed.error = error
            return failed
        finished = Round(self.source, number, started, self._clock.monotonic())
        self._fill(finished, output)
        return finished

    def _fill(self, round_: Round, output: Output) -> None:
        round_.complete = output.complete
        round_.error = self._moved(output.cards)
        for number, card in output.cards.items():
            device = self._places.get(number)
            if device is not None:
                values = self._command.values(card, device)
                round_.readings[number] = self._forms[number].reading(values, read_at=round_.finished)

    def _moved(self, cards: Mapping[int, Record]) -> DriverGoneError | None:
        for number, card in cards.items():
            device = self._places.get(number)
            if device is None:
                return DriverGoneError(Reason.DRIVER_UNAVAILABLE, f"card{number} is new: the cards are to be listed again")
            if self._command.moved(card, device):
                return DriverGoneError(Reason.DRIVER_UNAVAILABLE, f"card{number} is another card now: the cards are to be listed again")
        return None


class CommandReader:
    """One consumer's view: which round it was given last, for each unit."""

    def __init__(self, driver: CommandDriver) -> None:
        self._driver = driver
        self._had: dict[int, int] = {}

    def read(self, unit: int, progress: list[Any]) -> Reading:
        """The card's values from the latest round."""
        latest = self._driver.round(self._had.get(unit, 0))
        progress.append(latest.number)
        self._had[unit] = latest.number
        return latest.reading(self._driver.devices[unit].vendor_index)


def differs(known: str, printed: str) -> bool:
    """Whether two names of a card, neither of them missing, are not the same."""
    return bool(known and printed) and known != printed


def _let_sleep(command: str) -> None:
    asleep = [address for address in sysfs.gpus() if sysfs.is_suspended(address)]
    if asleep:
        raise SourceError(
            Reason.SUSPENDED, f"{command} is not run while {', '.join(asleep)} is suspended: it would wake it", backend=BACKEND
        )
