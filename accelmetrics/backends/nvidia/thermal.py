"""Limits of temperature, for GPUs that tell thresholds and for those that tell margins.

Until Hopper NVML has thresholds in degrees. Ada and later may refuse these, and say how far the GPU is from a reference
(``nvmlDeviceGetMarginTemperature``) and how far each limit is from the same reference (the T.Limit fields, negative above it). A limit is
then the temperature and the margin, less the limit's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from accelmetrics.backends.contract import Value
from accelmetrics.backends.nvidia.calls import CallGroup
from accelmetrics.backends.nvidia.metrics import COLDEST, FAST_ROWS, HOTTEST, MARGIN, ONCE, T_LIMITS, NvmlMetric
from accelmetrics.backends.nvidia.nvml import Handle, Library, impossible, is_unsupported
from accelmetrics.schemas.errors import Unavailable

_HERE = tuple(row._replace(name=f"{row.name} now") for row in (*FAST_ROWS, MARGIN) if row.name in ("temp", MARGIN.name))
"""Temperature and margin, read at the same time."""
_T_LIMIT_ROWS = {name: NvmlMetric(f"{name} T.Limit", field, minimum=COLDEST, maximum=HOTTEST) for name, field in T_LIMITS.items()}


class Statics(CallGroup):
    """What is read once; a limit without a threshold is computed.

    Args:
        library: The open library.
        handle: The GPU's handle.
        rows: What to read.
    """

    def __init__(self, library: Library, handle: Handle, rows: tuple[NvmlMetric, ...]) -> None:
        limits = [_T_LIMIT_ROWS[row.name] for row in rows if row.name in T_LIMITS]
        super().__init__(library, handle, (*rows, *(_HERE if limits else ()), *limits), ONCE)
        self._names = tuple(row.name for row in rows)

    def ask(self, now: float, progress: list[Any]) -> Mapping[str, Value] | None:
        found = super().ask(now, progress)
        return found if found is None else {name: self._limit(name, found) for name in self._names}

    def _limit(self, name: str, found: Mapping[str, Value]) -> Value:
        answer = found[name]
        if name not in T_LIMITS or not is_unsupported(answer):
            return answer
        numbers = []
        for part in (found[row.name] for row in (_T_LIMIT_ROWS[name], *_HERE)):
            if isinstance(part, Unavailable):
                return answer if is_unsupported(part) else part
            numbers.append(part)
        own, temperature, margin = numbers
        limit = temperature + margin - own
        return limit if 1 <= limit <= HOTTEST else impossible(MARGIN.source.function)
