"""The open source: its devices, and polls that serve every device and every consumer.

A poll asks every runtime once. It is shared: a unit that a consumer has not had from the latest poll gets that, if it is
fresh; otherwise a new one is made, and others that ask in the meantime wait for it, which its deadlines bound.

A device is spoken for by one port. Where two programs that know nothing of each other both have a device 0, the first port
keeps it, and what the other one says cannot be told from it: the devices that no port speaks for say so.

A runtime that names a device which is not listed makes the source be opened again, for devices are listed then. A runtime
that goes away does not: its devices stay, and are not in use.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

from accelmetrics.backends.clock import SYSTEM_CLOCK, Clock
from accelmetrics.backends.contract import Reading, ReadOptions
from accelmetrics.backends.kit.forms import Form
from accelmetrics.backends.kit.polled import PollCache
from accelmetrics.backends.tpu.devices import (
    BACKEND,
    EXTRA,
    Holders,
    TpuDevice,
    chip_groups,
    find_chips,
    find_holders,
    list_devices,
)
from accelmetrics.backends.tpu.runtime import HOST, PORTS_VARIABLE, PortAnswers, Runtimes, ports
from accelmetrics.backends.tpu.sdk import FIRST_WAIT, Sdk, SdkReading, sdk_counts, sdk_devices, sdk_distributions
from accelmetrics.backends.tpu.values import (
    COVERAGE,
    FIELDS,
    GRPC_NAMES,
    NOT_LISTED,
    NOTHING_YET,
    SDK_NAMES,
    PortDevices,
    Value,
    distributions,
    machine_keys,
    port_devices,
    queues,
    sound,
    with_derived,
)
from accelmetrics.schemas.catalogue.tpu import FAMILIES, QUEUE_GRPC, QUEUE_KEY, QUEUE_SDK
from accelmetrics.schemas.errors import DriverGoneError, MissingDependencyError, SourceError
from accelmetrics.schemas.identity import DeviceIdentity
from accelmetrics.schemas.reasons import Reason, Unavailable

FRESH = 0.5
"""Seconds for which a poll is fresh to those who have not had it: half of the source's interval."""
HOLDERS_INTERVAL = 5.0
"""Seconds between two looks at which processes hold the chips: it takes a look at every process."""


class Speakers:
    """Which port speaks for which device, kept from poll to poll.

    Attributes:
        ports: By device, the port that spoke for it last.
    """

    def __init__(self) -> None:
        self.ports: dict[int, int] = {}
        self._contested: dict[int, tuple[int, int]] = {}

    @property
    def contest(self) -> str:
        """Which devices two ports claim, in words."""
        return "; ".join(
            f"the runtimes on ports {first} and {second} both have a device {n}" for n, (first, second) in self._contested.items()
        )

    def choose(self, told: Sequence[PortDevices]) -> dict[int, PortDevices]:
        """By device, the port that speaks for it this time. Another may take over from one that is gone, unless both were there once."""
        by_port = {one.port: one for one in told if one.failure is None}
        chosen: dict[int, PortDevices] = {}
        for number in sorted({number for one in by_port.values() for number in one.devices}):
            claims = [port for port, one in by_port.items() if number in one.devices]
            if len(claims) > 1:
                self._contested.setdefault(number, (claims[0], claims[1]))
            port = self.ports.get(number)
            if port in claims or (port is not None and number in self._contested):
                claims = [claim for claim in claims if claim == port]
            if claims:
                self.ports[number] = claims[0]
                chosen[number] = by_port[claims[0]]
        return chosen


