"""Values and reasons in the form of a reading, of which what did not change is the same object as last time."""

from __future__ import annotations

from collections.abc import Mapping

from accelmetrics.backends.contract import NO_REASONS, Block, Number, Reading
from accelmetrics.schemas.identity import DeviceProcess
from accelmetrics.schemas.reasons import Unavailable


class Form:
    """One unit's readings: the sampler recognises names and reasons that it was given before, and builds nothing anew."""

    __slots__ = ("_names", "_reasons")

    def __init__(self) -> None:
        self._names: tuple[str, ...] = ()
        self._reasons: Mapping[str, Unavailable] = NO_REASONS

    def reading(
        self,
        found: Mapping[str, Number | Unavailable],
        processes: tuple[DeviceProcess, ...] | None = None,
        read_at: float | None = None,
    ) -> Reading:
        """The reading.

        Args:
            found: By metric, its value or why there is none.
            processes: Who uses the device; None where that is not known.
            read_at: When the source took the numbers, in seconds on the monotonic clock; None for now.
        """
        values = {name: value for name, value in found.items() if not isinstance(value, Unavailable)}
        reasons = {name: value for name, value in found.items() if isinstance(value, Unavailable)}
        names = tuple(values)
        if names != self._names:
            self._names = names
        if reasons != self._reasons:
            self._reasons = reasons
        return Reading((Block(self._names, tuple(values.values())),), self._reasons, processes, read_at)
