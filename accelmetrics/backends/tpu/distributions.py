"""From distributions to the few numbers that are told of them.

The buckets are those of ``google.api.Distribution``: the first holds everything below the first bound, the last everything
from the last bound on. A percentile is interpolated within its bucket, as Google's own ``tpu-info`` does it. In the last
bucket that takes the largest value, and where the runtime does not tell that, the percentile is not known.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, isfinite

from accelmetrics.backends.tpu.messages import Buckets, Distribution, Summary

PERCENTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p999": 0.999}
"""What is taken from buckets, and from a summary if it is there."""
CLOSE = 1e-9


def statistics(parts: Sequence[Distribution | Summary]) -> dict[str, float]:
    """By name (``mean``, ``p50``, …) what is known of these distributions taken together; nothing when they are empty."""
    told = [part for part in parts if part.samples > 0]
    if not told:
        return {}
    if len(told) == 1 and isinstance(told[0], Summary):
        return _of_summary(told[0])
    mean = sum(_total(part) for part in told) / sum(part.samples for part in told)
    return {"mean": mean, **_percentiles(told)}


def _of_summary(summary: Summary) -> dict[str, float]:
    found = {"mean": summary.total / summary.samples}
    for name, share in PERCENTILES.items():
        for quantile, value in summary.quantiles:
            if abs(quantile - share) < CLOSE:
                found[name] = value
    return found


def _total(part: Distribution | Summary) -> float:
    return part.total if isinstance(part, Summary) else part.mean * part.samples


def _percentiles(parts: Sequence[Distribution | Summary]) -> dict[str, float]:
    """Counts of the same buckets can be added up; percentiles cannot, nor counts of different buckets."""
    histograms = [part for part in parts if isinstance(part, Distribution)]
    buckets = histograms[0].buckets if histograms else None
    if buckets is None or len(histograms) != len(parts) or any(part.buckets != buckets for part in histograms):
        return {}
    counts = [0] * max(len(part.counts) for part in histograms)
    for part in histograms:
        for index, count in enumerate(part.counts):
            counts[index] += count
    maximum = max(part.maximum for part in histograms)
    found = {name: percentile(counts, buckets, share, maximum) for name, share in PERCENTILES.items()}
    return {name: value for name, value in found.items() if value is not None}


def percentile(counts: Sequence[int], buckets: Buckets, share: float, maximum: float = 0.0) -> float | None:
    """Where so large a share of the values lies below; None where that cannot be told."""
    wanted = share * sum(counts)
    below = 0
    for index, count in enumerate(counts):
        if count and below + count >= wanted:
            low, high = bounds(buckets, index)
            high = maximum if high == inf else high
            value = low + (wanted - below) / count * (high - low)
            return value if isfinite(value) and low <= high else None
        below += count
    return None


def bounds(buckets: Buckets, index: int) -> tuple[float, float]:
    """Where a bucket begins and ends. None of what is measured is below 0, so there the first one begins."""
    return (_bound(buckets, index - 1) if index else min(0.0, _bound(buckets, 0)), _bound(buckets, index))


def _bound(buckets: Buckets, index: int) -> float:
    if buckets.kind == "explicit":
        return buckets.numbers[index] if index < len(buckets.numbers) else inf
    if buckets.finite and index > buckets.finite:
        return inf
    first, second = buckets.numbers
    if buckets.kind == "linear":
        return second + first * index
    try:
        return second * first**index
    except OverflowError:
        return inf