class Poll:
    """What asking every source once came to.

    Args:
        ports: What the ports answered.
        sdk: What the SDK said last.
        holders: The processes that hold the chips.
        speakers: Which port speaks for which device.
        per_chip: How many devices share a duty cycle.
        now: Seconds since 1970.
    """

    def __init__(
        self, ports: Sequence[PortAnswers], sdk: SdkReading, holders: Holders, speakers: Speakers, per_chip: int, now: float
    ) -> None:
        self.holders = holders
        self._ports = ports
        self._sdk = sdk
        self._speakers = speakers
        self._per_chip = per_chip
        self._told = [port_devices(port, per_chip, now) for port in ports]
        self._chosen = speakers.choose(self._told)
        self.ids = sorted({number for one in self._told for number in one.devices})

    def device_values(self, listed: Sequence[TpuDevice]) -> list[dict[str, Value]]:
        """Every device's values and reasons, in the order in which they are listed."""
        chosen = dict(self._chosen)
        # A runtime that says nothing about any device says at least why.
        for mute in (one for one in self._told if one.failure is None and not one.devices):
            silent = [device.number for device in listed if self._speakers.ports.get(device.number) in (None, mute.port)]
            chosen = {**dict.fromkeys(silent, mute), **chosen}
        chips = chip_groups([device for device in listed if device.number in chosen] or listed, self._per_chip)
        sdk = {field.name: sdk_devices(field, self._sdk.first(field.sdk), chips, self._per_chip) for field in FIELDS}
        return [self._device(device, chosen.get(device.number), sdk) for device in listed]

    def _device(
        self, device: TpuDevice, speaker: PortDevices | None, sdk: Mapping[str, Mapping[int, Value] | Unavailable]
    ) -> dict[str, Value]:
        silent = self._why_silent(device) if speaker is None else None
        if silent is not None and silent.reason == Reason.NOT_IN_USE:
            return dict.fromkeys(COVERAGE.devices, silent)
        values: dict[str, Value] = {}
        for field in FIELDS:
            value = silent or (speaker.value(field.name, device.number) if speaker else NOT_LISTED)
            of_all = sdk[field.name]
            other = of_all if isinstance(of_all, Unavailable) else of_all.get(device.number, value)
            # The SDK's value where the runtime has none, and the SDK's reason where the runtime would never have had one.
            takes_reason = silent is None and not field.grpc
            use_sdk = isinstance(value, Unavailable) and (takes_reason or not isinstance(other, Unavailable))
            values[field.name] = other if use_sdk else value
        return with_derived(values)

    def _why_silent(self, device: TpuDevice) -> Unavailable:
        """Why no runtime speaks for a device."""
        known = self._speakers.ports.get(device.number)
        for port in self._ports:
            if port.failure is not None and port.failure.reason != Reason.NOT_IN_USE and known in (None, port.port):
                return port.failure
        pids = device.pids(self.holders)
        if self._speakers.contest and known is None and (pids or not self.holders.complete):
            return Unavailable(Reason.DRIVER_ERROR, f"{self._speakers.contest}: which chip each means cannot be told")
        asked = f"{HOST}:{', '.join(str(port.port) for port in self._ports)}"
        if pids:
            hint = f"start it with {PORTS_VARIABLE} set, and this program too"
            return Unavailable(Reason.DRIVER_UNAVAILABLE, f"process {pids[0]} holds it and serves no metrics on {asked}: {hint}")
        if not self.holders.complete:
            return Unavailable(Reason.NOT_IN_USE, f"no runtime on {asked} tells of it; the processes that hold it cannot be seen")
        return Unavailable(Reason.NOT_IN_USE, f"no program holds it: no runtime on {asked} tells of it")

    def machine_values(self) -> dict[str, Value]:
        """What belongs to all devices together: what the runtimes tell; where they tell nothing, what the SDK does."""
        failures = [port.failure for port in self._ports if port.failure is not None]
        if len(failures) == len(self._ports):
            broken = [failure for failure in failures if failure.reason != Reason.NOT_IN_USE]
            return dict.fromkeys(COVERAGE.machine, (broken or failures)[0])
        answering = [port.metrics for port in self._ports if port.failure is None]
        values: dict[str, Value] = {}
        for family in FAMILIES:
            told = distributions(family, [metrics.get(family.grpc, NOT_LISTED) for metrics in answering])
            if isinstance(told, Unavailable) or not told:
                series = self._sdk.first(family.sdk)
                why = told if isinstance(told, Unavailable) else NOTHING_YET
                told = sdk_distributions(family, series) or (series if why == NOT_LISTED and isinstance(series, Unavailable) else why)
            values |= machine_keys(family, told)
        lengths = queues([metrics.get(QUEUE_GRPC, NOT_LISTED) for metrics in answering]) or sdk_counts(self._sdk.first(QUEUE_SDK))
        return {**values, **{f"{QUEUE_KEY}.{name}": sound(length) for name, length in lengths.items()}}


