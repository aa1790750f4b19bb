"""Readings of other machines: of one ``accelmetrics serve`` (``watch --url``), of many, or of a Prometheus that has them (``--fleet``)."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
import threading
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Generic, TypeVar
from urllib.parse import quote, unquote, urlsplit

from tornado.httpclient import HTTPClientError, HTTPRequest
from tornado.simple_httpclient import SimpleAsyncHTTPClient

from accelmetrics.backends.guard import guarded
from accelmetrics.cli.options import UsageError
from accelmetrics.cli.watch_source import LATE, WatchSource
from accelmetrics.exporters.network import USER_AGENT
from accelmetrics.schemas.errors import WORDS, DocumentError, InvalidOptionError, Reason, without_passwords
from accelmetrics.schemas.http_client import words
from accelmetrics.schemas.permissions import warn_if_loose
from accelmetrics.schemas.record import Record
from accelmetrics.schemas.recording import parse_record
from accelmetrics.schemas.text import duration, printable
from accelmetrics.views.device_view import STATES, State, WarningLevels
from accelmetrics.views.node_view import DeviceSummary, NodeAnswer, NodeSummary
from accelmetrics.visibility.nodes import METRICS, Node, hosts_file, parse_hosts

T = TypeVar("T")

RECORD, SUMMARY = "/api/record", "/api/summary"
PATIENCE = 3.0
"""Seconds that machines have for an answer."""
LARGEST_ANSWER = 4 * 1024 * 1024
MOST_AT_ONCE = 64
NOT_MODIFIED = 304
SHORTEST = 1.0
"""Seconds between two rounds at least: that often nodes read."""


Access = tuple[Mapping[str, str], ssl.SSLContext | None]
"""How machines are asked: headers, credentials among them, and the authorities whose certificates are believed; None for the system's."""


def access_of(options: Namespace, password: str = "") -> Access:
    """Read the files that the options name.

    Args:
        options: Of the command.
        password: ``name:password`` of the address; a token comes before it.

    Raises:
        InvalidOptionError: A file cannot be read.
    """
    headers = {"User-Agent": USER_AGENT, "Accept": "application/json"}
    if password:
        headers["Authorization"] = f"Basic {base64.b64encode(password.encode()).decode()}"
    try:
        if options.fleet_token_file:
            warn_if_loose(options.fleet_token_file, "a token")
            headers["Authorization"] = f"Bearer {Path(options.fleet_token_file).read_text(encoding='utf-8').strip()}"
        return headers, ssl.create_default_context(cafile=options.fleet_ca) if options.fleet_ca else None
    except (OSError, ValueError) as error:
        raise InvalidOptionError(f"the fleet's token or authorities cannot be read: {error}") from error


@dataclass(frozen=True)
class NodeState(Generic[T]):
    """What is known of a machine.

    Attributes:
        node: The machine.
        content: Its last answer; None before the first.
        taken: When that answer came first, by the monotonic clock.
        failure: Why there is no answer now, in words; empty where there is one.
        since: Since when, in seconds since 1970.
        tag: The ``Etag`` of the last answer.
    """

    node: Node
    content: T | None = None
    taken: float = 0.0
    failure: str = ""
    since: float = 0.0
    tag: str = ""


