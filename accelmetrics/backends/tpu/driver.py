"""The open source: its devices, and polls that serve all devices and all consumers.

A poll asks every runtime once and is shared. A consumer that does not have the latest poll gets it while it is fresh. Otherwise a new poll
is made, and others that ask meanwhile wait for it. The deadlines of the calls limit this wait.

Each device is served by one port. If two independent programs both report a device 0, the first port keeps it. The device of the second
port is unknown, so devices without a port get this as their reason.

If a runtime reports a device that is not listed, the source is opened again to list the devices again. If a runtime disappears, its devices
stay and are not in use.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from accelmetrics.backends.contract import NOT_NEEDED, SYSTEM_CLOCK, Clock, Reading, ReadOptions, Value
from accelmetrics.backends.kit import NodeHolders
from accelmetrics.backends.kit.fields import make_reading
from accelmetrics.backends.tpu.devices import (
    BACKEND,
    EXTRA,
    TpuChip,
    chip_groups,
    find_chips,
    identity,
    list_devices,
    processes,
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
    distributions,
    machine_keys,
    needed_names,
    port_devices,
    queues,
    sound,
    with_derived,
)
from accelmetrics.schemas.catalogue.tpu import FAMILIES, QUEUE_GRPC, QUEUE_KEY, QUEUE_SDK
from accelmetrics.schemas.errors import DriverGoneError, MissingDependencyError, Reason, SourceError, Unavailable
from accelmetrics.schemas.identity import DeviceIdentity

FRESH = 0.5
"""Seconds for which a poll is served to consumers that do not have it yet: half of the source's interval."""
MACHINE = -1
"""Key, in place of a device number, of values that belong to all devices."""


class PortAssignment:
    """Assignment of devices to ports, kept from poll to poll.

    Attributes:
        ports: For each device, the port that served it last.
        from_sdk: For each device (or ``MACHINE``) and metric, whether its first value came from the SDK rather than from the runtime. As
            long as a runtime reports the device, the metric keeps its source.
    """

    def __init__(self) -> None:
        self.ports: dict[int, int] = {}
        self.from_sdk: dict[tuple[int, str], bool] = {}
        self._conflicts: dict[int, tuple[int, int]] = {}

    @property
    def conflict(self) -> str:
        """Devices that two ports report, in words; empty without a conflict."""
        return "; ".join(
            f"the runtimes on ports {first} and {second} both have a device {n}" for n, (first, second) in self._conflicts.items()
        )

    def forget(self, device: int) -> None:
        """Forget the source of a device's metrics when no runtime reports the device, so that either source may serve it again."""
        for place in [place for place in self.from_sdk if place[0] == device]:
            del self.from_sdk[place]

    def assign(self, reports: Mapping[int, PortDevices]) -> dict[int, PortDevices]:
        """Return the report that serves each device in this poll.

        Another port may take over the device of a port that is gone, unless both ports once reported it in the same poll.

        Args:
            reports: The report of each port.
        """
        serving: dict[int, PortDevices] = {}
        for port, report in reports.items():
            for number in report[0]:
                known = self.ports.setdefault(number, port)
                if known != port and known in reports and number in reports[known][0]:
                    # A conflict is permanent: from now on it is unknown which chip each port means.
                    self._conflicts.setdefault(number, (known, port))
                elif number not in self._conflicts:
                    self.ports[number] = port
                if self.ports[number] == port:
                    serving[number] = report
        return serving


TpuPoll = tuple[int, frozenset[str], float, Sequence[Reading]]
"""Answers of all sources at one time: the number of the poll, counted from 1; the names that the runtimes were asked for; the time when all
had answered, on the monotonic clock; and the reading of each listed device and of the machine.
"""