class Served(NamedTuple):
    """A poll, as it is given out.

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
        SourceError: grpcio or protobuf is not installed, or there is neither a chip nor a runtime.
    """

    source = "grpc"
    machine_wide = True

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._chips = find_chips()
        shared = [chip.devices for chip in self._chips if chip.generation.duty_cycle_of_chip]
        self._per_chip = max(shared, default=1)
        self._speakers = Speakers()
        numbers = ports(os.environ.get(PORTS_VARIABLE, ""))
        try:
            self._runtimes = Runtimes(numbers, clock)
        except ImportError as error:
            missing = MissingDependencyError("grpcio" if error.name == "grpc" else "protobuf", EXTRA, backend=BACKEND)
            raise SourceError(missing.reason, missing.message, backend=BACKEND, advice=missing.advice) from error
        self._sdk = Sdk(SDK_NAMES, clock)
        self._holders = Holders({}, False)
        self._looked_at = -math.inf
        with ExitStack() as on_failure:
            on_failure.callback(self.close)
            first = self._poll([], FIRST_WAIT)
            self._listed = list_devices(self._chips, first.ids, first.holders)
            if not self._listed:
                asked = f"{HOST}:{', '.join(map(str, numbers))}"
                raise SourceError(Reason.DRIVER_UNAVAILABLE, f"no TPU on the PCI bus, and no runtime on {asked}")
            self._forms = [Form() for _ in range(len(self._listed) + 1)]
            self._polls = PollCache(self._serve(first, 1), clock, FRESH)
            on_failure.pop_all()
        self._devices = tuple(device.identity() for device in self._listed)

    @property
    def devices(self) -> Sequence[DeviceIdentity]:
        return self._devices

    def reader(self, options: ReadOptions) -> TpuReader:
        """A consumer's view. What is watched makes no difference to it."""
        del options
        return TpuReader(self)

    def close(self) -> None:
        """Close the connections."""
        self._runtimes.close()

    def read(self, unit: int, had: int, progress: list[Any]) -> tuple[int, Reading]:
        """The number of a poll and one unit's part of it: the latest poll if that is fresh, else a new one.

        Args:
            unit: The unit.
            had: Number of the poll that the caller was given last for this unit.
            progress: Where progress is reported.

        Raises:
            DriverGoneError: A runtime names devices that are not listed.
        """
        latest = self._polls.get(had, lambda number: self._serve(self._poll(progress), number))
        return latest.number, latest.readings[unit]

    def _poll(self, progress: list[Any], wait: float = 0.0) -> Poll:
        now = self._clock.monotonic()
        if now - self._looked_at >= HOLDERS_INTERVAL:
            self._holders, self._looked_at = find_holders(chip.node for chip in self._chips), now
            progress.append(now)
        answers = self._runtimes.ask(GRPC_NAMES, progress)
        # The SDK is loaded on a machine that has chips, and while a program uses them: never anywhere else.
        if self._chips and (self._holders.pids or any(port.failure is None for port in answers)):
            self._sdk.want(wait)
        return Poll(answers, self._sdk.latest(), self._holders, self._speakers, self._per_chip, self._clock.time_ns() / 1e9)

    def _serve(self, poll: Poll, number: int) -> Served:
        new = set(poll.ids) - {device.number for device in self._listed}
        if new:
            raise DriverGoneError(
                Reason.DRIVER_UNAVAILABLE, f"the runtime has new devices ({', '.join(map(str, sorted(new)))}): they are to be listed again"
            )
        finished = self._clock.monotonic()
        parts = [*poll.device_values(self._listed), poll.machine_values()]
        holding = [*(device.processes(poll.holders) for device in self._listed), None]
        units = zip(self._forms, parts, holding, strict=True)
        return Served(number, finished, tuple(form.reading(part, pids, finished) for form, part, pids in units))


class TpuReader:
    """One consumer's view: which poll it was given last, for each unit."""

    def __init__(self, driver: TpuDriver) -> None:
        self._driver = driver
        self._had: dict[int, int] = {}

    def read(self, unit: int, progress: list[Any]) -> Reading:
        """One unit's part of the latest poll."""
        self._had[unit], reading = self._driver.read(unit, self._had.get(unit, 0), progress)
        return reading
