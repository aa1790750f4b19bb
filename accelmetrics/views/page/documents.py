"""What ``accelmetrics serve`` says of its node in JSON, the columns of the page's graphs, and the page's files.

However many clients ask, the devices are read by the monitor alone. Each document is made once a reading, when it is first asked for, on
the server's thread for answers, and kept as bytes until the next reading. Without a client nothing is made.
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
from accelmetrics.views.node_view import NodeView, ProcessRow, node_view
from accelmetrics.views.trails import FIXED, FOLLOWED, HELD
from accelmetrics.views.training import HOLDS, LEAST_HOLD, TRAINING_VALUES, TrainingSeries
from accelmetrics.visibility.processes import ProcessLookup

JSON, LINES, HTML = "application/json", "application/x-ndjson", "text/html; charset=utf-8"
CONTENT_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
"""Files with these endings are served."""
INDEX = "index.html"
PER_SECOND = 100
"""Readings in a second at most."""
RECENT_VIEW = 10.0
"""Seconds, or three intervals, for which a view tells since when a device of the next one is silent: views are made on request alone."""
MOST_KEPT = 128
"""Answers of one reading that are kept: clients may ask for different parts of the history."""
COMPRESSION = 5
"""Of zlib."""
GZIP_HEADER = b"\x1f\x8b\x08" + bytes(6) + b"\xff"
"""The beginning of a gzip stream without a name or a time."""
HEARTBEAT = 3.0
"""Seconds after which a stream without a new reading gets an empty line: the client tells a quiet node from a broken connection."""
LONGEST_NUMBER = 18
"""Digits of the number of a reading."""
READINGS = 3600
"""That are kept one by one: an hour at one a second."""
KEPT = 3600.0
"""Seconds that graphs go back. Beyond ``READINGS`` there is the least and the greatest value of each stretch of time."""
POINTS = 600
"""Of a column at most: above that each two are the least and the greatest value of a stretch of time."""
RECENT = 60
"""Readings for which a client gets what it lacks; one that lacks more gets everything."""
SECONDS = re.compile(r"\d{1,12}(?:\.\d{1,6})?", re.ASCII)
DIGITS = 3
"""Behind the decimal point: more is not seen in a graph."""
DRAWN = {row.name: row for row in VALUES if row.name not in FIXED}
"""What graphs can show."""
HOST = "host"
HOST_GRAPHS: Mapping[str, tuple[str, str, float | None, Mapping[str, str]]] = {
    "host_cpu": ("host CPU", "%", 100.0, {"host_cpu_percent": "CPU"}),
    "host_memory": ("host memory", "%", 100.0, {"host_memory_percent": "memory"}),
    "host_disk": ("host disk, the busiest", "By/s", None, {"host_disk_read": "read", "host_disk_written": "written"}),
    "host_network": ("host network", "By/s", None, {"host_network_sent": "sent", "host_network_received": "received"}),
}
"""Graphs of the host: label, unit, the end of the scale, and the lines with their names."""
HOST_LINES: Mapping[str, tuple[str, str, Callable[[Sequence[float]], float]]] = {
    "host_cpu_percent": ("cpu.", ".cpu_percent", fmean),
    "host_memory_percent": ("memory_percent", "", max),
    # Disks lie in one another, volumes in disks: their sum would count bytes twice.
    "host_disk_read": ("disk.", ".readBps", max),
    "host_disk_written": ("disk.", ".writeBps", max),
    "host_network_sent": ("network.sentBps", "", max),
    "host_network_received": ("network.recvBps", "", max),
}
"""Lines of the host: how the keys begin and end that each is made of, and how."""
TRAINING = "training "
"""In columns, before the name of a program that logs steps."""
MOST_PROGRAMS = 16
"""Programs with graphs at once."""
RELOAD = 5
"""Seconds until a browser that runs no scripts asks again."""
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
    """The latest record, and what was made of it: answers once for all clients that ask for them, on the loop's thread alone.

    Args:
        sequence: Its number.
        record: The record.
        taken: When it came, by the monotonic clock.
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
            route: Of the request.
            make: Gives the document, as text or in plain containers.
            what: Which answer it is.
            content_type: Of the answer.
            line: Make it a line of a stream.
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
    """The node's documents. Records are taken on one thread, documents made on another one.

    Args:
        interval: Seconds between two readings.
        page: Whether there is a page, which shows who the processes are, and graphs.
        commands: Whether the command lines of processes are told.
        max_age: A record older than this, in seconds, is not served; None: as :func:`~accelmetrics.exporters.scrape_cache.is_recent` says.
        kept: Seconds that the page's graphs go back.
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
        # Above every number of an earlier run of this server, so that a client of that is given everything anew.
        self._sequence = time.time_ns() // (10**9 // PER_SECOND)
        self._latest: LatestReading | None = None
        self._before: NodeView | None = None
        self._processes = ProcessLookup()
        self._loop: asyncio.AbstractEventLoop | None = None
        """On which streams wait for ``_news``."""
        self._news: asyncio.Future[None] | None = None

    @property
    def routes(self) -> list[tuple[str, type[Route], dict[str, Any]]]:
        """What the server is to answer."""
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
        """Answer with a document of the latest reading; with none where the client has it."""
        reading = self.latest
        route.set_header("Cache-Control", "private, no-cache")
        route.set_header("Etag", f'W/"{reading.sequence}"')
        if route.check_etag_header():
            route.set_status(304)
            route.finish()
            return
        path = route.request.path
        route.answer(await reading.answer(route, partial(make, reading), path, HTML if path == "/plain" else JSON))

    async def _give_columns(self, history: PageHistory, route: Route) -> None:
        """Answer with the columns of the graphs: those since a reading that the client names, of the metrics that it names."""
        query = _columns_query(route)
        reading = self.latest
        make, key = _columns(history, reading, *query)
        route.answer(await reading.answer(route, make, key))

    async def _give_updates(self, history: PageHistory, route: Route) -> None:
        """Answer with two lines a reading for as long as the client stays: the state, and the columns since the client's last reading.

        A client that is slow to take a line misses readings, and gets their columns with the next one.
        """
        since, metrics, devices, span, _, _ = _columns_query(route)
        loop, client = asyncio.get_running_loop(), route.client
        if self._loop is not loop:
            self._loop, self._news = loop, None
        sent = 0
        self.latest  # noqa: B018  # a refusal has a status while no line was sent
        route.set_header("Content-Type", LINES)
        route.set_header("X-Accel-Buffering", "no")  # nginx keeps lines back until it has many
        route.set_header("Vary", "Accept-Encoding")
        empty = b"\n"
        if accepts_gzip(route.request.headers.get("Accept-Encoding", "")):
            route.set_header("Content-Encoding", "gzip")
            route.write(GZIP_HEADER)
            empty = _packed_line(empty)
        while route.request.method != "HEAD":
            try:
                await route.server.check(route)  # a password may no longer be right
                reading = self.latest
            except HTTPError:  # the client asks again, and is told why
                break
            if reading.sequence != sent:
                make, key = _columns(history, reading, since, metrics, devices, span)
                state = await reading.answer(route, partial(self._state, reading), "/api/state", line=True)
                columns = await reading.answer(route, make, key, line=True)
                route.write(state.body)
                route.write(columns.body)
                since = sent = reading.sequence
            else:
                self._news = self._news or loop.create_future()
                if (await asyncio.wait((self._news,), timeout=HEARTBEAT))[0]:
                    continue
                route.write(empty)
            client.wait(route.server.limits.write)  # unlike during other answers: it may be closed to make room
            await route.flush()
        route.finish()

    def _announce(self) -> None:
        """Wake the streams."""
        news, self._news = self._news, None
        if news is not None:
            news.set_result(None)

    def take(self, record: Record) -> None:
        """Serve this record from now on. One of the same reading changes nothing."""
        before = self._latest
        if before is not None and before.record.snapshot.time_ns == record.snapshot.time_ns:
            return
        self._sequence += 1
        if self._history is not None:
            self._history.add(self._sequence, record.snapshot, record.steps)
        self._latest = LatestReading(self._sequence, record, time.monotonic())
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the server has ended
                self._loop.call_soon_threadsafe(self._announce)

    @property
    def latest(self) -> LatestReading:
        """The latest reading.

        Raises:
            HTTPError: There is none that is recent.
        """
        latest = self._latest
        if latest is None or not is_recent(latest.record, latest.taken, self._max_age):
            raise HTTPError(503, "there is no recent reading" if latest else "nothing was read yet")
        return latest

    def _state(self, reading: LatestReading) -> dict[str, Any]:
        return {
            **state_document(self._view(reading), reading.sequence, commands=self._commands),
            "kept_seconds": self._kept,
            "training": {} if self._history is None else self._history.training,
            "training_metrics": {name: {"label": row.label, "unit": row.unit} for name, row in TRAINING_VALUES.items()},
        }

    def _view(self, reading: LatestReading) -> NodeView:
        """Return the node at the latest reading, on the thread for answers."""
        if reading.view is None:
            record, before = reading.record, self._before
            if before is not None and record.snapshot.time_ns - before.time_ns > 1e9 * max(RECENT_VIEW, 3 * self._interval):
                before = None
            listing = self._processes.listing(record.snapshot) if self._page else None
            reading.view = self._before = node_view(record, processes=listing, interval=self._interval, before=before)
        return reading.view


ColumnsQuery = tuple[int, frozenset[str], frozenset[str], float | None, float | None, float | None]


def _columns_query(route: Route) -> ColumnsQuery:
    """Return which columns a request asks for: since which reading, metrics, devices, span, begin and end.

    Raises:
        HTTPError: What is asked for is no number, or no metric.
    """
    told = route.get_query_argument("since", "0")
    if not (told.isascii() and told.isdigit() and len(told) <= LONGEST_NUMBER):
        raise HTTPError(400, "since must be the sequence of an answer of before, a whole number; leave it out for everything")
    asked = route.get_query_argument("metrics", ",".join(FOLLOWED)).split(",")
    known = (*DRAWN, *HOST_LINES, *TRAINING_VALUES)
    if unknown := [name for name in asked if name and name not in known]:
        raise HTTPError(400, f"there is no metric {clipped(unknown[0], 50)!r}: there are {', '.join(known)}")
    devices = frozenset(filter(None, route.get_query_argument("devices", "").split(",")))
    span, begin, end = (_seconds(route, name) for name in ("span", "from", "to"))
    return int(told), frozenset(asked), devices, span, begin, end


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
    """Return how columns are made that end with a reading, and the same key for all clients that are given the same."""
    if begin is not None or end is not None or not 0 <= reading.sequence - since <= RECENT:
        since = 0
    if span is not None and not since:
        begin = reading.record.snapshot.time_ns / 1e9 - span
    key = since, metrics, devices, begin, end
    return partial(history.columns, *key, until=reading.sequence), key


def _packed_line(line: bytes) -> bytes:
    """Compress a line of a stream without reference to the lines before it, so that all clients are sent the same bytes."""
    compressor = zlib.compressobj(COMPRESSION, wbits=-zlib.MAX_WBITS)
    return compressor.compress(line) + compressor.flush(zlib.Z_FULL_FLUSH)


def _seconds(route: Route, name: str) -> float | None:
    """Return the seconds that a request names.

    Raises:
        HTTPError: They are no number.
    """
    told = route.get_query_argument(name, "")
    if not told:
        return None
    if not SECONDS.fullmatch(told):
        raise HTTPError(400, f"{name} must be a number of seconds, such as 300")
    return float(told)


# The columns of graphs


class PageHistory:
    """The last readings of the devices and the host, as rows of doubles; columns are made when they are asked for.

    The last ``READINGS`` are kept one by one. Of a longer time there is the least and the greatest value of each stretch: a day takes
    twice the memory of an hour. Readings are added on one thread, and read on another one.

    Args:
        interval: Seconds between two readings.
        kept: Seconds that are kept.
    """

    def __init__(self, interval: float, kept: float = KEPT) -> None:
        self.interval = interval
        self._kept = kept
        self._lock = Lock()
        self._rows = Ring(min(READINGS, max(RECENT, round(kept / interval))))
        self._width = kept / (READINGS / 2) if kept > READINGS * interval else 0.0
        """Seconds of a stretch; 0 while all readings are kept one by one."""
        self._older = Ring(READINGS)
        self._stretch: list[Row] = []
        self._recent: deque[tuple[int, Row]] = deque(maxlen=RECENT + 1)
        self._steps = TrainingSeries()
        self._logged: dict[str, dict[str, tuple[float, float]]] = {}
        """By program and name: the value logged last, and until when it holds."""
        self.training: dict[str, dict[str, Any]] = {}
        """By the key of its columns, each program that logged while the history was kept: its name, and the names of its values."""

    def add(self, sequence: int, snapshot: Snapshot, steps: Sequence[Step] = ()) -> None:
        """Remember a reading under its number, which rises, with the values that programs logged last."""
        shown = snapshot.header

        def lay_out() -> tuple[Header, list[int], list[tuple[Callable[[Sequence[float]], float], list[int]]]]:
            """Find the column of each device and metric: the first of the metric's keys that the device gives; and those of the host."""
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

        drawn, chosen, of_host = shown.kept("columns of graphs", lay_out)
        numbers = snapshot.numbers
        values = array("d", [numbers[place] for place in chosen])
        values.extend(made([numbers[place] for place in places]) for made, places in of_host)
        seconds = snapshot.time_ns / 1e9
        logged = self._log(seconds, steps)
        if wider := drawn.with_keys(tuple(logged)) if logged else None:
            drawn = wider
            values.extend(logged.values())
        with self._lock:
            if self._recent and seconds <= self._recent[-1][1].time:  # the clock was set back: what follows has an axis of its own
                self._rows.clear()
                self._older.clear()
                self._stretch.clear()
                self._recent.clear()
            row = self._rows.append(drawn, values, seconds, snapshot.time_ns, (), joined=True, tick=True)
            self._recent.append((sequence, row))
            if self._width:
                self._thin_out(row)

    def _log(self, seconds: float, steps: Sequence[Step]) -> dict[str, float]:
        """Return by column the values that programs logged last: each for some steps, nan after that."""
        for program, _, found in self._steps.add(steps):
            held = max(LEAST_HOLD, HELD * self.interval, HOLDS * (found.get("step_seconds") or 0.0))
            values = self._logged.pop(program, {})
            values |= {name: (math.nan if value is None else value, seconds + held) for name, value in found.items()}
            self._logged[program] = values  # the one that logged last is the last
            key = f"{TRAINING}{program}"
            self.training = {**self.training, key: {"name": program or "this program", "metrics": [*values]}}
        for program, values in list(self._logged.items()):
            last = max(until for _, until in values.values())
            if last < seconds - self._kept or len(self._logged) > MOST_PROGRAMS:
                del self._logged[program]
                self.training = {key: told for key, told in self.training.items() if key != f"{TRAINING}{program}"}
        return {
            f"{TRAINING}{program} {name}": value if seconds <= until else math.nan
            for program, values in self._logged.items()
            if any(seconds <= until for _, until in values.values())
            for name, (value, until) in values.items()
        }

    def _thin_out(self, row: Row) -> None:
        """Collect the readings of a stretch; when it is over, keep their least and their greatest values."""
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
        """Return the columns of all that is kept, and the seconds between two of its times at most."""
        columns = History(self._rows).to_dict(wanted)
        first = columns["time"][0] if columns["time"] else None
        older = History(self._older).to_dict(wanted)
        cut = sum(1 for at in older["time"] if at is not None and first is not None and at < first)
        if not cut:
            return columns, self.interval
        size = len(columns["time"])
        names = older | columns
        whole = {name: older.get(name, [None] * cut)[:cut] + columns.get(name, [None] * size) for name in names}
        return whole, max(self.interval, self._width)

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
        """Return what came after a reading; everything where that is not among the recent ones.

        Args:
            since: The number of that reading.
            metrics: Of these.
            devices: Of these, by key; of all, if empty.
            begin: Of everything, what is not before this, in seconds since 1970.
            end: Nor after this.
            until: No reading after the one of this number.

        Returns:
            ``sequence``: the number of the newest reading in it. ``complete``: whether this is everything. ``times``: seconds since 1970.
            ``series``: by device and metric a value for each of the times, None where there was none.
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
        # What is between the reading that the client has and the next is told too, and not that one itself.
        places = self._with_gaps(times, pace)[int(partly) :]
        if len(places) <= POINTS:
            moments = [at for at, _ in places]
            found = {name: [None if place is None else column[place] for _, place in places] for name, column in columns.items()}
        else:
            # A gap stands for two stretches at least without a reading, so that all fits.
            width = max(pace, (times[-1] - times[0]) / (POINTS // 2 - 1))
            stretches = list(_stretches(times, width))
            moments, found = [], {name: [] for name in columns}
            for at, place in self._with_gaps([begin for begin, _, _ in stretches], width):
                moments += [at] if place is None else [at, at + width / 2]
                for name, column in columns.items():
                    found[name] += [None] if place is None else _extremes(column[stretches[place][1] : stretches[place][2]])
        series: dict[str, dict[str, Column]] = {}
        for name, column in found.items():
            device, _, metric = name.rpartition(" ")
            write = _significant if metric in TRAINING_VALUES else _rounded
            series.setdefault(device, {})[metric] = [None if value is None else write(value) for value in column]
        return {
            "sequence": recent[-1][0] if recent else 0,
            "complete": not partly,
            "times": [round(at, 3) for at in moments],
            "series": series,
        }

    def _with_gaps(self, times: Sequence[float], width: float) -> list[tuple[float, int | None]]:
        """Return moments with the places of their values; None where nothing was read for so long that a line would be a lie."""
        found: list[tuple[float, int | None]] = [(times[0], 0)] if times else []
        for place, (before, at) in enumerate(pairwise(times), 1):
            if at - before > HELD * width:
                found.append((before + width, None))
            found.append((at, place))
        return found


def _rounded(value: float) -> float:
    return round(value, DIGITS)


def _significant(value: float) -> float:
    """Round to so many digits as are seen in a graph, however small the value is: learning rates are."""
    return float(f"{value:.6g}")


def _stretches(times: Sequence[float], width: float) -> Iterator[tuple[float, int, int]]:
    """Yield stretches of equal time that have readings: when each begins, and from where to where its readings stand."""
    first = 0
    for number, same in groupby(int(at // width) for at in times):
        last = first + sum(1 for _ in same)
        yield number * width, first, last
        first = last


def _extremes(values: Sequence[float | None]) -> tuple[float | None, float | None]:
    """Return the least and the greatest value, the earlier one first."""
    known = [value for value in values if value is not None]
    if not known:
        return None, None
    low, high = min(known), max(known)
    return (low, high) if values.index(low) <= values.index(high) else (high, low)


# What the page shows


def state_document(view: NodeView, sequence: int, *, commands: bool = False) -> dict[str, Any]:
    """Return what the page shows of a node at one moment in new plain containers, ready for ``json``.

    Args:
        view: The node.
        sequence: The number of the reading.
        commands: Whether the command lines of processes are told.
    """
    summary = view.summary
    used = {key for row in view.processes for key in row.uses}
    keys = [device.key for device in view.devices if device.key in used]
    keys += sorted(used.difference(keys))
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
        "host": dict(view.host),
    }


def _device(device: DeviceView, places: Mapping[Finding, int]) -> dict[str, Any]:
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
    """Return a process on one device; the system's part is the same on each."""
    use = row.uses[key]
    told = {
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
    return {**told, "command": row.command} if commands else told


def plain_page(view: NodeView) -> str:
    """Write a node as a document of HTML, for browsers that run no scripts; every text of it is escaped."""
    findings = [f"{one.severity}: {one.key}: {one.message}. {one.advice}" for one in view.findings]
    devices = [_device_cells(device) for device in view.devices]
    silent = []
    for one in view.silent:
        status = one.status.replace("_", " ")
        silent.append([one.name, f"{one.mark} {status}", *["-"] * 5, f"{one.detail}. {one.advice}"])
    processes = []
    for row in view.processes:
        used = "- not told" if row.memory_bytes is None else memory(row.memory_bytes)
        processes.append((str(row.pid), ", ".join(row.devices), row.user or "-", row.program or "-", used, row.holder or "-"))
    sources = []
    for source in view.sources:
        # A device that does not answer has a row, which says why.
        shown = [one for one in source.detail.split("; ") if not any(one.startswith(f"{device.key}: ") for device in view.devices)]
        sources.append((source.name, source.status, "; ".join(shown)))
    columns = ("Device", "State", "Util", "Memory", "Power", "Temp.", "Clock", "Note")
    tables = [
        _table("Devices", columns, [*devices, *silent]),
        _table("Processes", ("PID", "Devices", "User", "Program", "Memory", "Job or pod"), processes),
        _table("Sources", ("Source", "Status", "What it says"), sources),
    ]
    return PLAIN_PAGE.format(
        reload=RELOAD,
        hostname=escape(view.hostname),
        time=escape(rfc3339(view.time_ns)),
        findings="".join(f"<li>{escape(one)}</li>" for one in findings or ["nothing is wrong that a rule judges"]),
        tables="\n".join(tables),
    )


def _table(caption: str, headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f'<th scope="col">{escape(heading)}</th>' for heading in headings)
    lines = []
    for first, *rest in rows:
        cells = "".join(f"<td>{escape(cell)}</td>" for cell in rest)
        lines.append(f'<tr><th scope="row">{escape(first)}</th>{cells}</tr>\n')
    return f"<table>\n<caption>{escape(caption)}</caption>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{''.join(lines)}</tbody>\n</table>"


def _device_cells(device: DeviceView) -> list[str]:
    """Return the row of a device. Its note leaves out the messages of its findings, which are listed above, and the word of its state."""
    values = device.values
    told = [device.word, *(finding.message for finding in device.findings)]

    def said(name: str, write: Callable[[float], str]) -> str:
        if name in values:
            return write(values[name])
        if device.silent is not None:
            return "-"
        return f"- {device.missing[name].word}" if name in device.missing else "- n/a"

    return [
        f"{device.label} {device.name}",
        f"{device.mark} {device.word}",
        said("utilization", percent),
        said("memory_percent", percent),
        said("power_watts", lambda value: watts(value, values.get("power_limit_watts"))),
        said("temperature_celsius", celsius),
        said("sm_clock_mhz", lambda value: f"{fixed(value)} MHz"),
        ", ".join((*(note for note in device.notes if not any(note in words for words in told)), *device.holders)),
    ]


# The files of the page: those of this package and no other, each a route of its own, held in memory


def page_files() -> Mapping[str, bytes]:
    """Read the files of the page, by name."""
    views = files("accelmetrics.views")
    return {
        file.name: file.read_bytes()
        for folder in (views / "page" / "static", views / "assets")
        for file in folder.iterdir()
        if file.is_file() and file.name[file.name.rfind(".") :] in CONTENT_TYPES
    }


def file_routes() -> Iterator[tuple[str, type[Route], dict[str, Any]]]:
    """Yield what answers with the page, at ``/``, and with its files, below ``/static/``."""
    for name, body in page_files().items():
        path = "/" if name == INDEX else re.escape(f"/static/{name}")
        yield path, Route, {"compute": _answering(name, body), "linked": True}


def _answering(name: str, body: bytes) -> Callable[[HTTPServerRequest], HttpAnswer]:
    """Return what answers with one file. Clients keep it and ask whether it has changed: another release may be served here tomorrow."""
    content_type = CONTENT_TYPES[name[name.rfind(".") :]]
    headers = {"Cache-Control": "no-cache", "Etag": f'"{hashlib.sha256(body).hexdigest()[:16]}"', "Vary": "Accept-Encoding"}
    plain = HttpAnswer(body, content_type, headers)
    packed = HttpAnswer(gzip.compress(body, mtime=0), content_type, {**headers, "Content-Encoding": "gzip"})
    return lambda request: packed if accepts_gzip(request.headers.get("Accept-Encoding", "")) else plain
