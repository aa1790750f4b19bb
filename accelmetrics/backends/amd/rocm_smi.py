"""The source ``rocm-smi``: one run of the command is a *round*, and serves every card and every consumer.

When a consumer reads a unit, it gets the latest round if that is fresh; otherwise the command is run, and whoever asks in
the meantime waits for that run instead of starting another. Fresh means, with ``interval`` as the source's own:

- for a unit that this consumer has not had from that round: finished less than half an interval ago, or after it asked;
- for one that it has had: begun less than half an interval before it asked.

So the units that are read one after another share a round, however long the command takes; the next pass over them makes
a new one; and a second consumer makes at most one run more. A round that failed is shared like any other, so that a
command that hangs costs its timeout once and not once per card.

Cards are matched by their numbers. When a number turns out to be another card, or a new one is there, the driver is to be
opened again: devices keep their keys by identity, not by place.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from accelmetrics.backends.amd.fields import Value, read_card
from accelmetrics.backends.amd.identity import identify, pci_bus_id, unique_id
from accelmetrics.backends.amd.rocm_smi_command import Tool
from accelmetrics.backends.amd.rocm_smi_json import Card, Output
from accelmetrics.backends.clock import SYSTEM_CLOCK, Clock
from accelmetrics.backends.contract import Block, Reading, ReadOptions
from accelmetrics.schemas.errors import DriverGoneError, SourceError
from accelmetrics.schemas.identity import DeviceIdentity
from accelmetrics.schemas.reasons import Reason, Unavailable

BACKEND = "amd"
INTERVAL = 2.0
"""Seconds between two runs."""


class Round:
    """What one run of the command came to.

    Attributes:
        number: Counted from 1.
        started: When the command was started, on the monotonic clock.
        finished: When it had ended.
        readings: By card number.
        error: Why there are no readings.
        complete: Whether the output was printed to its end.
    """

    __slots__ = ("complete", "error", "finished", "number", "readings", "started")

    def __init__(self, number: int, started: float, finished: float) -> None:
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
            raise SourceError(Reason.DEVICE_LOST, f"rocm-smi no longer lists card{card}", backend=BACKEND)
        raise SourceError(Reason.PARSE_ERROR, f"rocm-smi's output was cut before the end of card{card}", backend=BACKEND)


class RocmSmiDriver:
    """The open source: the command runs once, to learn who is there. Any thread may read.

    Args:
        clock: Where the age of a round is taken from.
        interval: Seconds between two runs.
        tool: The command.

    Raises:
        SourceError: The command is missing, fails, hangs, or lists no cards.
    """

    source = "rocm-smi"
    machine_wide = False

    def __init__(self, clock: Clock = SYSTEM_CLOCK, interval: float = INTERVAL, tool: Tool | None = None) -> None:
        self._clock = clock
        self._interval = interval
        self._tool = tool or Tool()
        self._lock = threading.Lock()
        self._names: dict[tuple[str, ...], tuple[str, ...]] = {}
        self._reasons: dict[int, Mapping[str, Unavailable]] = {}
        started = clock.monotonic()
        output = self._tool.read()
        if not output.complete:
            raise SourceError(Reason.PARSE_ERROR, "rocm-smi's output was cut: how many cards there are is unknown")
        self._devices = identify(dict(output.cards), output.system)
        self._places = {device.vendor_index: device for device in self._devices}
        self._last = Round(1, started, clock.monotonic())
        self._fill(self._last, output)

    @property
    def devices(self) -> Sequence[DeviceIdentity]:
        return self._devices

    def reader(self, options: ReadOptions) -> RocmSmiReader:
        """A consumer's view. The tool says nothing about processes: the options change nothing."""
        del options
        return RocmSmiReader(self)

    def close(self) -> None:
        """Nothing is held open between runs."""

    def round(self, had: int) -> Round:
        """The latest round if it is fresh, else a new one.

        Args:
            had: Number of the round that the caller was given last for the unit it reads now.
        """
        asked = self._clock.monotonic()
        with self._lock:
            if not self._last.fresh(asked, self._last.number <= had, self._interval):
                self._last = self._run(self._last.number + 1)
            return self._last

    def _run(self, number: int) -> Round:
        started = self._clock.monotonic()
        try:
            output = self._tool.read()
        except SourceError as error:
            failed = Round(number, started, self._clock.monotonic())
            failed.error = error
            return failed
        finished = Round(number, started, self._clock.monotonic())
        self._fill(finished, output)
        return finished

    def _fill(self, round_: Round, output: Output) -> None:
        round_.complete = output.complete
        round_.error = self._moved(output.cards)
        for number, card in output.cards.items():
            device = self._places.get(number)
            if device is not None:
                round_.readings[number] = self._reading(number, read_card(card, device.unified), round_.finished)

    def _moved(self, cards: Mapping[int, Card]) -> DriverGoneError | None:
        for number, card in cards.items():
            device = self._places.get(number)
            if device is None:
                return DriverGoneError(Reason.DRIVER_UNAVAILABLE, f"card{number} is new: the cards are to be listed again")
            if _differs(device.uuid, unique_id(card)) or _differs(device.pci_bus_id, pci_bus_id(card)):
                return DriverGoneError(Reason.DRIVER_UNAVAILABLE, f"card{number} is another card now: the cards are to be listed again")
        return None

    def _reading(self, number: int, found: dict[str, Value], read_at: float) -> Reading:
        values = {name: value for name, value in found.items() if not isinstance(value, Unavailable)}
        reasons = {name: value for name, value in found.items() if isinstance(value, Unavailable)}
        if self._reasons.get(number) != reasons:
            self._reasons[number] = reasons
        names = self._names.setdefault(tuple(values), tuple(values))
        return Reading((Block(names, tuple(values.values())),), self._reasons[number], read_at=read_at)


class RocmSmiReader:
    """One consumer's view: which round it was given last, for each unit."""

    def __init__(self, driver: RocmSmiDriver) -> None:
        self._driver = driver
        self._had: dict[int, int] = {}

    def read(self, unit: int, steps: list[Any]) -> Reading:
        """The card's values from the latest round."""
        latest = self._driver.round(self._had.get(unit, 0))
        steps.append(latest.number)
        self._had[unit] = latest.number
        return latest.reading(self._driver.devices[unit].vendor_index)


def _differs(known: str, printed: str) -> bool:
    return bool(known and printed) and known != printed