class TpuDriver:
    """The open source; see the module's docstring. Any thread may read.

    Args:
        clock: Clock for ages and intervals.

    Raises:
        SourceError: grpcio or protobuf is not installed, or there is neither a chip nor a runtime.
    """

    source = "grpc"
    machine_wide = True
    interval = 1.0  # read in the background, so that a runtime that hangs delays no reading

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._chips = find_chips()
        shared = [chip.devices for chip in self._chips if chip.duty_cycle_of_chip]
        self._per_chip = max(shared, default=1)
        self._assignment = PortAssignment()
        numbers = ports(os.environ.get(PORTS_VARIABLE, ""))
        try:
            self._runtimes = Runtimes(numbers, clock)
        except ImportError as error:
            missing = MissingDependencyError("grpcio" if error.name == "grpc" else "protobuf", EXTRA, backend=BACKEND)
            raise SourceError(missing.reason, missing.message, backend=BACKEND, advice=missing.advice) from error
        self._sdk = Sdk(SDK_NAMES, clock)
        self._needed: set[str] = set()  # names that any reader has needed so far
        self._holders = NodeHolders(frozenset(chip.node for chip in self._chips).__contains__)
        # Connections must not stay open if the rest fails.
        with ExitStack() as on_failure:
            on_failure.callback(self.close)
            names = frozenset(GRPC_NAMES)
            answers = self._ask(names, [], FIRST_WAIT)
            reported = {number for devices, _ in self._reports(answers).values() for number in devices}
            self._listed = list_devices(self._chips, sorted(reported), self._holders)
            if not self._listed:
                asked = f"{HOST}:{', '.join(map(str, numbers))}"
                raise SourceError(Reason.DRIVER_UNAVAILABLE, f"no TPU on the PCI bus, and no runtime on {asked}")
            self._lock = threading.Lock()
            self._latest = self._poll(1, names, answers)
            on_failure.pop_all()
        self.devices: Sequence[DeviceIdentity] = tuple(identity(number, chip) for number, chip in self._listed.items())

    def reader(self, options: ReadOptions) -> TpuReader:
        """Return a new reader. The watched process makes no difference."""
        needed = needed_names(options.metrics)
        self._needed |= needed
        return TpuReader(self, needed, options.metrics.processes)

    def close(self) -> None:
        """Close all connections."""
        self._runtimes.close()

    def poll(self, had: int, needed: frozenset[str], progress: list[Any]) -> TpuPoll:
        """Return the latest poll if it is fresh, newer than poll ``had``, and asked for all needed names; else a new one.

        Raises:
            DriverGoneError: A runtime reports a device that is not listed.
        """
        now = self._clock.monotonic()
        with self._lock:
            number, asked, finished, _ = self._latest
            if number <= had or not needed <= asked or now - finished >= FRESH:
                names = frozenset(self._needed)
                self._latest = self._poll(number + 1, names, self._ask(names, progress))
            return self._latest

    def _ask(self, needed: frozenset[str], progress: list[Any], wait: float = 0.0) -> list[PortAnswers]:
        self._holders.look(progress)
        answers = self._runtimes.ask([name for name in GRPC_NAMES if name in needed], progress)
        # libtpu crashes on machines without a TPU, so the SDK is asked only if there are chips and a program uses them.
        if self._chips and (self._holders.held() or any(failure is None for _, failure, _ in answers)):
            self._sdk.want(wait)
        return answers

    def _reports(self, answers: Sequence[PortAnswers]) -> dict[int, PortDevices]:
        """Return the device values of each runtime that answered, by port."""
        now = self._clock.time_ns() / 1e9
        return {port: port_devices(metrics, self._per_chip, now) for port, failure, metrics in answers if failure is None}

    def _poll(self, number: int, asked: frozenset[str], answers: Sequence[PortAnswers]) -> TpuPoll:
        finished = self._clock.monotonic()
        reports, sdk = self._reports(answers), self._sdk.latest()
        new = {reported for devices, _ in reports.values() for reported in devices}.difference(self._listed)
        if new:
            raise DriverGoneError(
                Reason.DRIVER_UNAVAILABLE, f"the runtime has new devices ({', '.join(map(str, sorted(new)))}): the devices are listed again"
            )
        serving = self._assignment.assign(reports)
        # A runtime without devices still has reasons. They apply to the devices that no other port serves.
        for port in (port for port, (devices, _) in reports.items() if not devices):
            left = [device for device in self._listed if self._assignment.ports.get(device) in (None, port)]
            serving = {**dict.fromkeys(left, reports[port]), **serving}
        # The SDK lists only devices in use, by position, so they are counted here too.
        chips = chip_groups({device: chip for device, chip in self._listed.items() if device in serving} or self._listed, self._per_chip)
        cores = max((chip.cores or 1 for chip in self._chips), default=1)  # the same for all chips of a machine
        second = {field.name: sdk_devices(field, sdk.first(field.sdk), chips, self._per_chip, cores) for field in FIELDS}
        readings = []
        for device, chip in self._listed.items():
            report = serving.get(device)
            unserved = self._why_unserved(device, chip, answers) if report is None else None
            readings.append(make_reading(self._values(device, report, unserved, second), processes(chip, self._holders), finished))
        return number, asked, finished, (*readings, make_reading(self._machine_values(answers, sdk), None, finished))

    def _values(
        self,
        number: int,
        report: PortDevices | None,
        unserved: Unavailable | None,
        sdk: Mapping[str, Mapping[int, Value] | Unavailable],
    ) -> dict[str, Value]:
        """Return the values and reasons of a device.

        Args:
            number: The number of the device.
            report: The report of the port that serves it.
            unserved: Why no port serves it.
            sdk: The SDK's values of all devices, by metric.
        """
        if unserved is not None and unserved.reason == Reason.NOT_IN_USE:
            return dict.fromkeys(COVERAGE.devices, unserved)
        values: dict[str, Value] = {}
        first = self._assignment.from_sdk
        if report is None:
            self._assignment.forget(number)
        for field in FIELDS:
            value: Value = unserved or NOT_LISTED
            if report is not None:
                devices, missing = report
                value = devices.get(number, missing).get(field.name, missing[field.name])
            of_all = sdk[field.name]
            second = of_all if isinstance(of_all, Unavailable) else of_all.get(number, value)
            # The SDK's value fills in for a missing value of the runtime. The SDK's reason is used only for metrics that the
            # runtime never has.
            sdk_decides = unserved is None and not field.grpc
            use_second = isinstance(value, Unavailable) and (sdk_decides or not isinstance(second, Unavailable))
            # The metric keeps its first source while a runtime reports the device; see `PortAssignment.from_sdk`.
            use_second = first.get((number, field.name), use_second)
            values[field.name] = second if use_second else value
            if report is not None and not isinstance(values[field.name], Unavailable):
                first[number, field.name] = use_second
        return with_derived(values)

    def _why_unserved(self, number: int, chip: TpuChip | None, answers: Sequence[PortAnswers]) -> Unavailable:
        # A device that no port ever served may belong to any port, so the failure of any port explains it.
        known = self._assignment.ports.get(number)
        for port, failure, _ in answers:
            if failure is not None and failure.reason != Reason.NOT_IN_USE and known in (None, port):
                return failure
        pids = self._holders.of(chip.node) if chip is not None else ()
        if self._assignment.conflict and known is None and (pids or not self._holders.complete):
            return Unavailable(Reason.DRIVER_ERROR, f"{self._assignment.conflict}: it is not known which chip each means")
        asked = f"{HOST}:{', '.join(str(port) for port, _, _ in answers)}"
        if pids:
            hint = f"set {PORTS_VARIABLE} for it and for this program"
            return Unavailable(Reason.DRIVER_UNAVAILABLE, f"process {pids[0]} holds it and serves no metrics on {asked}: {hint}")
        if not self._holders.complete:
            return Unavailable(Reason.NOT_IN_USE, f"no runtime on {asked} reports it; the processes that hold it cannot be seen")
        return Unavailable(Reason.NOT_IN_USE, f"no program holds it: no runtime on {asked} reports it")

    def _machine_values(self, answers: Sequence[PortAnswers], sdk: SdkReading) -> dict[str, Value]:
        """Return the values of all devices together: from the runtimes, and from the SDK if the runtimes have none."""
        failures = [failure for _, failure, _ in answers if failure is not None]
        if len(failures) == len(answers):
            self._assignment.forget(MACHINE)
            broken = [failure for failure in failures if failure.reason != Reason.NOT_IN_USE]
            return dict.fromkeys(COVERAGE.machine, (broken or failures)[0])
        answering = [metrics for _, failure, metrics in answers if failure is None]
        values: dict[str, Value] = {}
        for family in FAMILIES:
            found = distributions(family, [metrics.get(family.grpc, NOT_LISTED) for metrics in answering])
            place = (MACHINE, family.grpc)
            why = found if isinstance(found, Unavailable) else NOTHING_YET
            use_sdk = self._assignment.from_sdk.get(place, why is found or not found)
            if use_sdk:
                series = sdk.first(family.sdk)
                found = sdk_distributions(family, series) or (series if why == NOT_LISTED and isinstance(series, Unavailable) else why)
            if not isinstance(found, Unavailable) and found:
                self._assignment.from_sdk[place] = use_sdk
            values |= machine_keys(family, found or why)
        lengths = queues([metrics.get(QUEUE_GRPC, NOT_LISTED) for metrics in answering]) or sdk_counts(sdk.first(QUEUE_SDK))
        return {**values, **{f"{QUEUE_KEY}.{name}": sound(length) for name, length in lengths.items()}}


class TpuReader:
    """A consumer's view. It remembers for each unit which poll it returned last."""

    def __init__(self, driver: TpuDriver, needed: frozenset[str], processes: bool) -> None:
        self._driver = driver
        self._needed = needed
        self._reads = bool(needed) or processes
        self._returned: dict[int, int] = {}

    def read(self, unit: int, progress: list[Any]) -> Reading:
        """Return the unit's part of the latest poll."""
        if not self._reads:
            return Reading(processes=NOT_NEEDED if unit < len(self._driver.devices) else None)
        self._returned[unit], _, _, readings = self._driver.poll(self._returned.get(unit, 0), self._needed, progress)
        return readings[unit]
