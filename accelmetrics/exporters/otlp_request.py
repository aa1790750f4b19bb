"""A record as one OTLP request: points become data points, labels become the resource, counters get their start."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from accelmetrics._version import __version__
from accelmetrics.dialects.contract import Number, Point
from accelmetrics.dialects.health import monitor_points
from accelmetrics.dialects.otel import SCHEMA_URL, UPDOWNCOUNTERS, machine_points, step_points
from accelmetrics.exporters.fields import utf8
from accelmetrics.schemas.record import Record

if TYPE_CHECKING:
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

WHOLE = frozenset({"cpu.logical_number", "process.pid"})
"""Attributes that the conventions have as integers."""

INT64 = 2**63
Labels = tuple[tuple[str, str], ...]


class RequestBuilder:
    """Makes requests, and remembers since when each counter has been counting.

    That is unknown for a counter that some driver has kept since it was loaded. OTLP's form for it: the first point of a series
    starts at its own time, later ones carry that start, and a value below the last one (the driver was reset) starts anew.
    """

    def __init__(self) -> None:
        from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2
        from opentelemetry.proto.common.v1 import common_pb2
        from opentelemetry.proto.metrics.v1 import metrics_pb2

        self._service: Any = metrics_service_pb2
        self._common: Any = common_pb2
        self._metrics: Any = metrics_pb2
        self._counters: dict[tuple[str, Labels], tuple[int, Number]] = {}
        self._encoded = lru_cache(maxsize=8192)(self._encode)  # labels hardly ever change: half the time of a request

    def build(self, record: Record) -> ExportMetricsServiceRequest:
        """The request for one record. Building it again, to offer it again, gives the same."""
        request: ExportMetricsServiceRequest = self._service.ExportMetricsServiceRequest()
        resource = request.resource_metrics.add(schema_url=SCHEMA_URL)
        resource.resource.attributes.extend(self._encode(tuple(_resource(record).items())))
        scope = resource.scope_metrics.add(schema_url=SCHEMA_URL)
        scope.scope.name, scope.scope.version = "accelmetrics", __version__
        metrics: dict[str, Any] = {}
        now = record.snapshot.time_ns
        self._add(scope, metrics, machine_points(record.snapshot), now)
        for step in record.steps:
            self._add(scope, metrics, step_points(step), step.time_ns)
        if record.monitor is not None:
            self._add(scope, metrics, monitor_points(record.monitor, otel=True), now)
        return request

    def _add(self, scope: Any, metrics: dict[str, Any], points: Iterable[Point], time_ns: int) -> None:
        for point in points:
            metric = metrics.get(point.name)
            if metric is None:
                metric = metrics[point.name] = scope.metrics.add(name=point.name, unit=point.unit, description=point.meaning)
            labels = tuple(point.labels.items())
            if point.kind == "counter" or point.name in UPDOWNCOUNTERS:
                metric.sum.aggregation_temporality = self._metrics.AGGREGATION_TEMPORALITY_CUMULATIVE
                metric.sum.is_monotonic = point.kind == "counter"
                start, last = self._counters.get((point.name, labels), (time_ns, point.value))
                if point.kind == "counter" and point.value < last:
                    start = time_ns
                self._counters[point.name, labels] = (start, point.value)
                added = metric.sum.data_points.add(start_time_unix_nano=start)
            else:
                added = metric.gauge.data_points.add()
            added.time_unix_nano = time_ns
            added.attributes.extend(self._encoded(labels))
            if isinstance(point.value, int) and -INT64 <= point.value < INT64:
                added.as_int = point.value
            else:
                added.as_double = point.value

    def _encode(self, labels: Labels) -> list[Any]:
        found = []
        for name, value in labels:
            whole = name in WHOLE and value.isdecimal()
            word = self._common.AnyValue(int_value=int(value)) if whole else self._common.AnyValue(string_value=utf8(value))
            found.append(self._common.KeyValue(key=utf8(name), value=word))
        return found


def _resource(record: Record) -> dict[str, str]:
    """Attributes of the sending process; a label of the record goes before what is found here."""
    host, pid = record.snapshot.hostname, str(os.getpid())
    found = {
        "service.name": "accelmetrics",
        "service.version": __version__,
        "service.instance.id": f"{host}:{pid}",
        "host.name": host,
        "os.type": platform.system().lower(),
        "process.pid": pid,
    }
    return {**found, **record.labels}
