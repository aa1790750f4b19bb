"""One consumer's view of the host: the parts in order, each in a block of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from accelmetrics.backends.contract import NO_REASONS, Reading
from accelmetrics.backends.host.part import Clock, Moment, Part, Sheet
from accelmetrics.schemas.reasons import Unavailable

SLOW_PACE = 0.95
"""Seconds for which disks, network and power are not read again: a reading every second always finds them due."""


class PartsReader:
    """Runs parts. Whatever differences they take is theirs, so that no other consumer shortens this one's intervals.

    Args:
        parts: What is read at every reading, in this order.
        slow: What is read after it, at most every ``SLOW_PACE`` seconds: rates are over the intervals really taken.
        clock: Monotonic seconds.
    """

    def __init__(self, parts: Sequence[Part], slow: Sequence[Part], clock: Clock) -> None:
        self._sheets = [*(Sheet(part) for part in parts), *(Sheet(part, SLOW_PACE) for part in slow)]
        self._clock = clock
        self._kept: list[Mapping[str, Unavailable]] = [NO_REASONS] * len(self._sheets)
        self._unavailable: Mapping[str, Unavailable] = NO_REASONS

    def read(self, unit: int, steps: list[Any]) -> Reading:
        moment = Moment(self._clock, steps)
        blocks = []
        for sheet in self._sheets:
            blocks.append(sheet.read(moment))
            steps.append(None)
        return Reading(blocks, self._reasons())

    def _reasons(self) -> Mapping[str, Unavailable]:
        """All parts' reasons, the same mapping while each part's is the same."""
        kept = [sheet.reasons for sheet in self._sheets]
        if any(new is not old for new, old in zip(kept, self._kept, strict=True)):
            self._kept = kept
            self._unavailable = {name: why for reasons in kept for name, why in reasons.items()}
        return self._unavailable
