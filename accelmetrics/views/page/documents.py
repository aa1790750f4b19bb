"""The web documents of ``accelmetrics serve``: JSON about the node, columns of the page's graphs, and static files.

Requests never read a device; only the monitor does. A document is built once for each reading, when a client first requests it, on the
server's answer thread. Its bytes are kept until the next reading. Without clients nothing is built.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import hashlib
import json
import math
import re
import time
import zlib
from array import array
from bisect import bisect_left, bisect_right
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from html import escape
from importlib.resources import files
from itertools import groupby, pairwise
from statistics import fmean
from threading import Lock
from typing import Any

from tornado.httputil import HTTPServerRequest
from tornado.web import HTTPError

from accelmetrics._version import __version__
from accelmetrics.exporters.http.server import HttpAnswer, Route
from accelmetrics.exporters.scrape_cache import accepts_gzip, is_recent
from accelmetrics.schemas.reading import Header, header
from accelmetrics.schemas.record import Finding, Record, Step
from accelmetrics.schemas.ring import History, Ring, Row
from accelmetrics.schemas.snapshot import Snapshot, rfc3339
from accelmetrics.schemas.text import celsius, clipped, fixed, memory, percent, watts
from accelmetrics.views.device_view import VALUES, DeviceView
from accelmetrics.views.node_view import NodeView, ProcessRow, equal_findings, node_view
from accelmetrics.views.summaries import named, reasons
from accelmetrics.views.trails import (
    FIXED,
    FOLLOWED,
    HELD,
    HOLDS,
    LEAST_HOLD,
    MOST_PROGRAMS,
    TRAINING_VALUES,
    TrainingSeries,
    training_key,
)
from accelmetrics.visibility.processes import ProcessLookup

JSON, LINES, HTML = "application/json", "application/x-ndjson", "text/html; charset=utf-8"
CONTENT_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
"""Suffixes of the files that are served, with their content types."""
INDEX = "index.html"
PER_SECOND = 100
"""Largest number of readings in a second."""
RECENT_VIEW = 10.0
"""Largest age in seconds (or three intervals if longer) of a previous view from which the start of a device's silence is taken.

