"""The source ``neuron-monitor``: one child that prints a report per period, shared by all consumers.

Its configuration is a file in its own working directory, which no other user may enter and which goes with it. A report
older than two periods and a second is not served: the reason then is what became of the tool. A line that is not
understood is passed over as long as the one before it is fresh.
"""

from __future__ import annotations

import json
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from accelmetrics.backends.clock import Clock
from accelmetrics.backends.contract import Reading, ReadOptions
from accelmetrics.backends.kit.line_process import LineProcess, Record
from accelmetrics.backends.kit.poll_cache import Form
from accelmetrics.backends.neuron.report import COUNTERS, EXECUTION, MEMORY, Report, parse
from accelmetrics.backends.neuron.sysfs import chips
from accelmetrics.backends.neuron.totals import Totals, choose, picked_core, users
from accelmetrics.schemas.errors import DriverGoneError, SourceError
from accelmetrics.schemas.identity import DeviceIdentity
from accelmetrics.schemas.reasons import Reason, Unavailable

TOOL = "neuron-monitor"
CONFIGURATION = "neuron-monitor.json"
FIRST_REPORT = 8.0
"""Seconds to wait for the first report: the tool asks the instance's metadata service before it prints anything."""
LENIENCE = 1.0
"""Seconds beyond two periods after which a report is stale."""
SILENCE = 5
"""Periods without a report after which the tool is replaced, but not fewer than so many seconds."""
GLANCE = 0.02
ADVICE = "run neuron-monitor by hand, and neuron-ls, to see what they say"


def configuration(period: float) -> str:
    """What the tool is told to print, and how often (a duration as Go writes it: ``0.5s``)."""
    metrics = [{"type": section} for section in (COUNTERS, MEMORY, EXECUTION)]
    runtimes = [{"tag_filter": ".*", "metrics": metrics}]
    return json.dumps({"period": f"{period:g}s", "neuron_runtimes": runtimes, "system_metrics": [{"type": "neuron_hw_counters"}]})


class MonitorDriver:
    """The running tool.

    Args:
        path: Where it is.
        clock: Where the age of a report is taken from.
        period: Seconds between two reports.

    Raises:
        SourceError: It prints nothing that is understood, ends, or knows of no cores.
    """

    source = TOOL
    machine_wide = True

    def __init__(self, path: str, clock: Clock, period: float) -> None:
        self._limit = 2 * period + LENIENCE
        self._lock = threading.Lock()
        self._latest: tuple[int, Report, float] | None = None
        self._bad: tuple[int, SourceError] | None = None
        self._clock = clock
        self.stream = LineProcess(
            [path, "-c", CONFIGURATION],
            silence=max(float(SILENCE), SILENCE * period),
            files={CONFIGURATION: configuration(period)},
            clock=clock,
        )
        with ExitStack() as on_failure:
            on_failure.callback(self.stream.close)
            report = self._first(time.monotonic() + FIRST_REPORT + period)
            self._devices = self._listed(report)
            on_failure.pop_all()

    @property
    def devices(self) -> Sequence[DeviceIdentity]:
        return self._devices

    def reader(self, options: ReadOptions) -> MonitorReader:
        return MonitorReader(self, options)

    def close(self) -> None:
        self.stream.close()

    def report(self) -> tuple[Report, float]:
        """The newest report that is understood, and when it arrived.

        Raises:
            SourceError: There is none, or it is too old; with what became of the tool.
        """
        record = self.stream.latest()
        with self._lock:
            if record is not None:
                self._parse(record)
            latest, bad = self._latest, self._bad
        if latest is not None and self._clock.monotonic() - latest[2] <= self._limit:
            return latest[1], latest[2]
        raise self._missing(record, bad)

    def _parse(self, record: Record) -> None:
        if record.number in (self._latest[0] if self._latest else 0, self._bad[0] if self._bad else 0):
            return
        try:
            self._latest, self._bad = (record.number, parse(record.line), record.arrived), None
        except SourceError as error:
            self._bad = record.number, error

    def _missing(self, record: Record | None, bad: tuple[int, SourceError] | None) -> SourceError:
        failed = self.stream.failure
        if record is None:
            why = failed or Unavailable(Reason.TIMED_OUT, f"{TOOL} has printed nothing")
        elif bad is not None and record.age <= self._limit:
            why = bad[1].unavailable
        else:
            words = f"; {failed.detail}" if failed else ""
            why = Unavailable(Reason.STALE, f"{TOOL}'s last report is {record.age:.1f} s old{words}")
        return SourceError(why.reason, why.detail, backend="neuron", advice=ADVICE)

    def _first(self, deadline: float) -> Report:
        while True:
            try:
                return self.report()[0]
            except SourceError:
                if self.stream.ends or time.monotonic() >= deadline:
                    raise
            time.sleep(GLANCE)

    def _listed(self, report: Report) -> tuple[DeviceIdentity, ...]:
        self._known = frozenset(report.cores or {core for chip in chips() for core in chip.cores})
        if not self._known:
            words = report.hardware.error or f"{TOOL} knows of no Neuron device"
            raise SourceError(Reason.DRIVER_UNAVAILABLE, words, backend="neuron", advice=ADVICE)
        self.picked = picked_core(self._known)
        cores = sorted(self._known) if self.picked is None else [self.picked]
        chip, version = report.hardware.chip, report.hardware.core
        return tuple(DeviceIdentity("trn", "aws", core, name=chip, architecture=version) for core in cores)

    def check(self, report: Report) -> None:
        """Raise when there are cores that were not there: the devices are to be listed again."""
        new = report.cores - self._known
        if new:
            raise DriverGoneError(Reason.DRIVER_UNAVAILABLE, f"core {min(new)} is new: the cores are to be listed again")


class MonitorReader:
    """One consumer's view: which programs it asked for."""

    def __init__(self, driver: MonitorDriver, options: ReadOptions) -> None:
        self._driver = driver
        self._options = options
        self._arrived = -1.0
        self._totals: Totals | None = None
        self._forms: defaultdict[int, Form] = defaultdict(Form)

    def read(self, unit: int, progress: list[Any]) -> Reading:
        report, arrived = self._driver.report()
        progress.append(None)
        if self._totals is None or arrived != self._arrived:
            self._driver.check(report)
            chosen = choose(report.runtimes, self._options, self._driver.picked)
            self._totals, self._arrived = Totals(report, *chosen), arrived
        devices = self._driver.devices
        if unit == len(devices):
            return self._forms[unit].reading(self._totals.machine(), read_at=arrived)
        core = devices[unit].vendor_index
        return self._forms[unit].reading(self._totals.core(core), users(report, core), arrived)
