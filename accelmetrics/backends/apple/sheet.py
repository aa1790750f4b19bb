"""What one source gave, and how several are made into one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from accelmetrics.backends.apple.values import Value
from accelmetrics.schemas.reasons import Reason, Unavailable

NOBODY = Unavailable(Reason.NOT_SUPPORTED, "no source here gives it")


class Sheet(NamedTuple):
    """What one source gave at one moment.

    Attributes:
        source: Its name.
        gives: The metrics that it can give at all.
        values: The values and reasons, by metric.
        failure: Why it gave nothing; None when it did.
        read_at: When the source took the numbers, on the monotonic clock.
    """

    source: str
    gives: frozenset[str]
    values: Mapping[str, Value]
    failure: Unavailable | None = None
    read_at: float = 0.0

    @classmethod
    def missing(cls, source: str, gives: frozenset[str], failure: Unavailable) -> Sheet:
        """One without values."""
        return cls(source, gives, {}, failure)

    def get(self, name: str) -> Value:
        """A metric's value, or why there is none."""
        return self.values.get(name, self.failure or NOBODY)


class Merged(NamedTuple):
    """Some metrics from several sources.

    Attributes:
        values: The values.
        reasons: Why others are missing.
        read_at: The oldest moment at which a value was taken; None when there is no value.
    """

    values: dict[str, int | float]
    reasons: dict[str, Unavailable]
    read_at: float | None


def merge(names: Iterable[str], sheets: Sequence[Sheet]) -> Merged:
    """Each metric from the first source that has a value for it.

    Args:
        names: The metrics.
        sheets: The sources, the best first.
    """
    merged = Merged({}, {}, None)
    moments = []
    for name in names:
        answers = [(sheet, sheet.get(name)) for sheet in sheets if name in sheet.gives]
        found = next(((sheet, value) for sheet, value in answers if not isinstance(value, Unavailable)), None)
        if found is None:
            merged.reasons[name] = _why([value for _, value in answers if isinstance(value, Unavailable)])
        else:
            merged.values[name] = found[1]
            moments.append(found[0].read_at)
    return merged._replace(read_at=min(moments, default=None))


def _why(reasons: Sequence[Unavailable]) -> Unavailable:
    """Why no source has it: in the words of all; a source that is there says more than one that is not."""
    if not reasons:
        return NOBODY
    telling = [why for why in reasons if why.reason != Reason.DRIVER_UNAVAILABLE] or reasons
    return Unavailable(telling[0].reason, "; ".join(dict.fromkeys(why.detail for why in reasons)))