Views are made only on request, so the previous one may be much older than the silence.
"""
MOST_KEPT = 128
"""Largest number of cached answers of one reading. Clients may request many different parts of the history."""
COMPRESSION = 5
"""Compression level of zlib."""
GZIP_HEADER = b"\x1f\x8b\x08" + bytes(6) + b"\xff"
"""Header of a gzip stream without name and time."""
HEARTBEAT = 3.0
"""Seconds without a new reading after which a stream sends an empty line. It tells the client that the connection is alive."""
LONGEST_NUMBER = 18
"""Largest number of digits of a reading's sequence number in a request."""
READINGS = 3600
"""Number of readings that are kept unchanged: one hour at one reading per second."""
KEPT = 3600.0
"""Default time span of the history in seconds. Before the last ``READINGS`` readings, only minimum and maximum of each bucket are kept."""
POINTS = 600
"""Largest number of points of a column. A longer column is reduced to minimum and maximum of each bucket."""
RECENT = 60
"""Number of readings that a client may be behind to receive only the new columns. A client further behind receives everything."""
SECONDS = re.compile(r"\d{1,12}(?:\.\d{1,6})?", re.ASCII)
DRAWN = {row.name: row for row in VALUES if row.name not in FIXED}
"""Device values that graphs can show."""
HOST = "host"
HOST_GRAPHS: Mapping[str, tuple[str, str, float | None, Mapping[str, str]]] = {
    "host_cpu": ("host CPU", "%", 100.0, {"host_cpu_percent": "CPU"}),
    "host_memory": ("host memory", "%", 100.0, {"host_memory_percent": "memory"}),
    "host_disk": ("host disk, the busiest", "By/s", None, {"host_disk_read": "read", "host_disk_written": "written"}),
    "host_network": ("host network", "By/s", None, {"host_network_sent": "sent", "host_network_received": "received"}),
}
"""Graphs of the host: label, unit, upper end of the scale (None if not fixed), and the lines with their labels."""
HOST_LINES: Mapping[str, tuple[str, str, Callable[[Sequence[float]], float]]] = {
    "host_cpu_percent": ("cpu.", ".cpu_percent", fmean),
    "host_memory_percent": ("memory_percent", "", max),
    # The busiest disk, not the sum: a volume lies on a disk, so a sum would count its bytes twice.
    "host_disk_read": ("disk.", ".readBps", max),
    "host_disk_written": ("disk.", ".writeBps", max),
    "host_network_sent": ("network.sentBps", "", max),
    "host_network_received": ("network.recvBps", "", max),
}
"""Lines of the host: prefix and suffix of the metric keys of each, and the function that combines their values."""
RELOAD = 5
"""Seconds after which the page without scripts is loaded again."""
PLAIN_PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="refresh" content="{reload}">
<title>{hostname} · accelmetrics</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="static/style.css">
</head>
<body>
<main>
<h1>{hostname}</h1>
<p>Read at {time}. This page needs no scripts and is loaded again every {reload} seconds. <a href="./">With graphs</a> (needs scripts),
<a href="api/snapshot">as JSON</a>.</p>
<h2>Findings</h2>
<ul>{findings}</ul>
{tables}
</main>
</body>
</html>
"""

Column = list[float | None]


class LatestReading:
    """The latest record, with its answers. Each answer is built once for all clients. For the event loop's thread only.

    Args:
        sequence: Sequence number of the reading.
        record: The record.
        taken: Time of arrival, by the monotonic clock.
    """

    def __init__(self, sequence: int, record: Record, taken: float) -> None:
        self.sequence = sequence
        self.record = record
        self.taken = taken
        self.view: NodeView | None = None
        self._made: dict[Hashable, asyncio.Task[HttpAnswer]] = {}

    async def answer(
        self, route: Route, make: Callable[[], object], what: Hashable, content_type: str = JSON, *, line: bool = False
    ) -> HttpAnswer:
        """Return an answer, compressed if the client accepts that.

        Args:
            route: The request.
            make: Function that returns the document, as text or in plain containers.
            what: Key of the answer in the cache.
            content_type: Content type.
            line: Whether the answer is a line of a stream.
        """
        packed = accepts_gzip(route.request.headers.get("Accept-Encoding", ""))

        def made(_: HTTPServerRequest) -> HttpAnswer:
            document = make()
            text = document if isinstance(document, str) else json.dumps(document, separators=(",", ":"), allow_nan=False)
            headers = {"Vary": "Accept-Encoding", **({"Content-Encoding": "gzip"} if packed else {})}
            body = f"{text}\n".encode() if line else text.encode()
            if packed:
                body = _packed_line(body) if line else gzip.compress(body, COMPRESSION)
            return HttpAnswer(body, content_type, headers)

        answer = self._made.get((what, packed, line))
        if answer is None:
            if len(self._made) >= MOST_KEPT:
                self._made.clear()
            answer = self._made[what, packed, line] = route.server.begin(made, route.request)
        return await route.server.answered(answer, route.request)


class NodeDocuments:
    """All documents of the node. One thread delivers records, another one builds the documents.

    Args:
        interval: Seconds between two readings.
        page: Whether the page is served. It adds the users and programs of processes, and graphs.
        commands: Whether documents contain the command lines of processes.
        max_age: Age in seconds from which a record is not served; None for the default of
            :func:`~accelmetrics.exporters.scrape_cache.is_recent`.
        kept: Time span of the page's graphs, in seconds.
    """

    def __init__(
        self, interval: float = 1.0, *, page: bool = False, commands: bool = False, max_age: float | None = None, kept: float = KEPT
    ) -> None:
        self._interval = interval
        self._page = page
        self._commands = commands
        self._max_age = max_age
        self._kept = kept
        self._history = PageHistory(interval, kept) if page else None
        # Higher than every number of an earlier run of this server, so that clients of that run receive everything again.
        self._sequence = time.time_ns() // (10**9 // PER_SECOND)
        self._latest: LatestReading | None = None
        self._before: NodeView | None = None
        self._processes = ProcessLookup()
        self._loop: asyncio.AbstractEventLoop | None = None
        """The event loop on which streams wait for ``_news``."""
        self._news: asyncio.Future[None] | None = None

    @property
    def routes(self) -> list[tuple[str, type[Route], dict[str, Any]]]:
        """Routes for the server: path, handler class and its arguments."""
        made: dict[str, Callable[[LatestReading], object]] = {
            "/api/record": lambda reading: reading.record.to_json(),
            "/api/summary": lambda reading: self._view(reading).summary.to_dict(),
        }
        if self._page:
            made["/api/state"] = self._state
            made["/plain"] = lambda reading: plain_page(self._view(reading))
        given: dict[str, Callable[[Route], Awaitable[None]]] = {path: partial(self._give_document, make) for path, make in made.items()}
        if self._history is not None:
            given["/api/history"] = partial(self._give_columns, self._history)
            given["/api/updates"] = partial(self._give_updates, self._history)
        return [(path, Route, {"give": give}) for path, give in given.items()]

    async def _give_document(self, make: Callable[[LatestReading], object], route: Route) -> None:
        """Answer with a document of the latest reading, or with 304 if the client already has it."""
        reading = self.latest
        route.set_header("Cache-Control", "private, no-cache")
        # A weak tag, because the compressed and the plain answer have the same one.
        route.set_header("Etag", f'W/"{reading.sequence}"')
        if route.check_etag_header():
            route.set_status(304)
            route.finish()
            return
        path = route.request.path
        route.answer(await reading.answer(route, partial(make, reading), path, HTML if path == "/plain" else JSON))

    async def _give_columns(self, history: PageHistory, route: Route) -> None:
        """Answer with columns of graphs, for the metrics in the request and since the reading in the request."""
        query = _columns_query(route)  # its errors come before those of the reading
        reading = self.latest
        route.answer(await reading.answer(route, *_columns(history, reading, *query)))

    async def _give_updates(self, history: PageHistory, route: Route) -> None:
        """Answer with two lines for each reading until the client leaves: the state, and the columns since its last reading.

        A client that receives slowly skips readings. Their columns are part of its next line.
        """
        since, metrics, devices, span, _, _ = _columns_query(route)
        loop, client = asyncio.get_running_loop(), route.client
        if self._loop is not loop:
            self._loop, self._news = loop, None
        sent = 0
        self.latest  # noqa: B018  # raise before the first line: after it, the status can no longer be an error
        route.set_header("Content-Type", LINES)
        route.set_header("X-Accel-Buffering", "no")  # otherwise nginx buffers the lines
        route.set_header("Vary", "Accept-Encoding")
        empty = b"\n"
        if accepts_gzip(route.request.headers.get("Accept-Encoding", "")):
            route.set_header("Content-Encoding", "gzip")
            route.write(GZIP_HEADER)
            empty = _packed_line(empty)
        while route.request.method != "HEAD":
            try:
                await route.server.check(route)  # the password may have changed since
                reading = self.latest
            except HTTPError:  # end the stream: the client connects again and receives the error as a status
                break
            if reading.sequence != sent:
                state = await reading.answer(route, partial(self._state, reading), "/api/state", line=True)
                columns = await reading.answer(route, *_columns(history, reading, since, metrics, devices, span), line=True)
                route.write(state.body + columns.body)
                since = sent = reading.sequence
            else:
                self._news = self._news or loop.create_future()
                if (await asyncio.wait((self._news,), timeout=HEARTBEAT))[0]:
                    continue
                route.write(empty)
            client.wait(route.server.limits.write)  # until it expires, the server may also close the connection to make room
            await route.flush()
        route.finish()

    def _announce(self) -> None:
        """Wake all waiting streams."""
        news, self._news = self._news, None
        if news is not None:
            news.set_result(None)

    def take(self, record: Record) -> None:
        """Serve a record from now on. A record of the same reading as the last one is ignored."""
        before = self._latest
        if before is not None and before.record.snapshot.time_ns == record.snapshot.time_ns:
            return
        self._sequence += 1
        if self._history is not None:
            self._history.add(self._sequence, record.snapshot, record.steps)
        self._latest = LatestReading(self._sequence, record, time.monotonic())
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed, because the server has ended
                self._loop.call_soon_threadsafe(self._announce)

    @property
    def latest(self) -> LatestReading:
        """The latest reading.

        Raises:
            HTTPError: There is no recent reading (status 503).
        """
        latest = self._latest
        if latest is None or not is_recent(latest.record, latest.taken, self._max_age):
            raise HTTPError(503, "there is no recent reading" if latest else "nothing was read yet")
        return latest

    def _state(self, reading: LatestReading) -> dict[str, Any]:
        """Return the page's document at a reading."""
        return {
            **state_document(self._view(reading), reading.sequence, commands=self._commands),
            "kept_seconds": self._kept,
            "training": {} if self._history is None else self._history.training,
            "training_metrics": {name: {"label": row.label, "unit": row.unit} for name, row in TRAINING_VALUES.items()},
        }

    def _view(self, reading: LatestReading) -> NodeView:
        """Return the view of the node at the latest reading. For the answer thread only."""
        if reading.view is None:
            record, before = reading.record, self._before
            if before is not None and record.snapshot.time_ns - before.time_ns > 1e9 * max(RECENT_VIEW, 3 * self._interval):
                before = None
            listing = self._processes.listing(record.snapshot) if self._page else None
            reading.view = self._before = node_view(record, processes=listing, interval=self._interval, before=before)
        return reading.view


