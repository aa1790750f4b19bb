"""Metrics of another endpoint as a source: ``openmetrics:http://localhost:9400/metrics?name=dcgm&filter=DCGM_FI_DEV_*``.

Gauges, counters and untyped numbers become ``openmetrics.<name>.<metric>.<n>``, in the endpoint's own units. ``n`` distinguishes the series
of a metric. If each series has a label ``gpu`` with a different number, as DCGM's exporter writes it, ``n`` is this number. Otherwise it is
the position of the series, sorted by labels, when they were first seen. A new series gets the next number; a series that returns keeps its
number.

The endpoint is read in the background at its own interval, so that a slow endpoint delays no reading.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from itertools import count
from math import isfinite
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from accelmetrics._version import __version__
from accelmetrics.backends.contract import SYSTEM_CLOCK, Clock, Coverage, Detection, Reading, ReadOptions
from accelmetrics.schemas.errors import InvalidOptionError, Reason, SourceError, Unavailable, require
from accelmetrics.schemas.http_client import HttpClient
from accelmetrics.schemas.identity import DeviceIdentity, DeviceKind
from accelmetrics.schemas.metric import Metric

PREFIX = "openmetrics"
LARGEST_ANSWER = 8 * 1024 * 1024
MOST_SERIES = 4096
OPENMETRICS = "application/openmetrics-text"
OPTIONS = ("name", "filter", "interval", "timeout")
"""Options in the query of the address. They are not sent to the endpoint."""
ROW = Metric(
    f"{PREFIX}.{{label}}",
    "1",
    "gauge",
    "A number of another endpoint, in its own unit: the endpoint, the metric, and which of its series.",
    'accel_openmetrics_value{series="{label}"}',
    'accel.openmetrics.value{accelmetrics.series="{label}"}',
    minimum=None,
)

Labels = tuple[tuple[str, str], ...]
"""Labels of a series, sorted by name."""


Sample = tuple[str, Labels, float]
"""A number of the page: the metric's name, the labels of the series, the value."""


class OpenMetricsBackend:
    """An endpoint. It pickles.

    Args:
        spec: The address after ``openmetrics:``, with options in its query: ``name``, used in keys, by default host and port; ``filter``,
            names of metrics with ``*``, may be repeated; ``interval`` and ``timeout`` in seconds (5 and 3). All other parameters are sent
            to the endpoint.
        clock: Clock for the time of the answers.

    Attributes:
        name: ``openmetrics.<name>``.
        url: The address to ask, with the password if it has one.
        shown: The address without secrets, for messages.

    Raises:
        InvalidOptionError: The address or an option is invalid.
    """

    kind: DeviceKind | None = None

    def __init__(self, spec: str, clock: Clock = SYSTEM_CLOCK) -> None:
        try:
            parts = urlsplit(spec)
            host, port = parts.hostname, parts.port
        except ValueError as error:
            raise InvalidOptionError(f"openmetrics: the address cannot be read: {error}") from None
        if parts.scheme not in ("http", "https") or not host:
            raise InvalidOptionError("openmetrics: write an address, such as openmetrics:http://localhost:9400/metrics")
        query = parse_qsl(parts.query, keep_blank_values=True)
        options = {option: [value for name, value in query if name == option] for option in OPTIONS}
        sent = urlencode([(name, value) for name, value in query if name not in OPTIONS])
        named = (options["name"] or [re.sub(r"[^A-Za-z0-9_-]", "_", host + (f"_{port}" if port else ""))])[-1]
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", named):
            raise InvalidOptionError(f"openmetrics: the name {named!r} must be letters, digits, _ and -")
        self.name = f"{PREFIX}.{named}"
        self.interval = _seconds("interval", options["interval"], 5.0)
        self.timeout = _seconds("timeout", options["timeout"], 3.0)
        self.filters = tuple(pattern for value in options["filter"] for pattern in value.split("|") if pattern)
        self.url = parts._replace(query=sent, fragment="").geturl()
        # User name, password and query may contain secrets.
        self.shown = parts._replace(netloc=quote(parts.netloc.rpartition("@")[2], safe=":[]"), query="", fragment="").geturl()
        self.clock = clock

    def detect(self) -> Detection:
        return Detection(True, f"{self.shown} was configured")

    def open(self) -> OpenMetricsDriver:
        require("prometheus_client", PREFIX, "prometheus-client")
        accept = f"{OPENMETRICS};version=1.0.0;q=0.9,text/plain;version=0.0.4;q=0.8"
        try:
            # One byte more than allowed, so that an answer that is too large is noticed.
            client = HttpClient(
                self.url, self.timeout, PREFIX, {"user-agent": f"accelmetrics/{__version__}", "accept": accept}, largest=LARGEST_ANSWER + 1
            )
            client.open()
        except (OSError, ValueError) as error:
            raise SourceError(Reason.DRIVER_ERROR, f"{self.shown} cannot be read: {error}", backend=self.name) from error
        return OpenMetricsDriver(self, client)

    def coverage(self) -> Coverage:
        return Coverage(optional={f"{self.name}.{{label}}": f"GET {self.shown}"})

    def own_metrics(self) -> Iterable[Metric]:
        return (ROW,)


