"""The watched process's cgroup: its limits for the parts after it, time throttled, kills for lack of memory.

``proc.cpu.throttledPercent`` is the share of the quota's periods in which the quota ran out before the work did, as in W&B:
``nr_throttled`` ÷ ``nr_periods`` over the interval, at the level whose quota is the tightest. ``proc.memory.oomKills`` counts
``oom_kill`` of the process's own cgroup (with what lies below it) since this reader's first reading.
"""

from __future__ import annotations

from collections.abc import Sequence

from accelmetrics.backends.host.cgroup import Limits, find_limits, parse_flat
from accelmetrics.backends.host.memory import MemoryLevel
from accelmetrics.backends.host.numbers import FIRST, RESET, Counter, Pace, count
from accelmetrics.backends.host.part import Moment, Source
from accelmetrics.backends.kit.system import Files, KeptFile, reason_of, system_path
from accelmetrics.schemas.reasons import Reason, Unavailable

# Limits and membership change by an administrator's hand, not ten times a second.
_PACE_SECONDS = 0.9
_THROTTLED = "proc.cpu.throttledPercent"
_KILLS = "proc.memory.oomKills"
_NO_CGROUP = Unavailable(Reason.NOT_SUPPORTED, "the process is in no cgroup of version 2 that can be seen from here")
_NO_QUOTA = Unavailable(Reason.NOT_SUPPORTED, "no CPU quota is set for the process's cgroup")
_NO_PERIOD = Unavailable(Reason.NEEDS_INTERVAL, "no period of the CPU quota has ended since the last reading")
_NOTHING = Limits("")


class CgroupPart:
    """Limits at their own pace, throttling and kills at every reading."""

    def __init__(self, files: Files, pid: int) -> None:
        self._files = files
        self._pid = pid
        self._pace = Pace(_PACE_SECONDS)
        self._limits: Limits | None = None
        self._failure: Unavailable | None = None
        self._seen = False
        self._levels: list[MemoryLevel] = []
        self._stat: KeptFile | None = None
        self._events: KeptFile | None = None
        self._no_events: Unavailable | None = None
        self._begin()

    def read(self, moment: Moment) -> None:
        if self._pace.due(moment.now):
            self._refresh()
            self._no_events = None
        limits = self._limits
        moment.cpu_quota = limits.quota if limits else None
        self._throttling(moment)
        self._oom_kills(moment)

    def memory_levels(self) -> Sequence[MemoryLevel]:
        """Each level that limits memory."""
        return self._levels

    def _begin(self) -> None:
        """Count anew: at first, and when the process has been moved to another cgroup."""
        self._periods = Counter()
        self._throttled = Counter()
        self._kills = Counter()

    def _refresh(self) -> None:
        before = self._limits or _NOTHING
        try:
            self._limits, self._failure, self._seen = find_limits(self._pid), None, True
        except (OSError, ValueError) as error:
            self._limits, self._failure = None, self._why(error)
        after = self._limits or _NOTHING
        if after == before:
            return
        if (after.leaf, after.quota_directory) != (before.leaf, before.quota_directory):
            self._begin()
        self._levels = [self._level(directory, limit) for directory, limit in after.memory]
        self._stat = self._files.keep(f"{after.quota_directory}/cpu.stat") if after.quota_directory else None
        self._events = self._files.keep(f"{after.leaf}/memory.events") if after.leaf else None

    def _why(self, error: OSError | ValueError) -> Unavailable:
        """Why there are no limits: in the words of the process's other keys where there is no such process."""
        if isinstance(error, (FileNotFoundError, ProcessLookupError)) and not system_path(f"/proc/{self._pid}").exists():
            words = f"process {self._pid} has ended" if self._seen else f"there is no process {self._pid}"
            return Unavailable(Reason.NOT_IN_USE, words)
        return reason_of(error, f"the cgroup of process {self._pid}")

    def _level(self, directory: str, limit: int) -> MemoryLevel:
        file = self._files.keep(f"{directory}/memory.current")
        return MemoryLevel(limit, Source(file.path, lambda: count(file.read().strip())))

    def _throttling(self, moment: Moment) -> None:
        if self._stat is None:
            moment.reasons[_THROTTLED] = self._failure or (_NO_QUOTA if self._limits else _NO_CGROUP)
            return
        try:
            self._feed(parse_flat(self._stat.read()))
        except (OSError, ValueError) as error:
            moment.reasons[_THROTTLED] = reason_of(error, self._stat.path)
            return
        moment.put(_THROTTLED, self._share())

    def _feed(self, fields: dict[bytes, int]) -> None:
        try:
            periods, throttled = fields[b"nr_periods"], fields[b"nr_throttled"]
        except KeyError as error:
            raise ValueError(f"{error} is missing") from error
        self._periods.feed(periods)
        self._throttled.feed(throttled)

    def _share(self) -> float | Unavailable:
        periods, throttled = self._periods.gain, self._throttled.gain
        if periods is None or throttled is None:
            return FIRST if self._periods.seen == 1 else RESET
        # At ten readings a second a period of 100 ms ends in most intervals, not in all.
        return min(100.0 * throttled / periods, 100.0) if periods else _NO_PERIOD

    def _oom_kills(self, moment: Moment) -> None:
        if self._events is None or self._no_events is not None:
            moment.reasons[_KILLS] = self._no_events or self._failure or _NO_CGROUP
            return
        try:
            kills = parse_flat(self._events.read()).get(b"oom_kill")
        except OSError as error:
            # A file that is not there is not looked for again at every reading, but at the limits' own pace.
            moment.reasons[_KILLS] = self._no_events = reason_of(error, self._events.path)
            return
        if kills is None:
            moment.reasons[_KILLS] = Unavailable(Reason.NOT_SUPPORTED, f"{self._events.path} has no oom_kill")
            return
        self._kills.feed(kills)
        moment.put(_KILLS, FIRST if self._kills.seen == 1 else self._kills.total)
