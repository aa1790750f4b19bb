"""Readings of other machines: from one ``accelmetrics serve`` (``watch --url``), or from many or a Prometheus (``--fleet``)."""

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
"""Seconds to wait for a machine's answer."""
LARGEST_ANSWER = 4 * 1024 * 1024
MOST_AT_ONCE = 64
NOT_MODIFIED = 304
SHORTEST = 1.0
"""Minimum seconds between two polls of a fleet. Nodes take readings this often."""


Access = tuple[Mapping[str, str], ssl.SSLContext | None]
"""Request headers, with credentials, and the TLS context with trusted authorities; None for the system's authorities."""


def access_of(options: Namespace, password: str = "") -> Access:
    """Return the headers and the TLS context, reading the files that the options name.

    Args:
        options: The command's options.
        password: ``name:password`` from the address. A token in the options replaces it.

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
        raise InvalidOptionError(f"cannot read --fleet-token-file or --fleet-ca: {error}") from error


@dataclass(frozen=True)
class NodeState(Generic[T]):
    """The last known state of a machine.

    Attributes:
        node: The machine.
        content: Its last answer; None before the first one.
        taken: Time at which this answer first arrived, on the monotonic clock.
        failure: The reason why it does not answer now; empty if it does.
        since: Time at which it stopped answering, in seconds since 1970.
        tag: The ``Etag`` of the last answer.
    """

    node: Node
    content: T | None = None
    taken: float = 0.0
    failure: str = ""
    since: float = 0.0
    tag: str = ""


class NodePolls(Generic[T]):
    """Poller of several machines at the same time, on its own thread. A machine that hangs does not delay the others.

    Args:
        nodes: Returns the machines. It is called before each poll and must be fast.
        access: Request headers and TLS context.
        path: The path to request.
        interval: Seconds between two polls.
        read: Parses an answer. An error that it raises becomes the failure of this machine only.
        patience: Seconds to wait for an answer.
        largest: Maximum size of an answer in bytes.

    Attributes:
        states: The last known state of each machine, by name. Each poll makes a new mapping.
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
        """Stop polling and cancel requests in progress."""
        with suppress(RuntimeError):  # the loop has ended
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
                    # A machine that does not answer in time must not delay the next poll of the others.
                    for one in asked:
                        one.cancel()
            self.states = {state.node.target: self._answered(state, one) for state, one in zip(states, asked, strict=True)}
            await asyncio.sleep(due - self._loop.time())

    async def _ask(self, client: SimpleAsyncHTTPClient, known: NodeState[T]) -> NodeState[T]:
        """Request a machine's state. If its answer has not changed, return the known state.

        Raises:
            HTTPClientError: The machine answers with an error.
        """
        request = HTTPRequest(
            known.node.address(self._path),
            headers={**self._headers, **({"If-None-Match": known.tag} if known.tag else {})},
            connect_timeout=self._patience,
            request_timeout=self._patience,
            follow_redirects=False,  # credentials are sent only to the machine that the user named
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
            return self._failed(known, f"unexpected answer: {read.failure.detail}")
        return NodeState(known.node, read.value, time.monotonic(), tag=answer.headers.get("Etag", ""))

    def _answered(self, known: NodeState[T], asked: asyncio.Task[NodeState[T]]) -> NodeState[T]:
        """Return the state after a request. Any error becomes the failure of this machine only."""
        if not asked.done() or asked.cancelled():
            return self._failed(known, f"no answer within {self._patience:g} s")
        error = asked.exception()
        if error is None:
            return asked.result()
        if not isinstance(error, HTTPClientError):
            return self._failed(known, f"{type(error).__name__}: {error}")
        failure = str(error)
        if error.response is not None and error.response.headers.get("Content-Type", "").startswith(("text/plain", "application/json")):
            # accelmetrics serve and Prometheus give the reason here.
            failure = ": ".join(filter(None, (failure, words(error.response.body.decode("utf-8", "replace")))))
        if error.code == 404:
            path = self._path.partition("?")[0]
            failure += f"; {path} needs {'Prometheus' if path.startswith('/api/v1/') else 'accelmetrics serve of this release'}"
        return self._failed(known, failure)

    def _failed(self, known: NodeState[T], failure: str) -> NodeState[T]:
        since = known.since if known.failure else time.time()  # repeated failures keep the time of the first one
        return replace(known, failure=words(printable(without_passwords(failure))), since=since)


class RemoteSource(WatchSource):
    """Readings of another machine.

    Args:
        node: The machine.
        access: Request headers and TLS context.
        interval: Seconds between two polls.
        levels: Levels above which values are warnings.
    """

    def __init__(self, node: Node, access: Access, interval: float, levels: WarningLevels) -> None:
        super().__init__(levels, interval)
        self._node = node
        self._polls = NodePolls(lambda: [node], access, RECORD, interval, lambda text: parse_record(text.encode()))
        self._state: NodeState[Record] = NodeState(node)
        self._due = 0.0

    @property
    def label(self) -> str:
        """The machine's name and port."""
        return self._node.target

    @property
    def notice(self) -> str:
        """The reason why the machine does not answer; empty if it does."""
        if not self._state.failure:
            return ""
        since = time.strftime("%H:%M:%S", time.localtime(self._state.since))
        return f"no answer since {since}: {self._state.failure}"

    def look(self) -> bool:
        """Take a new record, or mark the last one as old. Return whether the view or the reason for its absence has changed."""
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
        """Stop polling."""
        self._polls.close()


def remote_source(options: Namespace, levels: WarningLevels) -> RemoteSource:
    """Return the source for the machine of ``--url``.

    Raises:
        UsageError: The text is no address.
        InvalidOptionError: A file cannot be read.
    """
    try:
        url = options.url if "://" in options.url else parse_hosts(options.url)[0].url
    except (IndexError, InvalidOptionError):
        url = options.url
    node, password = parse_address(url, "--url", "accelmetrics serve, such as http://node-1:22235")
    return RemoteSource(node, access_of(options, password), options.interval, levels)


def parse_address(url: str, flag: str, wanted: str) -> tuple[Node, str]:
    """Return the machine and the ``name:password`` of an address like ``https://name:password@node/path``.

    Args:
        url: The address.
        flag: The flag with the address, for the error message.
        wanted: The kind of service at the address, for the error message.

    Raises:
        UsageError: The text is no address.
    """
    try:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or (parts.port or 1) < 1 or parts.query or parts.fragment:
            raise ValueError
    except ValueError:
        raise UsageError(f"{flag} {without_passwords(url)!r} is not an address of {wanted}") from None
    path = parts.path.rstrip("/").removesuffix(METRICS) + METRICS
    node = Node(parts.netloc.rpartition("@")[2], {"__metrics_path__": path}, parts.scheme)
    return node, f"{unquote(parts.username)}:{unquote(parts.password or '')}" if parts.username else ""


# Fleets


class FleetSource:
    """States of a fleet's nodes, from a Prometheus or from the nodes in a file of hosts. A changed file is read again.

    Args:
        options: The command's options.

    Attributes:
        answers: The state of each node.
        opens: Whether a node can be opened. This needs a file of hosts, with which each node is polled itself.

    Raises:
        UsageError: ``--fleet`` is neither an address nor a file.
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
        """Take new answers. Return whether there are any. A node that does not answer now loses its last values."""
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
        """Return the source for one node; None if it is no longer in the file."""
        node = next((node for node in self._nodes() if node.target == name), None)
        return None if node is None else RemoteSource(node, access_of(self._options), self._options.interval, levels)

    def close(self) -> None:
        """Stop polling."""
        self._polls.close()


# Nodes in a Prometheus, read by one query for series of ``accelmetrics serve``, of our recording rules and of our alerts

PROMETHEUS_INTERVAL = 5.0
"""Minimum seconds between two queries. A Prometheus usually scrapes every 15 s."""
PROMETHEUS_PATIENCE = 10.0
LARGEST_PROMETHEUS_ANSWER = 64 * 1024 * 1024
"""Maximum size of an answer in bytes. An answer for 4096 nodes with 8 devices each is about 30 MiB."""
NODES, POWER, LIMIT, BUSY = (
    "instance:accel_devices_expected:max1d",
    "instance:accel_power_watts:sum",
    "instance:accel_power_limit_watts:sum",
    "accelerator:accel_utilization:ratio",
)
"""Series of deploy/prometheus/recording.yml. The first one covers all nodes of the last day, also if they do not answer now."""
NODE_UP, DEVICE_UP, SOURCE_UP, ALERTS = "accelmetrics_up", "accel_up", "accelmetrics_collect_success", "ALERTS"
NAMES = "|".join((NODES, POWER, LIMIT, BUSY, NODE_UP, DEVICE_UP, SOURCE_UP, ALERTS))
QUERY = "/api/v1/query?query=" + quote(f'{{__name__=~"{NAMES}",alertstate!="pending"}}')
SEVERITIES: dict[str, State] = {"critical": "bad", "warning": "warn"}
HEAT = ("AccelHot", "AccelOverheating", "AccelNearSlowdown")
Series = tuple[Mapping[str, str], float, float]
"""Labels of a series, the time of its value in seconds since 1970, and the value."""


def read_nodes(text: str) -> list[NodeAnswer]:
    """Return the state of each node from a Prometheus' answer to :data:`QUERY`.

    If there are no nodes, the only state has a failure that names the missing series or rules.

    Raises:
        DocumentError: The text is no answer to an instant query.
    """
    nodes: dict[tuple[str, str], dict[str, list[Series]]] = {}
    try:
        for one in json.loads(text)["data"]["result"]:
            labels = one["metric"]
            node = nodes.setdefault((labels.get("job", ""), labels.get("instance", "")), {})
            node.setdefault(labels.get("__name__", ""), []).append((labels, float(one["value"][0]), float(one["value"][1])))
    except (ValueError, KeyError, TypeError, IndexError, RecursionError, AttributeError) as error:
        raise DocumentError(f"this is not an answer of Prometheus: {type(error).__name__}: {error}") from error
    found = {key: node for key, node in sorted(nodes.items()) if NODES in node}
    if not found:
        seen = {name for node in nodes.values() for name in node}
        if seen - {ALERTS} and not any(":" in name for name in seen):
            why = "Prometheus lacks the recording rules of accelmetrics: load deploy/prometheus/recording.yml under rule_files"
        else:
            why = "Prometheus has no series of accelmetrics serve: check its targets, and docs/alerts.md for the rules that it needs"
        return [NodeAnswer("", failure=why)]
    # Two jobs may scrape the same instance. Then the name includes the job.
    named = Counter(instance for _, instance in found)
    return [_answer(instance if named[instance] == 1 else f"{instance} ({job})", node) for (job, instance), node in found.items()]


def _answer(name: str, series: Mapping[str, Sequence[Series]]) -> NodeAnswer:
    """Return the state of a node.

    Args:
        name: The node's name.
        series: The node's series, by metric name.
    """
    values = {what: found[-1][2] for what, found in series.items()}
    if not values.get(NODE_UP):
        return NodeAnswer(name, failure="accelmetrics serve reads nothing" if NODE_UP in values else "no answer to Prometheus")
    busy: dict[str, list[float]] = {}  # a Trainium has a series for each core
    alerts: dict[str, dict[str, State]] = {}
    # Only whole devices count: a key of a partition, such as gpu.0.mig.1, has more dots.
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