class OpenMetricsDriver:
    """The connection to the endpoint, and the numbers of the series."""

    machine_wide = True
    devices: Sequence[DeviceIdentity] = ()

    def __init__(self, backend: OpenMetricsBackend, client: HttpClient) -> None:
        self.source = "http"
        self._backend = backend
        self._client = client
        self._numbers: dict[str, dict[Labels, int]] = {}

    def reader(self, options: ReadOptions) -> OpenMetricsDriver:
        """Return the driver itself: there are no rates, and series have the same numbers for all consumers."""
        del options
        return self

    def close(self) -> None:
        self._client.close()

    def read(self, unit: int, progress: list[Any]) -> Reading:
        del unit
        try:
            status, kind, body = self._client.ask()
        except OSError as error:
            reason = Reason.TIMED_OUT if isinstance(error, TimeoutError) else Reason.DRIVER_UNAVAILABLE
            raise SourceError(reason, str(error), backend=self._backend.name) from error
        progress.append(None)
        at = self._backend.clock.monotonic()
        if status != 200:
            raise self._failure(Reason.NO_PERMISSION if status in (401, 403) else Reason.DRIVER_ERROR, f"it answers {status}")
        if len(body) > LARGEST_ANSWER:
            raise self._failure(Reason.INVALID_VALUE, f"the answer is larger than {LARGEST_ANSWER >> 20} MiB")
        try:
            samples = list(samples_of(body.decode("utf-8", "replace"), kind == OPENMETRICS, self._backend.filters))
        except ValueError as error:
            raise self._failure(Reason.PARSE_ERROR, f"the answer is no page of metrics: {error}") from error
        reasons: dict[str, Unavailable] = {}
        if len(samples) > MOST_SERIES:
            why = f"{self._backend.shown} has {len(samples)} series, and the first {MOST_SERIES} are read: select some with filter="
            reasons = {f"{self._backend.name}.{samples[MOST_SERIES][0]}": Unavailable(Reason.NOT_SUPPORTED, why)}
        return Reading.of(dict(self._keyed(samples[:MOST_SERIES])), reasons, read_at=at)

    def _keyed(self, samples: Sequence[Sample]) -> Iterator[tuple[str, float]]:
        """Yield the key and the value of each series, without values that are not finite."""
        by_metric: dict[str, list[tuple[Labels, float]]] = {}
        for metric, labels, value in samples:
            by_metric.setdefault(metric, []).append((labels, value))
        if len(self._numbers) > MOST_SERIES:  # names that change at every reading: keep only the current ones
            self._numbers = {metric: known for metric, known in self._numbers.items() if metric in by_metric}
        for metric, series in by_metric.items():
            known = self._numbers.setdefault(metric, {})
            now = {labels for labels, _ in series}
            fresh = sorted(now - known.keys())
            # DCGM's exporter labels the series of a GPU with its number.
            gpus = [int(gpu) for labels in fresh if re.fullmatch(r"(?a:\d{1,4})", gpu := dict(labels).get("gpu", ""))]
            is_by_gpu = not known and len(set(gpus)) == len(fresh)  # each series has another GPU
            known.update(zip(fresh, gpus if is_by_gpu else count(max(known.values(), default=-1) + 1), strict=False))
            if len(known) > MOST_SERIES:  # labels that change at every reading: keep only the current ones
                self._numbers[metric] = known = {labels: known[labels] for labels in now}
            yield from ((f"{self._backend.name}.{metric}.{known[labels]}", value) for labels, value in series if isfinite(value))

    def _failure(self, reason: Reason, words: str) -> SourceError:
        return SourceError(reason, f"{self._backend.shown}: {words}", backend=self._backend.name)


def samples_of(text: str, openmetrics: bool, filters: Sequence[str] = ()) -> Iterator[Sample]:
    """Yield the numbers of a page that are single values: no histograms, no summaries, and no creation times of counters.

    Args:
        text: The page.
        openmetrics: Whether the page has the OpenMetrics format rather than the older Prometheus format.
        filters: Names of metrics to read, with ``*``; empty for all.

    Raises:
        ValueError: It is no page of this format.
        ImportError: ``prometheus-client`` is not installed.
    """
    parse: Callable[[str], Iterable[Any]]
    if openmetrics:
        from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse
    else:
        from prometheus_client.parser import text_string_to_metric_families as parse
    page = f"\n{text}"
    for family in parse(text):
        # The parser of the older format adds `_total` to the name of every counter, also if the page has none, as DCGM's.
        added = family.type == "counter" and not openmetrics and not any(f"\n{family.name}_total{end}" in page for end in "{ \t")
        for sample in family.samples if family.type in ("gauge", "counter", "unknown", "untyped") else ():
            name = sample.name.removesuffix("_total" if added else "")
            if name != f"{family.name}_created" and (not filters or any(fnmatchcase(name, pattern) for pattern in filters)):
                yield name, tuple(sorted(sample.labels.items())), float(sample.value)


def _seconds(option: str, values: Sequence[str], usual: float) -> float:
    try:
        value = float(values[-1]) if values else usual
    except ValueError:
        value = 0.0
    if not 0.1 <= value <= 3600.0:
        raise InvalidOptionError(f"openmetrics?{option} is {values[-1]!r}: it must be a number of seconds from 0.1 to 3600")
    return value
