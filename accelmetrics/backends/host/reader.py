"""One consumer's view of the host: the parts in order, each in a block of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from accelmetrics.backends.contract import NO_REASONS, Reading
from accelmetrics.backends.host.part import Clock, Moment, Sheet
from accelmetrics.schemas.reasons import Unavailable


class PartsReader:
    """Runs parts. Whatever differences they take is theirs, so that no other consumer shortens this one's intervals.

    Args:
        sheets: The parts with their paces, in the order in which they are read.
        clock: Monotonic seconds.
    """

    def __init__(self, sheets: Sequence[Sheet], clock: Clock) -> None:
        self._sheets = sheets
        self._moment = Moment(clock)
        self._kept: list[Mapping[str, Unavailable]] = [NO_REASONS] * len(sheets)
        self._unavailable: Mapping[str, Unavailable] = NO_REASONS

    def read(self, unit: int, progress: list[Any]) -> Reading:
        moment = self._moment
        moment.begin(progress)
        blocks = []
        for sheet in self._sheets:
            blocks.append(sheet.read(moment))
            progress.append(None)
        return Reading(blocks, self._reasons())

    def _reasons(self) -> Mapping[str, Unavailable]:
        """All parts' reasons, the same mapping while each part's is the same."""
        kept = [sheet.reasons for sheet in self._sheets]
        if any(new is not old for new, old in zip(kept, self._kept, strict=True)):
            self._kept = kept
            self._unavailable = {name: why for reasons in kept for name, why in reasons.items()}
        return self._unavailable