class NodePolls(Generic[T]):
    """Machines that are asked again and again, side by side, on a thread of their own: one that hangs delays nothing else.

    Redirects are not followed: credentials go where they were told to.

    Args:
        nodes: Returns the machines; called at each round, and cheap.
        access: How they are asked.
        path: What they are asked for.
        interval: Seconds between two rounds.
        read: Makes the content of an answer; whatever it raises is the failure of that machine alone.
        patience: Seconds that a machine has for an answer.
        largest: Bytes that an answer may have.

    Attributes:
        states: By name, what is known of each machine; another object after each round.
    """

    def __init__(
        self,
        nodes: Callable[[], Sequence[Node]],
        access: Access,
        path: str,
        interval: float,
        read: Callable[[str], T],
        patience: float = PATIENCE,
        largest: int = LARGEST_ANSWER,
    ) -> None:
        self.states: Mapping[str, NodeState[T]] = {}
        self._nodes = nodes
        self._headers, self._tls = access
        self._patience, self._largest = patience, largest
        self._path = path
        self._interval = interval
        self._read = read
        self._loop = asyncio.new_event_loop()
        self._polling = self._loop.create_task(self._poll())

        def run() -> None:
            try:
                with suppress(asyncio.CancelledError):
                    self._loop.run_until_complete(self._polling)
            finally:
                self._loop.close()

        threading.Thread(target=run, name="accelmetrics-watch", daemon=True).start()

    def close(self) -> None:
        """Ask no more; what is being asked is given up."""
        with suppress(RuntimeError):  # it has ended
            self._loop.call_soon_threadsafe(self._polling.cancel)

    async def _poll(self) -> None:
        client = SimpleAsyncHTTPClient(force_instance=True, max_clients=MOST_AT_ONCE, max_body_size=self._largest)
        while True:
            due = self._loop.time() + self._interval
            known = ((node, self.states.get(node.target)) for node in self._nodes())
            states = [state if state is not None and state.node == node else NodeState[T](node) for node, state in known]
            asked = [self._loop.create_task(self._ask(client, state)) for state in states]
            if asked:
                try:
                    await asyncio.wait(asked, timeout=self._patience)
                finally:
                    for one in asked:
                        one.cancel()
            self.states = {state.node.target: self._answered(state, one) for state, one in zip(states, asked, strict=True)}
            await asyncio.sleep(due - self._loop.time())

    async def _ask(self, client: SimpleAsyncHTTPClient, known: NodeState[T]) -> NodeState[T]:
        """Ask a machine. Where nothing has changed since its last answer, what is known of it is returned as it is."""
        request = HTTPRequest(
            known.node.address(self._path),
            headers={**self._headers, **({"If-None-Match": known.tag} if known.tag else {})},
            connect_timeout=self._patience,
            request_timeout=self._patience,
            follow_redirects=False,
            decompress_response=False,
            ssl_options=self._tls,
        )
        try:
            answer = await client.fetch(request)
        except HTTPClientError as error:
            if known.tag and error.code == NOT_MODIFIED:
                return replace(known, failure="", since=0.0) if known.failure else known
            raise
        read = guarded(self._read, answer.body.decode("utf-8", "replace"))
        if read.failure is not None:
            return self._failed(known, f"it answers with something else: {read.failure.detail}")
        return NodeState(known.node, read.value, time.monotonic(), tag=answer.headers.get("Etag", ""))

    def _answered(self, known: NodeState[T], asked: asyncio.Task[NodeState[T]]) -> NodeState[T]:
        """Return what a question came to; whatever it failed of costs this machine alone."""
        if not asked.done() or asked.cancelled():
            return self._failed(known, f"no answer within {self._patience:g} s")
        error = asked.exception()
        if error is None:
            return asked.result()
        if not isinstance(error, HTTPClientError):
            return self._failed(known, f"{type(error).__name__}: {error}")
        said = ""
        if error.response is not None and error.response.headers.get("Content-Type", "").startswith(("text/plain", "application/json")):
            said = error.response.body.decode("utf-8", "replace")  # the reason, where it is one of ours or Prometheus'
        failure = f"{error}: {words(said)}" if said else str(error)
        if error.code == 404:
            path = self._path.partition("?")[0]
            failure += f"; {path} is answered by {'Prometheus' if path.startswith('/api/v1/') else 'accelmetrics serve of this release'}"
        return self._failed(known, failure)

    def _failed(self, known: NodeState[T], failure: str) -> NodeState[T]:
        since = known.since if known.failure else time.time()
        return replace(known, failure=words(printable(without_passwords(failure))), since=since)


class RemoteSource(WatchSource):
    """The readings of another machine.

    Args:
        node: The machine.
        access: How it is asked.
        interval: Seconds between two questions.
        levels: From where on values are warnings.
    """

    def __init__(self, node: Node, access: Access, interval: float, levels: WarningLevels) -> None:
        super().__init__(levels, interval)
        self._node = node
        self._polls = NodePolls(lambda: [node], access, RECORD, interval, lambda text: parse_record(text.encode()))
        self._state: NodeState[Record] = NodeState(node)
        self._due = 0.0

    @property
    def label(self) -> str:
        """Where the readings come from."""
        return self._node.target

    @property
    def notice(self) -> str:
        """Why nothing new comes."""
        if not self._state.failure:
            return ""
        since = time.strftime("%H:%M:%S", time.localtime(self._state.since))
        return f"no answer since {since}: {self._state.failure}"

    def look(self) -> bool:
        """Take what is new; return whether there is another view, or another reason for none."""
        state, before = self._polls.states.get(self._node.target, self._state), self._state
        now = time.monotonic()
        self._state = state
        if state.content is not None and state.content is not self.record:
            self.record = state.content
            if self.record.monitor is not None:
                self.trails.interval = self.record.monitor.interval
            self._show(0.0)
            if self.view is not None:
                self.trails.add(self.view)
            self.trails.add_steps(self.record.steps)
            self._window.add(self.record.snapshot, self.trails.interval)
        elif self.record is not None and now >= self._due:
            self._show(now - state.taken)
        else:
            return state.failure != before.failure
        self._due = now + LATE * self.trails.interval
        return True

    def close(self) -> None:
        """Ask no more."""
        self._polls.close()


