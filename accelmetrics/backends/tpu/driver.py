"""The open source: who is there, and rounds that serve every device and every consumer.

A round is shared: whoever reads a unit that it has not had from the latest round gets that, if it is fresh; otherwise a new
one is made, and whoever asks in the meantime waits for it, which its deadlines bound.

A runtime that names a device which nobody knew makes the source be opened again, for devices are listed then. A runtime
that goes away does not: its devices stay, and are not in use.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple

from accelmetrics.backends.clock import SYSTEM_CLOCK, Clock
from accelmetrics.backends.contract import Reading, ReadOptions
from accelmetrics.backends.kit.forms import Form
from accelmetrics.backends.kit.polled import PollCache
from accelmetrics.backends.tpu.chips import BACKEND, EXTRA, chips
from accelmetrics.backends.tpu.holders import Holders, find_holders
from accelmetrics.backends.tpu.places import Place, places
from accelmetrics.backends.tpu.rounds import GRPC_NAMES, SDK_NAMES, Round, Speakers, devices_per_duty_cycle, gauges_of
from accelmetrics.backends.tpu.runtime import HOST, PORTS_VARIABLE, Runtimes, ports
from accelmetrics.backends.tpu.sdk import FIRST_WAIT, Sdk
from accelmetrics.schemas.errors import DriverGoneError, MissingDependencyError, SourceError
from accelmetrics.schemas.identity import DeviceIdentity
from accelmetrics.schemas.reasons import Reason

FRESH = 0.5
"""Seconds for which a round is fresh to those who have not had it: half of the source's interval."""
HOLDERS_INTERVAL = 5.0
"""Seconds between two looks at who holds the chips: it takes a look at every process."""


class Served(NamedTuple):
    """A round, as it is given out.

    Attributes:
        number: Counted from 1.
        finished: When it had ended, in seconds on the monotonic clock.
        readings: Every device's part of it, and the machine's.
    """

    number: int
    finished: float
    readings: tuple[Reading, ...]


class TpuDriver:
    """See the module. Any thread may read.

    Args:
        clock: What ages and paces are measured on.

    Raises:
        SourceError: grpcio is not installed, or there is neither a chip nor a runtime.
    """

    source = "grpc"
    machine_wide = True

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._chips = chips()
        self._nodes = tuple(chip.node for chip in self._chips)
        self._per_chip = devices_per_duty_cycle(self._chips)
        self._speakers = Speakers()
        self._ports = ports(os.environ.get(PORTS_VARIABLE, ""))
        self._runtimes = self._connect()
        self._sdk = Sdk(SDK_NAMES, clock)
        self._holders = Holders({}, False)
        self._looked_at = float("-inf")
        self._claimed: list[int] = []
        with ExitStack() as on_failure:
            on_failure.callback(self.close)
            first = self._ask(1, [], FIRST_WAIT)
            self._places = self._found()
            self._forms = [Form() for _ in range(len(self._places) + 1)]
            self._rounds = PollCache(self._served(first), clock, FRESH)
            on_failure.pop_all()
        self._devices = tuple(place.identity() for place in self._places)

    @property
    def devices(self) -> Sequence[DeviceIdentity]:
        return self._devices

    def reader(self, options: ReadOptions) -> TpuReader:
        """A consumer's view. What is watched makes no difference to it."""
        del options
        return TpuReader(self)

    def close(self) -> None:
        """Close the connections, and ask the SDK no more."""
        self._sdk.close()
        self._runtimes.close()

    def read(self, unit: int, had: int, progress: list[Any]) -> tuple[int, Reading]:
        """The number of a round and one unit's part of it: the latest round if that is fresh, else a new one.

        Args:
            unit: The unit.
            had: Number of the round that the caller was given last for this unit.
            progress: Where progress is reported.

        Raises:
            DriverGoneError: A runtime names devices that are not listed.
        """
        latest = self._rounds.get(had, partial(self._make, progress))
        return latest.number, latest.readings[unit]

    def _connect(self) -> Runtimes:
        try:
            return Runtimes(self._ports, self._clock)
        except ImportError as error:
            missing = MissingDependencyError("grpcio", EXTRA, backend=BACKEND)
            raise SourceError(missing.reason, missing.message, backend=BACKEND, advice=missing.advice) from error

    def _found(self) -> tuple[Place, ...]:
        found = places(self._chips, self._claimed, self._holders)
        if not found:
            asked = f"{HOST}:{', '.join(map(str, self._ports))}"
            raise SourceError(Reason.DRIVER_UNAVAILABLE, f"no TPU on the PCI bus, and no runtime on {asked}")
        return found

    def _make(self, progress: list[Any], number: int) -> Served:
        return self._served(self._ask(number, progress))

    def _ask(self, number: int, progress: list[Any], wait: float = 0.0) -> Round:
        now = self._clock.monotonic()
        if now - self._looked_at >= HOLDERS_INTERVAL:
            self._holders, self._looked_at = find_holders(self._nodes), now
            progress.append(number)
        answers = self._runtimes.ask(GRPC_NAMES, progress)
        gauges = gauges_of(answers, self._per_chip, self._clock.time_ns() / 1e9)
        self._claimed = sorted({device for one in gauges for device in one.ids})
        # The SDK is loaded on a machine that has chips, and while a program uses them: never anywhere else.
        if self._chips and (self._holders.pids or any(one.failure is None for one in answers)):
            self._sdk.want(wait)
        return Round(number, self._clock.monotonic(), answers, gauges, self._sdk.latest(), self._holders)

    def _served(self, latest: Round) -> Served:
        listed = {place.number for place in self._places}
        new = [number for number in self._claimed if number not in listed]
        if new:
            raise DriverGoneError(
                Reason.DRIVER_UNAVAILABLE, f"the runtime has new devices ({', '.join(map(str, new))}): they are to be listed again"
            )
        parts = [*latest.devices(self._places, self._speakers, self._per_chip), latest.machine()]
        holding = [*(place.processes(latest.holders) for place in self._places), None]
        units = zip(self._forms, parts, holding, strict=True)
        return Served(latest.number, latest.finished, tuple(form.reading(part, pids, latest.finished) for form, part, pids in units))


class TpuReader:
    """One consumer's view: which round it was given last, for each unit."""

    def __init__(self, driver: TpuDriver) -> None:
        self._driver = driver
        self._had: dict[int, int] = {}

    def read(self, unit: int, progress: list[Any]) -> Reading:
        """One unit's part of the latest round."""
        self._had[unit], reading = self._driver.read(unit, self._had.get(unit, 0), progress)
        return reading
