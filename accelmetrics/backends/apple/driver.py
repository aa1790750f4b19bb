"""The open source: what several commands give, gathered in rounds that the GPU and the machine's own unit share.

A round asks ``ioreg``, then takes macmon's latest line, and runs ``powermetrics`` where there is no macmon and we are root.
Each may fail by itself. A unit that a consumer has had from the latest round gets a new one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

from accelmetrics.backends.apple import ioreg, machine, powermetrics, static
from accelmetrics.backends.apple.coverage import COVERAGE
from accelmetrics.backends.apple.detection import BACKEND
from accelmetrics.backends.apple.pipe import INTERVAL, MacmonPipe
from accelmetrics.backends.apple.sheet import Sheet, merge
from accelmetrics.backends.apple.tools import INSTALL_MACMON
from accelmetrics.backends.apple.values import Values
from accelmetrics.backends.clock import Clock
from accelmetrics.backends.contract import Reading, ReadOptions
from accelmetrics.backends.kit.poll_cache import Form, PollCache
from accelmetrics.schemas.errors import SourceError
from accelmetrics.schemas.identity import DeviceIdentity
from accelmetrics.schemas.reasons import Reason, Unavailable

FRESH = INTERVAL / 2
"""Seconds for which a round is served to units and consumers that have not had it."""

NO_LIMIT = Unavailable(Reason.NOT_SUPPORTED, "nobody publishes a power limit for the GPUs of Apple's chips")
ROOT_ONLY = Unavailable(Reason.NO_PERMISSION, "powermetrics gives it to root alone")


class Poll(NamedTuple):
    """What was gathered.

    Attributes:
        number: Counted from 1.
        finished: When, on the monotonic clock.
        sheets: What each source gave, the best source first.
    """

    number: int
    finished: float
    sheets: tuple[Sheet, ...]

    @property
    def sources(self) -> str:
        """The names of those that gave something: ``macmon+ioreg``."""
        return "+".join(sheet.source for sheet in self.sheets if sheet.failure is None)


class AppleDriver:
    """The commands. Any thread may read.

    Args:
        clock: Where ages are taken from.

    Raises:
        SourceError: None of them says anything.
    """

    machine_wide = True

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._accelerator: ioreg.Accelerator | None = None
        self._macmon = MacmonPipe(clock)
        with ExitStack() as on_failure:
            on_failure.callback(self._macmon.close)
            self._macmon.start()
            self._ram = static.memory()
            profile = static.profile()  # macmon gets ready meanwhile
            self._macmon.wait()
            self._rounds = PollCache(self._first(), clock, FRESH)
            self._devices = (static.identify(profile, self._accelerator, self._ram),)
            on_failure.pop_all()

    @property
    def source(self) -> str:
        return self._rounds.latest.sources

    @property
    def devices(self) -> Sequence[DeviceIdentity]:
        return self._devices

    def reader(self, options: ReadOptions) -> AppleReader:
        """A consumer's view. The commands say nothing of processes: the options change nothing."""
        del options
        return AppleReader(self)

    def close(self) -> None:
        self._macmon.close()

    def round(self, had: int) -> Poll:
        """The latest round while it is fresh, else a new one.

        Args:
            had: Number of the round that the caller was given last for the unit it reads now.
        """
        return self._rounds.get(had, self._gather)

    def _first(self) -> Poll:
        gathered = self._gather(1)
        if not gathered.sources:
            raise _silent(gathered.sheets)
        return gathered

    def _gather(self, number: int) -> Poll:
        if self._ram is None:
            self._ram = _whole(self._macmon.read())
        accelerator = self._ask("ioreg", ioreg.NAMES, self._ioreg)
        macmon = self._macmon.read()  # after what takes longer, so that it is fresh
        sheets = [macmon, accelerator]
        if not self._macmon.trusted:
            sheets.append(self._powermetrics())
        return Poll(number, self._clock.monotonic(), tuple(sheets))

    def _ioreg(self) -> Values:
        self._accelerator = ioreg.run()
        return ioreg.read(self._accelerator, self._ram)

    def _powermetrics(self) -> Sheet:
        if not machine.is_root():
            return Sheet.missing("powermetrics", powermetrics.NAMES, ROOT_ONLY)
        return self._ask("powermetrics", powermetrics.NAMES, powermetrics.run)

    def _ask(self, source: str, gives: frozenset[str], run: Callable[[], Values]) -> Sheet:
        try:
            values = run()
        except SourceError as error:
            return Sheet.missing(source, gives, error.unavailable)
        return Sheet(source, gives, values, read_at=self._clock.monotonic())


class AppleReader:
    """One consumer's view: which round it was given last, for the GPU and for the machine's own unit."""

    def __init__(self, driver: AppleDriver) -> None:
        self._driver = driver
        self._had: dict[int, int] = {}
        self._owed = (tuple(COVERAGE.devices), tuple(COVERAGE.machine))
        self._forms = (Form(), Form())

    def read(self, unit: int, progress: list[Any]) -> Reading:
        latest = self._driver.round(self._had.get(unit, 0))
        progress.append(latest.number)
        self._had[unit] = latest.number
        merged = merge(self._owed[unit], latest.sheets)
        if "powerPercent" in merged.reasons:
            merged.reasons["powerPercent"] = NO_LIMIT
        read_at = latest.finished if merged.read_at is None else merged.read_at
        return self._forms[unit].reading({**merged.values, **merged.reasons}, read_at=read_at)


def _whole(sheet: Sheet) -> int | None:
    total = sheet.get("memoryTotalBytes")
    return total if isinstance(total, int) else None


def _silent(sheets: Sequence[Sheet]) -> SourceError:
    failures = [sheet.failure for sheet in sheets if sheet.failure is not None]
    telling = next((why for why in failures if why.reason not in (Reason.DRIVER_UNAVAILABLE, Reason.NO_PERMISSION)), failures[0])
    words = "; ".join(why.detail for why in failures)
    return SourceError(telling.reason, words, backend=BACKEND, advice=INSTALL_MACMON)