def remote_source(options: Namespace, levels: WarningLevels) -> RemoteSource:
    """Return the source of the machine of ``--url``.

    Raises:
        UsageError: It is no address.
        InvalidOptionError: A file cannot be read.
    """
    try:
        url = options.url if "://" in options.url else parse_hosts(options.url)[0].url
    except (IndexError, InvalidOptionError):
        url = options.url
    node, password = parse_address(url, "--url", "accelmetrics serve, such as http://node-1:22235")
    return RemoteSource(node, access_of(options, password), options.interval, levels)


def parse_address(url: str, flag: str, wanted: str) -> tuple[Node, str]:
    """Return the machine of an address, such as ``https://user:password@node/below``, and the name and password in it.

    Args:
        url: The address.
        flag: The flag that gave it, for the message.
        wanted: What the address should be of.

    Raises:
        UsageError: It is no address.
    """
    try:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or (parts.port or 1) < 1 or parts.query or parts.fragment:
            raise ValueError
    except ValueError:
        raise UsageError(f"{flag} {without_passwords(url)!r} is no address of {wanted}") from None
    path = parts.path.rstrip("/").removesuffix(METRICS) + METRICS
    node = Node(parts.netloc.rpartition("@")[2], {"__metrics_path__": path}, parts.scheme)
    return node, f"{unquote(parts.username)}:{unquote(parts.password or '')}" if parts.username else ""


# Fleets


class FleetSource:
    """The nodes of a Prometheus, or of a file of hosts that is read again when it has changed, and how each stands.

    Args:
        options: Of the command.

    Attributes:
        answers: How the nodes stand.
        opens: Whether a node can be opened: those of a file are asked themselves.

    Raises:
        UsageError: It is neither an address nor a file.
        InvalidOptionError: A file cannot be read.
    """

    def __init__(self, options: Namespace) -> None:
        self._options = options
        self._states: Mapping[str, NodeState[Sequence[NodeAnswer]]] = {}
        self._polls: NodePolls[Sequence[NodeAnswer]]
        self.opens = "://" not in options.fleet
        if self.opens:
            self._nodes = hosts_file(options.fleet)
            self.answers = [NodeAnswer(node.target) for node in self._nodes()]
            interval = max(SHORTEST, options.interval)
            self._polls = NodePolls(
                self._nodes, access_of(options), SUMMARY, interval, lambda text: [NodeAnswer("", NodeSummary.from_json(text))]
            )
        else:
            prometheus, password = parse_address(options.fleet, "--fleet", "a Prometheus, such as http://prometheus:9090")
            self.answers = [NodeAnswer(prometheus.target)]
            interval, limits = max(PROMETHEUS_INTERVAL, options.interval), (PROMETHEUS_PATIENCE, LARGEST_PROMETHEUS_ANSWER)
            self._polls = NodePolls(lambda: [prometheus], access_of(options, password), QUERY, interval, read_nodes, *limits)

    def look(self) -> bool:
        """Take what is new; return whether there is something. Of a node that gives no answer now, nothing of the last one is shown."""
        states, before = self._polls.states, self._states
        if states is before:
            return False
        self._states, self.answers = states, []
        for name, state in states.items():
            age = time.monotonic() - state.taken
            if state.failure:
                since = duration(max(0.0, time.time() - state.since))
                self.answers.append(NodeAnswer(name, failure=f"no answer: for {since}: {state.failure}"))
            else:
                self.answers += [answer._replace(name=answer.name or name, age_seconds=age) for answer in state.content or ()]
        return True

    def opened(self, name: str, levels: WarningLevels) -> RemoteSource | None:
        """Return the source of one node; None where it is in the file no more."""
        node = next((node for node in self._nodes() if node.target == name), None)
        return None if node is None else RemoteSource(node, access_of(self._options), self._options.interval, levels)

    def close(self) -> None:
        """Ask no more."""
        self._polls.close()


# What a Prometheus has of nodes, in one query: series of ``accelmetrics serve``, our recording rules and our alerts

PROMETHEUS_INTERVAL = 5.0
"""Seconds between two queries at least: a Prometheus scrapes every 15 s or so."""
PROMETHEUS_PATIENCE = 10.0
LARGEST_PROMETHEUS_ANSWER = 64 * 1024 * 1024
"""Bytes: 8 devices of each of 4096 nodes are about 30 MiB."""
NODES, POWER, LIMIT, BUSY = (
    "instance:accel_devices_expected:max1d",
    "instance:accel_power_watts:sum",
    "instance:accel_power_limit_watts:sum",
    "accelerator:accel_utilization:ratio",
)
"""Series of deploy/prometheus/recording.yml. The first is of all nodes of the last day, those that are away too."""
NODE_UP, DEVICE_UP, SOURCE_UP, ALERTS = "accelmetrics_up", "accel_up", "accelmetrics_collect_success", "ALERTS"
NAMES = "|".join((NODES, POWER, LIMIT, BUSY, NODE_UP, DEVICE_UP, SOURCE_UP, ALERTS))
QUERY = "/api/v1/query?query=" + quote(f'{{__name__=~"{NAMES}",alertstate!="pending"}}')
SEVERITIES: dict[str, State] = {"critical": "bad", "warning": "warn"}
HEAT = ("AccelHot", "AccelOverheating", "AccelNearSlowdown")
Series = tuple[Mapping[str, str], float, float]
"""Of a series: its labels, the time of its value in seconds since 1970, and the value."""


