"""The error of an exporter whose peer answered, and said no."""

from __future__ import annotations

from accelmetrics.schemas.errors import AccelMetricsError

MAX_WORDS = 300


class RejectedError(AccelMetricsError):
    """The peer refused a record for good: offering it again would be refused again. The message holds the peer's own words."""


def words(text: str) -> str:
    """A peer's answer as one line of a message: white space folded, cut to a readable length."""
    folded = " ".join(text.split())
    return folded if len(folded) <= MAX_WORDS else f"{folded[: MAX_WORDS - 1]}…"