ColumnsQuery = tuple[int, frozenset[str], frozenset[str], float | None, float | None, float | None]


def _columns_query(route: Route) -> ColumnsQuery:
    """Return the arguments of a request for columns: last known reading, metrics, devices, span, begin and end.

    Raises:
        HTTPError: An argument is no number, or a metric is unknown (status 400).
    """
    since = route.get_query_argument("since", "0")
    if not (since.isascii() and since.isdigit() and len(since) <= LONGEST_NUMBER):
        raise HTTPError(400, "since must be a whole number, the sequence of an earlier answer; leave it out for the whole history")
    metrics = frozenset(route.get_query_argument("metrics", ",".join(FOLLOWED)).split(","))
    known = (*DRAWN, *HOST_LINES, *TRAINING_VALUES)
    for name in sorted(metrics.difference(known, ("",))):
        raise HTTPError(400, f"no metric {clipped(name, 50)!r}: use {', '.join(known)}")
    return (
        int(since),
        metrics,
        frozenset(filter(None, route.get_query_argument("devices", "").split(","))),
        _seconds(route, "span"),
        _seconds(route, "from"),
        _seconds(route, "to"),
    )


def _columns(
    history: PageHistory,
    reading: LatestReading,
    since: int,
    metrics: frozenset[str],
    devices: frozenset[str],
    span: float | None,
    begin: float | None = None,
    end: float | None = None,
) -> tuple[Callable[[], object], Hashable]:
    """Return a function that builds the requested columns up to a reading, and a key that is equal for equal requests."""
    # A client that is too far behind, or that names a period, receives everything.
    if begin is not None or end is not None or not 0 <= reading.sequence - since <= RECENT:
        since = 0
    if span is not None and not since:
        begin = reading.record.snapshot.time_ns / 1e9 - span
    key = since, metrics, devices, begin, end
    return partial(history.columns, *key, until=reading.sequence), key


