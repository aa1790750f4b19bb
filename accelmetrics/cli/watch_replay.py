"""``watch --replay``: playback of a recording, at its own pace or another, from any place; ``watch FILE`` follows a growing one."""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import suppress
from itertools import count
from pathlib import Path

from accelmetrics.cli.options import UsageError
from accelmetrics.cli.watch_source import WatchSource
from accelmetrics.schemas.errors import DocumentError
from accelmetrics.schemas.record import Record
from accelmetrics.schemas.recording import LINES_AT_ONCE, START, Names, RecordingIndex, RecordReader, names_of
from accelmetrics.schemas.snapshot import Snapshot
from accelmetrics.schemas.vitals import vitals
from accelmetrics.views.device_view import BY_NAME, OF_VITALS, WarningLevels
from accelmetrics.views.node_view import SHORTEST, host_values
from accelmetrics.views.trails import BUCKETS, HOST_KEY, HOST_VALUES, SCALES, SPANS, TrainingSeries

SPEEDS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0)
BUDGET = 0.04
"""Seconds per look for each of three tasks: indexing the files, playing records, and filling the history."""
SECOND = 1_000_000_000
LOGGED_IN_LINE = b'"training":'
"""Text in the line of a record in which a program logged a step."""


class ReplaySource(WatchSource):
    """Playback of a recording.

    Its files are indexed a little at each look, so that keys are handled meanwhile. After a jump the history is filled
    from the lines before that place, and from one record for each point of the longer scales.

    Args:
        path: The recording's name.
        levels: Levels above which values are warnings.
        host: The host to show, followed by ``:`` and a rank if it has several; empty for the first one.
        speed: Recorded seconds per second.
        stepwise: Whether each look takes one record, so that none is skipped.
        follow: Whether to begin at the end, with the last hour as history, and continue as the file grows or is replaced.

    Attributes:
        ended: Whether the last record of the recording is shown.

    Raises:
        UsageError: There is no file of this name, or it is no recording.
    """

    def __init__(
        self, path: str, levels: WarningLevels, host: str = "", speed: float = 1.0, stepwise: bool = False, *, follow: bool = False
    ) -> None:
        super().__init__(levels, SHORTEST)
        self.ended, self.replay = False, True
        self._path, self._name = path, Path(path).name
        self._speed = speed
        self._host = host
        self._stepwise, self._follow = stepwise, follow
        self._names: Names | None = None
        self._playing, self._live = True, False
        self._target: int | None = None
        self._arrival = 0  # the time to which the last jump went
        self._next: Record | None = None
        self._looked = time.monotonic()
        self._filling: Generator[None, None, None] | None = None
        # A pipe, for example, has no places to jump to.
        if not Path(path).is_file() and Path(path).exists():
            raise UsageError(f"{path} is not a regular file, so a replay cannot seek in it")
        try:
            first = self._open()
        except OSError as error:
            raise UsageError(f"cannot read the recording {path}: {error.strerror or error}") from error
        except DocumentError as error:
            self.close()
            raise UsageError(str(error)) from error
        if first is None and self._reader.skipped:
            self.close()
            raise UsageError(f"{path} is not a recording: {self._reader.complaint}")
        self._index.extend(BUDGET)
        self._clock = self._index.first_ns if first is None else first.snapshot.time_ns
        self._reader.jump(START)
        if follow:
            self._go_to_end()

    @property
    def label(self) -> str:
        """The current time in the recording, the speed, and the state of the playback."""
        if self._follow and self._live:
            return f"{self._name} live"
        first, last = self._index.first_ns, self._index.last_ns
        share = "" if not self._index.complete else f" {100 * (self._clock - first) / max(1, last - first):.0f}%"
        how = " searching" if self._target else " live" if self._live else " end" if self.ended else "" if self._playing else " paused"
        return f"replay {time.strftime('%Y-%m-%d', time.localtime(self._clock / SECOND))} {self._speed:g}x{share}{how}"

    @property
    def notice(self) -> str:
        """The reason why nothing is shown; empty if something is."""
        if self.record is not None or not self._index.complete or not self._host:
            return ""
        known = ", ".join(":".join(filter(None, names)) for names in self._index.names)
        return f"{self._name} has no record of {self._host}, only of {known}"

    def look(self) -> bool:
        """Play the records that are due. Return whether the view or the place has changed."""
        now = time.monotonic()
        elapsed, self._looked = now - self._looked, now
        changed = self._index.extend(BUDGET) and not self._index.complete
        if self._follow and self._index.replaced:
            self._begin_anew()
        if self._target is not None:
            # A jump waits until the index reaches the target.
            if not (self._index.complete or self._index.last_ns > self._target):
                return not self._stepwise
            self._clock = self._arrival = min(self._target, self._index.last_ns)
            self._target, self._next, self.view, self.record = None, None, None, None
            self.reset()
            try:
                self._reader.jump(self._index.mark(self._clock + 1))
            except FileNotFoundError:  # rotation has removed the oldest file: look for the place in those that are left
                self._begin_anew()
                self._go(self._arrival)
                return not self._stepwise
            self._refill(self._clock)
            changed = True
        elif self._live:
            self._clock = self._index.last_ns
        elif self._playing:
            self._clock += int(elapsed * self._speed * SECOND)
        changed = self._play() or changed
        while self._filling is not None and time.monotonic() < now + 3 * BUDGET:
            changed = True
            if next(self._filling, self) is self:
                self._filling = None
        return changed and (not self._stepwise or self.view is not None)

    def press(self, key: str, scale: str) -> str | None:
        """Handle a key that changes the speed, the place or the host. Return a message; None for another key."""
        faster = {">": 1, ".": 1, "<": -1, ",": -1}
        if key in faster:
            place = min(range(len(SPEEDS)), key=lambda number: abs(SPEEDS[number] - self._speed))
            self._speed = SPEEDS[min(max(place + faster[key], 0), len(SPEEDS) - 1)]
            return f"{self._speed:g} recorded seconds per second"
        if key in ("p", " "):
            self._playing, self._live = not self._playing, False
        elif key in ("left", "right"):
            self._go(self._clock + int((1 if key == "right" else -1) * SPANS[scale] / 2 * SECOND))
        elif key == "home":
            self._go(0)
        elif key == "end":
            self._go_to_end()
            return "at the end: new readings appear as they are recorded"
        elif key == "n":
            names = list(self._index.names)
            if len(names) < 2:
                return "the recording has no other host or rank" if self._index.complete else "no other host or rank found yet"
            self._names = names[(names.index(self._names) + 1) % len(names)] if self._names in names else names[0]
            self._go(self._clock)
            return f"{':'.join(filter(None, self._names))}, {names.index(self._names) + 1} of {len(names)}"
        else:
            return None
        return ""

    def follow(self, metric: str) -> None:
        """Keep a history of one more metric, beginning with earlier records."""
        if self.trails.follow(metric):
            self._refill(self._clock)

    def reset(self) -> None:
        """Clear the history and restart the summary."""
        super().reset()
        self._refill(None)

    def close(self) -> None:
        """Close the files."""
        if self._filling is not None:
            self._filling.close()
        self._index.close()
        self._reader.close()

    def _go(self, time_ns: int) -> None:
        self._target = max(time_ns, self._index.first_ns)
        self._live = False

    def _go_to_end(self) -> None:
        self._go(1 << 62)
        self._playing = self._live = True

    def _open(self) -> Record | None:
        """Open the files. Return the first record; None if there is none yet.

        Raises:
            OSError: A file cannot be read.
            DocumentError: The file is no recording.
        """
        index = RecordingIndex(self._path)
        self._index, self._reader = index, RecordReader(index.parts)
        return self._reader.record()

    def _begin_anew(self) -> None:
        """Follow the file that has replaced the followed one."""
        before = self._index, self._reader
        with suppress(OSError):  # the new file may be deleted already: the next look tries again
            self._open()
            self._refill(None)
            for one in before:
                one.close()
            self._names = None
            self._go_to_end()

    def _play(self) -> bool:
        """Take the records that are due. Return whether there was one, or the view has aged."""
        until, last = time.monotonic() + BUDGET, None
        while True:
            while self._next is None and (record := self._reader.record()) is not None:
                if self._is_shown(record):
                    self._next = record
            record = self._next
            if record is None or record.snapshot.time_ns > self._clock:
                break
            self._next, last = None, record
            if record.monitor is not None:
                self.trails.interval = record.monitor.interval
            self._add(record.snapshot)
            self.trails.add_steps(record.steps)
            self._window.add(record.snapshot, self.trails.interval)
            if self._stepwise:
                break
            if time.monotonic() > until:  # records cannot be read at this speed, so the clock falls back
                self._clock = max(self._arrival, record.snapshot.time_ns)
                break
        self.ended = record is None and self._index.complete and last is None and not self._follow
        self._clock = min(self._clock, max(self._index.last_ns, 1)) if self._index.complete else self._clock
        if last is not None:
            self.record = last
            self._show(0.0)
        elif self.record is not None and self.view is not None:
            age = max(0, self._clock - self.record.snapshot.time_ns) / SECOND
            # A file that is still written is live, so the age of its last record is measured by the current time.
            if self._live and (self._index.grown or self._follow):
                age = max(age, time.time() - self.record.snapshot.time_ns / SECOND)
            if age >= self.view.age_seconds + SHORTEST and age > self.trails.interval:
                self._show(age)
                return not self._stepwise
        return last is not None

    def _is_shown(self, record: Record) -> bool:
        names = names_of(record)
        if self._names is None and self._host in ("", names[0], ":".join(names)):
            self._names = names
        return names == self._names

    def _add(self, snapshot: Snapshot) -> None:
        """Add a reading's values to the history."""
        # A node_view also makes texts, which the history does not need.
        for slot, vital in zip(snapshot.identities, vitals(snapshot), strict=True):
            metrics = snapshot.values_of(slot.key)
            found: dict[str, float | None] = {}
            for name in self.trails.metrics:
                if name in OF_VITALS:
                    found[name] = getattr(vital, OF_VITALS[name])
                else:
                    names = BY_NAME[name].names if name in BY_NAME else (name,)
                    found[name] = next((metrics[one] for one in names if one in metrics), None)
            self.trails.add_values(snapshot.time_ns, slot.key, found)
        host = host_values(snapshot.metrics)
        self.trails.add_values(snapshot.time_ns, HOST_KEY, {name: host.get(name) for name in HOST_VALUES})

    def _refill(self, until_ns: int | None) -> None:
        """Begin to fill the history before a time; None to stop filling it."""
        if self._filling is not None:
            self._filling.close()
        self._filling = None if until_ns is None else self._fill(until_ns)

    def _fill(self, until_ns: int) -> Generator[None, None, None]:
        """Fill the history before a time, one record per step, with as many records as each scale has points."""
        reader = RecordReader(self._index.parts)
        try:
            for span in self._filled:
                width = int(span / BUCKETS * SECOND)
                moment = max(until_ns - int(span * SECOND), self._index.first_ns)
                reader.jump(self._index.mark(moment))
                while moment <= until_ns:
                    mark = self._index.mark(moment)
                    if (mark.part, mark.offset) > (reader.part, reader.offset):  # a jump back would read the same lines again
                        reader.jump(mark)
                    reader.skip(moment)
                    record = reader.record()
                    while record is not None and not self._is_shown(record) and record.snapshot.time_ns <= moment + width:
                        record = reader.record()
                    yield
                    if record is None:
                        break
                    if self._is_shown(record) and record.snapshot.time_ns <= until_ns:
                        self._add(record.snapshot)
                    moment = max(moment + width, record.snapshot.time_ns // width * width)
            yield from self._fill_steps(reader, until_ns)
        except (OSError, DocumentError):  # a file was removed meanwhile: there is that much less history
            return
        finally:
            reader.close()

    def _fill_steps(self, reader: RecordReader, until_ns: int) -> Generator[None, None, None]:
        """Fill in the steps that programs logged before a time, at most a few per point of the graph.

        A step may be in any record, so every line is searched for one. Only lines with a step are decoded.
        """
        spans = self._filled
        begin = max(until_ns - int(spans[-1] * SECOND), self._index.first_ns)
        reader.jump(self._index.mark(begin))
        last, series = 0, TrainingSeries()
        for number in count(1):
            line = reader.line()
            moment = reader.note(line)
            if not line or (moment is not None and moment > until_ns):
                return
            if moment is not None and moment >= begin and LOGGED_IN_LINE in line:
                span = next((span for span in spans if moment >= until_ns - span * SECOND), spans[-1])
                if moment - last >= span / BUCKETS / 2 * SECOND and (record := reader.decoded(line)) is not None and self._is_shown(record):
                    self.trails.add_steps(record.steps, series)
                    last = moment
            if number % LINES_AT_ONCE == 0:
                yield

    @property
    def _filled(self) -> tuple[float, ...]:
        """The lengths in seconds of the scales to fill. For a followed file the longest one is left out."""
        return tuple(SCALES.values())[: -1 if self._follow else None]
