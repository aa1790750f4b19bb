"""Graphcore IPUs, through the vendor's Python module ``gcipuinfo``.

The module comes with the Poplar SDK, not from PyPI. One call lists every IPU with its attributes as text
(:mod:`~accelmetrics.backends.graphcore.library`); what each metric is read from stands in
:mod:`~accelmetrics.backends.graphcore.attributes`, and the IPUs of one pass share a call
(:mod:`~accelmetrics.backends.graphcore.driver`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from accelmetrics.backends.clock import SYSTEM_CLOCK, Clock
from accelmetrics.backends.contract import Coverage, Detection, Driver, catalogued
from accelmetrics.backends.graphcore.driver import GraphcoreDriver
from accelmetrics.backends.graphcore.library import BACKEND
from accelmetrics.schemas.identity import DeviceKind
from accelmetrics.schemas.metric import Metric


class GraphcoreBackend:
    """Graphcore IPUs.

    Args:
        clock: Where the age of a listing is taken from.
    """

    name = BACKEND
    kind: ClassVar[DeviceKind | None] = "ipu"
    interval = 0.0

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock

    def detect(self) -> Detection:
        return Detection(True, "found out by opening")  # its registration looks for the hardware

    def open(self) -> Driver:
        return GraphcoreDriver(self._clock)

    def coverage(self) -> Coverage:
        return catalogued(self.name)

    def own_metrics(self) -> Iterable[Metric]:
        return ()


backend = GraphcoreBackend()