def _packed_line(line: bytes) -> bytes:
    """Return a compressed line of a stream. It refers to no earlier line, so that all clients can receive the same bytes."""
    compressor = zlib.compressobj(COMPRESSION, wbits=-zlib.MAX_WBITS)
    # Z_FULL_FLUSH ends the block without ending the stream, and resets the compressor's state.
    return compressor.compress(line) + compressor.flush(zlib.Z_FULL_FLUSH)


def _seconds(route: Route, name: str) -> float | None:
    """Return an argument of a request in seconds; None if it is absent.

    Raises:
        HTTPError: The argument is no number (status 400).
    """
    text = route.get_query_argument(name, "")
    if text and not SECONDS.fullmatch(text):
        raise HTTPError(400, f"{name} must be a number of seconds, such as 300")
    return float(text) if text else None


# The columns of graphs


class PageHistory:
    """The history behind the page's graphs: rows of values of the devices, the host and programs.

    The last ``READINGS`` rows are kept unchanged. Of older rows, only minimum and maximum of each bucket are kept, so one day takes twice
    the memory of one hour. Columns are built on request. One thread may add readings while another one reads columns.

    Args:
        interval: Seconds between two readings.
        kept: Time span of the history, in seconds.
    """

    def __init__(self, interval: float, kept: float = KEPT) -> None:
        self.interval = interval
        self._kept = kept
        self._lock = Lock()
        self._rows = Ring(min(READINGS, max(RECENT, round(kept / interval))))
        self._width = kept / (READINGS / 2) if kept > READINGS * interval else 0.0
        """Width of a bucket in seconds; 0 if all readings are kept unchanged."""
        self._older = Ring(READINGS)
        self._stretch: list[Row] = []
        # One more than RECENT: it must also contain the last reading of a client that is RECENT readings behind.
        self._recent: deque[tuple[int, Row]] = deque(maxlen=RECENT + 1)
        self._steps = TrainingSeries()
        self._logged: dict[str, dict[str, tuple[float, float]]] = {}
        """By program and name: the last logged value, and the time until which it holds."""
        self.training: dict[str, dict[str, Any]] = {}
        """Programs that logged within the history, by the key of their columns: name, and names of the logged values."""

    def add(self, sequence: int, snapshot: Snapshot, steps: Sequence[Step] = ()) -> None:
        """Add a reading with the last logged values of programs. Sequence numbers must rise."""
        shown = snapshot.header

        def lay_out() -> tuple[Header, list[int], list[tuple[Callable[[Sequence[float]], float], list[int]]]]:
            """Return the header of a row, the index of each device value, and function and indices of each host line."""
            places, found = shown.places, dict[str, int]()
            of_host: dict[str, tuple[Callable[[Sequence[float]], float], list[int]]] = {}
            for line, (head, tail, made) in HOST_LINES.items():
                if given := [place for key, place in places.items() if key.startswith(head) and key.endswith(tail)]:
                    of_host[f"{HOST} {line}"] = made, given
            for slot in shown.identities:
                for metric, row in DRAWN.items():
                    given = [places[key] for name in row.names if (key := f"{slot.key}.{name}") in places]
                    if given:
                        found[f"{slot.key} {metric}"] = given[0]
            return header("", (*found, *of_host), (), {}, (), {}), list(found.values()), list(of_host.values())

        # A header is the same object while only numbers change, so the layout is kept with it.
        drawn, chosen, of_host = shown.kept("columns of graphs", lay_out)
        numbers = snapshot.numbers
        values = array("d", [numbers[place] for place in chosen])
        values.extend(made([numbers[place] for place in places]) for made, places in of_host)
        seconds = snapshot.time_ns / 1e9
        # The clock was set back: start a new history, because times must rise.
        set_back = bool(self._recent) and seconds <= self._recent[-1][1].time
        if set_back:
            self._steps, self._logged, self.training = TrainingSeries(), {}, {}
        logged = self._log(seconds, steps)
        if logged:
            # In order of their names: a stretch ends where the columns change. Not kept with the header, which may outlive any number of
            # programs.
            keys = (*drawn.keys, *sorted(logged))
            before = self._recent[-1][1].header if self._recent else drawn
            drawn = before if before.keys == keys else header("", keys, (), {}, (), {})
            values.extend(logged[name] for name in sorted(logged))
        with self._lock:
            if set_back:
                self._rows.clear()
                self._older.clear()
                self._stretch.clear()
                self._recent.clear()
            row = self._rows.append(drawn, values, seconds, snapshot.time_ns, (), joined=True, tick=True)
            self._recent.append((sequence, row))
            if self._width:
                self._thin_out(row)

    def _log(self, seconds: float, steps: Sequence[Step]) -> dict[str, float]:
        """Return the last logged values of programs, by column. A value is NaN after it has expired."""
        for program, _, found in self._steps.add(steps):
            seconds_held = max(LEAST_HOLD, HELD * self.interval, HOLDS * (found.get("step_seconds") or 0.0))
            values = self._logged.pop(program, {})
            values |= {name: (math.nan if value is None else value, seconds + seconds_held) for name, value in found.items()}
            self._logged[program] = values  # keep the order of the last step, so that the oldest program is dropped first
            # Replaced instead of changed, because another thread may read it.
            self.training = {**self.training, training_key(program): {"name": program or "this program", "metrics": [*values]}}
        for program, values in list(self._logged.items()):
            if max(until for _, until in values.values()) < seconds - self._kept or len(self._logged) > MOST_PROGRAMS:
                del self._logged[program]
                self.training = {key: entry for key, entry in self.training.items() if key != training_key(program)}
        return {
            f"{training_key(program)} {name}": value if seconds <= until else math.nan
            for program, values in self._logged.items()
            if any(seconds <= until for _, until in values.values())
            for name, (value, until) in values.items()
        }

    def _thin_out(self, row: Row) -> None:
        """Add a row to the current bucket. When the bucket ends, keep minimum and maximum of its values as two rows."""
        rows = self._stretch
        if rows and (rows[0].time // self._width != row.time // self._width or rows[0].header is not row.header):
            pairs = [
                _extremes([value if math.isfinite(value) else None for value in values])
                for values in zip(*(one.values for one in rows), strict=True)
            ]
            ends = rows if len(rows) == 1 else (rows[0], rows[-1])
            for place, one in enumerate(ends):
                numbers = array("d", [math.nan if (value := pair[place]) is None else value for pair in pairs])
                self._older.append(one.header, numbers, one.time, int(one.time * 1e9), (), joined=True, tick=True)
            rows.clear()
        rows.append(row)

    def _all(self, wanted: Callable[[str], bool]) -> tuple[dict[str, Column], float]:
        """Return all columns of the history, and the largest regular distance between two of its times, in seconds."""
        columns = History(self._rows).to_dict(wanted)
        first = columns["time"][0] if columns["time"] else None
        older = History(self._older).to_dict(wanted)
        cut = sum(1 for at in older["time"] if at is not None and first is not None and at < first)
        if not cut:
            return columns, self.interval
        gap: Column = [None] * len(columns["time"])
        return {name: older.get(name, [None] * cut)[:cut] + columns.get(name, gap) for name in older | columns}, max(
            self.interval, self._width
        )

    def columns(
        self,
        since: int,
        metrics: Collection[str] = FOLLOWED,
        devices: Collection[str] = (),
        begin: float | None = None,
        end: float | None = None,
        *,
        until: int | None = None,
    ) -> dict[str, Any]:
        """Return the columns after a reading, or all columns if that reading is no longer among the recent ones.

        Args:
            since: Sequence number of that reading.
            metrics: Names of the metrics.
            devices: Keys of the devices; empty for all.
            begin: Start of the period if all columns are returned, in seconds since 1970.
            end: End of that period.
            until: Sequence number of the newest reading to include; None for the newest of all.

        Returns:
            ``sequence``: number of the newest reading. ``complete``: whether these are all columns. ``times``: seconds since 1970.
            ``series``: by device and metric, a value for each time; None if there is no value.
        """

        def wanted(name: str) -> bool:
            device, _, metric = name.rpartition(" ")
            return metric in metrics and (not devices or device in devices)

        with self._lock:
            recent = [one for one in self._recent if until is None or one[0] <= until]
            if recent and recent[-1] is not self._recent[-1]:
                end = min(recent[-1][1].time, math.inf if end is None else end)
            partly = any(number == since for number, _ in recent)
            columns, pace = ({}, self.interval) if partly else self._all(wanted)
        if partly:
            rows = [row for number, row in recent if number >= since]
            given = [{name: value for name, value in zip(row.layout, row.values, strict=True) if math.isfinite(value)} for row in rows]
            names = dict.fromkeys(name for row in rows[1:] for name in row.layout if wanted(name))
            columns = {"time": [row.time for row in rows], **{name: [values.get(name) for values in given] for name in names}}
        times = [at for at in columns.pop("time") if at is not None]
        if not partly and (begin is not None or end is not None):
            first = 0 if begin is None else bisect_left(times, begin)
            last = len(times) if end is None else bisect_right(times, end)
            times, columns = times[first:last], {name: column[first:last] for name, column in columns.items()}
        # The first reading is the one that the client has. It is dropped, but a gap after it is included.
        places = self._with_gaps(times, pace)[int(partly) :]
        if len(places) <= POINTS:
            moments = [at for at, _ in places]
            found = {name: [None if place is None else column[place] for _, place in places] for name, column in columns.items()}
        else:
            # Each bucket gives two points, at its first and last reading: clients append to these times, so none may be after the newest
            # reading. A gap replaces at least two empty buckets, so that the limit also holds with gaps.
            width = max(pace, (times[-1] - times[0]) / (POINTS // 2 - 1))
            stretches = list(_stretches(times, width))
            moments, found = [], {name: [] for name in columns}
            for at, place in self._with_gaps([begin for begin, _, _ in stretches], width):
                if place is None:
                    moments.append(at)
                    for values in found.values():
                        values.append(None)
                    continue
                _, first, last = stretches[place]
                ends = times[first:last] if last - first < 2 else (times[first], times[last - 1])
                moments += ends
                for name, column in columns.items():
                    found[name] += _extremes(column[first:last])[: len(ends)]
        series: dict[str, dict[str, Column]] = {}
        for name, column in found.items():
            device, _, metric = name.rpartition(" ")
            # Learning rates are too small for a fixed number of decimals.
            form = ".6g" if metric in TRAINING_VALUES else ".3f"
            series.setdefault(device, {})[metric] = [None if value is None else float(format(value, form)) for value in column]
        return {
            "sequence": recent[-1][0] if recent else 0,
            "complete": not partly,
            "times": [round(at, 3) for at in moments],
            "series": series,
        }

    def _with_gaps(self, times: Sequence[float], width: float) -> list[tuple[float, int | None]]:
        """Return times with the indices of their values.

        A long gap without readings gets one more time, with None as index. The graph then interrupts its line there.
        """
        found: list[tuple[float, int | None]] = [(times[0], 0)] if times else []
        for place, (before, at) in enumerate(pairwise(times), 1):
            if at - before > HELD * width:
                found.append((before + width, None))
            found.append((at, place))
        return found


def _stretches(times: Sequence[float], width: float) -> Iterator[tuple[float, int, int]]:
    """Yield each bucket of equal time with readings: start time, first index, and last index (exclusive) of its readings."""
    first = 0
    for number, same in groupby(int(at // width) for at in times):
        last = first + sum(1 for _ in same)
        yield number * width, first, last
        first = last


def _extremes(values: Sequence[float | None]) -> tuple[float | None, float | None]:
    """Return minimum and maximum, in the order of their times; None twice if there is no value."""
    known = [value for value in values if value is not None]
    if not known:
        return None, None
    low, high = min(known), max(known)
    return (low, high) if values.index(low) <= values.index(high) else (high, low)


# What the page shows


def state_document(view: NodeView, sequence: int, *, commands: bool = False) -> dict[str, Any]:
    """Return the page's document about a node as a new dict, ready for ``json``.

    Args:
        view: The node.
        sequence: Sequence number of the reading.
        commands: Whether to include the command lines of processes.
    """
    summary = view.summary
    used = {key for row in view.processes for key in row.uses}
    keys = [device.key for device in view.devices if device.key in used]
    keys += sorted(used.difference(keys))
    # Devices refer to their findings by index, so that the document has each finding once.
    places = {finding: place for place, finding in enumerate(view.findings.current)}
    return {
        "sequence": sequence,
        "timestamp": rfc3339(view.time_ns),
        "interval": view.interval,
        "hostname": view.hostname,
        "version": __version__,
        "head": {
            "kinds": summary.kinds,
            "devices": len(summary.devices),
            "power_watts": summary.power_watts,
            "power_limit_watts": summary.power_limit_watts,
            "utilization": summary.utilization,
            "states": dict(Counter(device.state for device in summary.devices)),
            "lost": summary.lost,
            "hot": summary.hot,
            "failed": summary.failed,
            "unanswered": summary.unanswered,
            "findings": summary.findings,
        },
        "metrics": {
            name: {"label": row.label, "unit": row.unit, "top": row.top}
            for name, row in DRAWN.items()
            if any(name in device.values or name in device.last for device in view.devices)
        },
        "names": {row.name: {"label": row.label, "unit": row.unit} for row in VALUES},
        "host_metrics": {
            name: {"label": label, "unit": unit, "top": top, "lines": dict(lines)}
            for name, (label, unit, top, lines) in HOST_GRAPHS.items()
        },
        "devices": [_device(device, places) for device in view.devices],
        "processes": [_process(row, key, commands) for key in keys for row in view.processes if key in row.uses],
        "unlisted": dict(view.unlisted),
        "unlisted_words": reasons(view.unlisted),
        "findings": [finding.to_dict() for finding in view.findings.current],
        "ended": [finding.to_dict() for finding in view.findings.ended],
        "cannot_tell": [one.to_dict() for one in view.findings.cannot_tell],
        "not_judged": [{"rules": [*rules], "words": words} for rules, words in view.not_judged],
        "not_logged": view.not_logged,
        "sources": [
            {
                "name": source.name,
                "status": source.status,
                "source": source.source,
                "detail": source.detail,
                "age_seconds": source.age_seconds,
                "state": source.state,
                "mark": source.mark,
                "advice": source.advice,
                "silent": source.silent,
            }
            for source in view.sources
        ],
        "absent": dict(view.absent),
        "host": dict(view.host),
    }


def _device(device: DeviceView, places: Mapping[Finding, int]) -> dict[str, Any]:
    """Return the entry of a device. ``places`` are the indices of findings in the document."""
    identity = device.identity
    return {
        "key": device.key,
        "label": device.label,
        "name": device.name,
        "vendor": identity.vendor,
        "kind": identity.kind,
        "uuid": identity.uuid,
        "pci_bus_id": identity.pci_bus_id,
        "parent": device.parent,
        "state": device.state,
        "word": device.word,
        "mark": device.mark,
        "note": device.note,
        "notes": list(device.notes),
        "advice": list(device.advice),
        "values": dict(device.values),
        "missing": {name: why._asdict() for name, why in device.missing.items()},
        "levels": dict(device.levels),
        "throttled": list(device.throttled),
        "errors": list(device.errors),
        "links": list(device.links),
        "holders": list(device.holders),
        "findings": [places[finding] for finding in device.findings],
        "silent": None if device.silent is None else device.silent._asdict(),
        "silent_since": None if device.silent_since_ns is None else rfc3339(device.silent_since_ns),
        "last": dict(device.last),
        "aged": device.aged,
    }


def _process(row: ProcessRow, key: str, commands: bool) -> dict[str, Any]:
    """Return the entry of a process on one device. User, program and times are the same in its entries on other devices."""
    use = row.uses[key]
    entry = {
        "device": key,
        "devices": list(row.devices),
        "pid": row.pid,
        "type": use.type,
        "user": row.user,
        "program": row.program,
        "memory_bytes": use.memory_bytes,
        "utilization": use.utilization,
        "seconds": row.seconds,
        "holder": row.holder,
        "why": row.why,
        "aged": row.aged or key in row.last_seen,
    }
    return {**entry, "command": row.command} if commands else entry


def plain_page(view: NodeView) -> str:
    """Return the HTML page of a node for browsers without scripts. All texts are escaped."""
    findings = []
    for one, *others in equal_findings(view.findings):
        findings.append(f"{one.severity}: {named([same.key or 'the run' for same in (one, *others)])}: {one.message}. {one.advice}")
    devices = [_device_cells(device) for device in view.devices]
    for source in view.silent:
        status = f"{source.mark} {source.status.replace('_', ' ')}"
        devices.append([source.name, status, *["-"] * 5, f"{source.detail}. {source.advice}"])
    processes = []
    for row in view.processes:
        used = "- unknown" if row.memory_bytes is None else memory(row.memory_bytes)
        processes.append((str(row.pid), ", ".join(row.devices), row.user or "-", row.program or "-", used, row.holder or "-"))
    sources = []
    for source in view.sources:
        # Messages about single devices are left out here: the row of the device shows them.
        shown = [one for one in source.detail.split("; ") if not any(one.startswith(f"{device.key}: ") for device in view.devices)]
        sources.append((source.name, source.status, "; ".join(shown)))
    tables = [
        _table("Devices", ("Device", "State", "Util", "Memory", "Power", "Temp.", "Clock", "Note"), devices),
        _table("Processes", ("PID", "Devices", "User", "Program", "Memory", "Job or pod"), processes),
        _table("Sources", ("Source", "Status", "Detail"), sources),
    ]
    return PLAIN_PAGE.format(
        reload=RELOAD,
        hostname=escape(view.hostname),
        time=escape(rfc3339(view.time_ns)),
        findings="".join(f"<li>{escape(one)}</li>" for one in findings or ["no findings"]),
        tables="\n".join(tables),
    )


def _table(caption: str, headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in HTML. All texts are escaped."""
    head = "".join(f'<th scope="col">{escape(heading)}</th>' for heading in headings)
    body = ""
    for first, *others in rows:
        cells = "".join(f"<td>{escape(cell)}</td>" for cell in others)
        body += f'<tr><th scope="row">{escape(first)}</th>{cells}</tr>\n'
    return f"<table>\n<caption>{escape(caption)}</caption>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody>\n</table>"


def _device_cells(device: DeviceView) -> list[str]:
    """Return the cells of a device's row."""
    # The note omits the word of the state and the messages of findings: the page shows these elsewhere.
    values = device.values
    shown = [device.word, *(finding.message for finding in device.findings)]

    def cell(name: str, write: Callable[[float], str]) -> str:
        if name in values:
            return write(values[name])
        if device.silent is not None:
            return "-"
        return f"- {device.missing[name].word}" if name in device.missing else "- n/a"

    return [
        f"{device.label} {device.name}",
        f"{device.mark} {device.word}",
        cell("utilization", percent),
        cell("memory_percent", percent),
        cell("power_watts", lambda value: watts(value, values.get("power_limit_watts"))),
        cell("temperature_celsius", celsius),
        cell("sm_clock_mhz", lambda value: f"{fixed(value)} MHz"),
        ", ".join((*(note for note in device.notes if not any(note in words for words in shown)), *device.holders)),
    ]


# The static files of the page. They are held in memory, and each has its own route, so no request can reach another file.


def page_files() -> Mapping[str, bytes]:
    """Return the content of the page's static files, by name."""
    views = files("accelmetrics.views")
    return {
        file.name: file.read_bytes()
        for folder in (views / "page" / "static", views / "assets")
        for file in folder.iterdir()
        if file.is_file() and file.name[file.name.rfind(".") :] in CONTENT_TYPES
    }


def file_routes() -> Iterator[tuple[str, type[Route], dict[str, Any]]]:
    """Yield the routes of the page (``/``) and of its files (below ``/static/``)."""
    for name, body in page_files().items():
        yield "/" if name == INDEX else re.escape(f"/static/{name}"), Route, {"compute": _answering(name, body), "linked": True}


def _answering(name: str, body: bytes) -> Callable[[HTTPServerRequest], HttpAnswer]:
    """Return a function that answers with one file."""
    # "no-cache": clients keep the file but check whether it has changed, because an update of accelmetrics may change it.
    content_type = CONTENT_TYPES[name[name.rfind(".") :]]
    headers = {"Cache-Control": "no-cache", "Etag": f'"{hashlib.sha256(body).hexdigest()[:16]}"', "Vary": "Accept-Encoding"}
    plain = HttpAnswer(body, content_type, headers)
    packed = HttpAnswer(gzip.compress(body, mtime=0), content_type, {**headers, "Content-Encoding": "gzip"})
    return lambda request: packed if accepts_gzip(request.headers.get("Accept-Encoding", "")) else plain