def read_nodes(text: str) -> list[NodeAnswer]:
    """Return how each node stands, by the answer to :data:`QUERY`; one that says what is missing where there are no nodes.

    Raises:
        DocumentError: It is no answer to an instant query.
    """
    nodes: dict[tuple[str, str], dict[str, list[Series]]] = {}
    try:
        for one in json.loads(text)["data"]["result"]:
            labels = one["metric"]
            node = nodes.setdefault((labels.get("job", ""), labels.get("instance", "")), {})
            node.setdefault(labels.get("__name__", ""), []).append((labels, float(one["value"][0]), float(one["value"][1])))
    except (ValueError, KeyError, TypeError, IndexError, RecursionError, AttributeError) as error:
        raise DocumentError(f"this is no answer of a Prometheus: {type(error).__name__}: {error}") from error
    found = {key: node for key, node in sorted(nodes.items()) if NODES in node}
    if not found:
        seen = {name for node in nodes.values() for name in node}
        if seen - {ALERTS} and not any(":" in name for name in seen):
            why = "it has series of accelmetrics and none of its recording rules: load deploy/prometheus/recording.yml under rule_files"
        else:
            why = "it has no series of accelmetrics serve: see its targets, and docs/alerts.md for the rules that it needs"
        return [NodeAnswer("", failure=why)]
    named = Counter(instance for _, instance in found)
    return [_answer(instance if named[instance] == 1 else f"{instance} ({job})", node) for (job, instance), node in found.items()]


def _answer(name: str, series: Mapping[str, Sequence[Series]]) -> NodeAnswer:
    """Return how a node stands by its series, which are given by their names."""
    values = {what: found[-1][2] for what, found in series.items()}
    if not values.get(NODE_UP):
        away = "accelmetrics serve reads nothing there" if NODE_UP in values else "no answer: Prometheus gets nothing from it"
        return NodeAnswer(name, failure=away)
    busy: dict[str, list[float]] = {}  # a Trainium has a series for each core
    alerts: dict[str, dict[str, State]] = {}
    # Partitions, such as gpu.0.mig.1, stand below their devices.
    on_devices = {what: [one for one in found if one[0].get("accelerator", "").count(".") == 1] for what, found in series.items()}
    lost = {labels["accelerator"]: not value for labels, _, value in on_devices.get(DEVICE_UP, ())}
    for labels, _, value in on_devices.get(BUSY, ()):
        busy.setdefault(labels["accelerator"], []).append(100.0 * value)
    for labels, _, _ in on_devices.get(ALERTS, ()):
        state = SEVERITIES.get(labels.get("severity", ""), "ok")
        alerts.setdefault(labels["accelerator"], {})[labels.get("alertname", "")] = state
    devices = []
    for key in sorted({*lost, *busy, *alerts}, key=_order):
        if lost.get(key):
            devices.append(DeviceSummary(key, "bad", note=WORDS[Reason.DEVICE_LOST]))
            continue
        states, shares = alerts.get(key, {}), busy.get(key, [])
        worst = min(states, key=lambda alert: STATES.index(states[alert]), default="")
        devices.append(DeviceSummary(key, states.get(worst, "ok"), sum(shares) / len(shares) if shares else None, worst))
    shares = [device.utilization for device in devices if device.utilization is not None]
    silent = [f"{labels.get('source', '')} cannot be read" for labels, _, value in series.get(SOURCE_UP, ()) if not value]
    summary = NodeSummary(
        hostname=name,
        time_ns=int(series[NODES][0][1] * 1e9),
        interval=PROMETHEUS_INTERVAL,
        version="",
        devices=tuple(devices),
        kinds=dict(Counter(device.key.partition(".")[0] for device in devices)),
        power_watts=values.get(POWER),
        power_limit_watts=values.get(LIMIT) if POWER in values else None,
        utilization=sum(shares) / len(shares) if shares else None,
        lost=sum(lost.values()),
        hot=sum(any(alert in HEAT for alert in states) for states in alerts.values()),
        failed=len(silent),
        findings=dict(Counter(labels.get("severity", "") for labels, _, _ in series.get(ALERTS, ()))),
        silent=tuple(silent),
    )
    return NodeAnswer(name, summary)


def _order(key: str) -> tuple[str, int]:
    kind, _, number = key.partition(".")
    return kind, int(number) if number.isascii() and number.isdigit() else 0
